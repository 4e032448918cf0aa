//! `GradientCompressor`: compression and decompression under one config.

use pyo3::prelude::*;
use tritter_core::codec::compressor::{GradientCompressor as Core, Origin};
use tritter_core::codec::config::{Projection, Ratio};
use tritter_core::codec::message::Header;

use crate::arguments::{Argument, f32_argument, instance_argument, u32_argument, usize_argument};
use crate::arrays::{Output, inputs, read, read_bytes};
use crate::compressed::{CompressedGradient, TernaryCompressedGradient};
use crate::config::TrainingConfig;
use crate::errors::raise;
use crate::run::enter;
use crate::wire;

/// Estimated time of `n` values that become `k` or come back from them.
fn nanoseconds(projection: Projection, n: usize, k: usize) -> f64 {
    match projection {
        // Entries of the matrix cost about a nanosecond each.
        Projection::Dense => n as f64 * k as f64,
        _ => 2.0 * n as f64,
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
    /// The core's compressor.
    pub fn core(&self) -> Core {
        self.core
    }

    fn ratio(&self, ratio: Option<Bound<'_, PyAny>>) -> PyResult<Ratio> {
        let ratio = ratio.map(|ratio| f32_argument("ratio", &ratio)).transpose()?;
        self.core.ratio(ratio).map_err(raise)
    }

    fn origin(&self, original_dim: usize, step: Argument<'_>, slot: Argument<'_>) -> PyResult<Origin> {
        let step = step.or(0, |step| u32_argument("step", step))?;
        let slot = slot.or(0, |slot| u32_argument("slot", slot))?;
        Ok(self.core.origin(original_dim, step, slot))
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
        let ratio = self.ratio(ratio)?;
        let input = read::<f32>("gradients", gradients)?;
        let values = input.slice();
        let n = values.len();
        let origin = self.origin(n, step, slot)?;
        let k = origin.projection.compressed_dim(n, ratio);
        let mut output = Output::<f32>::new(out, k, &inputs(&input))?;
        let data = output.slice_mut();
        enter(py, nanoseconds(origin.projection, n, k), |exec| self.core.compress(exec, values, &origin, data))?;
        let data = output.into_array(py, &[k])?.unbind();
        Ok(CompressedGradient::made(data, k, ratio, origin))
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
        enter(py, nanoseconds(origin.projection, n, data.len()), |exec| self.core.decompress(exec, data, origin, values))?;
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
        let ratio = self.ratio(ratio)?;
        let input = read::<f32>("gradients", gradients)?;
        let values = input.slice();
        let n = values.len();
        let origin = self.origin(n, step, slot)?;
        let k = origin.projection.compressed_dim(n, ratio);
        let mut output = Output::<i8>::new(out, k, &inputs(&input))?;
        let trits = output.slice_mut();
        let scale =
            enter(py, nanoseconds(origin.projection, n, k), |exec| self.core.compress_ternary(exec, values, &origin, trits))?;
        let data = output.into_array(py, &[k])?.unbind();
        let form = self.core.config().quantizer().scale;
        Ok(TernaryCompressedGradient::made(data, k, scale, form, Some(ratio), origin))
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

    fn __getnewargs__(&self) -> (TrainingConfig,) {
        (self.config(),)
    }

    fn __repr__(&self) -> PyResult<String> {
        Python::attach(|py| Ok(format!("GradientCompressor({})", self.config().into_pyobject(py)?.repr()?)))
    }
}
