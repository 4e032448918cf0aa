//! Values made digits of a few levels, with a scale for all of them or for every block.
//!
//! Two passes over a block: one sums magnitudes and squares, which decide the thresholds; the other makes and packs the
//! digits and sums what decides the scale. Sums are the fixed-order ones of [`reduce`], so digits and scales are the same
//! at every level and thread count.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::{Kernel, SimdLevel};
use crate::codec::config::{Quantize, QuantizerScale};
use crate::codec::pack::Packing;
use crate::numeric::reduce;

/// Up to this mean magnitude, the reference's ternary scale is 1.
const LEAST_MEAN: f32 = 1e-10;
/// The threshold of least squared error on Gaussian data, 0.62 sigma, as a multiple of the mean magnitude.
const THRESHOLD: f64 = 0.777;
/// Magnitudes of the levels of Lloyd and Max for a Gaussian of variance 1.
const LEVELS2: [f32; 2] = [0.45278004, 1.5104176];
const LEVELS4: [f32; 8] =
    [0.12839504, 0.3880483, 0.65675914, 0.94234043, 1.2562312, 1.6180464, 2.0690172, 2.7325895];

/// Values digits are made of at a time: whole blocks of the sums, whole chunks of every packing, and few enough for a
/// second-level cache.
pub(crate) const PIECE: usize = 5 * reduce::BLOCK;
/// Values that are worth a thread.
const PART: usize = 4 * PIECE;
/// Scale blocks are multiples of this, the lanes of the sums.
pub const SCALE_BLOCK_UNIT: u32 = 64;

/// What becomes of values, and with which scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Quantizer {
    /// The digits.
    pub quantize: Quantize,
    /// The form of the scale.
    pub scale: QuantizerScale,
    block: Option<u32>,
}

impl Quantizer {
    /// A quantiser with a scale for every `block` values, a multiple of 64; one for all of them if there is none.
    pub fn new(quantize: Quantize, scale: QuantizerScale, block: Option<u32>) -> Result<Self> {
        if let Some(block) = block
            && (block == 0 || !block.is_multiple_of(SCALE_BLOCK_UNIT))
        {
            let message =
                format!("got {block}, wanted a multiple of {SCALE_BLOCK_UNIT}, or None for one scale");
            return Err(Error::argument("quantizer_block", message));
        }
        Ok(Self { quantize, scale, block })
    }

    /// Values per scale.
    pub fn block(self) -> Option<u32> {
        self.block
    }

    /// Whether values become digits of few levels.
    pub fn is_quantised(self) -> bool {
        self.packing().is_some()
    }

    /// What a message says of it: no scale where nothing is scaled.
    #[must_use]
    pub fn on_the_wire(self) -> Self {
        if self.is_quantised() { self } else { Self { quantize: self.quantize, ..Self::default() } }
    }

    fn packing(self) -> Option<Packing> {
        match self.quantize {
            Quantize::None | Quantize::Bfloat16 => None,
            Quantize::Ternary => Some(Packing::Trits),
            Quantize::Sign => Some(Packing::Bits),
            Quantize::Levels2 => Some(Packing::Pairs),
            Quantize::Levels4 => Some(Packing::Nibbles),
        }
    }

    fn block_len(self, k: usize) -> usize {
        self.block.map_or(k, |block| block as usize)
    }

    /// Bytes of the scales of `k` values.
    pub fn scale_bytes(self, k: usize) -> usize {
        if self.is_quantised() && k > 0 { 4 * k.div_ceil(self.block_len(k)) } else { 0 }
    }

    /// Bytes of `k` values, without the scales; no value if that is beyond the machine.
    pub fn value_bytes(self, k: usize) -> Option<usize> {
        match (self.quantize, self.packing()) {
            (Quantize::Bfloat16, _) => k.checked_mul(2),
            (_, None) => k.checked_mul(4),
            (_, Some(packing)) => {
                let block = self.block_len(k).max(1);
                Some(k / block * packing.bytes(block) + packing.bytes(k % block))
            }
        }
    }

