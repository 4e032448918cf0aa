//! Data-parallel training by stochastic gradient descent.
//!
//! A step cuts its batch into a fixed number of shards, whatever the threads. Each shard runs forward and back by
//! itself, seeded with its mass, so that its gradient is a sum over its samples; the sums are sent as messages if they are
//! compressed, added in the fixed tree and divided once by the total mass. Parameters, and what is owed to the next step,
//! change only when the whole step is done.

use super::data::Samples;
use super::tree;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::engine::entry::{Entry, Packed, Workspace};
use crate::engine::kernels::elementwise::update;
use crate::exchange::local::{Compression, Worker};

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
    /// How a shard's gradient is sent; not at all if there is none.
    pub compression: Option<Compression>,
}

/// One shard: which rows of the batch it holds, and its buffers.
#[derive(Debug)]
struct Shard {
    start: usize,
    rows: usize,
    workspace: Workspace,
    worker: Option<Worker>,
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
    bytes_sent: u64,
}

impl Trainer {
    /// A trainer of `entry`'s loss that starts from `parameters`.
    pub fn new(entry: Entry, parameters: Vec<f32>, samples: Samples, settings: Settings) -> Result<Self> {
        let Settings { batch_size, shards, momentum, compression } = settings;
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
                let worker = compression.map(|compression| Worker::new(compression, index as u32, elements));
                let (workspace, worker) = (entry.workspace(rows)?, worker.transpose()?);
                let shard = Shard { start, rows, workspace, worker, loss: 0.0 };
                start += rows;
                Ok(shard)
            })
            .collect::<Result<Vec<_>>>()?;
        let leaves = try_vec(elements.saturating_mul(shards.len()))?;
        let velocity = try_vec(if momentum > 0.0 { elements } else { 0 })?;
        let packed = Packed::default();
        let (step, bytes_sent) = (0, 0);
        Ok(Self { entry, samples, settings, parameters, velocity, shards, leaves, packed, step, bytes_sent })
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

    /// Bytes of all messages that the shards sent, each counted once.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Multiply-adds of a step, roughly: three products a parameter and sample, and what sending the gradients costs.
    pub fn work_of_a_step(&self) -> usize {
        let elements = self.parameters.len();
        let sending = self.settings.compression.map_or(0, |compression| compression.work(elements));
        (3 * elements * self.settings.batch_size).saturating_add(sending.saturating_mul(self.shards.len()))
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
        let parallel = self.work_of_a_step() > PARALLEL_ABOVE && exec.threads() > 1;
        let Self { entry, samples, settings, parameters, velocity, shards, leaves, packed, step, bytes_sent } =
            self;
        let free = (samples.count() - settings.batch_size) as u64;
        // The batch goes round the samples; it never straddles their end.
        let start = if free == 0 {
            0
        } else {
            (u128::from(*step) * settings.batch_size as u128 % u128::from(free)) as usize
        };
        let (elements, number) = (parameters.len(), *step);
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
                } else {
                    entry.backward(exec, &mut shard.workspace, parameters, packed, &feeds, mass, leaf)?;
                    let loss =
                        entry.loss().map(|loss| entry.value(&shard.workspace, parameters, &feeds, loss));
                    let loss = loss.transpose()?.map_or(f32::NAN, |value| value[0]);
                    shard.loss = f64::from(loss) * f64::from(mass);
                }
                match &mut shard.worker {
                    Some(worker) => worker.exchange(exec, number, leaf),
                    None => Ok(()),
                }
            };
            let mut pairs: Vec<(&mut Shard, &mut [f32])> = if elements == 0 {
                shards.iter_mut().map(|shard| (shard, [].as_mut_slice())).collect()
            } else {
                shards.iter_mut().zip(leaves.chunks_exact_mut(elements)).collect()
            };
            if parallel {
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
        for worker in shards.iter_mut().filter_map(|shard| shard.worker.as_mut()) {
            worker.commit();
            *bytes_sent += worker.message_len() as u64;
        }
        *step += 1;
        Ok(loss as f32)
    }
}
