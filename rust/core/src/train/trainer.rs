//! Data-parallel training by stochastic gradient descent.
//!
//! A step cuts its batch into a fixed number of shards, whatever the threads. Each shard runs forward and back by
//! itself, seeded with its mass, so that its gradient is a sum over its samples; the sums are added in the fixed tree
//! and divided once by the total mass. Parameters change only when the whole step is done.

use super::data::Samples;
use super::tree;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::engine::entry::{Entry, Packed, Workspace};
use crate::engine::kernels::elementwise::update;

/// Multiply-adds of a step above which shards go to several threads; below, one thread is faster than two.
const PARALLEL_ABOVE: usize = 4_000_000;

/// How a trainer goes through its samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples a step.
    pub batch_size: usize,
    /// Parts a batch is cut into.
    pub shards: usize,
    /// Share of the last step's direction that goes into the next one.
    pub momentum: f32,
}

/// One shard: which rows of the batch it holds, and its buffers.
#[derive(Debug)]
struct Shard {
    start: usize,
    rows: usize,
    workspace: Workspace,
    loss: f64,
}

/// A network under training.
#[derive(Debug)]
pub struct Trainer {
    entry: Entry,
    samples: Samples,
    settings: Settings,
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    shards: Vec<Shard>,
    leaves: Vec<f32>,
    packed: Packed,
    step: u64,
}

impl Trainer {
    /// A trainer of `entry`'s loss that starts from `parameters`.
    pub fn new(entry: Entry, parameters: Vec<f32>, samples: Samples, settings: Settings) -> Result<Self> {
        let Settings { batch_size, shards, momentum } = settings;
        if entry.loss().is_none() {
            return Err(Error::Tape("the entry has no loss to train".into()));
        }
        let elements = entry.network().layout().elements();
        if parameters.len() != elements {
            return Err(Error::DimensionMismatch { expected: elements, actual: parameters.len() });
        }
        if batch_size == 0 || batch_size > samples.count() {
            let message =
                format!("got {batch_size}, wanted 1 to {} (as many as there are samples)", samples.count());
            return Err(Error::argument("batch_size", message));
        }
        if shards == 0 || shards > batch_size {
            let message = format!("got {shards}, wanted 1 to {batch_size} (the batch size)");
            return Err(Error::argument("shards", message));
        }
        if !(0.0..1.0).contains(&momentum) {
            return Err(Error::argument("momentum", format!("got {momentum}, wanted 0 <= momentum < 1")));
        }
        let (rows, longer) = (batch_size / shards, batch_size % shards);
        let mut start = 0;
        let shards = (0..shards)
            .map(|index| {
                let rows = rows + usize::from(index < longer);
                let shard = Shard { start, rows, workspace: entry.workspace(rows)?, loss: 0.0 };
                start += rows;
                Ok(shard)
            })
            .collect::<Result<Vec<_>>>()?;
        let leaves = try_vec(elements.saturating_mul(shards.len()))?;
        let velocity = try_vec(if momentum > 0.0 { elements } else { 0 })?;
        let packed = Packed::default();
        Ok(Self { entry, samples, settings, parameters, velocity, shards, leaves, packed, step: 0 })
    }

    /// The entry under training.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The parameters as the last whole step left them, flat.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// How many steps have been made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// How many samples it goes through.
    pub fn samples(&self) -> usize {
        self.samples.count()
    }

    /// How it goes through them.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Multiply-adds of a step, roughly: three products a parameter and sample.
    pub fn work_of_a_step(&self) -> usize {
        3 * self.parameters.len() * self.settings.batch_size
    }

    /// Makes `steps` steps and gives the loss of each, before its update.
    ///
    /// When it is interrupted, the parameters are those of the last whole step.
    pub fn run(&mut self, exec: &Exec<'_>, steps: usize, learning_rate: f32) -> Result<Vec<f32>> {
        if !learning_rate.is_finite() {
            return Err(Error::argument(
                "learning_rate",
                format!("got {learning_rate}, wanted a finite number"),
            ));
        }
        let mut losses = Vec::new();
        losses.try_reserve_exact(steps).map_err(|_| Error::Memory { bytes: steps.saturating_mul(4) })?;
        for _ in 0..steps {
            exec.check()?;
            losses.push(self.make_step(exec, learning_rate)?);
        }
        Ok(losses)
    }

    fn make_step(&mut self, exec: &Exec<'_>, learning_rate: f32) -> Result<f32> {
        let Self { entry, samples, settings, parameters, velocity, shards, leaves, packed, step } = self;
        let free = (samples.count() - settings.batch_size) as u64;
        // The batch goes round the samples; it never straddles their end.
        let start = if free == 0 {
            0
        } else {
            (u128::from(*step) * settings.batch_size as u128 % u128::from(free)) as usize
        };
        let elements = parameters.len();
        entry.pack(exec, parameters, packed)?;
        {
            let (entry, parameters, packed): (&Entry, &[f32], &Packed) = (entry, parameters, packed);
            let one = |exec: &Exec<'_>, shard: &mut Shard, leaf: &mut [f32]| -> Result<()> {
                let feeds = samples.feeds(start + shard.start, shard.rows);
                entry.forward(exec, &mut shard.workspace, parameters, packed, &feeds)?;
                let mass = shard.workspace.mass();
                if mass == 0.0 {
                    // Rows without weight say nothing, and their mean would be 0 / 0.
                    leaf.fill(0.0);
                    shard.loss = 0.0;
                    return Ok(());
                }
                entry.backward(exec, &mut shard.workspace, parameters, packed, &feeds, mass, leaf)?;
                let loss = entry.loss().map(|loss| entry.value(&shard.workspace, parameters, &feeds, loss));
                let loss = loss.transpose()?.map_or(f32::NAN, |value| value[0]);
                shard.loss = f64::from(loss) * f64::from(mass);
                Ok(())
            };
            let mut pairs: Vec<(&mut Shard, &mut [f32])> = if elements == 0 {
                shards.iter_mut().map(|shard| (shard, [].as_mut_slice())).collect()
            } else {
                shards.iter_mut().zip(leaves.chunks_exact_mut(elements)).collect()
            };
            if 3 * elements * settings.batch_size > PARALLEL_ABOVE && exec.threads() > 1 {
                exec.for_each_chunk_mut(&mut pairs, 1, |_, pair| {
                    pair.iter_mut().try_for_each(|(shard, leaf)| one(&exec.on_one_thread(), shard, leaf))
                })?;
            } else {
                for (shard, leaf) in pairs {
                    one(&exec.on_one_thread(), shard, leaf)?;
                }
            }
        }
        tree::add_leaves(exec, leaves, elements)?;
        let total = tree::sum(shards.iter().map(|shard| f64::from(shard.workspace.mass())).collect());
        if total == 0.0 {
            return Err(Error::argument("data", format!("the batch of step {step} has no mass")));
        }
        let loss = tree::sum(shards.iter().map(|shard| shard.loss).collect()) / total;
        let (level, mass, momentum) = (exec.level(), total as f32, settings.momentum);
        let gradient = &leaves[..elements];
        if momentum > 0.0 {
            update(level, velocity, [gradient], |v, [g]| momentum * v + g / mass);
            update(level, parameters, [velocity], |p, [v]| p - learning_rate * v);
        } else {
            update(level, parameters, [gradient], |p, [g]| p - learning_rate * (g / mass));
        }
        *step += 1;
        Ok(loss as f32)
    }
}
