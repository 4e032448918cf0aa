//! Workers of one process that send each other their gradients as they would over a network.
//!
//! A worker adds what it still owes to its gradient, encodes the sum, and hands over bytes. Every worker would decode the
//! same bytes to the same values, so they are decoded once. What a message could not say is owed to the next step.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::codec::compressor::GradientCompressor;
use crate::codec::config::Projection;
use crate::codec::message::Message;
use crate::numeric::elementwise::combine;
use crate::numeric::reduce::require_finite;

/// How gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compression {
    compressor: GradientCompressor,
    error_feedback: bool,
}

impl Compression {
    /// Gradients go through `compressor`; with `error_feedback`, what is lost of one is added to the next.
    ///
    /// [`Error::Argument`] for feedback of an unbiased compressor: its error is larger than the gradient, so what is owed
    /// grows at every step.
    pub fn new(compressor: GradientCompressor, error_feedback: bool) -> Result<Self> {
        let config = compressor.config();
        if error_feedback && config.is_unbiased() {
            let message = format!(
                "got True with scaling '{}' and quantizer_scale '{}'; what an unbiased compressor loses is more than the \
                 gradient, and feeding it back diverges; choose contractive and least_squares",
                config.scaling().name(),
                config.quantizer().scale.name()
            );
            return Err(Error::argument("error_feedback", message));
        }
        Ok(Self { compressor, error_feedback })
    }

    /// Whether what is lost of a gradient is added to the next.
    pub fn error_feedback(&self) -> bool {
        self.error_feedback
    }

    /// Values of random numbers, transforms and the like that a gradient of `n` values costs, there and back.
    pub fn work(&self, n: usize) -> usize {
        let config = self.compressor.config();
        let ratio = config.default_compression_ratio();
        match config.projection() {
            Projection::Dense => n.saturating_mul(2 * ratio.compressed_dim(n)),
            _ => 16 * n,
        }
    }
}

/// One worker's end of the exchange.
#[derive(Debug)]
pub struct Worker {
    compression: Compression,
    slot: u32,
    /// What earlier messages could not say; empty without feedback.
    residual: Vec<f32>,
    /// The residual of a step that is not done yet.
    pending: Vec<f32>,
    message: Vec<u8>,
}

impl Worker {
    /// Worker number `slot`, for gradients of `n` values.
    pub fn new(compression: Compression, slot: u32, n: usize) -> Result<Self> {
        let owed = if compression.error_feedback { n } else { 0 };
        Ok(Self { compression, slot, residual: try_vec(owed)?, pending: try_vec(owed)?, message: Vec::new() })
    }

    /// Sends `gradient` and replaces it by what arrives. The residual is the next step's after [`Self::commit`].
    ///
    /// A gradient that is not finite is refused where it would be quantised or owed.
    pub fn exchange(&mut self, exec: &Exec<'_>, step: u64, gradient: &mut [f32]) -> Result<()> {
        let Compression { compressor, error_feedback } = self.compression;
        // Steps beyond 2^32 start the streams again.
        let header = compressor.header(gradient.len(), compressor.ratio(None)?, step as u32, self.slot);
        let len = header.message_len()?;
        if self.message.len() != len {
            self.message = try_vec(len)?;
        }
        if error_feedback {
            self.pending.copy_from_slice(&self.residual);
            combine(exec, &mut self.pending, gradient, |owed, value| owed + value)?;
            require_finite(exec, "gradients", &self.pending)?;
            compressor.encode(exec, &self.pending, &header, &mut self.message)?;
        } else {
            compressor.encode(exec, gradient, &header, &mut self.message)?;
        }
        // From here on there are only the bytes.
        compressor.decode(exec, &Message::parse(exec.level(), &self.message)?, gradient)?;
        if error_feedback {
            combine(exec, &mut self.pending, gradient, |owed, sent| owed - sent)?;
        }
        Ok(())
    }

    /// The step is done: what its message could not say is owed to the next one.
    pub fn commit(&mut self) {
        std::mem::swap(&mut self.residual, &mut self.pending);
    }

    /// Bytes of the last message.
    pub fn message_len(&self) -> usize {
        self.message.len()
    }

    /// What is owed to the next step; empty without feedback.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }
}

#[cfg(test)]
mod tests {
    use super::{Compression, Worker};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::compressor::GradientCompressor;
    use crate::codec::config::{Projection, Quantize, QuantizerScale, Scaling, TrainingConfig};
    use crate::codec::quantizer::Quantizer;

    fn compressor(scaling: Scaling, form: QuantizerScale) -> GradientCompressor {
        let config = TrainingConfig::default().with_projection(Projection::Hadamard, scaling).unwrap();
        GradientCompressor::new(config.with_quantizer(Quantizer::new(Quantize::Ternary, form, None).unwrap()))
    }

    fn gradient(n: usize, step: u64) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.7 + step as f32).sin()).collect()
    }

    #[test]
    fn what_arrives_and_what_is_owed_add_up_to_what_was_there() {
        let exec = Exec::serial(SimdLevel::detected());
        let compression =
            Compression::new(compressor(Scaling::Contractive, QuantizerScale::LeastSquares), true).unwrap();
        let mut worker = Worker::new(compression, 3, 5000).unwrap();
        let (mut given, mut arrived) = (vec![0.0_f64; 5000], vec![0.0_f64; 5000]);
        for step in 0..40 {
            let mut values = gradient(5000, step);
            given.iter_mut().zip(&values).for_each(|(sum, &value)| *sum += f64::from(value));
            worker.exchange(&exec, step, &mut values).unwrap();
            worker.commit();
            arrived.iter_mut().zip(&values).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        for ((given, arrived), &owed) in given.iter().zip(&arrived).zip(worker.residual()) {
            assert!((given - arrived - f64::from(owed)).abs() < 1e-3);
        }
        // 500 trits, one scale, header and checksum.
        assert_eq!(worker.message_len(), 68 + 4 + 64 + 36);
    }

    #[test]
    fn a_step_that_is_not_done_owes_nothing_more() {
        let exec = Exec::serial(SimdLevel::detected());
        let compression =
            Compression::new(compressor(Scaling::Contractive, QuantizerScale::LeastSquares), true).unwrap();
        let mut worker = Worker::new(compression, 0, 300).unwrap();
        worker.exchange(&exec, 0, &mut gradient(300, 0)).unwrap();
        worker.commit();
        let owed = worker.residual().to_vec();
        let mut poisoned = gradient(300, 1);
        poisoned[7] = f32::NAN;
        assert!(matches!(worker.exchange(&exec, 1, &mut poisoned), Err(Error::NonFinite { index: 7, .. })));
        worker.exchange(&exec, 1, &mut gradient(300, 1)).unwrap();
        assert_eq!(worker.residual(), owed);
    }

    #[test]
    fn feedback_of_an_unbiased_compressor_is_refused() {
        for (scaling, form, refused) in [
            (Scaling::Contractive, QuantizerScale::LeastSquares, false),
            (Scaling::Reference, QuantizerScale::Reference, false),
            (Scaling::Unbiased, QuantizerScale::LeastSquares, true),
            (Scaling::Contractive, QuantizerScale::Unbiased, true),
        ] {
            assert!(Compression::new(compressor(scaling, form), false).is_ok());
            assert_eq!(Compression::new(compressor(scaling, form), true).is_err(), refused);
        }
    }
}
