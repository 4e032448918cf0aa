//! What travels: a compressed gradient, plain or ternary, with all that its decompression must know.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tritter_core::base::error::Error;
use tritter_core::codec::compressor::{Origin, ternary_compression_ratio};
use tritter_core::codec::config::{Ratio, Scaling};

use crate::arguments::{Argument, f32_argument, u32_argument, u64_argument, usize_argument};
use crate::arrays::{Scalar, read};
use crate::config::scaling_argument;
use crate::errors::raise;

fn origin_argument(
    original_dim: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    step: Argument<'_>,
    slot: Argument<'_>,
    scaling: Argument<'_>,
) -> PyResult<Origin> {
    Ok(Origin {
        original_dim: usize_argument("original_dim", original_dim)?,
        seed: u64_argument("seed", seed)?,
        step: step.or(0, |step| u32_argument("step", step))?,
        slot: slot.or(0, |slot| u32_argument("slot", slot))?,
        scaling: scaling.or(Scaling::default(), scaling_argument)?,
    })
}

/// The array that `value` is or that NumPy views it as, with its length.
fn array_argument<T: Scalar>(value: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, usize)> {
    let input = read::<T>("data", value)?;
    let len = input.slice().len();
    Ok((input.into_array().unbind(), len))
}

fn options<'py>(py: Python<'py>, origin: &Origin) -> PyResult<Bound<'py, PyDict>> {
    let options = PyDict::new(py);
    options.set_item("step", origin.step)?;
    options.set_item("slot", origin.slot)?;
    options.set_item("scaling", origin.scaling.name())?;
    Ok(options)
}

fn origin_text(origin: &Origin) -> String {
    format!("step={}, slot={}, scaling='{}'", origin.step, origin.slot, origin.scaling.name())
}

/// The projection of a gradient; made by :meth:`GradientCompressor.compress`, or from what arrived.
///
/// Parameters
/// ----------
/// data : ndarray of float32
///     The projection, kept without a copy.
/// original_dim : int
///     Values of the gradient.
/// seed : int
///     Seed of the compressor.
/// ratio : float
///     The ratio that was asked for.
/// step, slot : int, default 0
///     What selected the matrix, each 0 to 2**32 - 1.
/// scaling : {"reference", "unbiased", "contractive"}, default "reference"
///     Factor of both directions.
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct CompressedGradient {
    data: Py<PyAny>,
    compressed_dim: usize,
    ratio: Ratio,
    origin: Origin,
}

impl CompressedGradient {
    /// A compressor's result.
    pub fn made(data: Py<PyAny>, compressed_dim: usize, ratio: Ratio, origin: Origin) -> Self {
        Self { data, compressed_dim, ratio, origin }
    }

    /// What decides the matrix.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

#[pymethods]
impl CompressedGradient {
    #[new]
    #[pyo3(
        signature = (data, original_dim, seed, ratio, *, step=Argument::Default, slot=Argument::Default, scaling=Argument::Default),
        text_signature = "(data, original_dim, seed, ratio, *, step=0, slot=0, scaling='reference')"
    )]
    fn new(
        data: &Bound<'_, PyAny>,
        original_dim: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        ratio: &Bound<'_, PyAny>,
        step: Argument<'_>,
        slot: Argument<'_>,
        scaling: Argument<'_>,
    ) -> PyResult<Self> {
        let (data, compressed_dim) = array_argument::<f32>(data)?;
        let origin = origin_argument(original_dim, seed, step, slot, scaling)?;
        let ratio = Ratio::new(f32_argument("ratio", ratio)?).map_err(raise)?;
        Ok(Self { data, compressed_dim, ratio, origin })
    }

    /// The projection, float32.
    #[getter]
    pub fn data(&self, py: Python<'_>) -> Py<PyAny> {
        self.data.clone_ref(py)
    }

    /// Values of the gradient.
    #[getter]
    fn original_dim(&self) -> usize {
        self.origin.original_dim
    }

    /// Values of the projection.
    #[getter]
    fn compressed_dim(&self) -> usize {
        self.compressed_dim
    }

    /// Seed of the compressor.
    #[getter]
    fn seed(&self) -> u64 {
        self.origin.seed
    }

    /// The ratio that was asked for.
    #[getter]
    fn ratio(&self) -> f32 {
        self.ratio.get()
    }

    /// Training step whose matrix was used.
    #[getter]
    fn step(&self) -> u32 {
        self.origin.step
    }

    /// Which of several gradients of the step.
    #[getter]
    fn slot(&self) -> u32 {
        self.origin.slot
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.origin.scaling.name()
    }

    fn __len__(&self) -> usize {
        self.compressed_dim
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = (self.data(py), self.original_dim(), self.seed(), self.ratio()).into_pyobject(py)?;
        Ok((arguments, options(py, &self.origin)?))
    }

    fn __repr__(&self) -> String {
        format!(
            "CompressedGradient(original_dim={}, compressed_dim={}, seed={}, ratio={:?}, {})",
            self.original_dim(),
            self.compressed_dim,
            self.seed(),
            self.ratio(),
            origin_text(&self.origin)
        )
    }
}

