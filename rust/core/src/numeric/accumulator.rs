//! The mean gradient of several backward passes, when a batch does not fit in one.
//!
//! Sums and masses are kept apart: a shard adds the sum of its samples' gradients and how many they are, and the division
//! comes once, at the end. A mean of the shards' means is not the mean when shards differ in size.

use super::elementwise::{check_len, combine, combine_and_find, update};
use super::reduce::first_non_finite;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;

/// A running sum of gradients, and the mass that it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientAccumulator {
    sum: Vec<f32>,
    mass: f64,
    count: u64,
    /// An element that is not finite never becomes finite again by adding.
    finite: bool,
}

impl GradientAccumulator {
    /// An empty accumulator of gradients of `size` values.
    pub fn new(size: usize) -> Result<Self> {
        Ok(Self { sum: try_vec(size)?, mass: 0.0, count: 0, finite: true })
    }

    /// Goes on in the middle of a batch, from what [`Self::sum`], [`Self::mass`] and [`Self::count`] told.
    pub fn restore(&mut self, exec: &Exec<'_>, sum: &[f32], mass: f64, count: u64) -> Result<()> {
        check_len(self.sum.len(), sum.len())?;
        check_mass(mass)?;
        self.finite = first_non_finite(exec, sum)?.is_none();
        self.sum.copy_from_slice(sum);
        (self.mass, self.count) = (mass, count);
        Ok(())
    }

    /// The sum so far.
    pub fn sum(&self) -> &[f32] {
        &self.sum
    }

    /// The masses so far, added up.
    pub fn mass(&self) -> f64 {
        self.mass
    }

    /// How many gradients were added since the last reset.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether every element of the sum is finite. Found while adding.
    pub fn finite(&self) -> bool {
        self.finite
    }

    /// Adds `gradients`, the sum over `mass` samples, element by element in float32.
    ///
    /// A refused call changes nothing, and a call that has begun runs to its end, so that a sum is never half added.
    pub fn accumulate(&mut self, exec: &Exec<'_>, gradients: &[f32], mass: f64) -> Result<()> {
        check_len(self.sum.len(), gradients.len())?;
        check_mass(mass)?;
        let total = self.mass + mass;
        if !total.is_finite() {
            let message = format!("got {mass}, which with the {} before is too large for a float", self.mass);
            return Err(Error::argument("mass", message));
        }
        let exec = exec.to_the_end();
        let add = |sum: f32, gradient: f32| sum + gradient;
        self.finite = !combine_and_find(&exec, &mut self.sum, gradients, add, |sum| !sum.is_finite())?;
        self.mass = total;
        self.count += 1;
        Ok(())
    }

    /// Writes `sum * f32(1 / mass)` to `out` and starts again; zeros when nothing was added. A total mass of 0 divides by
    /// nothing. Interrupted or refused, it keeps what was added.
    pub fn mean_and_reset(&mut self, exec: &Exec<'_>, out: &mut [f32]) -> Result<()> {
        let inverse = if self.mass > 0.0 { (1.0 / self.mass) as f32 } else { 1.0 };
        check_len(self.sum.len(), out.len())?;
        combine(exec, out, &self.sum, |_, sum| sum * inverse)?;
        update(&exec.to_the_end(), &mut self.sum, |_| 0.0)?;
        self.mass = 0.0;
        self.count = 0;
        self.finite = true;
        Ok(())
    }
}

fn check_mass(mass: f64) -> Result<()> {
    if mass >= 0.0 && mass.is_finite() {
        Ok(())
    } else {
        Err(Error::argument("mass", format!("got {mass}, wanted a finite number of at least 0")))
    }
}

#[cfg(test)]
mod tests {
    use super::GradientAccumulator;
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;
    use crate::numeric::elementwise::tests::lengths;
    use std::sync::atomic::AtomicBool;

    /// `input(n, s)` of the golden file.
    fn input(len: usize, seed: u64) -> Vec<f32> {
        let mut stream = SplitMix64::new(seed);
        (0..len).map(|_| (2.0 * stream.unit() - 1.0) as f32).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn a_sum_that_is_not_finite_is_found_wherever_it_is() {
        everywhere(|exec| {
            for len in lengths().filter(|&len| len > 0) {
                for place in [0, len / 2, len - 1] {
                    for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
                        let mut values = vec![1.0; len];
                        values[place] = poison;
                        let mut accumulator = GradientAccumulator::new(len).unwrap();
                        accumulator.accumulate(exec, &values, 1.0).unwrap();
                        // The largest value is finite, and twice as much is not.
                        assert_eq!(accumulator.finite(), poison == f32::MAX);
                        accumulator.accumulate(exec, &values, 1.0).unwrap();
                        assert!(!accumulator.finite());
                        let mut copy = GradientAccumulator::new(len).unwrap();
                        copy.restore(exec, accumulator.sum(), 2.0, 2).unwrap();
                        assert!(!copy.finite());
                        accumulator.mean_and_reset(exec, &mut vec![0.0; len]).unwrap();
                        assert!(accumulator.finite());
                    }
                }
            }
        });
    }

