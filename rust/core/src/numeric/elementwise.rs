//! One pass over long arrays, element by element: cut into parts for the threads, compiled for every level.
//!
//! Every element is computed from its own inputs alone, so neither the parts nor the lanes show in a result.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::Kernel;

/// Elements in a part: some 30 microseconds of work, and what is read and written stays in a second-level cache.
pub(crate) const PART: usize = 1 << 16;

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
    combine_and_find(exec, out, values, formula, |_| false).map(|_| ())
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
    let any = AtomicBool::new(false);
    exec.for_each_chunk_mut(out, PART, |part, out| {
        let values = &values[part * PART..][..out.len()];
        // Set by some part or by none: the order of the parts does not show.
        if exec.level().run(Combine { out, values, formula, found }) {
            any.store(true, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(any.into_inner())
}

/// `values[i] = formula(values[i])`.
pub(crate) fn update<A>(
    exec: &Exec<'_>,
    values: &mut [A],
    formula: impl Fn(A) -> A + Copy + Send + Sync,
) -> Result<()>
where
    A: Copy + Send,
{
    update_and_find(exec, values, formula, |_| false).map(|_| ())
}

/// [`update`], and whether `found` holds for any new value, in the same read.
pub(crate) fn update_and_find<A>(
    exec: &Exec<'_>,
    values: &mut [A],
    formula: impl Fn(A) -> A + Copy + Send + Sync,
    found: impl Fn(A) -> bool + Copy + Send + Sync,
) -> Result<bool>
where
    A: Copy + Send,
{
    let any = AtomicBool::new(false);
    exec.for_each_chunk_mut(values, PART, |_, values| {
        if exec.level().run(Update { values, formula, found }) {
            any.store(true, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(any.into_inner())
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

impl<A: Copy, B: Copy, F: Fn(B, A) -> B, P: Fn(B) -> bool> Kernel for Combine<'_, A, B, F, P> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // Without an early end: a pass of wide operations that changes every value.
        let mut any = false;
        for (out, &value) in self.out.iter_mut().zip(self.values) {
            *out = (self.formula)(*out, value);
            any |= (self.found)(*out);
        }
        any
    }
}

struct Update<'a, A, F, P> {
    values: &'a mut [A],
    formula: F,
    found: P,
}

impl<A: Copy, F: Fn(A) -> A, P: Fn(A) -> bool> Kernel for Update<'_, A, F, P> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut any = false;
        for value in self.values {
            *value = (self.formula)(*value);
            any |= (self.found)(*value);
        }
        any
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{PART, combine, update};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;

    /// Lengths that no register divides, and those around the ends of parts.
    pub(crate) fn lengths() -> impl Iterator<Item = usize> {
        (0..=65).chain([PART - 1, PART, PART + 1, 2 * PART + 33])
    }

    #[test]
    fn every_element_is_reached_once_with_its_own_partner() {
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<u32> = (0..len as u32).collect();
                let mut out: Vec<u64> = vec![7; len];
                combine(exec, &mut out, &values, |old, value| old + 10 * u64::from(value)).unwrap();
                update(exec, &mut out, |value| value + 1).unwrap();
                assert!(out.iter().zip(0_u64..).all(|(&got, i)| got == 8 + 10 * i), "{len}");
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