    /// Writes the scales of `values` to `scales` and their packed digits to `bytes`. A value that is not finite is refused
    /// under the name `argument`.
    pub(crate) fn encode(
        self,
        exec: &Exec<'_>,
        argument: &str,
        values: &[f32],
        scales: &mut [u8],
        bytes: &mut [u8],
    ) -> Result<()> {
        let (Some(packing), false) = (self.packing(), values.is_empty()) else {
            return Ok(());
        };
        let len = self.block_len(values.len());
        let encode = |exec: &Exec<'_>, values: &[f32], scale: &mut [u8], bytes: &mut [u8]| {
            let emit = |level: SimdLevel, digits: &[u8], out: &mut [u8]| packing.pack(level, digits, out);
            let found = self.quantise(exec, argument, values, bytes, packing.planes(), emit)?;
            scale.copy_from_slice(&found.to_le_bytes());
            Ok(())
        };
        if len >= values.len() {
            return encode(exec, values, scales, bytes);
        }
        // Blocks that are cut at all are short enough for one thread each, some of them together.
        let together = (PART / len).max(1);
        let parts = values
            .chunks(together * len)
            .zip(scales.chunks_mut(together * 4))
            .zip(bytes.chunks_mut(together * packing.bytes(len)));
        let mut parts: Vec<_> = parts.collect();
        exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
            parts.iter_mut().try_for_each(|((values, scales), bytes)| {
                let scales = scales.chunks_exact_mut(4);
                let bytes = bytes.chunks_mut(packing.bytes(len));
                values.chunks(len).zip(scales).zip(bytes).try_for_each(|((values, scale), bytes)| {
                    encode(&exec.on_one_thread(), values, scale, bytes)
                })
            })
        })
    }

    /// Makes the digits of one scale block and returns its scale. `emit` writes the digits of a piece to its place in `out`, which
    /// holds an element for every `per_element` digits, and whole ones for every whole piece.
    pub(crate) fn quantise<T: Send>(
        self,
        exec: &Exec<'_>,
        argument: &str,
        values: &[f32],
        out: &mut [T],
        per_element: usize,
        emit: impl Fn(SimdLevel, &[u8], &mut [T]) + Send + Sync,
    ) -> Result<f32> {
        let Self { quantize, scale: form, .. } = self;
        let [magnitudes, squares] = match (quantize, form) {
            (Quantize::Ternary | Quantize::Sign, QuantizerScale::Unbiased) => {
                reduce::sums_abs_and_squares(exec, values)?
            }
            (Quantize::Ternary | Quantize::Sign, _) => [reduce::sum_abs(exec, values)?, 0.0],
            _ => [0.0, reduce::sum_squares(exec, values)?],
        };
        // Sums of finite float32 values and of their squares are finite in float64.
        if !(magnitudes + squares).is_finite() {
            reduce::require_finite(exec, argument, values)?;
        }
        let count = values.len().max(1) as f64;
        let cut = Cut::new(quantize, form, magnitudes / count, (squares / count).sqrt());
        let mut sums: Vec<[f64; 2]> = try_vec(values.len().div_ceil(reduce::BLOCK))?;
        let parts = values
            .chunks(PART)
            .zip(out.chunks_mut(PART / per_element))
            .zip(sums.chunks_mut(PART / reduce::BLOCK));
        let mut parts: Vec<_> = parts.collect();
        exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
            let mut digits = try_vec(PIECE.min(values.len()))?;
            for ((values, out), sums) in parts {
                let outs = out.chunks_mut(PIECE / per_element);
                let sums = sums.chunks_mut(PIECE / reduce::BLOCK);
                for ((values, out), sums) in values.chunks(PIECE).zip(outs).zip(sums) {
                    let digits = &mut digits[..values.len()];
                    cut.run(exec.level(), values, digits, sums);
                    emit(exec.level(), digits, out);
                }
            }
            Ok(())
        })?;
        let [inner, energy] = reduce::pairwise(&mut sums);
        let scale = match (quantize, form) {
            (Quantize::Ternary, QuantizerScale::Reference) => f64::from(cut.reference_scale),
            (Quantize::Ternary, _) if energy == 0.0 => 1.0,
            (Quantize::Sign, QuantizerScale::Unbiased) => quotient(squares, magnitudes),
            (Quantize::Sign, _) => magnitudes / count,
            (_, QuantizerScale::Unbiased) => quotient(squares, inner),
            _ => quotient(inner, energy),
        };
        let scale = scale as f32;
        if scale.is_finite() {
            Ok(scale)
        } else {
            Err(Error::NonFinite { argument: "scale".into(), index: 0, value: scale })
        }
    }

    /// Writes the values that digits stand for to `out`. Scales and digits are valid.
    pub(crate) fn decode(self, exec: &Exec<'_>, scales: &[u8], bytes: &[u8], out: &mut [f32]) -> Result<()> {
        let (Some(packing), false) = (self.packing(), out.is_empty()) else {
            return Ok(());
        };
        let len = self.block_len(out.len());
        let scale = |block: usize| {
            let bytes = scales[4 * block..].first_chunk::<4>().copied().unwrap_or_default();
            f32::from_le_bytes(bytes)
        };
        let quantize = self.quantize;
        // A part is some whole blocks, or some whole pieces of the only one.
        let part = if len >= out.len() { PART } else { (PART / len).max(1) * len };
        let whole = len >= out.len();
        exec.for_each_chunk_mut(out, part, |index, out| {
            let mut digits = try_vec(PIECE.min(out.len()))?;
            let first = if whole { 0 } else { index * part / len };
            let start = if whole { packing.bytes(index * part) } else { first * packing.bytes(len) };
            let mut bytes = &bytes[start..];
            for (block, out) in out.chunks_mut(if whole { part } else { len }).enumerate() {
                let scale = scale(first + block);
                for out in out.chunks_mut(PIECE) {
                    let digits = &mut digits[..out.len()];
                    let (now, later) = bytes.split_at(packing.bytes(out.len()));
                    packing.unpack(exec.level(), now, digits);
                    exec.level().run(Dequantise { digits, quantize, scale, out });
                    bytes = later;
                }
            }
            Ok(())
        })
    }

    /// [`Error::Wire`] unless `scales` and `bytes` are what [`Self::encode`] can have made of `k` values.
    pub(crate) fn check(self, level: SimdLevel, k: usize, scales: &[u8], bytes: &[u8]) -> Result<()> {
        let Some(packing) = self.packing() else {
            return Ok(());
        };
        for (block, bytes) in scales.as_chunks::<4>().0.iter().enumerate() {
            check_scale(f32::from_le_bytes(*bytes), block)?;
        }
        let len = self.block_len(k).max(1);
        let mut rest = bytes;
        let mut left = k;
        while left > 0 {
            let digits = len.min(left);
            let (now, later) = rest.split_at(packing.bytes(digits));
            if let Some(index) = packing.first_invalid(level, now, digits) {
                let place = bytes.len() - rest.len() + index;
                let message = format!(
                    "got {} at byte {place} of the values, which {} digits cannot make",
                    now[index],
                    self.quantize.name()
                );
                return Err(Error::wire("digits", message));
            }
            (rest, left) = (later, left - digits);
        }
        Ok(())
    }
}

