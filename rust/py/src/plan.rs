//! `ProjectionPlan`: compression and decompression under a matrix that is kept.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tritter_core::codec::config::{Projection, Ratio};
use tritter_core::codec::plan::ProjectionPlan as Core;

use crate::arguments::{Argument, instance_argument, u64_argument, usize_argument};
use crate::arrays::{Output, inputs, read};
use crate::compressed::CompressedGradient;
use crate::compressor::{GradientCompressor, nanoseconds};
use crate::errors::raise;
use crate::run::enter;

const MAX_BYTES: u64 = 1 << 30;
/// Time of an entry that is kept, in that of one that is made.
const KEPT: f64 = 0.1;

/// A compressor that keeps one matrix, for many gradients under it; made by :meth:`GradientCompressor.plan`.
///
/// Results have the bits of the compressor's. A call takes a tenth of its time or less, and the matrix two bits an entry
/// (rows are counted in sixteens). One matrix for ever keeps the same k-dimensional subspace for ever: plans are for many
/// vectors under one matrix (sketches, gradient attribution, workers of one step), not for successive steps.
///
/// A plan pickles as its arguments, and makes the matrix anew when it is loaded. Copies share the matrix.
///
/// Parameters
/// ----------
/// compressor : GradientCompressor
/// n : int
///     Values of the gradients.
/// ratio : float, optional
///     Above 0 and at most 1; the config's where none is given.
/// step, slot : int, default 0
///     Select the matrix, each 0 to 2**32 - 1.
/// max_bytes : int, default 2**30
///     What the matrix may take; a larger one is refused before anything is allocated.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> import tritter_accel as ta
/// >>> compressor = ta.GradientCompressor(ta.TrainingConfig(0.1, seed=7))
/// >>> plan = compressor.plan(3200)
/// >>> plan.nbytes
/// 256000
/// >>> gradients = np.ones(3200, dtype=np.float32)
/// >>> np.array_equal(plan.compress(gradients).data, compressor.compress(gradients).data)
/// True
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct ProjectionPlan {
    core: Core,
    ratio: Ratio,
    max_bytes: u64,
}

impl ProjectionPlan {
    /// The plan of a compressor.
    pub fn made<'py>(
        py: Python<'py>,
        compressor: &GradientCompressor,
        n: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        max_bytes: Argument<'py>,
    ) -> PyResult<Self> {
        let n = usize_argument("n", n)?;
        let ratio = compressor.ratio(ratio)?;
        let origin = compressor.origin(n, step, slot)?;
        let max_bytes = max_bytes.or(MAX_BYTES, |bytes| u64_argument("max_bytes", bytes))?;
        let (compressor, k) = (compressor.core(), origin.projection.compressed_dim(n, ratio));
        let nanoseconds = nanoseconds(Projection::Dense, n, k);
        let core = enter(py, nanoseconds, |exec| Core::new(exec, compressor, origin, k, max_bytes))?;
        Ok(Self { core, ratio, max_bytes })
    }

    fn nanoseconds(&self) -> f64 {
        KEPT * nanoseconds(Projection::Dense, self.original_dim(), self.compressed_dim())
    }
}

