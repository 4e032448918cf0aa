//! bfloat16: the upper half of a float32. Conversions both ways, with three roundings on the way down.
//!
//! | rounding | definition | error |
//! |---|---|---|
//! | truncate | the upper 16 bits | shrinks by 0.28 % on average; some NaN become infinities |
//! | nearest even | round to nearest, ties to even; every NaN becomes the quiet NaN of its sign | at most half a step |
//! | stochastic | the lower 16 bits of a seeded word are added, then the upper 16 are taken | zero on average |
//!
//! Integers only: the bits do not depend on the floating-point mode, and the CPU's own conversion (`vcvtneps2bf16`) is not
//! taken, since it flushes subnormals to zero.

use super::elementwise::{PART, check_len, combine};
use super::reduce;
use crate::base::chacha::Stream;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::Kernel;

const INFINITY: u32 = 0x7f80_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
const QUIET_NAN: u32 = 0x7fc0;
const SIGN: u32 = 0x8000;

/// How the lower half of a float32 is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Cut off.
    Truncate,
    /// To the nearest bfloat16, ties to the even one.
    NearestEven,
    /// Up or down at random, so that the mean is the value itself.
    Stochastic,
}

impl Rounding {
    /// Every rounding.
    pub const ALL: [Self; 3] = [Self::Truncate, Self::NearestEven, Self::Stochastic];

    /// The name that callers use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::NearestEven => "nearest_even",
            Self::Stochastic => "stochastic",
        }
    }
}

/// The upper half of a float32, as it is.
#[inline(always)]
pub fn truncate(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// The nearest bfloat16; ties to even, beyond the largest to infinity, NaN to the quiet NaN of its sign.
#[inline(always)]
pub fn nearest_even(value: f32) -> u16 {
    let odd = (value.to_bits() >> 16) & 1;
    rounded(value, 0x7fff + odd)
}

/// The float32 whose upper half is `bits`: exact.
#[inline(always)]
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The upper half after `addend`, below 2^16, was added to the lower one. An infinity has nothing there and stays.
#[inline(always)]
fn rounded(value: f32, addend: u32) -> u16 {
    let bits = value.to_bits();
    // A NaN may wrap around here, and is not taken.
    let sum = bits.wrapping_add(addend) >> 16;
    let nan = QUIET_NAN | ((bits >> 16) & SIGN);
    (if bits & MAGNITUDE > INFINITY { nan } else { sum }) as u16
}

/// Converts to bfloat16. The stochastic rounding of element i adds the lower half of word i of `dither`; the others do
/// not look at it.
pub fn convert_to(
    exec: &Exec<'_>,
    values: &[f32],
    rounding: Rounding,
    dither: &Stream,
    out: &mut [u16],
) -> Result<()> {
    match rounding {
        Rounding::Truncate => combine(exec, out, values, |_, value| truncate(value)),
        Rounding::NearestEven => combine(exec, out, values, |_, value| nearest_even(value)),
        Rounding::Stochastic => stochastic(exec, values, dither, out),
    }
}

/// [`convert_to`] without dither, and the Euclidean norm of the values, in one read of memory. The norm is that of
/// [`reduce::norm`]; it is finite if and only if all values are.
pub fn convert_with_norm(
    exec: &Exec<'_>,
    values: &[f32],
    rounding: Rounding,
    out: &mut [u16],
) -> Result<f64> {
    check_len(values.len(), out.len())?;
    if rounding == Rounding::Stochastic {
        let message = "got 'stochastic', wanted 'truncate' or 'nearest_even'; for it, call convert_to_bf16 and gradient_norm";
        return Err(Error::argument("rounding", message));
    }
    let mut sums: Vec<[f64; 1]> = try_vec(values.len().div_ceil(reduce::BLOCK))?;
    let parts = values.chunks(PART).zip(out.chunks_mut(PART)).zip(sums.chunks_mut(PART / reduce::BLOCK));
    let mut parts: Vec<_> = parts.collect();
    exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
        for ((values, out), sums) in parts {
            exec.level().run(WithNorm { values, rounding, out, sums });
        }
        Ok(())
    })?;
    let [squares] = reduce::pairwise(&mut sums);
    Ok(squares.sqrt())
}

