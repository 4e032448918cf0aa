//! `TrainingConfig`: what a compressor is set to.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tritter_core::codec::config::{Projection, Quantize, QuantizerScale, Scaling, TrainingConfig as Core};
use tritter_core::codec::quantizer::Quantizer;

use crate::arguments::{Argument, choice_argument, f32_argument, u32_argument, u64_argument};
use crate::errors::raise;

/// Immutable settings of a :class:`GradientCompressor`; the defaults are the reference.
///
/// Parameters
/// ----------
/// default_compression_ratio : float, default 0.1
///     Dimensions sent per value, above 0 and at most 1, as float32.
/// seed : int, default 42
///     Seed of the random matrix, 0 to 2**64 - 1. Both ends need the same.
/// gradient_clipping : float or None, default None
///     Norm that gradients are clipped to before they are compressed.
/// projection : {"dense", "hadamard", "topk", "none"}, default "dense"
///     "dense": a matrix of independent entries -1, 0, +1 with probabilities 0.16, 0.68, 0.16; costs n times k.
///     "hadamard": random signs, a Walsh-Hadamard transform in blocks, and some of its rows; costs n.
///     "topk": the largest values of every 4096, with their places; only by ``encode`` and ``decode``.
///     "none": every value, for `quantize` alone; only by ``encode`` and ``decode``.
/// scaling : {"reference", "unbiased", "contractive"}, default "reference"
///     Factor of both directions, which decides what ``decompress(compress(g))`` is on average over steps: g for "unbiased",
///     and the least mean squared error for "contractive". "reference" is 0.32 k/n times g with "dense", and "contractive"
///     with the others. Choose "unbiased" to average over workers or steps, "contractive" with error feedback; "topk" has no
///     unbiased form.
/// quantize : {"none", "bfloat16", "ternary", "sign", "levels2", "levels4"}, default "none"
///     What ``encode`` makes of the values it sends: float32, bfloat16, 1.6 bits, one, two or four bits each. "levels2" and
///     "levels4" are the levels of least squared error on Gaussian data, which "hadamard" makes of any gradient.
/// quantizer_scale : {"reference", "least_squares", "unbiased"}, default "reference"
///     Scale of quantised values, and threshold of ternary ones. On Gaussian data "reference" loses 0.263 of the energy of
///     trits and "least_squares" 0.190; "unbiased" keeps the component along the input whole. Without trits, "reference" is
///     "least_squares".
/// quantizer_block : int or None, default None
///     Values that share a scale, a multiple of 64; all of them with None.
///
/// Raises
/// ------
/// InvalidRatioError
///     If the ratio is outside (0, 1].
/// ArgumentError, ArgumentTypeError
///     If another argument is out of its range or of another type; its name is in ``argument``.
#[pyclass(frozen, eq, hash, module = "tritter_accel.compression")]
#[derive(Clone, Copy, PartialEq, Hash)]
pub struct TrainingConfig {
    core: Core,
}

impl TrainingConfig {
    /// The Python object of a config.
    pub fn new_from(core: Core) -> Self {
        Self { core }
    }

    /// The core's config.
    pub fn core(&self) -> Core {
        self.core
    }
}

/// The projection that an argument names.
pub fn projection_argument(value: &Bound<'_, PyAny>) -> PyResult<Projection> {
    choice_argument("projection", value, &Projection::ALL, Projection::name)
}

/// The scaling that an argument names.
pub fn scaling_argument(value: &Bound<'_, PyAny>) -> PyResult<Scaling> {
    choice_argument("scaling", value, &Scaling::ALL, Scaling::name)
}

/// The form of scale that an argument names.
pub fn quantizer_scale_argument(value: &Bound<'_, PyAny>) -> PyResult<QuantizerScale> {
    choice_argument("quantizer_scale", value, &QuantizerScale::ALL, QuantizerScale::name)
}

