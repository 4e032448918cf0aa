//! A compressor of one matrix that is kept, for many gradients under it.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::codec::compressor::{GradientCompressor, Origin};
use crate::codec::dense::packed::PackedMatrix;
use crate::codec::many::require_dense;
use crate::numeric::elementwise::check_len;

/// A compressor, what decides the matrix, and the matrix.
#[derive(Debug, Clone)]
pub struct ProjectionPlan {
    compressor: GradientCompressor,
    origin: Origin,
    matrix: PackedMatrix,
}

impl ProjectionPlan {
    /// The matrix of an origin with `columns` dimensions, refused before anything is allocated if it takes more than
    /// `max_bytes`.
    pub fn new(
        exec: &Exec<'_>,
        compressor: GradientCompressor,
        origin: Origin,
        columns: usize,
        max_bytes: u64,
    ) -> Result<Self> {
        require_dense(origin.projection)?;
        compressor.check_seed(&origin)?;
        let rows = origin.original_dim;
        let bytes = PackedMatrix::bytes(rows, columns);
        if bytes.is_none_or(|bytes| bytes as u64 > max_bytes) {
            let bytes = bytes.map_or("more than can be counted".into(), |bytes| bytes.to_string());
            let message = format!(
                "got {max_bytes}, and a matrix of {rows} x {columns} entries takes {bytes} bytes; allow them, \
                 or compress without a plan"
            );
            return Err(Error::argument("max_bytes", message));
        }
        let matrix = PackedMatrix::new(exec, &origin.stream(), rows, columns)?;
        Ok(Self { compressor, origin, matrix })
    }

    /// The compressor whose results these are.
    pub fn compressor(&self) -> &GradientCompressor {
        &self.compressor
    }

    /// What decides the matrix.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Dimensions of the projections.
    pub fn compressed_dim(&self) -> usize {
        self.matrix.columns()
    }

    /// Bytes of the matrix.
    pub fn nbytes(&self) -> usize {
        self.matrix.nbytes()
    }

    /// [`GradientCompressor::compress`].
    pub fn compress(&self, exec: &Exec<'_>, gradients: &[f32], out: &mut [f32]) -> Result<()> {
        check_len(self.matrix.rows(), gradients.len())?;
        check_len(self.matrix.columns(), out.len())?;
        let scale = self.origin.scaling.factor(gradients.len(), out.len());
        self.matrix.compress(exec, &self.compressor.clipped(exec, gradients)?, scale, out)
    }

    /// Refuses what was compressed under another matrix; the scaling may be another.
    pub fn check(&self, origin: &Origin, columns: usize) -> Result<()> {
        self.compressor.check_seed(origin)?;
        check_len(self.matrix.rows(), origin.original_dim)?;
        check_len(self.matrix.columns(), columns)?;
        let own = &self.origin;
        if own.projection != origin.projection {
            let (wanted, came) = (own.projection.name(), origin.projection.name());
            let message = format!("is of projection '{came}', and the plan of projection '{wanted}'");
            return Err(Error::argument("compressed", message));
        }
        for (field, wanted, came) in [("step", own.step, origin.step), ("slot", own.slot, origin.slot)] {
            if wanted != came {
                let message = format!("is of {field} {came}, and the plan of {field} {wanted}");
                return Err(Error::argument("compressed", message));
            }
        }
        Ok(())
    }

    /// [`GradientCompressor::decompress`], of what [`Self::check`] lets pass.
    pub fn decompress(&self, exec: &Exec<'_>, data: &[f32], origin: &Origin, out: &mut [f32]) -> Result<()> {
        self.check(origin, data.len())?;
        check_len(self.matrix.rows(), out.len())?;
        let scale = origin.scaling.factor(out.len(), data.len());
        self.matrix.decompress(exec, data, scale, out)
    }
}

#[cfg(test)]
mod tests {
    use super::ProjectionPlan;
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::compressor::{GradientCompressor, Origin};
    use crate::codec::config::{Projection, Scaling, TrainingConfig};

