//! Clipping by norm: a gradient longer than a limit keeps its direction and gets the limit's length.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::Kernel;
use crate::numeric::reduce;

const CHUNK: usize = 1 << 16;

/// Writes `values` to `out`, scaled to norm `max_norm` if their norm is above it.
///
/// The norm is the fixed-order one of [`reduce`]. A scaled value is `value * (max_norm / norm)` in float64, rounded once,
/// so gradients near the ends of the float32 range keep their digits. `max_norm` is not negative and not NaN. A value
/// that is not finite is refused under the name `argument`: its norm says nothing.
pub fn clip_to_norm(
    exec: &Exec<'_>,
    argument: &str,
    values: &[f32],
    max_norm: f32,
    out: &mut [f32],
) -> Result<()> {
    if values.len() != out.len() {
        return Err(Error::DimensionMismatch { expected: values.len(), actual: out.len() });
    }
    let norm = reduce::norm(exec, values)?;
    // The squares of finite float32 values cannot overflow float64.
    if !norm.is_finite() {
        reduce::require_finite(exec, argument, values)?;
    }
    let limit = f64::from(max_norm);
    exec.for_each_chunk_mut(out, CHUNK, |index, out| {
        let values = &values[index * CHUNK..][..out.len()];
        if norm > limit {
            exec.level().run(Scaled { values, factor: limit / norm, out });
        } else {
            out.copy_from_slice(values);
        }
        Ok(())
    })
}

struct Scaled<'a> {
    values: &'a [f32],
    factor: f64,
    out: &'a mut [f32],
}

impl Kernel for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, &value) in self.out.iter_mut().zip(self.values) {
            *out = (f64::from(value) * self.factor) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::clip_to_norm;
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::numeric::reduce::norm;

    fn clipped(level: SimdLevel, values: &[f32], max_norm: f32) -> Vec<f32> {
        let mut out = vec![9.0; values.len()];
        clip_to_norm(&Exec::serial(level), "values", values, max_norm, &mut out).unwrap();
        out
    }

    #[test]
    fn a_vector_above_the_limit_gets_its_length_and_others_stay() {
        for level in SimdLevel::available() {
            assert_eq!(clipped(level, &[3.0, -4.0], 2.5), [1.5, -2.0]);
            assert_eq!(clipped(level, &[3.0, -4.0], 5.0), [3.0, -4.0]);
            assert_eq!(clipped(level, &[3.0, -4.0], f32::INFINITY), [3.0, -4.0]);
            assert_eq!(clipped(level, &[3.0, -4.0], 0.0), [0.0, -0.0]);
            assert_eq!(clipped(level, &[0.0; 3], 0.0), [0.0; 3]);
            assert!(clipped(level, &[], 1.0).is_empty());
        }
    }

    #[test]
    fn long_vectors_have_the_same_bits_at_every_level_and_the_length_asked_for() {
        let values: Vec<f32> = (0..200_003).map(|i| (i as f32 * 0.3).sin()).collect();
        let want = clipped(SimdLevel::Scalar, &values, 0.5);
        assert!((norm(&Exec::serial(SimdLevel::Scalar), &want).unwrap() - 0.5).abs() < 1e-7);
        for level in SimdLevel::available() {
            assert_eq!(clipped(level, &values, 0.5), want);
        }
    }

    #[test]
    fn huge_values_keep_their_digits_under_a_small_limit() {
        // The factor 1e-42 alone would be a subnormal float32 of ten bits.
        let length = 1.5e38_f32;
        assert_eq!(clipped(SimdLevel::detected(), &[length], 1.5e-4), [1.5e-4]);
        assert_eq!(clipped(SimdLevel::detected(), &[f32::MAX, f32::MAX], 1.0), [0.707_106_77; 2]);
    }

    #[test]
    fn a_value_that_is_not_finite_is_refused_and_nothing_is_written() {
        let mut out = [7.0; 4];
        let values = [1.0, f32::INFINITY, f32::NAN, 0.0];
        let exec = Exec::serial(SimdLevel::detected());
        assert_eq!(
            clip_to_norm(&exec, "gradients", &values, 1.0, &mut out),
            Err(Error::NonFinite { argument: "gradients".into(), index: 1, value: f32::INFINITY })
        );
        assert_eq!(out, [7.0; 4]);
        assert!(clip_to_norm(&exec, "gradients", &[1.0], 1.0, &mut out).is_err());
    }
}
