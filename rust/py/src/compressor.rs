//! `GradientCompressor`: compression and decompression under one config.

use pyo3::prelude::*;
use pyo3::types::PySequence;
use tritter_core::codec::compressor::{GradientCompressor as Core, Origin};
use tritter_core::codec::config::{Projection, Ratio};
use tritter_core::codec::many::common_origin;
use tritter_core::codec::message::Header;

use crate::arguments::{Argument, f32_argument, instance_argument, u32_argument, usize_argument, wrong_type};
use crate::arrays::{Input, Output, inputs, read, read_bytes, rows};
use crate::compressed::{CompressedGradient, TernaryCompressedGradient};
use crate::config::TrainingConfig;
use crate::errors::raise;
use crate::plan::ProjectionPlan;
use crate::run::enter;
use crate::wire;

/// Estimated time of `n` values that become `k` or come back from them.
pub fn nanoseconds(projection: Projection, n: usize, k: usize) -> f64 {
    match projection {
        // Entries of the matrix cost about a nanosecond each.
        Projection::Dense => n as f64 * k as f64,
        _ => 2.0 * n as f64,
    }
}

/// As [`nanoseconds`], where some vectors share the dense matrix: each entry is made once and used by all.
fn nanoseconds_of_many(n: usize, k: usize, vectors: usize) -> f64 {
    nanoseconds(Projection::Dense, n, k) * (1.0 + 0.1 * vectors as f64)
}

/// A gradient to be compressed, and how.
struct Request<'py> {
    input: Input<'py, f32>,
    ratio: Ratio,
    compressed_dim: usize,
    origin: Origin,
}

impl Request<'_> {
    fn nanoseconds(&self) -> f64 {
        nanoseconds(self.origin.projection, self.origin.original_dim, self.compressed_dim)
    }
}

/// Compresses gradients by a random projection that both ends regenerate from a seed.
///
/// The default projection is an n x k matrix R of -1, 0 and +1 times a factor; compressing is ``g @ R``, decompressing
/// ``c @ R.T``. R is never stored or sent: entry (i, j) is decided by word ``i * k + j`` of a ChaCha8 keystream, whose
/// stream the step and the slot select. ``projection="hadamard"`` makes the same promise at a cost of n instead of n k.
/// The same call gives the same bits on every machine, at every number of threads.
///
/// :meth:`encode` and :meth:`decode` are the pair for sending: bytes out, bytes in, with every projection and quantiser.
/// :meth:`compress` and :meth:`compress_ternary` give the projection as an array.
///
/// Parameters
/// ----------
/// config : TrainingConfig, optional
///     The default config where none is given.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> import tritter_accel as ta
/// >>> compressor = ta.GradientCompressor(ta.TrainingConfig(0.1, seed=7, scaling="unbiased"))
/// >>> gradients = np.ones(2000, dtype=np.float32)
/// >>> compressed = compressor.compress(gradients, step=3)
/// >>> compressed.data.shape, compressed.data.dtype
/// ((200,), dtype('float32'))
/// >>> compressor.decompress(compressed).shape
/// (2000,)
#[pyclass(frozen, module = "tritter_accel.compression")]
pub struct GradientCompressor {
    core: Core,
}

impl GradientCompressor {
    /// A compressor of that core.
    pub fn new_from(core: Core) -> Self {
        Self { core }
    }

    /// The core's compressor.
    pub fn core(&self) -> Core {
        self.core
    }

    pub fn ratio(&self, ratio: Option<Bound<'_, PyAny>>) -> PyResult<Ratio> {
        let ratio = ratio.map(|ratio| f32_argument("ratio", &ratio)).transpose()?;
        self.core.ratio(ratio).map_err(raise)
    }

    pub fn origin(&self, original_dim: usize, step: Argument<'_>, slot: Argument<'_>) -> PyResult<Origin> {
        let step = step.or(0, |step| u32_argument("step", step))?;
        let slot = slot.or(0, |slot| u32_argument("slot", slot))?;
        Ok(self.core.origin(original_dim, step, slot))
    }

    fn request<'py>(
        &self,
        gradients: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
    ) -> PyResult<Request<'py>> {
        let ratio = self.ratio(ratio)?;
        let input = read::<f32>("gradients", gradients)?;
        let n = input.slice().len();
        let origin = self.origin(n, step, slot)?;
        Ok(Request { input, ratio, compressed_dim: origin.projection.compressed_dim(n, ratio), origin })
    }
}