/// [`Error::Wire`] for what no quantiser gives as the scale of a block.
pub(crate) fn check_scale(scale: f32, block: usize) -> Result<()> {
    if scale.is_finite() && scale.is_sign_positive() {
        return Ok(());
    }
    let message = format!("got {scale:?} for block {block}, wanted a finite number of 0 or more");
    Err(Error::wire("scales", message))
}

fn quotient(of: f64, by: f64) -> f64 {
    if by == 0.0 { 0.0 } else { of / by }
}

/// Where the values of a block are cut into digits.
struct Cut {
    quantize: Quantize,
    /// A magnitude above these is in the next level; float32 values above them are those above the float64 threshold.
    thresholds: [f32; 7],
    /// The ternary scale of the reference.
    reference_scale: f32,
}

impl Cut {
    fn new(quantize: Quantize, form: QuantizerScale, mean: f64, rms: f64) -> Self {
        let mut thresholds = [0.0; 7];
        let reference_scale = if mean as f32 <= LEAST_MEAN { 1.0 } else { mean as f32 };
        match quantize {
            Quantize::Ternary if form == QuantizerScale::Reference => {
                thresholds[0] = last_below_half(reference_scale);
            }
            Quantize::Ternary => thresholds[0] = round_down(THRESHOLD * mean),
            Quantize::Levels2 => between(&LEVELS2, rms, &mut thresholds),
            Quantize::Levels4 => between(&LEVELS4, rms, &mut thresholds),
            _ => {}
        }
        Self { quantize, thresholds, reference_scale }
    }

    /// The digits of `values`, and for every block of the sums: <values, levels of their digits> and the energy of those
    /// levels.
    fn run(&self, level: SimdLevel, values: &[f32], digits: &mut [u8], sums: &mut [[f64; 2]]) {
        let thresholds = self.thresholds;
        match self.quantize {
            Quantize::Ternary => level.run(Trits { values, threshold: thresholds[0], digits, sums }),
            Quantize::Levels2 => level.run(LevelDigits::<2> { values, thresholds, digits, sums }),
            Quantize::Levels4 => level.run(LevelDigits::<8> { values, thresholds, digits, sums }),
            _ => level.run(Signs { values, digits }),
        }
    }
}

/// The largest float32 that is not above `value`.
fn round_down(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) > value { near.next_down() } else { near }
}

/// The largest float32 whose quotient with `scale` is not above a half.
fn last_below_half(scale: f32) -> f32 {
    let mut threshold = 0.5 * scale;
    while threshold.next_up() / scale <= 0.5 {
        threshold = threshold.next_up();
    }
    threshold
}

fn between(levels: &[f32], rms: f64, thresholds: &mut [f32; 7]) {
    for (threshold, pair) in thresholds.iter_mut().zip(levels.windows(2)) {
        *threshold = round_down(f64::midpoint(f64::from(pair[0]), f64::from(pair[1])) * rms);
    }
}

struct Signs<'a> {
    values: &'a [f32],
    digits: &'a mut [u8],
}

