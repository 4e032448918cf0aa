//! ln(x) = e · ln 2 + ln(1 + f) with x = 2ᵉ (1 + f) and 1 + f in [2/3, 4/3).

use std::f32::consts::LN_2;

/// Minimax polynomial q of degree 8 for ln(1 + f) = f + f² q(f) on |f| ≤ 1/3, lowest power first. Remez exchange on the
/// relative error in 120-bit arithmetic with q(0) = -1/2 held; from the next power on, each coefficient was rounded to
/// `f32` and the others fitted again. Largest relative error 4.96e-9 = 2⁻²⁷·⁶, the same before rounding.
const Q: [f32; 9] = [
    -0.5,
    0.333_331_97,
    -0.249_999_2,
    0.200_114_32,
    -0.166_744_57,
    0.139_897_6,
    -0.122_730_196,
    0.140_599_49,
    -0.124_917_7,
];

/// The bits of 2/3, rounded up: the lowest mantissa. Around 1, where ln(x) is small, e is 0 and nothing cancels.
const LOWEST: u32 = 0x3f2a_aaab;

/// 2²³, which makes every subnormal normal.
const NORMALISING: f32 = 8_388_608.0;

#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * NORMALISING } else { x };
    let correction = if subnormal { -23.0 } else { 0.0 };

    let offset = scaled.to_bits().wrapping_sub(LOWEST);
    let e = (offset.cast_signed() >> 23) as f32 + correction;
    let f = f32::from_bits((offset & 0x007f_ffff) + LOWEST) - 1.0;

    // Estrin's scheme: Horner's is one chain of eleven operations, and took 2.4 ns instead of 1.7.
    let f2 = f * f;
    let f4 = f2 * f2;
    let low = Q[3].mul_add(f, Q[2]).mul_add(f2, Q[1].mul_add(f, Q[0]));
    let high = Q[7].mul_add(f, Q[6]).mul_add(f2, Q[5].mul_add(f, Q[4]));
    let high = Q[8].mul_add(f4, high);
    let ln_1p = high.mul_add(f4, low).mul_add(f2, f);

    // The `f32` nearest to ln 2 is off by 2⁻²⁸·⁴ of itself: a second term would buy less than 0.1 ulp.
    let y = e.mul_add(LN_2, ln_1p);
    let y = if x < f32::INFINITY { y } else { x };
    let outside = if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    if x > 0.0 { y } else { outside }
}
