//! `ChaCha8` keystreams, addressable at any word: the randomness that both ends of an exchange regenerate from a seed.
//!
//! A [`Key`] is the expansion of a 64-bit seed that `rand_core` 0.6 defines, so words are those of `rand_chacha`'s
//! `ChaCha8Rng::seed_from_u64`. A [`Stream`] is a key with a 64-bit stream id, its blocks numbered by a 64-bit counter.
//! Word `w` is word `w % 16` of block `w / 16`: any part of a stream can be had without what comes before it, which is
//! what lets threads and vector lanes start wherever their work does.

pub(crate) mod simd;

use crate::base::simd::{Kernel, SimdLevel};

/// Words in a block.
pub(crate) const BLOCK_WORDS: usize = 16;
const DOUBLE_ROUNDS: usize = 4;
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646E, 0x7962_2D32, 0x6B20_6574];
/// A 256-bit key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key([u32; 8]);

impl Key {
    /// The key of a seed, as `rand_core` 0.6 expands it: one output of a PCG32 generator for every four bytes.
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11_634_580_027_462_260_723);
            let mixed = (((state >> 18) ^ state) >> 27) as u32;
            mixed.rotate_right((state >> 59) as u32)
        }))
    }
}

/// One keystream of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: Key,
    id: u64,
}

impl Stream {
    /// Stream `id` of `key`.
    pub fn new(key: Key, id: u64) -> Self {
        Self { key, id }
    }

    /// The stream of a training step and a slot: id `(slot << 32) | step`. Step 0 of slot 0 is `rand_chacha`'s default.
    pub fn of_step(key: Key, step: u32, slot: u32) -> Self {
        Self::new(key, u64::from(slot) << 32 | u64::from(step))
    }

    /// Fills `out` with consecutive words, from word `first` on.
    pub fn words(&self, level: SimdLevel, first: u64, out: &mut [u32]) {
        level.run(Words { stream: self, first, out });
    }

    fn state(&self, counter: u64) -> [u32; 16] {
        let [c0, c1, c2, c3] = CONSTANTS;
        let [k0, k1, k2, k3, k4, k5, k6, k7] = self.key.0;
        let [low, high] = [counter as u32, (counter >> 32) as u32];
        [c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, low, high, self.id as u32, (self.id >> 32) as u32]
    }

    /// The blocks of `L` counters side by side: word `t` of block `l` is `[t][l]`.
    #[inline(always)]
    pub(crate) fn blocks<const L: usize>(&self, counters: [u64; L]) -> [[u32; L]; BLOCK_WORDS] {
        let mut initial = [[0; L]; 16];
        for (lanes, word) in initial.iter_mut().zip(self.state(0)) {
            *lanes = [word; L];
        }
        for lane in 0..L {
            initial[12][lane] = counters[lane] as u32;
            initial[13][lane] = (counters[lane] >> 32) as u32;
        }
        let mut state = initial;
        for _ in 0..DOUBLE_ROUNDS {
            quarter_round(&mut state, 0, 4, 8, 12);
            quarter_round(&mut state, 1, 5, 9, 13);
            quarter_round(&mut state, 2, 6, 10, 14);
            quarter_round(&mut state, 3, 7, 11, 15);
            quarter_round(&mut state, 0, 5, 10, 15);
            quarter_round(&mut state, 1, 6, 11, 12);
            quarter_round(&mut state, 2, 7, 8, 13);
            quarter_round(&mut state, 3, 4, 9, 14);
        }
        for (words, initial) in state.iter_mut().zip(&initial) {
            for (word, &initial) in words.iter_mut().zip(initial) {
                *word = word.wrapping_add(initial);
            }
        }
        state
    }
}

/// A quarter round in every lane. It is one loop, which a compiler makes into vector instructions if it has lanes enough not
/// to be unrolled; arrays added and rotated one after the other it does lane by lane.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Four rows are indexed.
fn quarter_round<const L: usize>(state: &mut [[u32; L]; 16], a: usize, b: usize, c: usize, d: usize) {
    // One loop over the lanes, long enough to stay one: that is what compilers turn into vector instructions.
    for lane in 0..L {
        let [mut at_a, mut at_b, mut at_c, mut at_d] =
            [state[a][lane], state[b][lane], state[c][lane], state[d][lane]];
        at_a = at_a.wrapping_add(at_b);
        at_d = (at_d ^ at_a).rotate_left(16);
        at_c = at_c.wrapping_add(at_d);
        at_b = (at_b ^ at_c).rotate_left(12);
        at_a = at_a.wrapping_add(at_b);
        at_d = (at_d ^ at_a).rotate_left(8);
        at_c = at_c.wrapping_add(at_d);
        at_b = (at_b ^ at_c).rotate_left(7);
        (state[a][lane], state[b][lane], state[c][lane], state[d][lane]) = (at_a, at_b, at_c, at_d);
    }
}

