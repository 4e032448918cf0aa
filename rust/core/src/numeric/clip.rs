//! Clipping by norm: a gradient longer than a limit keeps its direction and gets the limit's length.

use super::elementwise::{PART, Target, apply, check_len};
use super::reduce;
use crate::base::error::Result;
use crate::base::exec::Exec;

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
    check_len(values.len(), out.len())?;
    let norm = finite_norm(exec, argument, values)?;
    scale_down(exec, Target::Out { values, out }, norm, max_norm)
}

/// [`clip_to_norm`] in place: one read, and a second pass only if the norm is above `max_norm`. Returns the norm before.
///
/// It can be interrupted before that pass, which runs to its end: gradients of which a part was scaled have another
/// direction.
pub fn clip_to_norm_in_place(
    exec: &Exec<'_>,
    argument: &str,
    values: &mut [f32],
    max_norm: f32,
) -> Result<f64> {
    let norm = finite_norm(exec, argument, values)?;
    scale_down(&exec.to_the_end(), Target::InPlace(values), norm, max_norm)?;
    Ok(norm)
}

fn finite_norm(exec: &Exec<'_>, argument: &str, values: &[f32]) -> Result<f64> {
    let norm = reduce::norm(exec, values)?;
    // The squares of finite float32 values cannot overflow float64.
    if !norm.is_finite() {
        reduce::require_finite(exec, argument, values)?;
    }
    Ok(norm)
}

fn scale_down(exec: &Exec<'_>, values: Target<'_>, norm: f64, max_norm: f32) -> Result<()> {
    let limit = f64::from(max_norm);
    if norm > limit {
        let factor = limit / norm;
        apply(exec, values, move |value| (f64::from(value) * factor) as f32, |_| false)?;
    } else if let Target::Out { values, out } = values {
        exec.for_each_chunk_mut(out, PART, |part, out| {
            out.copy_from_slice(&values[part * PART..][..out.len()]);
            Ok(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{clip_to_norm, clip_to_norm_in_place};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::numeric::elementwise::tests::lengths;
    use crate::numeric::reduce::norm;
    use std::sync::atomic::AtomicBool;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Clipped into new memory; in place it must be the same.
    fn clipped(level: SimdLevel, values: &[f32], max_norm: f32) -> Vec<f32> {
        let exec = Exec::serial(level);
        let (mut out, mut changed) = (vec![9.0; values.len()], values.to_vec());
        clip_to_norm(&exec, "values", values, max_norm, &mut out).unwrap();
        let before = clip_to_norm_in_place(&exec, "values", &mut changed, max_norm).unwrap();
        assert_eq!(before.to_bits(), norm(&exec, values).unwrap().to_bits());
        assert_eq!(bits(&out), bits(&changed));
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
        let mut changed = values;
        assert_eq!(
            clip_to_norm_in_place(&exec, "gradients", &mut changed, 1.0),
            Err(Error::NonFinite { argument: "gradients".into(), index: 1, value: f32::INFINITY })
        );
        assert_eq!(bits(&changed), bits(&values));
    }

    #[test]
    fn every_length_is_clipped_as_its_definition_says_everywhere() {
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<f32> = (0..len).map(|i| (i as f32 - 20.0) * 0.37).collect();
                let norm = norm(exec, &values).unwrap();
                for limit in [0.0, 1.5, f32::MAX] {
                    let factor = f64::from(limit) / norm;
                    let scaled = |&value: &f32| {
                        if norm > f64::from(limit) { (f64::from(value) * factor) as f32 } else { value }
                    };
                    let want: Vec<f32> = values.iter().map(scaled).collect();
                    let (mut out, mut changed) = (vec![9.0; len], values.clone());
                    clip_to_norm(exec, "values", &values, limit, &mut out).unwrap();
                    clip_to_norm_in_place(exec, "values", &mut changed, limit).unwrap();
                    assert_eq!((bits(&out), bits(&changed)), (bits(&want), bits(&want)), "{len} {limit}");
                }
            }
        });
    }

    #[test]
    fn an_interruption_leaves_the_gradient_whole() {
        let cancelled = AtomicBool::new(true);
        let exec = Exec::new(SimdLevel::Scalar, None, &cancelled);
        let mut values = [3.0, 4.0];
        assert_eq!(clip_to_norm_in_place(&exec, "values", &mut values, 1.0), Err(Error::Interrupted));
        assert_eq!(values, [3.0, 4.0]);
    }
}
