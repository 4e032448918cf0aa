//! One pass over long arrays, element by element: cut into parts for the threads, compiled for every level.
//!
//! Every element is computed from its own inputs alone, so neither the parts nor the lanes show in a result. A part is
//! taken as two streams, its halves, by turns: a core that waits for memory waits less with two (25e6 float32 to
//! bfloat16 on one Zen 3 core: 0.32 ns a value, and 0.39 with one).

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::Kernel;

/// Elements in a part: some 30 microseconds of work, and what is read and written stays in a second-level cache.
pub(crate) const PART: usize = 1 << 16;

/// Elements of one stream before the other has its turn: a few registers' worth.
const ROW: usize = 64;

/// What a pass reads, and where the results go.
#[derive(Debug)]
pub enum Target<'a> {
    /// Over the values themselves.
    InPlace(&'a mut [f32]),
    /// Elsewhere; the values stay.
    Out {
        /// What is read.
        values: &'a [f32],
        /// What is written, of the same length.
        out: &'a mut [f32],
    },
}

/// Writes `formula(value)` for each value, and tells whether `found` holds for any of the results.
pub(crate) fn apply(
    exec: &Exec<'_>,
    target: Target<'_>,
    formula: impl Fn(f32) -> f32 + Copy + Send + Sync,
    found: impl Fn(f32) -> bool + Copy + Send + Sync,
) -> Result<bool> {
    // `formula` is taken by value: what stands behind a reference within a reference could be changed by a write to
    // `out`, for all the compiler knows, and there were no vector instructions (a division took 1 ns a value instead of
    // 0.15).
    match target {
        // Beside values that hold nothing and take no memory.
        Target::InPlace(values) => {
            let nothing = vec![(); values.len()];
            combine_and_find(
                exec,
                values,
                &nothing,
                #[inline(always)]
                move |value, ()| formula(value),
                found,
            )
        }
        Target::Out { values, out } => combine_and_find(
            exec,
            out,
            values,
            #[inline(always)]
            move |_, value| formula(value),
            found,
        ),
    }
}

/// `out[i] = formula(out[i], values[i])`. Nothing is changed unless the lengths are equal.
pub(crate) fn combine<A, B>(
    exec: &Exec<'_>,
    out: &mut [B],
    values: &[A],
    formula: impl Fn(B, A) -> B + Copy + Send + Sync,
) -> Result<()>
where
    A: Copy + Sync,
    B: Copy + Send,
{
    combine_and_find(exec, out, values, formula, |_| false).map(drop)
}

/// [`combine`], and whether `found` holds for any new value, in the same read.
pub(crate) fn combine_and_find<A, B>(
    exec: &Exec<'_>,
    out: &mut [B],
    values: &[A],
    formula: impl Fn(B, A) -> B + Copy + Send + Sync,
    found: impl Fn(B) -> bool + Copy + Send + Sync,
) -> Result<bool>
where
    A: Copy + Sync,
    B: Copy + Send,
{
    check_len(values.len(), out.len())?;
    let parts = exec.map_chunks_mut(out, PART, |part, out| {
        let values = &values[part * PART..][..out.len()];
        Ok(exec.level().run(Combine { out, values, formula, found }))
    })?;
    Ok(parts.contains(&true))
}

/// [`Error::DimensionMismatch`] unless both lengths are the same.
pub(crate) fn check_len(expected: usize, actual: usize) -> Result<()> {
    if expected == actual { Ok(()) } else { Err(Error::DimensionMismatch { expected, actual }) }
}

struct Combine<'a, A, B, F, P> {
    out: &'a mut [B],
    values: &'a [A],
    formula: F,
    found: P,
}

impl<A: Copy, B: Copy, F: Fn(B, A) -> B + Copy, P: Fn(B) -> bool + Copy> Kernel for Combine<'_, A, B, F, P> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let (formula, found) = (self.formula, self.found);
        let (out, out_rest) = self.out.as_chunks_mut::<ROW>();
        let (values, rest) = self.values.as_chunks::<ROW>();
        let half = out.len() / 2;
        let (out, out_other) = out.split_at_mut(half);
        let (values, other) = values.split_at(half);
        let (out_other, out_odd) = out_other.split_at_mut(half);
        let (other, odd) = other.split_at(half);
        let mut any = false;
        for (((out, values), out_other), other) in out.iter_mut().zip(values).zip(out_other).zip(other) {
            any |= row(out, values, formula, found);
            any |= row(out_other, other, formula, found);
        }
        any |= row(out_odd.as_flattened_mut(), odd.as_flattened(), formula, found);
        any | row(out_rest, rest, formula, found)
    }
}

/// Without an early end: every value is changed, by wide operations.
#[inline(always)]
fn row<A: Copy, B: Copy>(
    out: &mut [B],
    values: &[A],
    formula: impl Fn(B, A) -> B,
    found: impl Fn(B) -> bool,
) -> bool {
    let mut any = false;
    for (out, &value) in out.iter_mut().zip(values) {
        *out = formula(*out, value);
        any |= found(*out);
    }
    any
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{PART, Target, apply, combine, combine_and_find};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;

    /// Lengths that no register divides, and those around the ends of rows and parts.
    pub(crate) fn lengths() -> impl Iterator<Item = usize> {
        (0..=65).chain([127, 128, 129, 193, 257, PART - 1, PART, PART + 1, 2 * PART + 33])
    }

    #[test]
    fn every_element_is_reached_once_with_its_own_partner() {
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<u32> = (0..len as u32).collect();
                let mut out: Vec<u64> = vec![7; len];
                combine(exec, &mut out, &values, |old, value| old + 10 * u64::from(value)).unwrap();
                assert!(out.iter().zip(0_u64..).all(|(&got, i)| got == 7 + 10 * i), "{len}");
            }
        });
    }

    #[test]
    fn in_place_and_elsewhere_give_the_same_values_and_the_same_answer() {
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
                let (mut changed, mut out) = (values.clone(), vec![9.0; len]);
                for place in [0, len / 2, len] {
                    let found = |value| value == 2.0 * place as f32 + 1.0;
                    changed.copy_from_slice(&values);
                    let formula = |value| 2.0 * value + 1.0;
                    let in_place = apply(exec, Target::InPlace(&mut changed), formula, found).unwrap();
                    let target = Target::Out { values: &values, out: &mut out };
                    let elsewhere = apply(exec, target, formula, found).unwrap();
                    assert_eq!((in_place, elsewhere), (place < len, place < len), "{len} {place}");
                    assert_eq!(changed, out);
                    assert!(out.iter().zip(&values).all(|(out, value)| *out == 2.0 * value + 1.0));
                }
            }
        });
    }

    #[test]
    fn one_result_is_found_at_any_place() {
        everywhere(|exec| {
            for len in lengths() {
                let values = vec![0_u8; len];
                let mut out = vec![0_u16; len];
                for place in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|&place| place < len) {
                    out.fill(0);
                    out[place] = 5;
                    let keep = |old, _| old;
                    assert!(combine_and_find(exec, &mut out, &values, keep, |new| new == 5).unwrap());
                    assert!(!combine_and_find(exec, &mut out, &values, keep, |new| new == 6).unwrap());
                }
            }
        });
    }

    #[test]
    fn another_length_changes_nothing() {
        let mut out = [1.0_f32; 3];
        let refused = combine(&Exec::serial(SimdLevel::Scalar), &mut out, &[5.0_f32; 4], |_, new| new);
        assert_eq!(refused, Err(Error::DimensionMismatch { expected: 4, actual: 3 }));
        assert_eq!(out, [1.0; 3]);
    }
}
