//! What travels: a compressed gradient, plain or ternary, with all that its decompression must know.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tritter_core::base::error::Error;
use tritter_core::codec::compressor::{Origin, ternary_compression_ratio};
use tritter_core::codec::config::{Projection, Quantize, QuantizerScale, Ratio, Scaling};
use tritter_core::codec::message::Header;
use tritter_core::codec::quantizer::Quantizer;

use crate::arguments::{Argument, f32_argument, u32_argument, u64_argument, usize_argument};
use crate::arrays::{Scalar, read, read_bytes};
use crate::config::{projection_argument, quantizer_scale_argument, scaling_argument};
use crate::errors::raise;
use crate::wire;

fn origin_argument(
    original_dim: &Bound<'_, PyAny>,
    seed: &Bound<'_, PyAny>,
    step: Argument<'_>,
    slot: Argument<'_>,
    projection: Argument<'_>,
    scaling: Argument<'_>,
) -> PyResult<Origin> {
    let projection = projection.or(Projection::default(), projection_argument)?;
    if !projection.mixes() {
        let message = format!("got '{}', which travels as a Message; call encode", projection.name());
        return Err(raise(Error::argument("projection", message)));
    }
    Ok(Origin {
        projection,
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
    options.set_item("projection", origin.projection.name())?;
    options.set_item("scaling", origin.scaling.name())?;
    Ok(options)
}

fn origin_text(origin: &Origin) -> String {
    format!(
        "step={}, slot={}, projection='{}', scaling='{}'",
        origin.step,
        origin.slot,
        origin.projection.name(),
        origin.scaling.name()
    )
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
/// projection : {"dense", "hadamard"}, default "dense"
///     How the gradient was brought down to fewer values.
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

    fn header(&self) -> Header {
        let (origin, compressed_dim) = (self.origin, self.compressed_dim);
        Header { origin, compressed_dim, ratio: Some(self.ratio), quantizer: Quantizer::default() }
    }
}

#[pymethods]
impl CompressedGradient {
    #[new]
    #[pyo3(
        signature = (
            data, original_dim, seed, ratio, *, step=Argument::Default, slot=Argument::Default,
            projection=Argument::Default, scaling=Argument::Default
        ),
        text_signature = "(data, original_dim, seed, ratio, *, step=0, slot=0, projection='dense', \
            scaling='reference')"
    )]
    #[allow(clippy::too_many_arguments)] // the fields of the object
    fn new(
        data: &Bound<'_, PyAny>,
        original_dim: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        ratio: &Bound<'_, PyAny>,
        step: Argument<'_>,
        slot: Argument<'_>,
        projection: Argument<'_>,
        scaling: Argument<'_>,
    ) -> PyResult<Self> {
        let (data, compressed_dim) = array_argument::<f32>(data)?;
        let origin = origin_argument(original_dim, seed, step, slot, projection, scaling)?;
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

    /// How the gradient was brought down to fewer values.
    #[getter]
    fn projection(&self) -> &'static str {
        self.origin.projection.name()
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.origin.scaling.name()
    }

    /// The message that stands for it, as ``docs/wire_format.md`` defines it.
    ///
    /// Returns
    /// -------
    /// bytes
    ///
    /// Raises
    /// ------
    /// WireError
    ///     If the parts it was made of do not go together: no compressor made it.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let input = read::<f32>("data", self.data.bind(py))?;
        let data = input.slice();
        let header = self.header();
        wire::written(py, &header, |exec, message| header.write_values(exec, data, message))
    }

    /// What a message stands for, checked field by field.
    ///
    /// Parameters
    /// ----------
    /// message : bytes or another object with a buffer
    ///
    /// Returns
    /// -------
    /// CompressedGradient
    ///
    /// Raises
    /// ------
    /// WireError
    ///     If the bytes are no message, or a message of another kind (:func:`tritter_accel.wire.parse` takes them all).
    #[staticmethod]
    fn from_bytes(message: &Bound<'_, PyAny>) -> PyResult<Self> {
        let input = read_bytes("message", message)?;
        wire::projection(message.py(), &wire::checked(message.py(), input.slice())?)?
            .ok_or_else(|| wire::other_kind("CompressedGradient"))
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
/// projection : {"dense", "hadamard"}, default "dense"
///     How the gradient was brought down to fewer values.
/// scaling : {"reference", "unbiased", "contractive"}, default "reference"
///     Factor of both directions.
/// quantizer_scale : {"reference", "least_squares", "unbiased"}, default "reference"
///     How the scale was chosen.
/// ratio : float or None, default None
///     The ratio that was asked for, where it is known.
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct TernaryCompressedGradient {
    data: Py<PyAny>,
    compressed_dim: usize,
    scale: f32,
    form: QuantizerScale,
    ratio: Option<Ratio>,
    origin: Origin,
}

impl TernaryCompressedGradient {
    /// A compressor's result.
    pub fn made(
        data: Py<PyAny>,
        compressed_dim: usize,
        scale: f32,
        form: QuantizerScale,
        ratio: Option<Ratio>,
        origin: Origin,
    ) -> Self {
        Self { data, compressed_dim, scale, form, ratio, origin }
    }

    /// What decides the matrix.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    fn header(&self) -> Header {
        let quantizer = Quantizer::new(Quantize::Ternary, self.form, None).unwrap_or_default();
        Header { origin: self.origin, compressed_dim: self.compressed_dim, ratio: self.ratio, quantizer }
    }
}

