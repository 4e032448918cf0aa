//! Several gradients of one length under one matrix, which is made once for all of them.
//!
//! Every result has the bits of the call for a single gradient.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::codec::compressor::{GradientCompressor, Origin};
use crate::codec::config::Projection;
use crate::codec::dense;
use crate::numeric::clip::clip_to_norm;
use crate::numeric::elementwise::check_len;

impl GradientCompressor {
    /// Writes the projections of `count` gradients, one behind the other in `gradients`, to `out` in the same way.
    ///
    /// Each gradient is clipped by itself if the config says so.
    pub fn compress_many(
        &self,
        exec: &Exec<'_>,
        count: usize,
        gradients: &[f32],
        origin: &Origin,
        out: &mut [f32],
    ) -> Result<()> {
        require_dense(origin.projection)?;
        let (len, columns) = (origin.original_dim, out.len() / count.max(1));
        check_len(len.saturating_mul(count), gradients.len())?;
        let scale = origin.scaling.factor(len, columns);
        let stream = origin.stream();
        match self.config().gradient_clipping() {
            Some(limit) if len > 0 => {
                let mut clipped = try_vec(gradients.len())?;
                let gradients = gradients.chunks_exact(len).zip(clipped.chunks_exact_mut(len));
                for (index, (gradients, clipped)) in gradients.enumerate() {
                    clip_to_norm(exec, "gradients", gradients, limit, clipped)
                        .map_err(|error| behind(error, index * len))?;
                }
                dense::compress_many(exec, &stream, count, &clipped, scale, out)
            }
            _ => dense::compress_many(exec, &stream, count, gradients, scale, out),
        }
    }

    /// Writes the gradients that `data` was compressed from, as far as they can be had, to `out`, one behind the other.
    ///
    /// All of `data` must have one origin: see [`common_origin`].
    pub fn decompress_many(
        &self,
        exec: &Exec<'_>,
        data: &[&[f32]],
        origin: &Origin,
        out: &mut [f32],
    ) -> Result<()> {
        require_dense(origin.projection)?;
        self.check_seed(origin)?;
        check_len(origin.original_dim.saturating_mul(data.len()), out.len())?;
        let columns = data.first().map_or(0, |data| data.len());
        for data in data {
            check_len(columns, data.len())?;
        }
        let scale = origin.scaling.factor(origin.original_dim, columns);
        dense::decompress_many(exec, &origin.stream(), data, scale, out)
    }
}

/// The error with its index counted from the first of all values.
fn behind(error: Error, values: usize) -> Error {
    match error {
        Error::NonFinite { argument, index, value } => {
            Error::NonFinite { argument, index: index + values, value }
        }
        other => other,
    }
}

/// The origin that compressed gradients share, or an error that names the first that differs, and in what.
///
/// Each comes with its number of dimensions. There is none if there are no gradients.
pub fn common_origin(origins: &[(Origin, usize)]) -> Result<Option<Origin>> {
    let Some((first, dims)) = origins.first() else {
        return Ok(None);
    };
    for (index, (origin, dims_here)) in origins.iter().enumerate() {
        let fields = [
            ("original_dim", first.original_dim as u64, origin.original_dim as u64),
            ("number of values", *dims as u64, *dims_here as u64),
            ("seed", first.seed, origin.seed),
            ("step", u64::from(first.step), u64::from(origin.step)),
            ("slot", u64::from(first.slot), u64::from(origin.slot)),
        ];
        let difference = fields
            .iter()
            .find(|(_, wanted, came)| wanted != came)
            .map(|(field, wanted, came)| format!("{field} {came}, and index 0 has {wanted}"))
            .or_else(|| {
                let names = [
                    ("projection", first.projection.name(), origin.projection.name()),
                    ("scaling", first.scaling.name(), origin.scaling.name()),
                ];
                let (field, wanted, came) = names.into_iter().find(|(_, wanted, came)| wanted != came)?;
                Some(format!("{field} '{came}', and index 0 has '{wanted}'"))
            });
        if let Some(difference) = difference {
            let message =
                format!("index {index} has {difference}; decompress gradients of one matrix together");
            return Err(Error::argument("compressed", message));
        }
    }
    Ok(Some(*first))
}