    #[test]
    fn the_golden_mean_of_five() {
        let golden = [0xbee0f9d8, 0xbee825db, 0xbe0c7c13, 0xbe6cce07, 0x3d8ae5a2, 0xbe1f331d, 0x3e10a355];
        everywhere(|exec| {
            let mut accumulator = GradientAccumulator::new(7).unwrap();
            for seed in 100..105 {
                accumulator.accumulate(exec, &input(7, seed), 1.0).unwrap();
            }
            assert_eq!((accumulator.count(), accumulator.mass()), (5, 5.0));
            let mut mean = [f32::NAN; 7];
            accumulator.mean_and_reset(exec, &mut mean).unwrap();
            assert_eq!(bits(&mean), golden);
            assert_eq!(accumulator, GradientAccumulator::new(7).unwrap());
        });
    }

    #[test]
    fn sums_are_those_of_a_loop_in_float32() {
        everywhere(|exec| {
            for len in lengths() {
                let mut accumulator = GradientAccumulator::new(len).unwrap();
                let mut sum = vec![0.0_f32; len];
                for (seed, mass) in [(1, 3.0), (2, 0.5), (3, 0.0)] {
                    let gradients = input(len, seed);
                    accumulator.accumulate(exec, &gradients, mass).unwrap();
                    sum.iter_mut().zip(&gradients).for_each(|(sum, gradient)| *sum += gradient);
                }
                assert_eq!(bits(accumulator.sum()), bits(&sum));
                let want: Vec<f32> = sum.iter().map(|sum| sum * (1.0_f64 / 3.5) as f32).collect();
                accumulator.mean_and_reset(exec, &mut sum).unwrap();
                assert_eq!(bits(&sum), bits(&want));
            }
        });
    }

    #[test]
    fn nothing_added_gives_zeros() {
        let mut out = [9.0; 3];
        let exec = Exec::serial(SimdLevel::Scalar);
        GradientAccumulator::new(3).unwrap().mean_and_reset(&exec, &mut out).unwrap();
        assert_eq!(bits(&out), [0, 0, 0]);
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let exec = Exec::serial(SimdLevel::Scalar);
        let mut accumulator = GradientAccumulator::new(3).unwrap();
        accumulator.accumulate(&exec, &[1.0, 2.0, 3.0], f64::MAX).unwrap();
        let before = accumulator.clone();
        let wrong_len = accumulator.accumulate(&exec, &[1.0; 4], 1.0);
        assert_eq!(wrong_len, Err(Error::DimensionMismatch { expected: 3, actual: 4 }));
        for mass in [-1.0, f64::NAN, f64::INFINITY, f64::MAX] {
            let refused = accumulator.accumulate(&exec, &[1.0; 3], mass);
            assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "mass"));
        }
        let wrong_state = accumulator.restore(&Exec::serial(SimdLevel::detected()), &[0.0; 2], 1.0, 1);
        assert_eq!(wrong_state, Err(Error::DimensionMismatch { expected: 3, actual: 2 }));
        assert!(accumulator.restore(&Exec::serial(SimdLevel::detected()), &[0.0; 3], f64::NAN, 1).is_err());
        let wrong_out = accumulator.mean_and_reset(&exec, &mut [0.0; 2]);
        assert_eq!(wrong_out, Err(Error::DimensionMismatch { expected: 3, actual: 2 }));
        assert_eq!(accumulator, before);
    }

    #[test]
    fn another_one_goes_on_where_the_first_was_left() {
        let exec = Exec::serial(SimdLevel::Scalar);
        let mut first = GradientAccumulator::new(3).unwrap();
        first.accumulate(&exec, &[1.0, 2.0, 3.0], 2.5).unwrap();
        let mut second = GradientAccumulator::new(3).unwrap();
        second
            .restore(&Exec::serial(SimdLevel::detected()), first.sum(), first.mass(), first.count())
            .unwrap();
        assert_eq!(second, first);
    }

    #[test]
    fn an_interrupted_mean_loses_nothing_and_an_accumulation_ends() {
        let cancelled = AtomicBool::new(true);
        let exec = Exec::new(SimdLevel::Scalar, None, &cancelled);
        let mut accumulator = GradientAccumulator::new(3).unwrap();
        accumulator.accumulate(&exec, &[1.0, 2.0, 3.0], 2.0).unwrap();
        let before = accumulator.clone();
        assert_eq!(accumulator.mean_and_reset(&exec, &mut [0.0; 3]), Err(Error::Interrupted));
        assert_eq!(accumulator, before);
    }

    #[test]
    fn a_size_beyond_memory_is_an_error() {
        assert!(matches!(GradientAccumulator::new(1 << 60), Err(Error::Memory { .. })));
    }
}