#[pymethods]
impl GradientCompressor {
    #[new]
    #[pyo3(signature = (config=None))]
    fn new(config: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        let config = config
            .map(|config| {
                instance_argument::<TrainingConfig>("config", &config).map(|config| config.get().core())
            })
            .transpose()?;
        Ok(Self { core: Core::new(config.unwrap_or_default()) })
    }

    /// The config.
    #[getter]
    fn config(&self) -> TrainingConfig {
        TrainingConfig::new_from(*self.core.config())
    }

    /// How many values stand for `n`: ``max(ceil(float32(n) * float32(ratio)), 64)`` with the dense projection, at most n
    /// of them with "hadamard", a share of every 4096 values with "topk", n with "none".
    ///
    /// Parameters
    /// ----------
    /// n : int
    /// ratio : float, optional
    ///     The config's where none is given.
    ///
    /// Returns
    /// -------
    /// int
    #[pyo3(signature = (n, ratio=None))]
    fn compressed_dim(&self, n: &Bound<'_, PyAny>, ratio: Option<Bound<'_, PyAny>>) -> PyResult<usize> {
        let n = usize_argument("n", n)?;
        Ok(self.core.config().projection().compressed_dim(n, self.ratio(ratio)?))
    }

    /// Project a gradient.
    ///
    /// A NaN or an infinity shows in the result, unless the config clips, which takes finite gradients only.
    ///
    /// Parameters
    /// ----------
    /// gradients : ndarray of float32
    ///     Of any shape, read flat in C order.
    /// ratio : float, optional
    ///     Above 0 and at most 1; the config's where none is given.
    /// step, slot : int, default 0
    ///     Select the matrix, each 0 to 2**32 - 1: a new step should have a new one, since one matrix for ever keeps the
    ///     same k-dimensional subspace for ever.
    /// out : ndarray of float32, optional
    ///     Where to write the projection; becomes the result's ``data``.
    ///
    /// Returns
    /// -------
    /// CompressedGradient
    ///
    /// Raises
    /// ------
    /// InvalidRatioError, ArrayError, ArgumentError
    /// NonFiniteError
    ///     If the config clips and a value is not finite.
    #[pyo3(
        signature = (gradients, ratio=None, *, step=Argument::Default, slot=Argument::Default, out=None),
        text_signature = "($self, gradients, ratio=None, *, step=0, slot=0, out=None)"
    )]
    fn compress<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<CompressedGradient> {
        let request = self.request(gradients, ratio, step, slot)?;
        let mut output = Output::<f32>::new(out, request.compressed_dim, &inputs(&request.input))?;
        let (values, data) = (request.input.slice(), output.slice_mut());
        enter(py, request.nanoseconds(), |exec| self.core.compress(exec, values, &request.origin, data))?;
        let Request { ratio, compressed_dim, origin, .. } = request;
        let data = output.into_array(py, &[compressed_dim])?.unbind();
        Ok(CompressedGradient::made(data, compressed_dim, ratio, origin))
    }

    /// Restore a gradient from its projection, as far as it can be had.
    ///
    /// Parameters
    /// ----------
    /// compressed : CompressedGradient
    ///     Of this compressor's seed; step, slot, projection and scaling are taken from it.
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
    /// SeedMismatchError
    ///     If the compressor that made it had another seed.
    #[pyo3(signature = (compressed, *, out=None))]
    fn decompress<'py>(
        &self,
        py: Python<'py>,
        compressed: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let compressed = instance_argument::<CompressedGradient>("compressed", compressed)?.get();
        let origin = compressed.origin();
        self.core.check_seed(origin).map_err(raise)?;
        let input = read::<f32>("data", compressed.data(py).bind(py))?;
        let (n, data) = (origin.original_dim, input.slice());
        let mut output = Output::<f32>::new(out, n, &inputs(&input))?;
        let values = output.slice_mut();
        enter(py, nanoseconds(origin.projection, n, data.len()), |exec| {
            self.core.decompress(exec, data, origin, values)
        })?;
        output.into_array(py, &[n])
    }

    /// Project a gradient and quantise the projection to trits.
    ///
    /// Parameters
    /// ----------
    /// gradients : ndarray of float32
    ///     Of any shape, read flat in C order; finite.
    /// ratio : float, optional
    ///     Above 0 and at most 1; the config's where none is given.
    /// step, slot : int, default 0
    ///     Select the matrix, each 0 to 2**32 - 1.
    /// out : ndarray of int8, optional
    ///     Where to write the trits; becomes the result's ``data``.
    ///
    /// Returns
    /// -------
    /// TernaryCompressedGradient
    ///
    /// Raises
    /// ------
    /// NonFiniteError
    ///     If a value or its projection is not finite: as a trit, it would look like any other.
    #[pyo3(
        signature = (gradients, ratio=None, *, step=Argument::Default, slot=Argument::Default, out=None),
        text_signature = "($self, gradients, ratio=None, *, step=0, slot=0, out=None)"
    )]
    fn compress_ternary<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<TernaryCompressedGradient> {
        let request = self.request(gradients, ratio, step, slot)?;
        let mut output = Output::<i8>::new(out, request.compressed_dim, &inputs(&request.input))?;
        let (values, trits) = (request.input.slice(), output.slice_mut());
        let scale = enter(py, request.nanoseconds(), |exec| {
            self.core.compress_ternary(exec, values, &request.origin, trits)
        })?;
        let Request { ratio, compressed_dim, origin, .. } = request;
        let data = output.into_array(py, &[compressed_dim])?.unbind();
        let form = self.core.config().quantizer().scale;
        Ok(TernaryCompressedGradient::made(data, compressed_dim, scale, form, Some(ratio), origin))
    }

    /// Restore a gradient from the trits of its projection.
    ///
    /// Parameters
    /// ----------
    /// compressed : TernaryCompressedGradient
    ///     Of this compressor's seed; step, slot, projection and scaling are taken from it.
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
    /// SeedMismatchError
    ///     If the compressor that made it had another seed.
    /// ArgumentError
    ///     If a trit is not -1, 0 or 1.
    #[pyo3(signature = (compressed, *, out=None))]
    fn decompress_ternary<'py>(
        &self,
        py: Python<'py>,
        compressed: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let compressed = instance_argument::<TernaryCompressedGradient>("compressed", compressed)?.get();
        let (origin, scale) = (compressed.origin(), compressed.scale());
        self.core.check_seed(origin).map_err(raise)?;
        let input = read::<i8>("data", compressed.data(py).bind(py))?;
        let (n, trits) = (origin.original_dim, input.slice());
        let mut output = Output::<f32>::new(out, n, &inputs(&input))?;
        let values = output.slice_mut();
        enter(py, nanoseconds(origin.projection, n, trits.len()), |exec| {
            self.core.decompress_ternary(exec, trits, scale, origin, values)
        })?;
        output.into_array(py, &[n])
    }

    /// Bytes of the message of `n` values, header and checksum included.
    ///
    /// Parameters
    /// ----------
    /// n : int
    /// ratio : float, optional
    ///     The config's where none is given.
    ///
    /// Returns
    /// -------
    /// int
    #[pyo3(signature = (n, ratio=None))]
    fn message_bytes(&self, n: &Bound<'_, PyAny>, ratio: Option<Bound<'_, PyAny>>) -> PyResult<usize> {
        let n = usize_argument("n", n)?;
        self.core.header(n, self.ratio(ratio)?, 0, 0).message_len().map_err(raise)
    }

    /// The message of a gradient: bytes that can be sent, with the header's fields as attributes.
    ///
    /// Projects and quantises as the config says. A message is never longer than the gradient and a header: where it would
    /// be, it is the gradient itself.
    ///
    /// Parameters
    /// ----------
    /// gradients : ndarray of float32
    ///     Of any shape, read flat in C order.
    /// ratio : float, optional
    ///     Above 0 and at most 1; the config's where none is given. Projection "none" takes none.
    /// step, slot : int, default 0
    ///     Select the randomness, each 0 to 2**32 - 1: every step should have its own, and so should every worker whose
    ///     gradients are averaged.
    /// out : ndarray of uint8, shape (message_bytes(n, ratio),), optional
    ///     Where to write the message; becomes the result.
    ///
    /// Returns
    /// -------
    /// tritter_accel.wire.Message or ndarray of uint8
    ///     A ``bytes`` object, or `out` where it is given.
    ///
    /// Raises
    /// ------
    /// InvalidRatioError, ArrayError, ArgumentError
    /// NonFiniteError
    ///     If values are quantised or clipped and one of them is not finite, or if it would vanish from the message.
    #[pyo3(
        signature = (gradients, ratio=None, *, step=Argument::Default, slot=Argument::Default, out=None),
        text_signature = "($self, gradients, ratio=None, *, step=0, slot=0, out=None)"
    )]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ratio = self.ratio(ratio)?;
        let input = read::<f32>("gradients", gradients)?;
        let values = input.slice();
        let Origin { step, slot, .. } = self.origin(values.len(), step, slot)?;
        let header = self.core.header(values.len(), ratio, step, slot);
        let Header { origin, compressed_dim, .. } = header;
        let work = nanoseconds(origin.projection, values.len(), compressed_dim);
        if out.is_some() {
            let len = header.message_len().map_err(raise)?;
            let mut output = Output::<u8>::new(out, len, &inputs(&input))?;
            let message = output.slice_mut();
            enter(py, work, |exec| self.core.encode(exec, values, &header, message))?;
            return output.into_array(py, &[len]);
        }
        wire::new_message(py, &header, work, |exec, message| self.core.encode(exec, values, &header, message))
    }

    /// The gradient that a message stands for, as far as it can be had.
    ///
    /// Parameters
    /// ----------
    /// message : bytes or another object with a buffer
    ///     Of this compressor's seed; all else is taken from it. Every field is checked before it is believed.
    /// out : ndarray of float32, optional
    ///     Where to write the result. A message of a stranger may stand for a gradient of any length: with `out`, only one
    ///     of that length is taken.
    ///
    /// Returns
    /// -------
    /// ndarray of float32, shape (original_dim,)
    ///     `out` where it is given.
    ///
    /// Raises
    /// ------
    /// WireError
    ///     If the bytes are no message; its ``field`` says where.
    /// SeedMismatchError
    ///     If the compressor that made it had another seed.
    /// DimensionMismatchError
    ///     If `out` has another length.
    #[pyo3(signature = (message, *, out=None))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let input = read_bytes("message", message)?;
        let message = wire::checked(py, input.slice())?;
        let Header { origin, compressed_dim, .. } = message.header;
        self.core.check_seed(&origin).map_err(raise)?;
        let n = origin.original_dim;
        let mut output = Output::<f32>::new(out, n, &inputs(&input))?;
        let values = output.slice_mut();
        let work = nanoseconds(origin.projection, n, compressed_dim);
        enter(py, work, |exec| self.core.decode(exec, &message, values))?;
        output.into_array(py, &[n])
    }

    /// Project several gradients of one length, each as :meth:`compress` would, under one pass over the matrix.
    ///
    /// The matrix costs most of the time of a call, and is made once here: 8 gradients take the time of 1.5.
    ///
    /// Parameters
    /// ----------
    /// gradients : ndarray of float32, shape (count, n)
    ///     One gradient a row. Further axes are read flat in C order.
    /// ratio : float, optional
    ///     Above 0 and at most 1; the config's where none is given.
    /// step, slot : int, default 0
    ///     Select the matrix of all of them, each 0 to 2**32 - 1.
    /// out : ndarray of float32, shape (count, compressed_dim), optional
    ///     Where to write the projections.
    ///
    /// Returns
    /// -------
    /// list of CompressedGradient
    ///     One a row. Each ``data`` is a row of one array: `out`, or a new one.
    ///
    /// Raises
    /// ------
    /// InvalidRatioError, ArrayError
    /// ArgumentError
    ///     Also if the config has another projection than "dense".
    /// NonFiniteError
    ///     If the config clips and a value is not finite.
    ///
    /// Examples
    /// --------
    /// >>> import numpy as np
    /// >>> import tritter_accel as ta
    /// >>> compressor = ta.GradientCompressor()
    /// >>> gradients = np.ones((8, 2000), dtype=np.float32)
    /// >>> compressed = compressor.compress_many(gradients, step=3)
    /// >>> len(compressed), compressed[0].data.shape
    /// (8, (200,))
    /// >>> compressor.decompress_many(compressed).shape
    /// (8, 2000)
    #[pyo3(
        signature = (gradients, ratio=None, *, step=Argument::Default, slot=Argument::Default, out=None),
        text_signature = "($self, gradients, ratio=None, *, step=0, slot=0, out=None)"
    )]
    fn compress_many<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<CompressedGradient>> {
        let ratio = self.ratio(ratio)?;
        let input = read::<f32>("gradients", gradients)?;
        let (count, n) = rows("gradients", &input)?;
        let origin = self.origin(n, step, slot)?;
        let k = origin.projection.compressed_dim(n, ratio);
        let mut output = Output::<f32>::new(out, count.saturating_mul(k), &inputs(&input))?;
        let (values, data) = (input.slice(), output.slice_mut());
        enter(py, nanoseconds_of_many(n, k, count), |exec| {
            self.core.compress_many(exec, count, values, &origin, data)
        })?;
        let rows = output.into_rows(py, count, k)?.into_iter();
        Ok(rows.map(|row| CompressedGradient::made(row.unbind(), k, ratio, origin)).collect())
    }

    /// Restore several gradients, each as :meth:`decompress` would, under one pass over the matrix for every eight.
    ///
    /// Parameters
    /// ----------
    /// compressed : sequence of CompressedGradient
    ///     Of one matrix: with the same `original_dim`, number of values, `seed`, `step`, `slot` and `scaling`.
    /// out : ndarray of float32, shape (count, original_dim), optional
    ///     Where to write the result.
    ///
    /// Returns
    /// -------
    /// ndarray of float32, shape (count, original_dim)
    ///     `out` where it is given. Of shape (0, 0) for an empty sequence.
    ///
    /// Raises
    /// ------
    /// SeedMismatchError
    ///     If the compressor that made them had another seed.
    /// ArgumentError
    ///     If one of them is of another matrix; the message names the first.
    #[pyo3(signature = (compressed, *, out=None))]
    fn decompress_many<'py>(
        &self,
        py: Python<'py>,
        compressed: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let items = compressed
            .cast::<PySequence>()
            .map_err(|_| wrong_type("compressed", compressed, "a sequence of CompressedGradient"))?
            .try_iter()?
            .collect::<PyResult<Vec<_>>>()?;
        let mut inputs_of = Vec::with_capacity(items.len());
        let mut origins = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let item = item.cast::<CompressedGradient>().map_err(|_| {
                let kind = item.get_type().name().map_or_else(|_| "another".into(), |name| name.to_string());
                let wanted = format!("a sequence of CompressedGradient, and index {index} is {kind}");
                wrong_type("compressed", compressed, &wanted)
            })?;
            let input = read::<f32>("data", item.get().data(py).bind(py))?;
            origins.push((*item.get().origin(), input.slice().len()));
            inputs_of.push(input);
        }
        let origin = common_origin(&origins).map_err(raise)?;
        let origin = origin.unwrap_or_else(|| self.core.origin(0, 0, 0));
        self.core.check_seed(&origin).map_err(raise)?;
        let data: Vec<&[f32]> = inputs_of.iter().map(Input::slice).collect();
        let (count, n, k) = (data.len(), origin.original_dim, data.first().map_or(0, |data| data.len()));
        let memory: Vec<_> = inputs_of.iter().flat_map(inputs).collect();
        let mut output = Output::<f32>::new(out, count.saturating_mul(n), &memory)?;
        let values = output.slice_mut();
        enter(py, nanoseconds_of_many(n, k, count), |exec| {
            self.core.decompress_many(exec, &data, &origin, values)
        })?;
        output.into_array(py, &[count, n])
    }

    /// Make the matrix once and keep it, for many gradients of `n` values under the same step and slot.
    ///
    /// Parameters
    /// ----------
    /// n : int
    ///     Values of the gradients.
    /// ratio : float, optional
    ///     Above 0 and at most 1; the config's where none is given.
    /// step, slot : int, default 0
    ///     Select the matrix, each 0 to 2**32 - 1.
    /// max_bytes : int, default 2**30
    ///     What the matrix may take: two bits an entry.
    ///
    /// Returns
    /// -------
    /// ProjectionPlan
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     If the matrix takes more than `max_bytes`; nothing has been allocated then. If the config has another projection
    ///     than "dense".
    #[pyo3(
        signature = (
            n, ratio=None, *, step=Argument::Default, slot=Argument::Default, max_bytes=Argument::Default
        ),
        text_signature = "($self, n, ratio=None, *, step=0, slot=0, max_bytes=2**30)"
    )]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        n: &Bound<'py, PyAny>,
        ratio: Option<Bound<'py, PyAny>>,
        step: Argument<'py>,
        slot: Argument<'py>,
        max_bytes: Argument<'py>,
    ) -> PyResult<ProjectionPlan> {
        ProjectionPlan::made(py, self, n, ratio, step, slot, max_bytes)
    }

    fn __getnewargs__(&self) -> (TrainingConfig,) {
        (self.config(),)
    }

    fn __repr__(&self) -> PyResult<String> {
        Python::attach(|py| Ok(format!("GradientCompressor({})", self.config().into_pyobject(py)?.repr()?)))
    }
}