struct WithNorm<'a> {
    values: &'a [f32],
    rounding: Rounding,
    out: &'a mut [u16],
    sums: &'a mut [[f64; 1]],
}

impl Kernel for WithNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.values.chunks(reduce::BLOCK).zip(self.out.chunks_mut(reduce::BLOCK));
        for ((values, out), sum) in blocks.zip(self.sums) {
            // Both loops over a block that the first one brought to the first-level cache.
            *sum = [reduce::block_sum(values, |value| f64::from(value) * f64::from(value))];
            if self.rounding == Rounding::Truncate {
                for (out, &value) in out.iter_mut().zip(values) {
                    *out = truncate(value);
                }
            } else {
                for (out, &value) in out.iter_mut().zip(values) {
                    *out = nearest_even(value);
                }
            }
        }
    }
}

/// Converts from bfloat16, exactly.
pub fn convert_from(exec: &Exec<'_>, bits: &[u16], out: &mut [f32]) -> Result<()> {
    combine(exec, out, bits, |_, bits| to_f32(bits))
}

/// Words drawn at a time: they stay in the first-level cache.
const WORDS: usize = 1024;

fn stochastic(exec: &Exec<'_>, values: &[f32], dither: &Stream, out: &mut [u16]) -> Result<()> {
    check_len(values.len(), out.len())?;
    exec.for_each_chunk_mut(out, PART, |part, out| {
        let mut words = [0; WORDS];
        for (piece, out) in out.chunks_mut(WORDS).enumerate() {
            let start = part * PART + piece * WORDS;
            let words = &mut words[..out.len()];
            dither.words(exec.level(), start as u64, words);
            exec.level().run(Dithered { values: &values[start..][..out.len()], words, out });
        }
        Ok(())
    })
}

struct Dithered<'a> {
    values: &'a [f32],
    words: &'a [u32],
    out: &'a mut [u16],
}

impl Kernel for Dithered<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((out, &value), word) in self.out.iter_mut().zip(self.values).zip(self.words) {
            *out = rounded(value, word & 0xffff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rounding, convert_from, convert_to, convert_with_norm, nearest_even, to_f32, truncate};
    use crate::base::chacha::{Key, Stream};
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::numeric::elementwise::tests::lengths;
    use crate::numeric::reduce;

    /// `golden: bf16_truncate_in_out_back`.
    const GOLDEN_TRUNCATIONS: [(u32, u16, u32); 19] = [
        (0x00000000, 0x0000, 0x00000000),
        (0x80000000, 0x8000, 0x80000000),
        (0x00000001, 0x0000, 0x00000000),
        (0x807fffff, 0x807f, 0x807f0000),
        (0x3f800000, 0x3f80, 0x3f800000),
        (0x3f808000, 0x3f80, 0x3f800000),
        (0x3f80ffff, 0x3f80, 0x3f800000),
        (0x3f818000, 0x3f81, 0x3f810000),
        (0x7f7fffff, 0x7f7f, 0x7f7f0000),
        (0xff7fffff, 0xff7f, 0xff7f0000),
        (0x7f800000, 0x7f80, 0x7f800000),
        (0xff800000, 0xff80, 0xff800000),
        (0x7f800001, 0x7f80, 0x7f800000),
        (0x7fc00000, 0x7fc0, 0x7fc00000),
        (0xffc00001, 0xffc0, 0xffc00000),
        (0x40490fdb, 0x4049, 0x40490000),
        (0x00800000, 0x0080, 0x00800000),
        (0x0000ffff, 0x0000, 0x00000000),
        (0x00018000, 0x0001, 0x00010000),
    ];

