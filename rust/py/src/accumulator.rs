//! Gradient accumulation.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::prelude::*;
use tritter_core::numeric::accumulator as core;

use crate::arguments::{f64_argument, u64_argument, usize_argument};
use crate::arrays::{Output, read};
use crate::errors::raise;
use crate::run::{enter, lock};

const NS_PER_VALUE: f64 = 0.5;

/// The mean gradient of several backward passes, when a batch does not fit in one.
///
/// Sums and masses are kept apart and divided once, so shards may differ in size: a mean of shard means is not the mean.
///
/// Parameters
/// ----------
/// size : int
///     How many values a gradient has.
///
/// Raises
/// ------
/// ArgumentError, ArgumentTypeError
///     For what is no size.
/// AllocationError
///     For one that memory does not hold.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel.compression import GradientAccumulator
/// >>> accumulator = GradientAccumulator(2)
/// >>> accumulator.accumulate(np.array([1.0, 2.0], dtype=np.float32))
/// >>> accumulator.accumulate(np.array([3.0, 4.0], dtype=np.float32))
/// >>> accumulator.get_and_reset()
/// array([2., 3.], dtype=float32)
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct GradientAccumulator {
    size: usize,
    // Taken on the caller's thread, never on the pool's: a pool thread that waits runs other work, which could want it too.
    inner: Mutex<core::GradientAccumulator>,
}

#[pymethods]
impl GradientAccumulator {
    #[new]
    fn new(size: &Bound<'_, PyAny>) -> PyResult<Self> {
        let size = usize_argument("size", size)?;
        let inner = Mutex::new(core::GradientAccumulator::new(size).map_err(raise)?);
        Ok(Self { size, inner })
    }

    /// How many values a gradient has.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// How many gradients were added since the last reset.
    #[getter]
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(lock(py, &self.inner)?.count())
    }

    /// Whether the sum is finite: since the last reset, no NaN or infinity was added, and no addition overflowed.
    ///
    /// Each `accumulate` finds it out in the pass that adds, so asking costs nothing. Once False it stays so until
    /// `get_and_reset`: skip the step then, and tell `LossScaler.update`.
    #[getter]
    fn finite(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(lock(py, &self.inner)?.finite())
    }

    /// The mass added since the last reset.
    #[getter]
    fn mass(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(lock(py, &self.inner)?.mass())
    }

    /// Add a gradient, element by element in float32, and note in the same pass whether the sum stays `finite`.
    ///
    /// A gradient that is not finite is added all the same: the pass that finds it out has added the values before it, and
    /// an addition cannot be undone. `finite` tells. Ctrl-C takes effect after the pass, so that a gradient is never half
    /// added.
    ///
    /// Parameters
    /// ----------
    /// gradients : array of float32, `size` elements
    ///     The sum of the gradients of `mass` samples (or, with the default mass, one gradient among equals). Borrowed,
    ///     not copied.
    /// mass : float
    ///     How many samples it stands for, at least 0.
    ///
    /// Raises
    /// ------
    /// DimensionMismatchError
    ///     For another length; nothing is changed.
    /// ArrayError
    ///     For another type or layout.
    /// ArgumentError
    ///     For a mass that is negative or not finite; nothing is changed.
    #[pyo3(signature = (gradients, mass=1.0))]
    fn accumulate(
        &self,
        py: Python<'_>,
        gradients: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = mass_argument)] mass: f64,
    ) -> PyResult<()> {
        let gradients = read::<f32>("gradients", gradients)?;
        let gradients = gradients.slice();
        let mut inner = lock(py, &self.inner)?;
        let inner = &mut *inner;
        enter(py, gradients.len() as f64 * NS_PER_VALUE, |exec| inner.accumulate(exec, gradients, mass))
    }

    /// The mean, `sum * float32(1 / mass)`; then start again, with `finite` True.
    ///
    /// Parameters
    /// ----------
    /// out : array of float32, optional
    ///     Where the result goes: `size` elements.
    ///
    /// Returns
    /// -------
    /// array of float32, shape (size,)
    ///     The mean, or `out`. Zeros when nothing was added; the sum itself when all masses were 0.
    ///
    /// Raises
    /// ------
    /// ArrayError, DimensionMismatchError
    ///     For another `out`; nothing is lost.
    #[pyo3(signature = (*, out=None))]
    fn get_and_reset<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut out = Output::<f32>::new(out, self.size, &[])?;
        let mut inner = lock(py, &self.inner)?;
        let (inner, to) = (&mut *inner, out.slice_mut());
        enter(py, to.len() as f64 * NS_PER_VALUE, |exec| inner.mean_and_reset(exec, to))?;
        out.into_array(py, &[self.size])
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let inner = lock(py, &self.inner)?;
        let state = (PyArray1::from_slice(py, inner.sum()), inner.mass(), inner.count());
        Ok((py.get_type::<Self>().into_any(), (self.size,), state))
    }

    fn __setstate__(
        &self,
        py: Python<'_>,
        state: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    ) -> PyResult<()> {
        let (sum, mass, count) = state;
        let sum = read::<f32>("sum", &sum)?;
        let mass = f64_argument("mass", &mass)?;
        let count = u64_argument("count", &count)?;
        let sum = sum.slice();
        let mut inner = lock(py, &self.inner)?;
        let inner = &mut *inner;
        enter(py, sum.len() as f64 * NS_PER_VALUE, |exec| inner.restore(exec, sum, mass, count))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let inner = lock(py, &self.inner)?;
        Ok(format!(
            "GradientAccumulator(size={}, count={}, mass={:?})",
            self.size,
            inner.count(),
            inner.mass()
        ))
    }
}

type Reduced<'py> = (Bound<'py, PyAny>, (usize,), (Bound<'py, PyArray1<f32>>, f64, u64));

fn mass_argument(value: &Bound<'_, PyAny>) -> PyResult<f64> {
    f64_argument("mass", value)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GradientAccumulator>()
}
