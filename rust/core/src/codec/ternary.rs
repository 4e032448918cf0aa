//! Trits as they are: -1, 0 or +1 of one common scale, a byte each, as the reference has them.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::codec::config::{Quantize, QuantizerScale};
use crate::codec::pack::Packing;
use crate::codec::quantizer::{PIECE, Quantizer};
use crate::numeric::elementwise::check_len;

/// Writes the trits of `values` to `trits` and returns their scale. A value that is not finite is refused under the name
/// `argument`.
pub fn quantise(
    exec: &Exec<'_>,
    argument: &str,
    values: &[f32],
    form: QuantizerScale,
    trits: &mut [i8],
) -> Result<f32> {
    check_len(values.len(), trits.len())?;
    let quantizer = Quantizer::new(Quantize::Ternary, form, None)?;
    quantizer.quantise(exec, argument, values, trits, 1, |_, digits, trits| {
        for (trit, &digit) in trits.iter_mut().zip(digits) {
            *trit = digit as i8 - 1;
        }
    })
}

/// Packs trits for a message; one outside -1 to 1 is refused.
pub(crate) fn pack(exec: &Exec<'_>, trits: &[i8], bytes: &mut [u8]) -> Result<()> {
    check(trits)?;
    exec.for_each_chunk_mut(bytes, PIECE / Packing::Trits.planes(), |piece, bytes| {
        let trits = &trits[piece * PIECE..];
        let mut digits = try_vec(PIECE.min(trits.len()))?;
        for (digit, &trit) in digits.iter_mut().zip(trits) {
            *digit = (trit + 1) as u8;
        }
        Packing::Trits.pack(exec.level(), &digits, bytes);
        Ok(())
    })
}

/// The trits of a message, as many as `out` holds.
pub(crate) fn unpack(exec: &Exec<'_>, bytes: &[u8], out: &mut [i8]) -> Result<()> {
    exec.for_each_chunk_mut(out, PIECE, |piece, out| {
        let start = piece * PIECE / Packing::Trits.planes();
        let mut digits = try_vec(out.len())?;
        Packing::Trits.unpack(exec.level(), &bytes[start..][..Packing::Trits.bytes(out.len())], &mut digits);
        for (trit, &digit) in out.iter_mut().zip(&digits) {
            *trit = digit as i8 - 1;
        }
        Ok(())
    })
}

/// [`Error::Argument`] for a trit outside -1 to 1.
fn check(trits: &[i8]) -> Result<()> {
    match trits.iter().position(|trit| !(-1..=1).contains(trit)) {
        Some(index) => {
            let message = format!("got {} at index {index}, wanted trits: -1, 0 or 1", trits[index]);
            Err(Error::argument("data", message))
        }
        None => Ok(()),
    }
}

/// The values that trits stand for; a trit outside -1 to 1 is refused.
pub fn values(trits: &[i8], scale: f32) -> Result<Vec<f32>> {
    check(trits)?;
    let mut values = try_vec(trits.len())?;
    for (value, &trit) in values.iter_mut().zip(trits) {
        *value = f32::from(trit) * scale;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::{quantise, values};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::config::QuantizerScale::{self, LeastSquares, Reference, Unbiased};

    fn quantised(input: &[f32], form: QuantizerScale) -> (Vec<i8>, f32) {
        let mut found = Vec::new();
        for level in SimdLevel::available() {
            let mut trits = vec![9; input.len()];
            let scale = quantise(&Exec::serial(level), "values", input, form, &mut trits).unwrap();
            found.push((trits, scale));
        }
        assert!(found.iter().all(|one| *one == found[0]));
        found.swap_remove(0)
    }

    #[test]
    fn each_form_keeps_and_scales_by_its_formula() {
        let input = [4.0, -2.0, 1.0, 1.0]; // mean 2
        assert_eq!(quantised(&input, Reference), (vec![1, -1, 0, 0], 2.0)); // 1 is not above half of 2
        assert_eq!(quantised(&input, LeastSquares), (vec![1, -1, 0, 0], 3.0)); // threshold 1.554
        assert_eq!(quantised(&input, Unbiased), (vec![1, -1, 0, 0], 22.0 / 6.0));
        assert_eq!(quantised(&[2.0, -2.0, 1.5, 2.5], LeastSquares), (vec![1, -1, 0, 1], 6.5 / 3.0));
    }

    #[test]
    fn nothing_much_is_zero_with_scale_one() {
        for form in QuantizerScale::ALL {
            assert_eq!(quantised(&[0.0, -0.0, 0.0], form), (vec![0; 3], 1.0));
            assert_eq!(quantised(&[], form), (vec![], 1.0));
        }
        // The reference takes tiny values for nothing, the others are the same at every magnitude.
        assert_eq!(quantised(&[1e-10, -1e-10], Reference), (vec![0; 2], 1.0));
        assert_eq!(quantised(&[1e-10, -1e-10], LeastSquares), (vec![1, -1], 1e-10));
        assert_eq!(quantised(&[1e-45, -1e-45, 0.0], Unbiased), (vec![1, -1, 0], 1e-45));
        // One large value among very many may still have a tiny mean: it is compared with a scale of 1.
        let mut few = vec![0.0; 100];
        few[3] = 1e-9;
        assert_eq!(quantised(&few, Reference), (vec![0; 100], 1.0));
    }

    #[test]
    fn values_of_gaussian_data_lose_what_theory_says() {
        let mut stream = crate::base::splitmix::SplitMix64::new(1);
        let input: Vec<f32> = (0..200_000)
            .map(|_| {
                let radius = (-2.0 * libm::log(1.0 - stream.unit())).sqrt();
                (radius * libm::cos(std::f64::consts::TAU * stream.unit())) as f32
            })
            .collect();
        let energy: f64 = input.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        for (form, want) in [(Reference, 0.263), (LeastSquares, 0.190)] {
            let (trits, scale) = quantised(&input, form);
            let kept = values(&trits, scale).unwrap();
            let error: f64 =
                input.iter().zip(&kept).map(|(&v, &q)| (f64::from(v) - f64::from(q)).powi(2)).sum();
            assert!((error / energy - want).abs() < 0.004, "{form:?} {}", error / energy);
        }
        let (trits, scale) = quantised(&input, Unbiased);
        let kept = values(&trits, scale).unwrap();
        let inner: f64 = input.iter().zip(&kept).map(|(&v, &q)| f64::from(v) * f64::from(q)).sum();
        assert!((inner / energy - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_trit_is_refused() {
        assert_eq!(values(&[1, 0, -1], 2.5).unwrap(), [2.5, 0.0, -2.5]);
        for bad in [2, -2, i8::MIN, i8::MAX] {
            assert!(
                matches!(values(&[0, bad], 1.0), Err(Error::Argument { argument, .. }) if argument == "data")
            );
        }
    }

    #[test]
    fn a_scale_beyond_float32_is_an_error() {
        // Nine of ten values stay just below the threshold, and only count in |v|².
        let mut input = vec![f32::MAX / 4.0; 100];
        input[..10].fill(f32::MAX);
        let exec = Exec::serial(SimdLevel::detected());
        assert_eq!(quantised(&input, LeastSquares).1, f32::MAX);
        assert!(matches!(
            quantise(&exec, "values", &input, Unbiased, &mut [0; 100]),
            Err(Error::NonFinite { argument, value, .. }) if argument == "scale" && value == f32::INFINITY
        ));
    }
}