    fn exec() -> Exec<'static> {
        Exec::serial(SimdLevel::detected())
    }

    #[test]
    fn a_plan_gives_the_bits_of_its_compressor() {
        for (limit, scaling) in [(None, Scaling::Unbiased), (Some(0.5), Scaling::Reference)] {
            let config = TrainingConfig::default().with_projection(Projection::Dense, scaling).unwrap();
            let config = config.with_gradient_clipping(limit).unwrap();
            let compressor = GradientCompressor::new(config);
            let origin = compressor.origin(300, 4, 5);
            let plan = ProjectionPlan::new(&exec(), compressor, origin, 70, 1 << 20).unwrap();
            assert_eq!((plan.compressed_dim(), plan.nbytes()), (70, 19 * 70 * 4));
            let gradients: Vec<f32> = (0..300).map(|i| (i as f32 * 0.3).sin()).collect();
            let (mut planned, mut anew) = (vec![0.0; 70], vec![0.0; 70]);
            plan.compress(&exec(), &gradients, &mut planned).unwrap();
            compressor.compress(&exec(), &gradients, &origin, &mut anew).unwrap();
            assert_eq!(planned, anew);
            // The scaling is that of the compressed gradient, in both.
            let origin = Origin { scaling: Scaling::Contractive, ..origin };
            let (mut planned, mut anew) = (vec![0.0; 300], vec![0.0; 300]);
            plan.decompress(&exec(), &planned_data(), &origin, &mut planned).unwrap();
            compressor.decompress(&exec(), &planned_data(), &origin, &mut anew).unwrap();
            assert_eq!(planned, anew);
        }
    }

    fn planned_data() -> Vec<f32> {
        (0..70).map(|i| (i as f32 * 0.9).cos()).collect()
    }

    #[test]
    fn a_matrix_beyond_the_limit_is_refused_before_it_is_made() {
        let compressor = GradientCompressor::default();
        let told = |n: usize, columns: usize, max_bytes: u64| match ProjectionPlan::new(
            &exec(),
            compressor,
            compressor.origin(n, 0, 0),
            columns,
            max_bytes,
        ) {
            Err(Error::Argument { argument, message }) => format!("{argument}: {message}"),
            other => panic!("{other:?}"),
        };
        assert!(ProjectionPlan::new(&exec(), compressor, compressor.origin(160, 0, 0), 64, 2560).is_ok());
        assert!(
            told(160, 64, 2559)
                .starts_with("max_bytes: got 2559, and a matrix of 160 x 64 entries takes 2560")
        );
        assert!(told(1 << 40, 1 << 36, 1 << 30).contains("more than can be counted bytes"));
        assert!(told(1 << 30, 1 << 27, 1 << 30).contains("takes 36028797018963968 bytes"));
    }

    #[test]
    fn what_another_matrix_made_is_refused() {
        let compressor = GradientCompressor::default();
        let origin = compressor.origin(100, 3, 4);
        let plan = ProjectionPlan::new(&exec(), compressor, origin, 64, 1 << 20).unwrap();
        assert_eq!(plan.check(&Origin { scaling: Scaling::Unbiased, ..origin }, 64), Ok(()));
        let mismatch = |expected, actual| Err(Error::DimensionMismatch { expected, actual });
        assert_eq!(plan.check(&Origin { original_dim: 99, ..origin }, 64), mismatch(100, 99));
        assert_eq!(plan.check(&origin, 65), mismatch(64, 65));
        assert_eq!(plan.compress(&exec(), &[0.0; 99], &mut [0.0; 64]), mismatch(100, 99));
        assert_eq!(plan.compress(&exec(), &[0.0; 100], &mut [0.0; 65]), mismatch(64, 65));
        let seeds = Err(Error::SeedMismatch { compress: 1, decompress: 42 });
        assert_eq!(plan.check(&Origin { seed: 1, ..origin }, 64), seeds);
        let projection = Projection::Hadamard;
        for other in
            [Origin { step: 9, ..origin }, Origin { slot: 9, ..origin }, Origin { projection, ..origin }]
        {
            let refused = plan.check(&other, 64);
            assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "compressed"));
        }
    }
}
