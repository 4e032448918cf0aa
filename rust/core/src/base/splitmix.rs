//! splitmix64: the small generator behind initial parameters, shuffles and sampling.
//!
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The state starts at the seed
//! itself, without warm-up.

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

    /// Fisher-Yates from the top: position i swaps with one of 0..=i, for i from the last down to 1.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn words_are_those_of_the_published_generator() {
        // The first outputs for seed 1234567, as listed with several public implementations.
        let mut stream = SplitMix64::new(1_234_567);
        assert_eq!(stream.next_word(), 6_457_827_717_110_365_317);
        assert_eq!(stream.next_word(), 3_203_168_211_198_807_973);
        assert_eq!(stream.next_word(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn shuffles_are_permutations() {
        let mut items: Vec<usize> = (0..1000).collect();
        SplitMix64::new(9).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