fn clipping_argument(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<f32>> {
    value.map(|limit| f32_argument("gradient_clipping", limit)).transpose()
}

#[pymethods]
impl TrainingConfig {
    #[new]
    #[pyo3(
        signature = (
            default_compression_ratio=Argument::Default, seed=Argument::Default, gradient_clipping=None, *,
            projection=Argument::Default, scaling=Argument::Default, quantize=Argument::Default,
            quantizer_scale=Argument::Default, quantizer_block=None
        ),
        text_signature = "(default_compression_ratio=0.1, seed=42, gradient_clipping=None, *, \
            projection='dense', scaling='reference', quantize='none', quantizer_scale='reference', \
            quantizer_block=None)"
    )]
    #[allow(clippy::too_many_arguments)] // the fields of the object
    fn new(
        default_compression_ratio: Argument<'_>,
        seed: Argument<'_>,
        gradient_clipping: Option<&Bound<'_, PyAny>>,
        projection: Argument<'_>,
        scaling: Argument<'_>,
        quantize: Argument<'_>,
        quantizer_scale: Argument<'_>,
        quantizer_block: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let default = Core::default();
        let ratio = default_compression_ratio.or(default.default_compression_ratio().get(), |ratio| {
            f32_argument("default_compression_ratio", ratio)
        })?;
        let seed = seed.or(default.seed(), |seed| u64_argument("seed", seed))?;
        let limit = clipping_argument(gradient_clipping)?;
        let projection = projection.or(default.projection(), projection_argument)?;
        let scaling = scaling.or(default.scaling(), scaling_argument)?;
        let quantize = quantize.or(Quantize::default(), |quantize| {
            choice_argument("quantize", quantize, &Quantize::ALL, Quantize::name)
        })?;
        let form = quantizer_scale.or(QuantizerScale::default(), quantizer_scale_argument)?;
        let block = quantizer_block.map(|block| u32_argument("quantizer_block", block)).transpose()?;
        let quantizer = Quantizer::new(quantize, form, block).map_err(raise)?;
        let core = default
            .with_compression_ratio(ratio)
            .and_then(|core| core.with_gradient_clipping(limit))
            .and_then(|core| core.with_projection(projection, scaling))
            .map_err(raise)?;
        Ok(Self { core: core.with_seed(seed).with_quantizer(quantizer) })
    }

    /// Dimensions sent per value, where a call names no ratio.
    #[getter]
    fn default_compression_ratio(&self) -> f32 {
        self.core.default_compression_ratio().get()
    }

    /// Seed of the random matrix.
    #[getter]
    fn seed(&self) -> u64 {
        self.core.seed()
    }

    /// Norm that gradients are clipped to, or None.
    #[getter]
    fn gradient_clipping(&self) -> Option<f32> {
        self.core.gradient_clipping()
    }

    /// How a gradient is brought down to fewer values.
    #[getter]
    fn projection(&self) -> &'static str {
        self.core.projection().name()
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.core.scaling().name()
    }

    /// What becomes of the values that are sent.
    #[getter]
    fn quantize(&self) -> &'static str {
        self.core.quantizer().quantize.name()
    }

    /// Scale of quantised values, and threshold of ternary ones.
    #[getter]
    fn quantizer_scale(&self) -> &'static str {
        self.core.quantizer().scale.name()
    }

    /// Values that share a scale, or None.
    #[getter]
    fn quantizer_block(&self) -> Option<u32> {
        self.core.quantizer().block()
    }

    /// A copy with another default ratio.
    ///
    /// Parameters
    /// ----------
    /// ratio : float
    ///     Above 0 and at most 1.
    ///
    /// Returns
    /// -------
    /// TrainingConfig
    fn with_compression_ratio(&self, ratio: &Bound<'_, PyAny>) -> PyResult<Self> {
        let core = self.core.with_compression_ratio(f32_argument("ratio", ratio)?).map_err(raise)?;
        Ok(Self { core })
    }

    /// A copy with another seed.
    ///
    /// Parameters
    /// ----------
    /// seed : int
    ///     0 to 2**64 - 1.
    ///
    /// Returns
    /// -------
    /// TrainingConfig
    fn with_seed(&self, seed: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { core: self.core.with_seed(u64_argument("seed", seed)?) })
    }

    /// A copy with another clipping limit.
    ///
    /// Parameters
    /// ----------
    /// gradient_clipping : float or None
    ///     The largest norm, or None for no clipping.
    ///
    /// Returns
    /// -------
    /// TrainingConfig
    #[pyo3(signature = (gradient_clipping))]
    fn with_gradient_clipping(&self, gradient_clipping: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let limit = clipping_argument(gradient_clipping)?;
        Ok(Self { core: self.core.with_gradient_clipping(limit).map_err(raise)? })
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments =
            (self.default_compression_ratio(), self.seed(), self.gradient_clipping()).into_pyobject(py)?;
        let options = PyDict::new(py);
        options.set_item("projection", self.projection())?;
        options.set_item("scaling", self.scaling())?;
        options.set_item("quantize", self.quantize())?;
        options.set_item("quantizer_scale", self.quantizer_scale())?;
        options.set_item("quantizer_block", self.quantizer_block())?;
        Ok((arguments, options))
    }

    fn __repr__(&self) -> String {
        let limit = self.gradient_clipping().map_or_else(|| "None".to_owned(), |limit| format!("{limit:?}"));
        let block = self.quantizer_block().map_or_else(|| "None".to_owned(), |block| block.to_string());
        format!(
            "TrainingConfig(default_compression_ratio={:?}, seed={}, gradient_clipping={limit}, \
             projection='{}', scaling='{}', quantize='{}', quantizer_scale='{}', quantizer_block={block})",
            self.default_compression_ratio(),
            self.seed(),
            self.projection(),
            self.scaling(),
            self.quantize(),
            self.quantizer_scale(),
        )
    }
}
