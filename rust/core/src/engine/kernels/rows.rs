//! softmax and its kin over rows, shifted by the row's maximum.
//!
//! A row's sum of exponentials goes through sixteen lanes (element i to lane i mod 16), combined pairwise.

use super::axes::pairwise;
use crate::base::simd::{Kernel, SimdLevel};
use crate::numeric::elementary::{exp, ln};

const LANES: usize = 16;

/// What a row's exponentials say of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The largest element.
    pub max: f32,
    /// Sum of e^(element - max).
    pub sum: f32,
}

struct Exponentials<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    columns: usize,
    rows: &'a mut [Row],
}

impl Kernel for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pairs = self.x.chunks_exact(self.columns).zip(self.out.chunks_exact_mut(self.columns));
        for ((x, out), row) in pairs.zip(self.rows) {
            *row = exponentials(x, out);
        }
    }
}

/// `lanes` filled from a row's last elements, the rest with `filler`.
#[inline(always)]
fn padded(rest: &[f32], filler: f32) -> [f32; LANES] {
    let mut lanes = [filler; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// `lanes - max`, in a plain loop: closures given to array methods are not compiled for the caller's level.
#[inline(always)]
fn shifted(mut lanes: [f32; LANES], max: f32) -> [f32; LANES] {
    for lane in &mut lanes {
        *lane -= max;
    }
    lanes
}

#[inline(always)]
fn exponentials(x: &[f32], out: &mut [f32]) -> Row {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let rest = padded(rest, f32::NEG_INFINITY);
    let mut maxima = rest;
    for chunk in chunks {
        for lane in 0..LANES {
            maxima[lane] = if chunk[lane] > maxima[lane] { chunk[lane] } else { maxima[lane] };
        }
    }
    // Of equal values either may win: only zeros of unlike sign can differ, and x - max is the same for both.
    let mut max = maxima[0];
    for lane in maxima {
        max = if lane > max || max.is_nan() { lane } else { max };
    }
    let mut sums = [0.0_f32; LANES];
    let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        *out = exp(shifted(*chunk, max));
        for lane in 0..LANES {
            sums[lane] += out[lane];
        }
    }
    if !out_rest.is_empty() {
        let last = exp(shifted(rest, max));
        // Lanes past the row's end must not add: with max = -inf theirs would be NaN.
        for (lane, value) in last.iter().enumerate().take(out_rest.len()) {
            sums[lane] += value;
        }
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
    Row { max, sum: pairwise(sums) }
}

/// `out = e^(x - max)` row by row, and what each row came to.
pub fn exponentials_of_rows(level: SimdLevel, x: &[f32], out: &mut [f32], columns: usize, rows: &mut [Row]) {
    if columns > 0 {
        level.run(Exponentials { x, out, columns, rows });
    }
}

impl Row {
    /// The logarithm of the sum of exponentials of the row.
    #[inline]
    pub fn logsumexp(self) -> f32 {
        self.max + self.log_sum()
    }

    /// The same less the row's maximum. Differences from the maximum are exact where the logits are large, so what is
    /// subtracted from a logit is taken in two steps.
    #[inline]
    pub fn log_sum(self) -> f32 {
        ln([self.sum])[0]
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, exponentials_of_rows};
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;

    #[test]
    fn rows_agree_with_f64_at_every_length_and_level() {
        let mut stream = SplitMix64::new(3);
        for columns in 1..40 {
            let x: Vec<f32> = (0..2 * columns).map(|_| (40.0 * stream.unit() - 20.0) as f32).collect();
            let mut first: Option<(Vec<f32>, Vec<Row>)> = None;
            for level in SimdLevel::available() {
                let mut out = vec![f32::NAN; x.len()];
                let mut rows = vec![Row { max: 0.0, sum: 0.0 }; 2];
                exponentials_of_rows(level, &x, &mut out, columns, &mut rows);
                for (row, x) in rows.iter().zip(x.chunks(columns)) {
                    let max = x.iter().fold(f64::NEG_INFINITY, |max, &value| max.max(f64::from(value)));
                    let want = max + x.iter().map(|&value| (f64::from(value) - max).exp()).sum::<f64>().ln();
                    assert!((f64::from(row.logsumexp()) - want).abs() < 4e-6 * (1.0 + want.abs()));
                }
                let (want, want_rows) = first.get_or_insert_with(|| (out.clone(), rows.clone()));
                assert_eq!(*want, out);
                assert_eq!(*want_rows, rows);
            }
        }
    }

    #[test]
    fn infinities_and_nan_come_through() {
        let level = SimdLevel::detected();
        let cases: [(&[f32], f32); 4] = [
            (&[f32::NEG_INFINITY, 0.0], 0.0),
            (&[f32::INFINITY, 0.0], f32::NAN),
            (&[1.0, f32::NAN, 2.0], f32::NAN),
            (&[f32::NEG_INFINITY; 3], f32::NAN),
        ];
        for (x, want) in cases {
            let mut out = vec![0.0; x.len()];
            let mut rows = [Row { max: 0.0, sum: 0.0 }];
            exponentials_of_rows(level, x, &mut out, x.len(), &mut rows);
            let got = rows[0].logsumexp();
            assert!(got == want || (got.is_nan() && want.is_nan()), "{x:?} gave {got}");
        }
    }
}
