//! The compressor: from a gradient to what is sent of it, and back.
//!
//! It writes to memory of the caller's, whose length is the number of dimensions or of bytes. What comes back must be told
//! how it was made: [`Origin`] holds all of it, and travels with the data.

use std::borrow::Cow;

use crate::base::chacha::{Key, Stream};
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::Kernel;
use crate::codec::config::{Projection, Quantize, Ratio, Scaling, TrainingConfig};
use crate::codec::message::{Header, Message};
use crate::codec::quantizer::check_scale;
use crate::codec::{dense, hadamard, ternary, topk};
use crate::numeric::bf16;
use crate::numeric::clip::clip_to_norm;
use crate::numeric::elementwise::check_len;
use crate::numeric::reduce::require_finite;

/// Values that are worth a thread where they are only copied or rounded.
const PART: usize = 1 << 16;

/// What decides how a compressed gradient comes back, apart from its number of dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Values of the gradient.
    pub original_dim: usize,
    /// Seed of the compressor.
    pub seed: u64,
    /// Training step: each has a matrix of its own.
    pub step: u32,
    /// Which of several gradients of a step.
    pub slot: u32,
    /// How it was brought down to fewer values.
    pub projection: Projection,
    /// The factor of both directions.
    pub scaling: Scaling,
}

impl Origin {
    /// The keystream of the matrix.
    pub(super) fn stream(&self) -> Stream {
        Stream::of_step(Key::from_seed(self.seed), self.step, self.slot)
    }
}

/// Compresses and decompresses under one config.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GradientCompressor {
    config: TrainingConfig,
}

impl GradientCompressor {
    /// A compressor of that config.
    pub fn new(config: TrainingConfig) -> Self {
        Self { config }
    }

    /// Its config.
    pub fn config(&self) -> &TrainingConfig {
        &self.config
    }

    /// `ratio`, or the config's where there is none; 1 where every value is sent, and no other can be asked for.
    pub fn ratio(&self, ratio: Option<f32>) -> Result<Ratio> {
        let sends_all = self.config.projection() == Projection::None;
        let asked = ratio.map(Ratio::new).transpose()?;
        match asked {
            Some(asked) if sends_all && asked.get() != 1.0 => {
                let message = format!(
                    "got {}, and projection none sends every value; pass no ratio, or choose hadamard or topk",
                    asked.get()
                );
                Err(Error::argument("ratio", message))
            }
            None if sends_all => Ratio::new(1.0),
            asked => Ok(asked.unwrap_or(self.config.default_compression_ratio())),
        }
    }

    /// What a gradient of `original_dim` values that this compressor compresses carries with it.
    pub fn origin(&self, original_dim: usize, step: u32, slot: u32) -> Origin {
        let (projection, scaling) = (self.config.projection(), self.config.scaling());
        Origin { original_dim, seed: self.config.seed(), step, slot, projection, scaling }
    }

    /// Writes the projection of `gradients` to `out`.
    ///
    /// Gradients are clipped first if the config says so, and must be finite then; otherwise a NaN or an infinity shows
    /// in the projection.
    pub fn compress(
        &self,
        exec: &Exec<'_>,
        gradients: &[f32],
        origin: &Origin,
        out: &mut [f32],
    ) -> Result<()> {
        check_len(origin.original_dim, gradients.len())?;
        project(exec, &self.clipped(exec, gradients)?, origin, out)
    }

    pub(super) fn clipped<'a>(&self, exec: &Exec<'_>, gradients: &'a [f32]) -> Result<Cow<'a, [f32]>> {
        let Some(limit) = self.config.gradient_clipping() else {
            return Ok(Cow::Borrowed(gradients));
        };
        let mut clipped = try_vec(gradients.len())?;
        clip_to_norm(exec, "gradients", gradients, limit, &mut clipped)?;
        Ok(Cow::Owned(clipped))
    }

    /// [`Error::SeedMismatch`] if what was compressed had another seed.
    pub fn check_seed(&self, origin: &Origin) -> Result<()> {
        let (compress, decompress) = (origin.seed, self.config.seed());
        if compress == decompress { Ok(()) } else { Err(Error::SeedMismatch { compress, decompress }) }
    }

    /// Writes the gradient that `data` was compressed from, as far as it can be had, to `out`.
    pub fn decompress(&self, exec: &Exec<'_>, data: &[f32], origin: &Origin, out: &mut [f32]) -> Result<()> {
        self.check_seed(origin)?;
        check_len(origin.original_dim, out.len())?;
        expand(exec, data, origin, out)
    }