#[pymethods]
impl TernaryCompressedGradient {
    #[new]
    #[pyo3(
        signature = (
            data, scale, original_dim, compressed_dim, seed, *, step=Argument::Default, slot=Argument::Default,
            projection=Argument::Default, scaling=Argument::Default, quantizer_scale=Argument::Default,
            ratio=None
        ),
        text_signature = "(data, scale, original_dim, compressed_dim, seed, *, step=0, slot=0, \
            projection='dense', scaling='reference', quantizer_scale='reference', ratio=None)"
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
        projection: Argument<'_>,
        scaling: Argument<'_>,
        quantizer_scale: Argument<'_>,
        ratio: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let ratio = ratio.map(|ratio| f32_argument("ratio", ratio)).transpose()?;
        let ratio = ratio.map(Ratio::new).transpose().map_err(raise)?;
        let form = quantizer_scale.or(QuantizerScale::default(), quantizer_scale_argument)?;
        let (data, actual) = array_argument::<i8>(data)?;
        let scale = f32_argument("scale", scale)?;
        if !scale.is_finite() {
            return Err(raise(Error::argument("scale", format!("got {scale}, wanted a finite number"))));
        }
        let origin = origin_argument(original_dim, seed, step, slot, projection, scaling)?;
        let compressed_dim = usize_argument("compressed_dim", compressed_dim)?;
        if compressed_dim != actual {
            return Err(raise(Error::DimensionMismatch { expected: compressed_dim, actual }));
        }
        Ok(Self { data, compressed_dim, scale, form, ratio, origin })
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

    /// How the gradient was brought down to fewer values.
    #[getter]
    fn projection(&self) -> &'static str {
        self.origin.projection.name()
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.origin.scaling.name()
    }

    /// How the scale was chosen.
    #[getter]
    fn quantizer_scale(&self) -> &'static str {
        self.form.name()
    }

    /// The ratio that was asked for, or None where that is not known.
    #[getter]
    fn ratio(&self) -> Option<f32> {
        self.ratio.map(Ratio::get)
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

    /// The message that stands for it, as ``docs/wire_format.md`` defines it.
    ///
    /// Returns
    /// -------
    /// bytes
    ///
    /// Raises
    /// ------
    /// WireError
    ///     If the parts it was made of do not go together: no compressor made it.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let input = read::<i8>("data", self.data.bind(py))?;
        let data = input.slice();
        let header = self.header();
        wire::written(py, &header, |exec, message| header.write_trits(exec, data, self.scale, message))
    }

    /// What a message stands for, checked field by field.
    ///
    /// Parameters
    /// ----------
    /// message : bytes or another object with a buffer
    ///
    /// Returns
    /// -------
    /// TernaryCompressedGradient
    ///
    /// Raises
    /// ------
    /// WireError
    ///     If the bytes are no message, or a message of another kind (:func:`tritter_accel.wire.parse` takes them all).
    #[staticmethod]
    fn from_bytes(message: &Bound<'_, PyAny>) -> PyResult<Self> {
        let input = read_bytes("message", message)?;
        wire::ternary(message.py(), &wire::checked(message.py(), input.slice())?)?
            .ok_or_else(|| wire::other_kind("TernaryCompressedGradient"))
    }

    fn __len__(&self) -> usize {
        self.compressed_dim
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = (self.data(py), self.scale, self.original_dim(), self.compressed_dim, self.seed())
            .into_pyobject(py)?;
        let options = options(py, &self.origin)?;
        options.set_item("quantizer_scale", self.quantizer_scale())?;
        options.set_item("ratio", self.ratio())?;
        Ok((arguments, options))
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
