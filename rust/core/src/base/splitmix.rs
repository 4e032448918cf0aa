//! splitmix64: the small generator behind initial parameters, shuffles and sampling.
//!
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The state starts at the seed
//! itself, without warm-up.

use super::error::Result;
use super::exec::Exec;
use super::memory::try_vec;

/// Draws between two looks at whether to stop: less than a millisecond.
pub const DRAWS_PER_CHECK: usize = 1 << 14;

/// A stream of 64-bit words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The state, which is the seed of what is left of the stream.
    pub fn state(&self) -> u64 {
        self.state
    }

    /// The next word.
    pub fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next value in [0, 1): the top 53 bits of a word.
    pub fn unit(&mut self) -> f64 {
        (self.next_word() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// An index below `len`: `floor(unit * len)`.
    pub fn below(&mut self, len: usize) -> usize {
        ((self.unit() * len as f64) as usize).min(len.saturating_sub(1))
    }

    /// The numbers 0..count in an order of Fisher and Yates: position i swaps with one of 0..=i, for i from the last
    /// down to 1.
    pub fn permutation(&mut self, exec: &Exec<'_>, count: usize) -> Result<Vec<i64>> {
        let mut order: Vec<i64> = try_vec(count)?;
        for (index, place) in order.iter_mut().enumerate() {
            *place = index as i64;
        }
        for i in (1..count).rev() {
            if i.is_multiple_of(DRAWS_PER_CHECK) {
                exec.check()?;
            }
            order.swap(i, self.below(i + 1));
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::{Exec, SplitMix64};
    use crate::base::simd::SimdLevel;

    #[test]
    fn words_are_those_of_the_published_generator() {
        // The first outputs for seed 1234567, as listed with several public implementations.
        let mut stream = SplitMix64::new(1_234_567);
        assert_eq!(stream.next_word(), 6_457_827_717_110_365_317);
        assert_eq!(stream.next_word(), 3_203_168_211_198_807_973);
        assert_eq!(stream.next_word(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn permutations_hold_every_number_once() {
        let exec = Exec::serial(SimdLevel::Scalar);
        let mut order = SplitMix64::new(9).permutation(&exec, 1000).unwrap();
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        assert_eq!(SplitMix64::new(9).permutation(&exec, 1).unwrap(), [0]);
        assert!(SplitMix64::new(9).permutation(&exec, 0).unwrap().is_empty());
    }
}