    /// Writes the trits of the projection of `gradients` to `out` and returns their scale.
    ///
    /// A gradient or a projection that is not finite is refused: as a trit, it would look like any other.
    pub fn compress_ternary(
        &self,
        exec: &Exec<'_>,
        gradients: &[f32],
        origin: &Origin,
        out: &mut [i8],
    ) -> Result<f32> {
        let quantizer = self.config.quantizer();
        if let Some(block) = quantizer.block() {
            let message = format!("got {block}, and compress_ternary has one scale; call encode");
            return Err(Error::argument("quantizer_block", message));
        }
        require_finite(exec, "gradients", gradients)?;
        let mut projection = try_vec(out.len())?;
        self.compress(exec, gradients, origin, &mut projection)?;
        ternary::quantise(exec, PROJECTION, &projection, quantizer.scale, out)
    }

    /// [`Self::decompress`] of trits and their scale.
    pub fn decompress_ternary(
        &self,
        exec: &Exec<'_>,
        trits: &[i8],
        scale: f32,
        origin: &Origin,
        out: &mut [f32],
    ) -> Result<()> {
        self.decompress(exec, &ternary::values(trits, scale)?, origin, out)
    }

    /// The header of the message of such a gradient, which decides its length. A message that would be longer than the
    /// gradient is the gradient.
    pub fn header(&self, original_dim: usize, ratio: Ratio, step: u32, slot: u32) -> Header {
        let origin = self.origin(original_dim, step, slot);
        let header = Header {
            origin,
            compressed_dim: origin.projection.compressed_dim(original_dim, ratio),
            ratio: Some(ratio),
            quantizer: self.config.quantizer().on_the_wire(),
        };
        let raw = original_dim.checked_mul(4);
        if header.payload_len().is_none_or(|len| raw.is_some_and(|raw| len > raw)) {
            return Header::raw(origin);
        }
        header
    }

    /// Writes the message of `gradients` under `header` to `message`.
    ///
    /// Values that become digits must be finite. Otherwise a NaN or an infinity shows in the message.
    pub fn encode(
        &self,
        exec: &Exec<'_>,
        gradients: &[f32],
        header: &Header,
        message: &mut [u8],
    ) -> Result<()> {
        let origin = &header.origin;
        check_len(origin.original_dim, gradients.len())?;
        let quantizer = header.quantizer;
        header.write(message, |indices, scales, bytes| {
            let clipped = self.clipped(exec, gradients)?;
            if (origin.projection, quantizer.quantize) == (Projection::Hadamard, Quantize::None) {
                // Straight to the message: as many bytes again would cost as much as the transform.
                let places = bytes.as_chunks_mut::<4>().0;
                return hadamard::compress(exec, &origin.stream(), &clipped, origin.scaling, places);
            }
            let (argument, values) = match (origin.projection, header.ratio) {
                (Projection::None, _) => ("gradients", clipped),
                (Projection::TopK, Some(ratio)) => {
                    let mut values = try_vec(header.compressed_dim)?;
                    topk::compress(exec, &clipped, ratio, indices, &mut values)?;
                    (PROJECTION, Cow::Owned(values))
                }
                _ => {
                    let mut values = try_vec(header.compressed_dim)?;
                    project(exec, &clipped, origin, &mut values)?;
                    (PROJECTION, Cow::Owned(values))
                }
            };
            match quantizer.quantize {
                Quantize::None => write_floats(exec, &values, bytes),
                Quantize::Bfloat16 => write_bfloat16(exec, &values, bytes),
                _ => quantizer.encode(exec, argument, &values, scales, bytes).or_else(|error| {
                    // Where it came from says more than where it showed.
                    require_finite(exec, "gradients", gradients)?;
                    Err(error)
                }),
            }
        })
    }

    /// Writes the gradient that `message` stands for to `out`.
    pub fn decode(&self, exec: &Exec<'_>, message: &Message<'_>, out: &mut [f32]) -> Result<()> {
        let Header { origin, compressed_dim, ratio, .. } = &message.header;
        self.check_seed(origin)?;
        check_len(origin.original_dim, out.len())?;
        if origin.projection == Projection::None {
            return message.values(exec, out);
        }
        let mut values = try_vec(*compressed_dim)?;
        message.values(exec, &mut values)?;
        match (origin.projection, ratio) {
            (Projection::TopK, Some(ratio)) => topk::decompress(exec, message.indices, &values, *ratio, out),
            _ => expand(exec, &values, origin, out),
        }
    }
}

/// What values are called that a caller never sees.
const PROJECTION: &str = "projection of gradients";

