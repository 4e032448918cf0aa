//! Initial values of parameters: seeded, drawn in f64 and rounded once, the same bits on every platform.
//!
//! One stream runs on through all tensors that one initialiser fills, in the order they are recorded. The logarithm and
//! the cosine are those of the `libm` crate, since the system's differ in the last bit from platform to platform.

use std::f64::consts::PI;

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::splitmix::{DRAWS_PER_CHECK, SplitMix64};

/// How the values of a tensor are drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Every value this one.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation (Box and Muller's cosine branch).
    Normal(f64),
    /// Uniform in [-scale, scale).
    Uniform(f64),
    /// Glorot and Bengio 2010: uniform of scale sqrt(6 / (inputs + outputs)) for matrices, zeros for vectors.
    Xavier,
    /// He et al. 2015: normal of deviation sqrt(2 / inputs) for matrices, zeros for vectors.
    Kaiming,
}

/// A distribution with the stream it draws from.
#[derive(Debug, Clone, PartialEq)]
pub struct Initializer {
    distribution: Distribution,
    stream: SplitMix64,
}

impl Initializer {
    /// Draws from the splitmix64 stream of `seed`.
    pub fn new(distribution: Distribution, seed: u64) -> Result<Self> {
        let wrong = |name: &str, value: f64| {
            Err(Error::argument(name, format!("got {value}, wanted a finite number of at least 0")))
        };
        match distribution {
            Distribution::Normal(std) if !(std.is_finite() && std >= 0.0) => return wrong("std", std),
            Distribution::Uniform(scale) if !(scale.is_finite() && scale >= 0.0) => {
                return wrong("scale", scale);
            }
            _ => {}
        }
        Ok(Self { distribution, stream: SplitMix64::new(seed) })
    }

    /// The state of the stream, which is the seed of what is left of it.
    pub fn state(&self) -> u64 {
        self.stream.state()
    }

    /// The values of the next tensor, in C order.
    pub fn fill(&mut self, exec: &Exec<'_>, sizes: &[usize]) -> Result<Vec<f32>> {
        let mut values = try_vec(sizes.iter().product())?;
        let stream = &mut self.stream;
        match (&self.distribution, sizes) {
            (Distribution::Constant(value), _) => values.fill(*value),
            (Distribution::Normal(std), _) => normal(exec, stream, *std, &mut values)?,
            (Distribution::Uniform(scale), _) => uniform(exec, stream, *scale, &mut values)?,
            (Distribution::Xavier, &[inputs, outputs]) => {
                uniform(exec, stream, (6.0 / (inputs + outputs) as f64).sqrt(), &mut values)?;
            }
            (Distribution::Kaiming, &[inputs, _]) => {
                normal(exec, stream, (2.0 / inputs as f64).sqrt(), &mut values)?;
            }
            (Distribution::Xavier | Distribution::Kaiming, &[_]) => {}
            (Distribution::Xavier | Distribution::Kaiming, _) => {
                return Err(Error::Shape(format!(
                    "xavier and kaiming fill matrices (inputs, outputs) and vectors, got shape {sizes:?}"
                )));
            }
        }
        Ok(values)
    }
}

fn uniform(exec: &Exec<'_>, stream: &mut SplitMix64, scale: f64, values: &mut [f32]) -> Result<()> {
    draw(exec, values, || (2.0 * stream.unit() - 1.0) * scale)
}

fn normal(exec: &Exec<'_>, stream: &mut SplitMix64, std: f64, values: &mut [f32]) -> Result<()> {
    draw(exec, values, || {
        let radius = (-2.0 * libm::log(1.0 - stream.unit())).sqrt();
        let angle = 2.0 * PI * stream.unit();
        radius * libm::cos(angle) * std
    })
}

fn draw(exec: &Exec<'_>, values: &mut [f32], mut next: impl FnMut() -> f64) -> Result<()> {
    for values in values.chunks_mut(DRAWS_PER_CHECK) {
        exec.check()?;
        for value in values {
            *value = next() as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Distribution, Exec, Initializer};
    use crate::base::simd::SimdLevel;

    const EXEC: fn() -> Exec<'static> = || Exec::serial(SimdLevel::Scalar);

    #[test]
    fn one_stream_runs_on_through_the_tensors() {
        let mut whole = Initializer::new(Distribution::Uniform(1.0), 7).unwrap();
        let mut parts = whole.clone();
        let all = whole.fill(&EXEC(), &[6]).unwrap();
        let first = parts.fill(&EXEC(), &[2]).unwrap();
        let second = parts.fill(&EXEC(), &[4]).unwrap();
        assert_eq!(all, [first, second].concat());
    }

    #[test]
    fn biases_are_zeros_and_draw_nothing() {
        let mut with = Initializer::new(Distribution::Xavier, 7).unwrap();
        let mut without = with.clone();
        with.fill(&EXEC(), &[3, 5]).unwrap();
        assert_eq!(with.fill(&EXEC(), &[5]).unwrap(), vec![0.0; 5]);
        without.fill(&EXEC(), &[3, 5]).unwrap();
        assert_eq!(with.fill(&EXEC(), &[5, 2]).unwrap(), without.fill(&EXEC(), &[5, 2]).unwrap());
        assert!(with.fill(&EXEC(), &[2, 2, 2]).is_err());
    }

    #[test]
    fn the_embedding_of_the_names_network_starts_as_pinned() {
        // First values of golden/names_network.json, slot "embedding".
        let mut init = Initializer::new(Distribution::Normal(1.0), 8).unwrap();
        let values = init.fill(&EXEC(), &[27, 10]).unwrap();
        let bits: Vec<u32> = values[..4].iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, [0xbf87_85eb, 0xbfbe_9ff6, 0xbe83_5f3d, 0xbfc5_cb8c]);
    }
}