/// The projection of a gradient as trits of one scale; made by :meth:`GradientCompressor.compress_ternary`.
///
/// Parameters
/// ----------
/// data : ndarray of int8
///     The trits, each -1, 0 or 1, kept without a copy.
/// scale : float
///     What a trit of 1 stands for; finite.
/// original_dim, compressed_dim : int
///     Values of the gradient, and trits.
/// seed : int
///     Seed of the compressor.
/// step, slot : int, default 0
///     What selected the matrix, each 0 to 2**32 - 1.
/// scaling : {"reference", "unbiased", "contractive"}, default "reference"
///     Factor of both directions.
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct TernaryCompressedGradient {
    data: Py<PyAny>,
    compressed_dim: usize,
    scale: f32,
    origin: Origin,
}

impl TernaryCompressedGradient {
    /// A compressor's result.
    pub fn made(data: Py<PyAny>, compressed_dim: usize, scale: f32, origin: Origin) -> Self {
        Self { data, compressed_dim, scale, origin }
    }

    /// What decides the matrix.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

#[pymethods]
impl TernaryCompressedGradient {
    #[new]
    #[pyo3(
        signature = (
            data, scale, original_dim, compressed_dim, seed, *, step=Argument::Default, slot=Argument::Default, scaling=Argument::Default
        ),
        text_signature = "(data, scale, original_dim, compressed_dim, seed, *, step=0, slot=0, \
            scaling='reference')"
    )]
    #[allow(clippy::too_many_arguments)] // the fields of the object
    fn new(
        data: &Bound<'_, PyAny>,
        scale: &Bound<'_, PyAny>,
        original_dim: &Bound<'_, PyAny>,
        compressed_dim: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        step: Argument<'_>,
        slot: Argument<'_>,
        scaling: Argument<'_>,
    ) -> PyResult<Self> {
        let (data, actual) = array_argument::<i8>(data)?;
        let scale = f32_argument("scale", scale)?;
        if !scale.is_finite() {
            return Err(raise(Error::argument("scale", format!("got {scale}, wanted a finite number"))));
        }
        let origin = origin_argument(original_dim, seed, step, slot, scaling)?;
        let compressed_dim = usize_argument("compressed_dim", compressed_dim)?;
        if compressed_dim != actual {
            return Err(raise(Error::DimensionMismatch { expected: compressed_dim, actual }));
        }
        Ok(Self { data, compressed_dim, scale, origin })
    }

    /// The trits, int8.
    #[getter]
    pub fn data(&self, py: Python<'_>) -> Py<PyAny> {
        self.data.clone_ref(py)
    }

    /// What a trit of 1 stands for.
    #[getter]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Values of the gradient.
    #[getter]
    fn original_dim(&self) -> usize {
        self.origin.original_dim
    }

    /// Trits.
    #[getter]
    fn compressed_dim(&self) -> usize {
        self.compressed_dim
    }

    /// Seed of the compressor.
    #[getter]
    fn seed(&self) -> u64 {
        self.origin.seed
    }

    /// Training step whose matrix was used.
    #[getter]
    fn step(&self) -> u32 {
        self.origin.step
    }

    /// Which of several gradients of the step.
    #[getter]
    fn slot(&self) -> u32 {
        self.origin.slot
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.origin.scaling.name()
    }

    /// How many times fewer bits this is than the gradient in float32, counting 2 bits a trit and 32 for the scale.
    ///
    /// Returns
    /// -------
    /// float
    ///     ``32 n / (2 k + 32)``.
    fn compression_ratio(&self) -> f32 {
        ternary_compression_ratio(self.origin.original_dim, self.compressed_dim)
    }

    fn __len__(&self) -> usize {
        self.compressed_dim
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = (self.data(py), self.scale, self.original_dim(), self.compressed_dim, self.seed())
            .into_pyobject(py)?;
        Ok((arguments, options(py, &self.origin)?))
    }

    fn __repr__(&self) -> String {
        format!(
            "TernaryCompressedGradient(scale={:?}, original_dim={}, compressed_dim={}, seed={}, {})",
            self.scale,
            self.original_dim(),
            self.compressed_dim,
            self.seed(),
            origin_text(&self.origin)
        )
    }
}