    /// What `ml_dtypes` 0.5 gives for the same inputs, and for a few around ties.
    const NEAREST: [(u32, u16); 22] = [
        (0x00000000, 0x0000),
        (0x80000000, 0x8000),
        (0x00000001, 0x0000),
        (0x00008000, 0x0000),
        (0x00008001, 0x0001),
        (0x00018000, 0x0002),
        (0x807fffff, 0x8080),
        (0x8000ffff, 0x8001),
        (0x3f800000, 0x3f80),
        (0x3f808000, 0x3f80),
        (0x3f808001, 0x3f81),
        (0x3f818000, 0x3f82),
        (0x7f7f7fff, 0x7f7f),
        (0x7f7f8000, 0x7f80),
        (0x7f7fffff, 0x7f80),
        (0xff7fffff, 0xff80),
        (0x7f800000, 0x7f80),
        (0xff800000, 0xff80),
        (0x7f800001, 0x7fc0),
        (0xff800001, 0xffc0),
        (0x7fffffff, 0x7fc0),
        (0xffffffff, 0xffc0),
    ];

    fn stream() -> Stream {
        Stream::of_step(Key::from_seed(42), 3, 0)
    }

    /// Patterns over the whole range, with every special value among them.
    fn patterns(len: usize) -> Vec<f32> {
        let special = NEAREST.iter().map(|&(bits, _)| bits);
        let spread = (0..).map(|i: u32| i.wrapping_mul(0x9e37_79b9));
        special.chain(spread).take(len).map(f32::from_bits).collect()
    }

    #[test]
    fn truncation_is_golden() {
        for (bits, half, back) in GOLDEN_TRUNCATIONS {
            assert_eq!(truncate(f32::from_bits(bits)), half, "{bits:08x}");
            assert_eq!(to_f32(half).to_bits(), back, "{half:04x}");
        }
    }

    #[test]
    fn the_nearest_is_that_of_ml_dtypes() {
        for (bits, half) in NEAREST {
            assert_eq!(nearest_even(f32::from_bits(bits)), half, "{bits:08x}");
        }
    }

    #[test]
    fn the_nearest_is_the_closer_neighbour_or_the_even_one() {
        // Exact in float64, apart from infinity, which stands at 2^128 for the purpose of rounding.
        let wide = |half: u16| {
            if half & 0x7fff == 0x7f80 { 2.0_f64.powi(128) } else { f64::from(to_f32(half & 0x7fff)) }
        };
        for bits in (0..0x7f80_0000_u32).step_by(9973) {
            let value = f64::from(f32::from_bits(bits));
            let below = (bits >> 16) as u16;
            let (down, up) = (value - wide(below), wide(below + 1) - value);
            let want = if down < up || (down == up && below.is_multiple_of(2)) { below } else { below + 1 };
            assert_eq!(nearest_even(f32::from_bits(bits)), want, "{bits:08x}");
            assert_eq!(nearest_even(-f32::from_bits(bits)), want | 0x8000, "{bits:08x}");
        }
    }

    #[test]
    fn arrays_are_converted_as_scalars_are_everywhere() {
        everywhere(|exec| {
            for len in lengths() {
                let values = patterns(len);
                let mut halves = vec![1; len];
                convert_to(exec, &values, Rounding::Truncate, &stream(), &mut halves).unwrap();
                assert!(halves.iter().zip(&values).all(|(&half, &value)| half == truncate(value)));
                let mut back = vec![0.0; len];
                convert_from(exec, &halves, &mut back).unwrap();
                assert!(back.iter().zip(&halves).all(|(b, &half)| b.to_bits() == u32::from(half) << 16));
                convert_to(exec, &values, Rounding::NearestEven, &stream(), &mut halves).unwrap();
                assert!(halves.iter().zip(&values).all(|(&half, &value)| half == nearest_even(value)));
            }
        });
    }

