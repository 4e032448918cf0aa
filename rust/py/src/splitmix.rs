//! The small generator, for shuffles and sampling.

use std::sync::Mutex;

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use tritter_core::base::splitmix::SplitMix64 as Core;

use crate::arguments::{u64_argument, usize_argument};
use crate::run::{enter, lock};

/// The splitmix64 stream of a seed (Steele, Lea and Flood 2014), starting at the seed itself.
///
/// Parameters
/// ----------
/// seed : int
///     0 to 2**64 - 1.
#[pyclass(frozen, module = "tritter_accel.random")]
pub struct SplitMix64 {
    core: Mutex<Core>,
}

impl SplitMix64 {
    fn state(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(lock(py, &self.core)?.state())
    }
}

#[pymethods]
impl SplitMix64 {
    #[new]
    fn new(seed: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { core: Mutex::new(Core::new(u64_argument("seed", seed)?)) })
    }

    /// The next float64 of [0, 1): the top 53 bits of a word.
    fn unit(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(lock(py, &self.core)?.unit())
    }

    /// A permutation of 0..count - 1, int64, by Fisher and Yates from the top.
    ///
    /// For i from count - 1 down to 1, position i swaps with ``floor(unit() * (i + 1))``.
    fn permutation<'py>(
        &self,
        py: Python<'py>,
        count: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let count = usize_argument("count", count)?;
        let mut core = lock(py, &self.core)?;
        let core = &mut *core;
        let order = enter(py, count as f64 * 5.0, |exec| core.permutation(exec, count))?;
        Ok(order.into_pyarray(py))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (u64,))> {
        // The state is the seed of what is left of the stream.
        Ok((slf.get_type().into_any(), (slf.get().state(py)?,)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("SplitMix64({:#x})", self.state(py)?))
    }
}
