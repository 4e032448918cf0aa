//! What a compressor is set to: ratio, seed, clipping, and the options that differ from the reference.
//!
//! A config is valid from its making and never changes; `with_*` gives changed copies. Every option's first choice is
//! the reference's.

use std::hash::{Hash, Hasher};

use crate::base::error::{Error, Result};
use crate::codec::quantizer::Quantizer;
use crate::codec::topk;

/// Share of +1 and -1 among the entries of the dense matrix.
const DENSITY: f64 = 0.32;
/// No projection has fewer dimensions.
const LEAST_DIM: usize = 64;

/// How a gradient is brought down to fewer values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Projection {
    /// Not at all: every value is kept.
    None,
    /// Onto a matrix of entries -1, 0, +1 drawn independently: [`crate::codec::dense`].
    #[default]
    Dense,
    /// Random signs, a Walsh-Hadamard transform, and some of its rows: [`crate::codec::hadamard`].
    Hadamard,
    /// The largest values of every chunk: [`crate::codec::topk`].
    TopK,
}

impl Projection {
    /// All choices; the place of one is its number on the wire.
    pub const ALL: [Self; 4] = [Self::None, Self::Dense, Self::Hadamard, Self::TopK];

    /// The name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Dense => "dense",
            Self::Hadamard => "hadamard",
            Self::TopK => "topk",
        }
    }

    /// Whether every value that is sent mixes many of the gradient, so that there are a factor and an unbiased form.
    pub fn mixes(self) -> bool {
        matches!(self, Self::Dense | Self::Hadamard)
    }

    /// How many values stand for `n`.
    pub fn compressed_dim(self, n: usize, ratio: Ratio) -> usize {
        match self {
            Self::None => n,
            Self::Dense => ratio.compressed_dim(n),
            Self::Hadamard => ratio.compressed_dim(n).min(n),
            Self::TopK => topk::compressed_dim(n, ratio),
        }
    }

    /// [`Error::Argument`] if the projection has no form of that scaling.
    pub fn check_scaling(self, scaling: Scaling) -> Result<()> {
        if self == Self::TopK && scaling == Scaling::Unbiased {
            let message = "got unbiased, which projection topk has not: what it drops is gone; pass contractive, and \
                           use error feedback, or projection hadamard";
            return Err(Error::argument("scaling", message));
        }
        Ok(())
    }
}

/// The factor of both directions, which decides what decompress(compress(g)) is on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scaling {
    /// 1/√n with the dense matrix, for a mean of 0.32 (k/n) g; 1 with other projections.
    #[default]
    Reference,
    /// The mean is g, with an error of about n/k times its energy.
    Unbiased,
    /// The least mean squared error, about 1 - k/n of the energy with a Hadamard transform.
    Contractive,
}

impl Scaling {
    /// All choices; the place of one is its number on the wire.
    pub const ALL: [Self; 3] = [Self::Reference, Self::Unbiased, Self::Contractive];

    /// The name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Unbiased => "unbiased",
            Self::Contractive => "contractive",
        }
    }

    /// The dense matrix's factor for n values and k dimensions. The reference's is computed in float32, the others in float64
    /// and rounded once.
    pub fn factor(self, n: usize, k: usize) -> f32 {
        let (wide_n, wide_k) = (n as f64, k as f64);
        match self {
            Self::Reference => 1.0 / (n as f32).sqrt(),
            Self::Unbiased => (1.0 / (DENSITY * wide_k).sqrt()) as f32,
            // n - 2 + 1/p is the variance of the other rows and of the entries themselves, for density p.
            Self::Contractive => (1.0 / (DENSITY * (wide_k + wide_n + 1.125)).sqrt()) as f32,
        }
    }
}

/// What becomes of the values that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Quantize {
    /// float32 as they are.
    #[default]
    None,
    /// Rounded to the nearest bfloat16.
    Bfloat16,
    /// -1, 0 or +1 times a scale: 1.6 bits.
    Ternary,
    /// -1 or +1 times a scale: one bit.
    Sign,
    /// Four levels times a scale: two bits.
    Levels2,
    /// Sixteen levels times a scale: four bits.
    Levels4,
}

impl Quantize {
    /// All choices; the place of one is its number on the wire.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Bfloat16, Self::Ternary, Self::Sign, Self::Levels2, Self::Levels4];