#[pymethods]
impl ProjectionPlan {
    #[new]
    #[pyo3(
        signature = (
            compressor, n, ratio=None, *, step=Argument::Default, slot=Argument::Default, max_bytes=Argument::Default
        ),
        text_signature = "(compressor, n, ratio=None, *, step=0, slot=0, max_bytes=2**30)"
    )]
    fn new<'py>(
        py: Python<'py>,
        compressor: &Bound<'py, PyAny>,
        n: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        max_bytes: Argument<'py>,
    ) -> PyResult<Self> {
        let compressor = instance_argument::<GradientCompressor>("compressor", compressor)?;
        Self::made(py, compressor.get(), n, ratio, step, slot, max_bytes)
    }

    /// The compressor whose results these are.
    #[getter]
    fn compressor(&self) -> GradientCompressor {
        GradientCompressor::new_from(*self.core.compressor())
    }

    /// Values of the gradients.
    #[getter]
    fn original_dim(&self) -> usize {
        self.core.origin().original_dim
    }

    /// Values of their projections.
    #[getter]
    fn compressed_dim(&self) -> usize {
        self.core.compressed_dim()
    }

    /// Seed of the compressor.
    #[getter]
    fn seed(&self) -> u64 {
        self.core.origin().seed
    }

    /// The ratio that was asked for.
    #[getter]
    fn ratio(&self) -> f32 {
        self.ratio.get()
    }

    /// Training step whose matrix this is.
    #[getter]
    fn step(&self) -> u32 {
        self.core.origin().step
    }

    /// Which of several gradients of the step.
    #[getter]
    fn slot(&self) -> u32 {
        self.core.origin().slot
    }

    /// What the matrix was allowed to take, in bytes.
    #[getter]
    fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// What the matrix takes, in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.core.nbytes()
    }

    /// Project a gradient, as :meth:`GradientCompressor.compress` does.
    ///
    /// Parameters
    /// ----------
    /// gradients : ndarray of float32
    ///     Of `original_dim` values and any shape, read flat in C order.
    /// out : ndarray of float32, optional
    ///     Where to write the projection; becomes the result's ``data``.
    ///
    /// Returns
    /// -------
    /// CompressedGradient
    ///
    /// Raises
    /// ------
    /// ArrayError, DimensionMismatchError
    /// NonFiniteError
    ///     If the config clips and a value is not finite.
    #[pyo3(signature = (gradients, *, out=None))]
    fn compress<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<CompressedGradient> {
        let input = read::<f32>("gradients", gradients)?;
        let (k, values) = (self.compressed_dim(), input.slice());
        let mut output = Output::<f32>::new(out, k, &inputs(&input))?;
        let data = output.slice_mut();
        enter(py, self.nanoseconds(), |exec| self.core.compress(exec, values, data))?;
        let data = output.into_array(py, &[k])?.unbind();
        Ok(CompressedGradient::made(data, k, self.ratio, *self.core.origin()))
    }

    /// Restore a gradient from its projection under this matrix, as :meth:`GradientCompressor.decompress` does.
    ///
    /// Parameters
    /// ----------
    /// compressed : CompressedGradient
    ///     Of this plan's seed, step, slot and dimensions; its scaling is taken from it.
    /// out : ndarray of float32, optional
    ///     Where to write the result.
    ///
    /// Returns
    /// -------
    /// ndarray of float32, shape (original_dim,)
    ///     `out` where it is given.
    ///
    /// Raises
    /// ------
    /// SeedMismatchError, DimensionMismatchError, ArgumentError
    ///     If it was compressed under another matrix.
    #[pyo3(signature = (compressed, *, out=None))]
    fn decompress<'py>(
        &self,
        py: Python<'py>,
        compressed: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let compressed = instance_argument::<CompressedGradient>("compressed", compressed)?.get();
        let origin = compressed.origin();
        let input = read::<f32>("data", compressed.data(py).bind(py))?;
        let (n, data) = (self.original_dim(), input.slice());
        self.core.check(origin, data.len()).map_err(raise)?;
        let mut output = Output::<f32>::new(out, n, &inputs(&input))?;
        let values = output.slice_mut();
        enter(py, self.nanoseconds(), |exec| self.core.decompress(exec, data, origin, values))?;
        output.into_array(py, &[n])
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = (self.compressor(), self.original_dim(), self.ratio()).into_pyobject(py)?;
        let options = PyDict::new(py);
        options.set_item("step", self.step())?;
        options.set_item("slot", self.slot())?;
        options.set_item("max_bytes", self.max_bytes)?;
        Ok((arguments, options))
    }

    // Nothing of a plan changes, and its matrix is large.
    fn __copy__(plan: Py<Self>) -> Py<Self> {
        plan
    }

    #[pyo3(signature = (memo, /))]
    fn __deepcopy__(plan: Py<Self>, memo: &Bound<'_, PyDict>) -> Py<Self> {
        let _ = memo;
        plan
    }

    fn __repr__(&self) -> String {
        format!(
            "ProjectionPlan(original_dim={}, compressed_dim={}, seed={}, ratio={:?}, step={}, slot={}, scaling='{}', nbytes={})",
            self.original_dim(),
            self.compressed_dim(),
            self.seed(),
            self.ratio(),
            self.step(),
            self.slot(),
            self.core.origin().scaling.name(),
            self.nbytes()
        )
    }
}