    #[test]
    fn stochastic_rounding_adds_the_words_of_the_stream_everywhere() {
        everywhere(|exec| {
            for len in lengths() {
                let values = patterns(len);
                let mut words = vec![0; len];
                stream().words(SimdLevel::Scalar, 0, &mut words);
                let mut halves = vec![1; len];
                convert_to(exec, &values, Rounding::Stochastic, &stream(), &mut halves).unwrap();
                for ((&half, value), word) in halves.iter().zip(values).zip(words) {
                    let bits = value.to_bits();
                    let want = if value.is_nan() {
                        0x7fc0 | (bits >> 16) & 0x8000
                    } else {
                        (bits + (word & 0xffff)) >> 16
                    };
                    assert_eq!(u32::from(half), want, "{bits:08x}");
                }
            }
        });
    }

    #[test]
    fn stochastic_rounding_keeps_infinities_and_quiets_nan() {
        let special =
            [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)];
        let values: Vec<f32> = special.iter().copied().cycle().take(4000).collect();
        let mut halves = vec![0; values.len()];
        let exec = Exec::serial(SimdLevel::detected());
        convert_to(&exec, &values, Rounding::Stochastic, &stream(), &mut halves).unwrap();
        let want = [0x7f80, 0xff80, 0x7fc0, 0xffc0];
        assert!(halves.iter().zip(want.iter().cycle()).all(|(got, want)| got == want));
    }

    #[test]
    fn stochastic_rounding_has_the_value_as_its_mean() {
        let count = 1 << 16;
        let exec = Exec::serial(SimdLevel::detected());
        for value in [1.003_f32, -2.7281, 1e-39] {
            let mut halves = vec![0; count];
            convert_to(&exec, &vec![value; count], Rounding::Stochastic, &stream(), &mut halves).unwrap();
            let mean = halves.iter().map(|&half| f64::from(to_f32(half))).sum::<f64>() / count as f64;
            let step = f64::from(to_f32(truncate(value) + 1)) - f64::from(to_f32(truncate(value)));
            // The deviation of one rounding is at most half a step: five standard errors.
            assert!((mean - f64::from(value)).abs() < 5.0 * 0.5 * step.abs() / (count as f64).sqrt());
        }
    }

    #[test]
    fn names_are_all_different() {
        assert_eq!(Rounding::ALL.map(Rounding::name), ["truncate", "nearest_even", "stochastic"]);
    }

    #[test]
    fn with_the_norm_bits_and_norm_are_those_of_their_own_calls() {
        everywhere(|exec| {
            for len in lengths() {
                let mut values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin() * 1e3).collect();
                for poison in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::MAX), Some(1e-45)] {
                    for place in [0, len / 2, len.saturating_sub(1)] {
                        if let (Some(poison), true) = (poison, len > 0) {
                            values[place] = poison;
                        }
                        for rounding in [Rounding::Truncate, Rounding::NearestEven] {
                            let (mut want, mut found) = (vec![1; len], vec![2; len]);
                            let dither = Stream::new(Key::from_seed(0), 0);
                            convert_to(exec, &values, rounding, &dither, &mut want).unwrap();
                            let norm = convert_with_norm(exec, &values, rounding, &mut found).unwrap();
                            assert_eq!(found, want);
                            assert_eq!(norm.to_bits(), reduce::norm(exec, &values).unwrap().to_bits());
                            assert_eq!(norm.is_finite(), values.iter().all(|value| value.is_finite()));
                        }
                    }
                }
            }
        });
        let exec = Exec::serial(SimdLevel::detected());
        assert!(convert_with_norm(&exec, &[1.0], Rounding::Stochastic, &mut [0]).is_err());
        assert!(convert_with_norm(&exec, &[1.0], Rounding::Truncate, &mut [0; 2]).is_err());
    }
}