    /// The name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bfloat16 => "bfloat16",
            Self::Ternary => "ternary",
            Self::Sign => "sign",
            Self::Levels2 => "levels2",
            Self::Levels4 => "levels4",
        }
    }
}

/// How a quantiser chooses its scale, and ternary what to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QuantizerScale {
    /// Ternary: scale = mean magnitude, kept above half of it; loses 41 % of the signal of Gaussian data. The others have no
    /// reference, and take the least squared error.
    #[default]
    Reference,
    /// The least squared error; ternary keeps what is above 0.777 of the mean magnitude.
    LeastSquares,
    /// The same digits, scale = |v|² / <q, v>: the projection on v is v.
    Unbiased,
}

impl QuantizerScale {
    /// All choices; the place of one is its number on the wire.
    pub const ALL: [Self; 3] = [Self::Reference, Self::LeastSquares, Self::Unbiased];

    /// The name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::LeastSquares => "least_squares",
            Self::Unbiased => "unbiased",
        }
    }
}

/// A compression ratio: above 0 and at most 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f32);

impl Ratio {
    /// [`Error::InvalidRatio`] outside (0, 1], and for NaN.
    pub fn new(ratio: f32) -> Result<Self> {
        if ratio > 0.0 && ratio <= 1.0 { Ok(Self(ratio)) } else { Err(Error::InvalidRatio(ratio)) }
    }

    /// The number.
    pub fn get(self) -> f32 {
        self.0
    }

    /// Dimensions of the projection of n values: n times the ratio in float32, rounded up, and at least 64.
    pub fn compressed_dim(self, n: usize) -> usize {
        ((n as f32 * self.0).ceil() as usize).max(LEAST_DIM)
    }
}

/// An immutable, valid configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingConfig {
    ratio: Ratio,
    seed: u64,
    gradient_clipping: Option<f32>,
    projection: Projection,
    scaling: Scaling,
    quantizer: Quantizer,
}

impl Default for TrainingConfig {
    /// Ratio 0.1, seed 42, no clipping, the reference's choice for every option.
    fn default() -> Self {
        Self {
            ratio: Ratio(0.1),
            seed: 42,
            gradient_clipping: None,
            projection: Projection::default(),
            scaling: Scaling::default(),
            quantizer: Quantizer::default(),
        }
    }
}

impl Hash for TrainingConfig {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal configs have equal bits: neither float is a NaN or -0.
        self.ratio.get().to_bits().hash(state);
        self.gradient_clipping.map(f32::to_bits).hash(state);
        (self.seed, self.projection, self.scaling, self.quantizer).hash(state);
    }
}

impl TrainingConfig {
    /// The ratio used where a call names none.
    pub fn default_compression_ratio(&self) -> Ratio {
        self.ratio
    }

    /// The seed of the matrix.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The norm that gradients are clipped to before they are compressed.
    pub fn gradient_clipping(&self) -> Option<f32> {
        self.gradient_clipping
    }

    /// How a gradient is brought down to fewer values.
    pub fn projection(&self) -> Projection {
        self.projection
    }

    /// The factor of both directions.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// What becomes of the values that are sent.
    pub fn quantizer(&self) -> Quantizer {
        self.quantizer
    }

    /// Whether what is sent means the gradient on average, at the price of a larger error: an error that is fed back
    /// then grows without bound.
    pub fn is_unbiased(&self) -> bool {
        (self.projection.mixes() && self.scaling == Scaling::Unbiased)
            || (self.quantizer.is_quantised() && self.quantizer.scale == QuantizerScale::Unbiased)
    }

    /// A copy with another default ratio.
    pub fn with_compression_ratio(self, ratio: f32) -> Result<Self> {
        Ok(Self { ratio: Ratio::new(ratio)?, ..self })
    }

    /// A copy with another seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// A copy with another limit, or none.
    pub fn with_gradient_clipping(self, limit: Option<f32>) -> Result<Self> {
        let gradient_clipping = limit.map(|limit| norm_limit("gradient_clipping", limit)).transpose()?;
        Ok(Self { gradient_clipping, ..self })
    }

    /// A copy with another projection and scaling, which must go together.
    pub fn with_projection(self, projection: Projection, scaling: Scaling) -> Result<Self> {
        projection.check_scaling(scaling)?;
        Ok(Self { projection, scaling, ..self })
    }

