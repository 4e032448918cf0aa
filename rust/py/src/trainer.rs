//! The trainer: many steps in one call.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use tritter_core::base::error::Error;
use tritter_core::exchange::local::Compression;
use tritter_core::train::data::Samples;
use tritter_core::train::trainer::{Settings, Trainer as Core};

use crate::arguments::{Argument, bool_argument, f32_argument, instance_argument, usize_argument};
use crate::compressor::GradientCompressor;
use crate::entry::{Entry, check_layout, columns};
use crate::errors::raise;
use crate::parameters::Parameters;
use crate::run::enter;

/// Data-parallel training of an entry's loss by stochastic gradient descent.
///
/// A step takes the next `batch_size` samples (from ``batch_size * step % (samples - batch_size)`` on), cuts them into
/// `shards` parts of as equal size as can be, runs each forward and back, adds the gradients in a pairwise tree by
/// (sum, mass) and divides once by the total mass. The parts are fixed, whatever the number of threads, and so are the
/// bits of the result.
///
/// A trainer is used by one thread at a time: while `run` is under way, another thread that asks it anything gets
/// `TapeError`.
///
/// Parameters
/// ----------
/// entry : Entry
///     With a loss that is a mean over the rows of the batch.
/// parameters : Parameters
///     Where to start.
/// data : dict of str to ndarray
///     An array for each feed, the sample axis first; copied.
/// batch_size : int
///     Samples a step, at most as many as there are.
/// shards : int, optional
///     Parts a batch is cut into, at most `batch_size`; 8, or as many as there are samples in a smaller batch.
/// momentum : float, default 0
///     ``v = momentum * v + gradient`` and ``parameters -= learning_rate * v``; at least 0 and below 1.
/// compressor : GradientCompressor, optional
///     Every shard's gradient is encoded by it, with the step and the shard as ``step`` and ``slot``, and decoded from the bytes
///     before it is added to the others: what a run over a network would compute. Its config's ratio is used.
/// error_feedback : bool, default False
///     Add to each gradient what the messages before it could not say. Needs a compressor that is not unbiased.
#[pyclass(frozen, module = "tritter_accel.train")]
pub struct Trainer {
    core: Mutex<Core>,
}

impl Trainer {
    fn core(&self) -> PyResult<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Ok(core),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(raise(Error::Tape("the trainer is running in another thread".into())))
            }
        }
    }
}

#[pymethods]
impl Trainer {
    #[new]
    #[pyo3(
        signature = (
            entry, parameters, data, *, batch_size, shards=None, momentum=None, compressor=None,
            error_feedback=Argument::Default
        ),
        text_signature = "(entry, parameters, data, *, batch_size, shards=None, momentum=None, compressor=None, \
            error_feedback=False)"
    )]
    #[allow(clippy::too_many_arguments)] // what a trainer is made of
    fn new(
        py: Python<'_>,
        entry: &Bound<'_, PyAny>,
        parameters: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        batch_size: &Bound<'_, PyAny>,
        shards: Option<&Bound<'_, PyAny>>,
        momentum: Option<&Bound<'_, PyAny>>,
        compressor: Option<&Bound<'_, PyAny>>,
        error_feedback: Argument<'_>,
    ) -> PyResult<Self> {
        let entry = instance_argument::<Entry>("entry", entry)?.get().core();
        let parameters = instance_argument::<Parameters>("parameters", parameters)?.get();
        check_layout(entry.network(), parameters)?;
        let batch_size = usize_argument("batch_size", batch_size)?;
        let feedback = error_feedback.or(false, |given| bool_argument("error_feedback", given))?;
        let compression = compressor
            .map(|compressor| {
                let compressor = instance_argument::<GradientCompressor>("compressor", compressor)?.get();
                Compression::new(compressor.core(), feedback).map_err(raise)
            })
            .transpose()?;
        if feedback && compression.is_none() {
            let message = "got True without a compressor, which loses nothing; pass compressor=";
            return Err(raise(Error::argument("error_feedback", message)));
        }
        let settings = Settings {
            compression,
            batch_size,
            shards: shards.map_or(Ok(batch_size.clamp(1, 8)), |shards| usize_argument("shards", shards))?,
            momentum: momentum.map_or(Ok(0.0), |momentum| f32_argument("momentum", momentum))?,
        };
        let columns = columns("data", entry.network(), data)?;
        let samples = Samples::new(entry.network(), entry.feeds(), columns).map_err(raise)?;
        let start = parameters.with_values(py, |values| Ok(values.to_vec()))?;
        let core = Core::new(entry.clone(), start, samples, settings).map_err(raise)?;
        Ok(Self { core: Mutex::new(core) })
    }

    /// Make `steps` steps.
    ///
    /// Ctrl-C stops it after a whole step: parameters and step count are then those of that step.
    ///
    /// Parameters
    /// ----------
    /// steps : int
    /// learning_rate : float
    ///
    /// Returns
    /// -------
    /// ndarray of float32, shape (steps,)
    ///     The loss of each step, before its update.
    #[pyo3(signature = (steps, learning_rate))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        steps: &Bound<'py, PyAny>,
        learning_rate: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let steps = usize_argument("steps", steps)?;
        let learning_rate = f32_argument("learning_rate", learning_rate)?;
        let mut guard = self.core()?;
        let core = &mut *guard;
        let nanoseconds = core.work_of_a_step() as f64 * 0.1 * steps as f64 + 2_000.0;
        let losses = enter(py, nanoseconds, |exec| core.run(exec, steps, learning_rate))?;
        Ok(losses.into_pyarray(py))
    }

    /// The parameters as the last whole step left them.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> PyResult<Parameters> {
        let core = self.core()?;
        Parameters::new(py, Arc::clone(core.entry().network().layout()), core.parameters().to_vec())
    }

    /// How many steps have been made.
    #[getter]
    fn step(&self) -> PyResult<u64> {
        Ok(self.core()?.step())
    }

    /// Bytes of all messages that the shards sent, each counted once; 0 without a compressor.
    #[getter]
    fn bytes_sent(&self) -> PyResult<u64> {
        Ok(self.core()?.bytes_sent())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(raise(Error::Tape("a trainer does not pickle; pickle its parameters and start another".into())))
    }

    fn __repr__(&self) -> PyResult<String> {
        let core = self.core()?;
        let Settings { batch_size, shards, momentum, compression } = core.settings();
        let sent = match compression {
            None => "",
            Some(compression) if compression.error_feedback() => ", compressed with error feedback",
            Some(_) => ", compressed",
        };
        Ok(format!(
            "Trainer(step {}, {} samples, batch_size {batch_size}, shards {shards}, momentum {momentum}{sent})",
            core.step(),
            core.samples()
        ))
    }
}