/// Refuses a projection without a matrix that costs more to make than to use.
pub(super) fn require_dense(projection: Projection) -> Result<()> {
    match projection {
        Projection::Dense => Ok(()),
        Projection::None | Projection::Hadamard | Projection::TopK => {
            let message = format!(
                "got {}, and only the dense projection has a matrix worth sharing; make a call for each gradient",
                projection.name()
            );
            Err(Error::argument("projection", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::common_origin;
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::compressor::{GradientCompressor, Origin};
    use crate::codec::config::{Projection, Scaling, TrainingConfig};
    use crate::codec::plan::ProjectionPlan;

    #[test]
    fn each_gradient_is_clipped_and_compressed_as_by_itself() {
        let exec = Exec::serial(SimdLevel::detected());
        for limit in [None, Some(0.5)] {
            let config = TrainingConfig::default().with_gradient_clipping(limit).unwrap();
            let compressor = GradientCompressor::new(config);
            let (n, k, count) = (300, 64, 3);
            let gradients: Vec<f32> =
                (0..n * count).map(|i| (i as f32 * 0.3).sin() * (i / n) as f32).collect();
            let origin = compressor.origin(n, 4, 5);
            let (mut many, mut one) = (vec![0.0; k * count], vec![0.0; k]);
            compressor.compress_many(&exec, count, &gradients, &origin, &mut many).unwrap();
            for (gradient, found) in gradients.chunks_exact(n).zip(many.chunks_exact(k)) {
                compressor.compress(&exec, gradient, &origin, &mut one).unwrap();
                assert_eq!(found, one);
            }
            let data: Vec<&[f32]> = many.chunks_exact(k).collect();
            let (mut back, mut one) = (vec![0.0; n * count], vec![0.0; n]);
            compressor.decompress_many(&exec, &data, &origin, &mut back).unwrap();
            for (data, found) in data.iter().zip(back.chunks_exact(n)) {
                compressor.decompress(&exec, data, &origin, &mut one).unwrap();
                assert_eq!(found, one);
            }
        }
    }

    #[test]
    fn no_gradients_and_gradients_of_nothing_are_compressed() {
        let exec = Exec::serial(SimdLevel::detected());
        let clipping = TrainingConfig::default().with_gradient_clipping(Some(1.0)).unwrap();
        for config in [TrainingConfig::default(), clipping] {
            let compressor = GradientCompressor::new(config);
            compressor.compress_many(&exec, 0, &[], &compressor.origin(9, 0, 0), &mut []).unwrap();
            compressor.decompress_many(&exec, &[], &compressor.origin(9, 0, 0), &mut []).unwrap();
            let (origin, mut out) = (compressor.origin(0, 0, 0), [7.0; 128]);
            compressor.compress_many(&exec, 2, &[], &origin, &mut out).unwrap();
            assert_eq!(out, [0.0; 128]);
            compressor.decompress_many(&exec, &[&out[..64], &out[64..]], &origin, &mut []).unwrap();
        }
    }

    #[test]
    fn projections_without_a_matrix_are_refused() {
        let exec = Exec::serial(SimdLevel::detected());
        for projection in Projection::ALL.into_iter().filter(|&projection| projection != Projection::Dense) {
            let compressor = GradientCompressor::default();
            let origin = Origin { projection, ..compressor.origin(10, 0, 0) };
            let refusals = [
                compressor.compress_many(&exec, 2, &[0.0; 20], &origin, &mut [0.0; 128]),
                compressor.decompress_many(&exec, &[&[0.0; 64][..]; 2], &origin, &mut [0.0; 20]),
                ProjectionPlan::new(&exec, compressor, origin, 64, 1 << 20).map(|_| ()),
            ];
            for refused in refusals {
                assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "projection"));
            }
        }
    }

    #[test]
    fn a_value_that_cannot_be_clipped_is_named_by_its_place_among_all() {
        let exec = Exec::serial(SimdLevel::detected());
        let config = TrainingConfig::default().with_gradient_clipping(Some(1.0)).unwrap();
        let compressor = GradientCompressor::new(config);
        let gradients = [1.0, 2.0, 3.0, 4.0, f32::INFINITY, 6.0];
        let refused =
            compressor.compress_many(&exec, 2, &gradients, &compressor.origin(3, 0, 0), &mut [0.0; 128]);
        let argument = "gradients".into();
        assert_eq!(refused, Err(Error::NonFinite { argument, index: 4, value: f32::INFINITY }));
    }

    #[test]
    fn the_first_gradient_of_another_origin_is_named() {
        let origin = GradientCompressor::default().origin(100, 3, 4);
        let told =
            |other: Origin, dims: usize| match common_origin(&[(origin, 64), (origin, 64), (other, dims)]) {
                Err(Error::Argument { argument, message }) => format!("{argument}: {message}"),
                other => panic!("{other:?}"),
            };
        assert_eq!(common_origin(&[]), Ok(None));
        assert_eq!(common_origin(&[(origin, 64), (origin, 64)]), Ok(Some(origin)));
        for (other, dims, text) in [
            (Origin { original_dim: 99, ..origin }, 64, "original_dim 99, and index 0 has 100"),
            (origin, 65, "number of values 65, and index 0 has 64"),
            (Origin { seed: 1, ..origin }, 64, "seed 1, and index 0 has 42"),
            (Origin { step: 9, ..origin }, 64, "step 9, and index 0 has 3"),
            (Origin { slot: 9, ..origin }, 64, "slot 9, and index 0 has 4"),
            (
                Origin { projection: Projection::Hadamard, ..origin },
                64,
                "projection 'hadamard', and index 0 has 'dense'",
            ),
            (
                Origin { scaling: Scaling::Unbiased, ..origin },
                64,
                "scaling 'unbiased', and index 0 has 'reference'",
            ),
        ] {
            assert!(told(other, dims).starts_with(&format!("compressed: index 2 has {text};")));
        }
    }
}