    /// A copy with another quantiser.
    #[must_use]
    pub fn with_quantizer(self, quantizer: Quantizer) -> Self {
        Self { quantizer, ..self }
    }
}

/// A limit of norms: 0 or more, infinity for none.
pub fn norm_limit(argument: &str, limit: f32) -> Result<f32> {
    if limit >= 0.0 {
        // -0 is 0, so that equal limits are equal in every way.
        Ok(limit.abs())
    } else {
        Err(Error::argument(argument, format!("got {limit}, wanted a norm of 0 or more")))
    }
}

#[cfg(test)]
mod tests {
    use super::{Ratio, Scaling, TrainingConfig, norm_limit};
    use crate::base::error::Error;

    #[test]
    fn dimensions_are_those_of_the_golden_file() {
        // Golden compressed_dim_n_ratio_k: the product is rounded to float32 before it is rounded up.
        let ratios = [1e-6, 0.001, 0.01, 0.033, 0.1, 0.3, 0.5, 0.999, 1.0];
        for (n, dims) in [
            (0, [64, 64, 64, 64, 64, 64, 64, 64, 64]),
            (1, [64, 64, 64, 64, 64, 64, 64, 64, 64]),
            (2, [64, 64, 64, 64, 64, 64, 64, 64, 64]),
            (63, [64, 64, 64, 64, 64, 64, 64, 64, 64]),
            (64, [64, 64, 64, 64, 64, 64, 64, 64, 64]),
            (65, [64, 64, 64, 64, 64, 64, 64, 65, 65]),
            (100, [64, 64, 64, 64, 64, 64, 64, 100, 100]),
            (639, [64, 64, 64, 64, 64, 192, 320, 639, 639]),
            (640, [64, 64, 64, 64, 64, 192, 320, 640, 640]),
            (641, [64, 64, 64, 64, 65, 193, 321, 641, 641]),
            (999, [64, 64, 64, 64, 100, 300, 500, 999, 999]),
            (1000, [64, 64, 64, 64, 100, 300, 500, 999, 1000]),
            (6097, [64, 64, 64, 202, 610, 1830, 3049, 6091, 6097]),
            (65536, [64, 66, 656, 2163, 6554, 19661, 32768, 65471, 65536]),
            (1000000, [64, 1001, 10000, 33000, 100000, 300000, 500000, 999000, 1000000]),
            (16777216, [64, 16778, 167773, 553649, 1677722, 5033165, 8388608, 16760439, 16777216]),
            (16777217, [64, 16778, 167773, 553649, 1677722, 5033165, 8388608, 16760439, 16777216]),
            (16777219, [64, 16778, 167773, 553649, 1677722, 5033166, 8388610, 16760443, 16777220]),
            (25557032, [64, 25558, 255571, 843383, 2555704, 7667110, 12778516, 25531476, 25557032]),
        ] {
            assert_eq!(ratios.map(|ratio| Ratio::new(ratio).unwrap().compressed_dim(n)), dims, "{n}");
        }
    }

    #[test]
    fn ratios_outside_their_range_are_refused() {
        for ratio in [0.0, -0.0, -0.1, 1.000_000_1, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Ratio::new(ratio), Err(Error::InvalidRatio(ratio)));
        }
        assert!(Ratio::new(f32::NAN).is_err());
        assert_eq!(Ratio::new(1.0).map(Ratio::get), Ok(1.0));
        assert_eq!(Ratio::new(1e-45).map(Ratio::get), Ok(1e-45));
    }

    #[test]
    fn limits_are_norms() {
        assert_eq!(norm_limit("limit", -0.0).unwrap().to_bits(), 0);
        assert!(norm_limit("limit", f32::INFINITY).is_ok());
        assert!(norm_limit("limit", -1.0).is_err());
        assert!(TrainingConfig::default().with_gradient_clipping(Some(f32::NAN)).is_err());
    }

    #[test]
    fn factors_are_their_formulas() {
        assert_eq!(Scaling::Reference.factor(4, 64), 0.5);
        assert_eq!(Scaling::Reference.factor(0, 64), f32::INFINITY);
        assert_eq!(Scaling::Unbiased.factor(1, 200), 0.125);
        assert_eq!(Scaling::Contractive.factor(100, 99), (1.0 / (0.32 * 200.125_f64).sqrt()) as f32);
    }
}