impl Message<'_> {
    /// Writes the values that were sent to `out`, as many as there are.
    pub fn values(&self, exec: &Exec<'_>, out: &mut [f32]) -> Result<()> {
        let bytes = self.values;
        match self.header.quantizer.quantize {
            Quantize::None => exec.for_each_chunk_mut(out, PART, |part, out| {
                let bytes = bytes[4 * part * PART..].as_chunks::<4>().0;
                for (value, bytes) in out.iter_mut().zip(bytes) {
                    *value = f32::from_le_bytes(*bytes);
                }
                Ok(())
            }),
            Quantize::Bfloat16 => exec.for_each_chunk_mut(out, PART, |part, out| {
                let bytes = bytes[2 * part * PART..].as_chunks::<2>().0;
                for (value, bytes) in out.iter_mut().zip(bytes) {
                    *value = bf16::to_f32(u16::from_le_bytes(*bytes));
                }
                Ok(())
            }),
            _ => self.header.quantizer.decode(exec, self.scales, bytes, out),
        }
    }

    /// Writes the trits that were sent to `out` and returns their scale, for ternary values of one scale.
    pub fn trits(&self, exec: &Exec<'_>, out: &mut [i8]) -> Result<f32> {
        let scale = self.scales.first_chunk::<4>().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        ternary::unpack(exec, self.values, out)?;
        Ok(scale)
    }
}

impl Header {
    /// Writes the message of a projection that has been made.
    pub fn write_values(&self, exec: &Exec<'_>, values: &[f32], message: &mut [u8]) -> Result<()> {
        check_len(self.compressed_dim, values.len())?;
        self.write(message, |_, _, bytes| write_floats(exec, values, bytes))
    }

    /// Writes the message of trits that have been made.
    pub fn write_trits(&self, exec: &Exec<'_>, trits: &[i8], scale: f32, message: &mut [u8]) -> Result<()> {
        check_len(self.compressed_dim, trits.len())?;
        check_scale(scale, 0)?;
        self.write(message, |_, scales, bytes| {
            scales.copy_from_slice(&scale.to_le_bytes()[..scales.len()]);
            ternary::pack(exec, trits, bytes)
        })
    }
}

fn write_floats(exec: &Exec<'_>, values: &[f32], bytes: &mut [u8]) -> Result<()> {
    exec.for_each_chunk_mut(bytes, 4 * PART, |part, bytes| {
        for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&values[part * PART..]) {
            *bytes = value.to_le_bytes();
        }
        Ok(())
    })
}

fn write_bfloat16(exec: &Exec<'_>, values: &[f32], bytes: &mut [u8]) -> Result<()> {
    exec.for_each_chunk_mut(bytes, 2 * PART, |part, bytes| {
        exec.level().run(Bfloat16 { values: &values[part * PART..], bytes });
        Ok(())
    })
}

struct Bfloat16<'a> {
    values: &'a [f32],
    bytes: &'a mut [u8],
}

impl Kernel for Bfloat16<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (bytes, &value) in self.bytes.as_chunks_mut::<2>().0.iter_mut().zip(self.values) {
            *bytes = bf16::nearest_even(value).to_le_bytes();
        }
    }
}

fn project(exec: &Exec<'_>, gradients: &[f32], origin: &Origin, out: &mut [f32]) -> Result<()> {
    match origin.projection {
        Projection::Dense => {
            let scale = origin.scaling.factor(gradients.len(), out.len());
            dense::compress(exec, &origin.stream(), gradients, scale, out)
        }
        Projection::Hadamard => hadamard::compress(exec, &origin.stream(), gradients, origin.scaling, out),
        Projection::None | Projection::TopK => Err(no_projection(origin.projection)),
    }
}

fn expand(exec: &Exec<'_>, data: &[f32], origin: &Origin, out: &mut [f32]) -> Result<()> {
    match origin.projection {
        Projection::Dense => {
            let scale = origin.scaling.factor(out.len(), data.len());
            dense::decompress(exec, &origin.stream(), data, scale, out)
        }
        Projection::Hadamard => hadamard::decompress(exec, &origin.stream(), data, origin.scaling, out),
        Projection::None | Projection::TopK => Err(no_projection(origin.projection)),
    }
}

fn no_projection(projection: Projection) -> Error {
    let message =
        format!("got {}, whose values are not a projection; call encode and decode", projection.name());
    Error::argument("projection", message)
}

/// How many times smaller k trits of 2 bits and a scale of 32 are than n values of 32 bits.
pub fn ternary_compression_ratio(n: usize, k: usize) -> f32 {
    (32.0 * n as f64) as f32 / (2.0 * k as f64 + 32.0) as f32
}

#[cfg(test)]
mod tests {
    use super::{GradientCompressor, ternary_compression_ratio};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;
    use crate::codec::config::{Projection, Scaling, TrainingConfig};

