//! Exponential, natural logarithm and hyperbolic tangent of `f32`, written here so that training gives the same bits
//! on every platform and at every [`SimdLevel`].
//!
//! For whoever writes a kernel: [`exp`], [`ln`] and [`tanh`] take a lane array inside a [`Kernel`] body, [`exp_slice`],
//! [`ln_slice`] and [`tanh_slice`] a whole slice. Lanes never meet: an element's result does not depend on its place.
//!
//! | function | largest error | where | special values |
//! |---|---|---|---|
//! | `exp` | 0.90 ulp | -5.85 | `exp(-inf)` = 0, `exp(inf)` = inf; overflow inf, underflow through the subnormals to 0 |
//! | `ln` | 1.00 ulp | 0.641 | `ln(±0)` = -inf, `ln(inf)` = inf, below zero NaN; subnormal inputs within the same bound |
//! | `tanh` | 1.49 ulp | 0.469 | `tanh(±0)` = ±0, `tanh(±inf)` = ±1; odd to the bit |
//!
//! The errors are maxima over all 2³² inputs against the standard library's `f64` function, in units of the spacing of
//! `f32` at the exact result; the ignored test `every_input_stays_within_its_bound` measures them again. A NaN comes
//! back as [`f32::NAN`], whatever its sign and payload were, because the bits of a computed NaN differ between CPUs.
//!
//! Each function is one branch-free scalar body of additions, multiplications, divisions, `mul_add`, integer operations
//! and selects, which the compiler vectorises at each level. The system's functions were rejected: their bits differ
//! between platforms, and one call takes 3.9 ns (`exp`), 4.4 ns (`ln`) and 24 ns (`tanh`) where these take 1.4, 1.7 and
//! 1.8 ns an element (AVX2, Zen 1, 2,048 elements in L1). At the scalar level of `x86_64` every `mul_add` is a call: 30
//! to 35 ns an element there, more on a CPU without fused multiply-add; the bits stay.
//!
//! The floating-point environment must be the default one: a host that flushes subnormals loses them here too.

mod exp;
mod ln;
mod tanh;

#[cfg(test)]
mod tests;

use crate::base::simd::{Kernel, SimdLevel};
use std::marker::PhantomData;

/// The exponential of every lane, within 0.90 ulp. To be called inside [`Kernel::run`].
#[inline(always)]
pub fn exp<const N: usize>(x: [f32; N]) -> [f32; N] {
    lanes::<Exp, N>(x)
}

/// The natural logarithm of every lane, within 1.00 ulp. To be called inside [`Kernel::run`].
#[inline(always)]
pub fn ln<const N: usize>(x: [f32; N]) -> [f32; N] {
    lanes::<Ln, N>(x)
}

/// The hyperbolic tangent of every lane, within 1.49 ulp. To be called inside [`Kernel::run`].
#[inline(always)]
pub fn tanh<const N: usize>(x: [f32; N]) -> [f32; N] {
    lanes::<Tanh, N>(x)
}

/// Writes the exponential of every element of `x` to `out`, with the same bits as [`exp`].
///
/// # Panics
/// When the lengths differ.
pub fn exp_slice(level: SimdLevel, x: &[f32], out: &mut [f32]) {
    level.run(Map::<Exp>::new(x, out));
}

/// Writes the natural logarithm of every element of `x` to `out`, with the same bits as [`ln`].
///
/// # Panics
/// When the lengths differ.
pub fn ln_slice(level: SimdLevel, x: &[f32], out: &mut [f32]) {
    level.run(Map::<Ln>::new(x, out));
}

/// Writes the hyperbolic tangent of every element of `x` to `out`, with the same bits as [`tanh`].
///
/// # Panics
/// When the lengths differ.
pub fn tanh_slice(level: SimdLevel, x: &[f32], out: &mut [f32]) {
    level.run(Map::<Tanh>::new(x, out));
}

/// A function of one lane. `of` must be `#[inline(always)]`, as everything a [`Kernel`] calls.
trait Function {
    fn of(x: f32) -> f32;
}

struct Exp;
struct Ln;
struct Tanh;

impl Function for Exp {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        exp::exp(x)
    }
}

impl Function for Ln {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        ln::ln(x)
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        tanh::tanh(x)
    }
}

/// A plain loop, because the closures of `array::map` and `array::from_fn` are not inlined into the level's code: with
/// them an element of `exp` took 32 ns instead of 1.4.
#[inline(always)]
fn lanes<F: Function, const N: usize>(x: [f32; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for (out, x) in out.iter_mut().zip(x) {
        *out = F::of(x);
    }
    out
}

struct Map<'a, F> {
    x: &'a [f32],
    out: &'a mut [f32],
    function: PhantomData<F>,
}

impl<'a, F> Map<'a, F> {
    fn new(x: &'a [f32], out: &'a mut [f32]) -> Self {
        assert_eq!(x.len(), out.len(), "an elementary function needs an output as long as its input");
        Self { x, out, function: PhantomData }
    }
}

impl<F: Function> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = F::of(x);
        }
    }
}

/// 1.5 · 2²³. Added to a float of magnitude below 2²², it rounds that to the nearest integer n (ties to even) and
/// leaves n in the low bits of the sum, in two's complement. `f32::round` is a call where SSE4.1 is missing.
const ROUND: f32 = 12_582_912.0;

/// The larger of `x` and `low`, and NaN when `x` is NaN: one instruction, where `f32::max` needs three to drop the NaN.
#[inline(always)]
fn at_least(low: f32, x: f32) -> f32 {
    if low > x { low } else { x }
}

/// The smaller of `x` and `high`, and NaN when `x` is NaN.
#[inline(always)]
fn at_most(high: f32, x: f32) -> f32 {
    if high < x { high } else { x }
}
