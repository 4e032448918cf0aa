//! Values that would poison what they touch: found, or held back.

use super::elementwise::update;
use super::reduce::first_non_finite;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;

/// Whether any value is a NaN or an infinity.
pub fn has_nan_or_inf(exec: &Exec<'_>, values: &[f32]) -> Result<bool> {
    Ok(first_non_finite(exec, values)?.is_some())
}

/// Holds every value in `min..=max`, in place; a NaN becomes 0, also where 0 is outside.
///
/// Running it again changes nothing, so an interrupted call can be repeated.
pub fn safe_clip(exec: &Exec<'_>, values: &mut [f32], min: f32, max: f32) -> Result<()> {
    if min.is_nan() {
        return Err(Error::argument("min", "got NaN, wanted a number"));
    }
    if max.is_nan() {
        return Err(Error::argument("max", "got NaN, wanted a number"));
    }
    if min > max {
        return Err(Error::argument("min", format!("got {min}, wanted at most max, which is {max}")));
    }
    update(exec, values, |value| held(value, min, max))
}

/// Comparisons and selections only, one instruction each: `f32::clamp` would add the check of its limits.
#[inline(always)]
fn held(value: f32, min: f32, max: f32) -> f32 {
    let above = if value < min { min } else { value };
    let inside = if above > max { max } else { above };
    if value.is_nan() { 0.0 } else { inside }
}

#[cfg(test)]
mod tests {
    use super::{has_nan_or_inf, safe_clip};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::numeric::elementwise::tests::lengths;

    #[test]
    fn one_poisoned_value_is_found_at_any_place() {
        everywhere(|exec| {
            for len in lengths().filter(|&len| len > 0) {
                let mut values = vec![f32::MAX; len];
                assert!(!has_nan_or_inf(exec, &values).unwrap());
                for (place, poison) in [(0, f32::NAN), (len / 2, f32::INFINITY), (len - 1, f32::NEG_INFINITY)]
                {
                    values[place] = poison;
                    assert!(has_nan_or_inf(exec, &values).unwrap(), "{len} {place}");
                    values[place] = 0.0;
                }
            }
            assert!(!has_nan_or_inf(exec, &[]).unwrap());
        });
    }

    #[test]
    fn the_golden_example_of_clipping() {
        let golden = [0.0, 1.0, -1.0, -1.0, 0.5, 1.0];
        everywhere(|exec| {
            let mut values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -3.0, 0.5, 3.0];
            safe_clip(exec, &mut values, -1.0, 1.0).unwrap();
            assert_eq!(values, golden);
            safe_clip(exec, &mut values, -1.0, 1.0).unwrap();
            assert_eq!(values, golden);
        });
    }

    #[test]
    fn clipping_is_clamp_with_nan_to_zero() {
        let special = [0.0, -0.0, 1.0e-45, f32::MAX, f32::MIN, f32::INFINITY, f32::NAN, -f32::NAN, 2.5];
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<f32> = (0..len).map(|i| special[i % special.len()] + i as f32).collect();
                for (min, max) in [(-1.0, 1.0), (2.0, 2.0), (3.0, f32::INFINITY), (f32::NEG_INFINITY, 0.5)] {
                    let mut clipped = values.clone();
                    safe_clip(exec, &mut clipped, min, max).unwrap();
                    for (&value, &got) in values.iter().zip(&clipped) {
                        let want = if value.is_nan() { 0.0 } else { value.clamp(min, max) };
                        assert_eq!(got.to_bits(), want.to_bits(), "{value} in {min}..={max}");
                    }
                }
            }
        });
    }

    #[test]
    fn limits_that_cross_or_are_nan_change_nothing() {
        let exec = Exec::serial(SimdLevel::Scalar);
        for (min, max, named) in [(1.0, -1.0, "min"), (f32::NAN, 1.0, "min"), (-1.0, f32::NAN, "max")] {
            let mut values = [9.0];
            let refused = safe_clip(&exec, &mut values, min, max);
            assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == named));
            assert_eq!(values, [9.0]);
        }
    }
}