impl Kernel for Signs<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (digit, &value) in self.digits.iter_mut().zip(self.values) {
            *digit = u8::from(value < 0.0);
        }
    }
}

struct Trits<'a> {
    values: &'a [f32],
    threshold: f32,
    digits: &'a mut [u8],
    sums: &'a mut [[f64; 2]],
}

impl Kernel for Trits<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let threshold = self.threshold;
        for (digit, &value) in self.digits.iter_mut().zip(self.values) {
            *digit = 1 + u8::from(value > threshold) - u8::from(value < -threshold);
        }
        for (sums, values) in self.sums.iter_mut().zip(self.values.chunks(reduce::BLOCK)) {
            sums[0] = reduce::block_sum(values, |value| {
                f64::from(if value.abs() > threshold { value.abs() } else { 0.0 })
            });
        }
        for (sums, digits) in self.sums.iter_mut().zip(self.digits.chunks(reduce::BLOCK)) {
            let mut count = 0_u32;
            for &digit in digits {
                count += u32::from(digit != 1);
            }
            sums[1] = f64::from(count);
        }
    }
}

struct LevelDigits<'a, const HALF: usize> {
    values: &'a [f32],
    thresholds: [f32; 7],
    digits: &'a mut [u8],
    sums: &'a mut [[f64; 2]],
}

impl<const HALF: usize> Kernel for LevelDigits<'_, HALF> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { values, thresholds, digits, sums } = self;
        for (digit, &value) in digits.iter_mut().zip(values) {
            let mut above = 0_u32;
            for &threshold in &thresholds[..HALF - 1] {
                above += u32::from(value.abs() > threshold);
            }
            let half = HALF as u32;
            *digit = (if value < 0.0 { half - 1 - above } else { half + above }) as u8;
        }
        for (sums, values) in sums.iter_mut().zip(values.chunks(reduce::BLOCK)) {
            sums[0] = reduce::block_sum(
                values,
                #[inline(always)]
                |value| f64::from(value.abs()) * level::<HALF>(value, &thresholds),
            );
            sums[1] = reduce::block_sum(
                values,
                #[inline(always)]
                |value| level::<HALF>(value, &thresholds) * level::<HALF>(value, &thresholds),
            );
        }
    }
}

/// The level of a magnitude.
#[inline(always)]
fn level<const HALF: usize>(value: f32, thresholds: &[f32; 7]) -> f64 {
    // Known when this is compiled: a choice between loaded values would become a load from a chosen place.
    let levels = if HALF == 2 { [LEVELS2[0], LEVELS2[1], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] } else { LEVELS4 };
    let [_, l1, l2, l3, l4, l5, l6, l7] = levels;
    let [t1, t2, t3, t4, t5, t6, t7] = *thresholds;
    let magnitude = value.abs();
    let choose = |threshold: f32, above: f32, below: f32| if magnitude > threshold { above } else { below };
    let low = choose(t1, l1, levels[0]);
    if HALF == 2 {
        return f64::from(low);
    }
    let low = choose(t3, l3, choose(t2, l2, low));
    let high = choose(t7, l7, choose(t6, l6, choose(t5, l5, l4)));
    f64::from(choose(t4, high, low))
}

struct Dequantise<'a> {
    digits: &'a [u8],
    quantize: Quantize,
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { digits, quantize, scale, out } = self;
        match quantize {
            Quantize::Ternary => {
                for (out, &digit) in out.iter_mut().zip(digits) {
                    *out = (i32::from(digit) - 1) as f32 * scale;
                }
            }
            Quantize::Sign => {
                for (out, &digit) in out.iter_mut().zip(digits) {
                    *out = if digit == 0 { scale } else { -scale };
                }
            }
            Quantize::Levels2 => {
                for (out, &digit) in out.iter_mut().zip(digits) {
                    // A choice of two, rather than a table, is the same instructions for many values at once.
                    let outer = digit == 0 || digit == 3;
                    let magnitude = (if outer { LEVELS2[1] } else { LEVELS2[0] }) * scale;
                    *out = if digit < 2 { -magnitude } else { magnitude };
                }
            }
            _ => {
                let mut values = levels(&LEVELS4);
                for value in &mut values {
                    *value *= scale;
                }
                for (out, &digit) in out.iter_mut().zip(digits) {
                    *out = values[usize::from(digit & 15)];
                }
            }
        }
    }
}

/// The level of every digit: negative ones in falling magnitude, then positive ones in rising magnitude.
#[inline(always)]
fn levels(magnitudes: &[f32; 8]) -> [f32; 16] {
    let mut levels = [0.0; 16];
    for (at, &level) in magnitudes.iter().enumerate() {
        levels[8 + at] = level;
        levels[7 - at] = -level;
    }
    levels
}