struct Words<'a> {
    stream: &'a Stream,
    first: u64,
    out: &'a mut [u32],
}

impl Kernel for Words<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // With 8 the rounds are unrolled, and take twice the time.
        const LANES: usize = 16;
        let mut block = self.first / BLOCK_WORDS as u64;
        let mut skip = (self.first % BLOCK_WORDS as u64) as usize;
        let mut rest = self.out;
        while !rest.is_empty() {
            let mut counters = [block; LANES];
            for (lane, counter) in counters.iter_mut().enumerate() {
                *counter = block.wrapping_add(lane as u64);
            }
            let words = self.stream.blocks(counters);
            let mut blocks = [[0; BLOCK_WORDS]; LANES];
            for (lane, block) in blocks.iter_mut().enumerate() {
                for (word, words) in block.iter_mut().zip(&words) {
                    *word = words[lane];
                }
            }
            let flat = blocks.as_flattened();
            let taken = rest.len().min(flat.len() - skip);
            let (now, later) = rest.split_at_mut(taken);
            now.copy_from_slice(&flat[skip..skip + taken]);
            (rest, skip, block) = (later, 0, block.wrapping_add(LANES as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Stream};
    use crate::base::simd::SimdLevel;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    fn oracle(seed: u64, id: u64, first: u64, len: usize) -> Vec<u32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(id);
        rng.set_word_pos(u128::from(first));
        (0..len).map(|_| rng.next_u32()).collect()
    }

    fn ours(level: SimdLevel, seed: u64, id: u64, first: u64, len: usize) -> Vec<u32> {
        let mut words = vec![0; len];
        Stream::new(Key::from_seed(seed), id).words(level, first, &mut words);
        words
    }

    #[test]
    fn keys_and_words_are_those_of_the_golden_file() {
        // Seeds 42 and 2^64 - 1 of the golden keystreams: key (bytes), words 0 to 3 of streams 0 and 5.
        assert_eq!(
            Key::from_seed(42).0.map(u32::swap_bytes),
            [0xA48FA17B, 0x58323D0A, 0xEAB8A1CC, 0x690114B8, 0x2B8CC875, 0x18B4F754, 0x8D446EA1, 0xE4DF20F2]
        );
        for (seed, id, words) in [
            (42, 0, [0x395D5BA1, 0xAE90BFB5, 0x25799188, 0xF3453FC6]),
            (42, 5, [0x8C3403E3, 0x5A4CB496, 0x20AF1FB4, 0xA06B31CE]),
            (u64::MAX, 0, [0xE3A73CAE, 0xAF202386, 0x97BE2DD8, 0x6DA0DF03]),
            (u64::MAX, 5, [0x491DEBD1, 0x6CE7B2EA, 0x4871CD79, 0x495E677D]),
        ] {
            assert_eq!(ours(SimdLevel::Scalar, seed, id, 0, 4), words);
        }
        assert_eq!(ours(SimdLevel::Scalar, 42, 0, 1_000_003, 3), [0xF2B09828, 0xE71F8C57, 0xEFD578C2]);
    }

    #[test]
    fn a_step_and_a_slot_are_the_halves_of_the_stream_id() {
        let key = Key::from_seed(1);
        assert_eq!(Stream::of_step(key, 0, 0), Stream::new(key, 0));
        assert_eq!(Stream::of_step(key, 5, 0), Stream::new(key, 5));
        assert_eq!(Stream::of_step(key, u32::MAX, 7), Stream::new(key, 0x7_FFFF_FFFF));
    }

    #[test]
    fn the_counter_carries_into_its_upper_half() {
        let boundary = 1_u64 << 36; // word 2^36 starts block 2^32
        for level in SimdLevel::available() {
            for first in [boundary - 300, boundary - 17, boundary - 16, boundary - 1, boundary] {
                assert_eq!(ours(level, 7, 3, first, 400), oracle(7, 3, first, 400));
            }
        }
    }

    proptest! {
        #[test]
        fn words_are_those_of_rand_chacha(seed: u64, id: u64, first in 0..1_u64 << 62, len in 0_usize..300) {
            for level in SimdLevel::available() {
                prop_assert_eq!(ours(level, seed, id, first, len), oracle(seed, id, first, len));
            }
        }
    }
}
