//! tanh(|x|) = (S - 1 + t (S + 1)) / (S + 1 + t (S - 1)) with |x| = n · ln 2 / 2 + r, S = 2ⁿ and t = tanh(r): the
//! addition theorem, where tanh(n · ln 2 / 2) = (S - 1) / (S + 1).
//!
//! For n = 0 the quotient is t itself, so small arguments keep the error of a short odd polynomial. For larger ones
//! the roundings of numerator and denominator would cost 2.5 ulp. A number c near the result, taken from n alone,
//! leaves the quotient: c + (S d - e + t (S d + e)) / (S + 1 + t (S - 1)) with d = 1 - c and e = 1 + c is the same
//! value, and the roundings count only in proportion to its small second term.

use super::{ROUND, at_most};
use std::f32::consts::{LN_2, LOG2_E};

/// Minimax polynomial p of degree 2 for tanh(r) = r + r³ p(r²) on |r| ≤ ln 2 / 4 (widened by 2⁻¹²), lowest power first.
/// Remez exchange on the relative error in 120-bit arithmetic; from the lowest power on, each coefficient was rounded
/// to `f32` and the others fitted again. Largest relative error 1.65e-10 = 2⁻³²·⁵, the same before rounding.
const P: [f32; 3] = [-0.333_333_22, 0.133_311_42, -0.052_715_29];

/// tanh rounds to 1 from 9.011 on.
const SATURATED: f32 = 10.0;

/// c grows by this with n until it is 1: 0, 0.19, 0.38, 0.56, 0.75, 0.94, 1 beside 0, 0.33, 0.60, 0.78, 0.88, 0.94, 0.97
/// in the middle of each step. The slope with the smallest error of 11/64, 12/64, ... 21/64; few bits keep S d ± e exact.
const SLOPE: f32 = 0.1875;

#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    // The low bits of `shifted` hold n + 127, the exponent of S.
    const SHIFT: f32 = ROUND + 127.0;
    let magnitude = at_most(SATURATED, x.abs());
    let shifted = magnitude.mul_add(2.0 * LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let s = f32::from_bits(shifted.to_bits() << 23);

    // n is small where tanh still depends on r, so that the error of the constant (1e-9) needs no second step.
    let r = n.mul_add(-0.5 * LN_2, magnitude);
    let square = r * r;
    let p = P[2].mul_add(square, P[1]).mul_add(square, P[0]);
    let t = (r * square).mul_add(p, r);

    let c = at_most(1.0, n * SLOPE);
    let (d, e) = (1.0 - c, 1.0 + c);
    let numerator = t.mul_add(s.mul_add(d, e), s.mul_add(d, -e));
    let denominator = t.mul_add(s - 1.0, s + 1.0);
    let y = c + numerator / denominator;

    // The sign comes back by bits: the sums above turn -0 into +0.
    let y = y.copysign(x);
    if x.is_nan() { f32::NAN } else { y }
}