    fn exec() -> Exec<'static> {
        Exec::serial(SimdLevel::detected())
    }

    /// The inputs of the golden file: splitmix64 from the length, in (-1, 1).
    fn golden_input(n: usize) -> Vec<f32> {
        let mut stream = SplitMix64::new(n as u64);
        (0..n).map(|_| (2.0 * stream.unit() - 1.0) as f32).collect()
    }

    fn compressor(seed: u64, clip: Option<f32>) -> GradientCompressor {
        let config = TrainingConfig::default().with_seed(seed).with_gradient_clipping(clip).unwrap();
        GradientCompressor::new(config)
    }

    #[test]
    fn projections_there_and_back_are_those_of_the_golden_file() {
        // n, seed, ratio, k; the first of compressed and of decompressed; ternary scale.
        for (n, seed, ratio, k, first, first_back, scale) in [
            (10, 42, 0.1, 64, 0xBDA09520, 0xBFBA2594, 0x3EC2F03D),
            (63, 7, 1.0, 64, 0xBDFAFC0D, 0xBDE0ADF4, 0x3E7CFD68),
            (1000, 9, 0.25, 250, 0x3E2C0106, 0xBD9DFDB0, 0x3E7AC074),
            (4096, 42, 0.0625, 256, 0x3E5CCF06_u32, 0xBD1C72D5_u32, 0x3E89E249_u32),
        ] {
            let compressor = compressor(seed, None);
            let input = golden_input(n);
            assert_eq!(compressor.ratio(Some(ratio)).unwrap().compressed_dim(n), k);
            let origin = compressor.origin(n, 0, 0);
            let (mut data, mut back, mut trits) = (vec![0.0; k], vec![0.0; n], vec![0; k]);
            compressor.compress(&exec(), &input, &origin, &mut data).unwrap();
            assert_eq!(data[0].to_bits(), first);
            compressor.decompress(&exec(), &data, &origin, &mut back).unwrap();
            assert_eq!(back[0].to_bits(), first_back);
            let found = compressor.compress_ternary(&exec(), &input, &origin, &mut trits).unwrap();
            assert!((found / f32::from_bits(scale) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn poison_is_carried_through_plain_compression_and_refused_elsewhere() {
        let mut input = golden_input(200);
        input[77] = f32::INFINITY;
        let refused = Err(Error::NonFinite { argument: "gradients".into(), index: 77, value: f32::INFINITY });
        let (plain, clipping) = (compressor(1, None), compressor(1, Some(1.0)));
        let origin = plain.origin(200, 0, 0);
        let mut data = vec![0.0; 64];
        plain.compress(&exec(), &input, &origin, &mut data).unwrap();
        assert!(data.iter().any(|value| !value.is_finite()));
        assert_eq!(clipping.compress(&exec(), &input, &origin, &mut data), refused);
        let refused = refused.map(|()| 0.0);
        assert_eq!(plain.compress_ternary(&exec(), &input, &origin, &mut [0; 64]), refused);
        assert_eq!(clipping.compress_ternary(&exec(), &input, &origin, &mut [0; 64]), refused);
    }

    #[test]
    fn a_projection_that_overflows_is_not_made_ternary() {
        let plain = compressor(42, None);
        let refused = plain.compress_ternary(&exec(), &[f32::MAX; 64], &plain.origin(64, 0, 0), &mut [0; 64]);
        assert!(matches!(refused, Err(Error::NonFinite { .. })));
    }

    #[test]
    fn lengths_and_seeds_must_agree() {
        let one = compressor(1, None);
        let origin = one.origin(10, 0, 0);
        let mismatch = Err(Error::DimensionMismatch { expected: 10, actual: 9 });
        assert_eq!(one.compress(&exec(), &[0.0; 9], &origin, &mut [0.0; 64]), mismatch);
        assert_eq!(one.decompress(&exec(), &[0.0; 64], &origin, &mut [0.0; 9]), mismatch);
        assert_eq!(
            compressor(2, None).decompress(&exec(), &[0.0; 64], &origin, &mut [0.0; 10]),
            Err(Error::SeedMismatch { compress: 1, decompress: 2 })
        );
    }

    #[test]
    fn steps_and_slots_draw_matrices_of_their_own() {
        let one = GradientCompressor::new(
            TrainingConfig::default().with_projection(Projection::Dense, Scaling::Unbiased).unwrap(),
        );
        let mut seen = std::collections::HashSet::new();
        for step in [0, 1, u32::MAX] {
            for slot in [0, 1, u32::MAX] {
                let mut data = vec![0.0; 64];
                one.compress(&exec(), &golden_input(64), &one.origin(64, step, slot), &mut data).unwrap();
                seen.insert(data.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
            }
        }
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn the_ternary_ratio_counts_two_bits_a_trit() {
        assert_eq!(ternary_compression_ratio(10, 64), 2.0);
        assert_eq!(ternary_compression_ratio(0, 64), 0.0);
        assert_eq!(ternary_compression_ratio(1000, 100), 32_000.0 / 232.0);
    }
}
