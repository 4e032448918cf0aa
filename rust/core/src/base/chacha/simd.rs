//! Keystream blocks in vector registers, one block a lane, for the kernels that use words where they are made.
//!
//! The rounds are written once over [`Lanes`], which names the few instructions they need at each level.

use super::{BLOCK_WORDS, COLUMNS, DIAGONALS, DOUBLE_ROUNDS, Stream};

/// Vectors of `N` words and the instructions of one level.
///
/// # Safety
///
/// Every method may only be called on a CPU that has the level's features, from code compiled with them (all of it is
/// `#[inline(always)]` down from a function with `#[target_feature]`).
pub(crate) unsafe trait Lanes<const N: usize> {
    /// `N` unsigned 32-bit words.
    type Words: Copy;

    unsafe fn splat(word: u32) -> Self::Words;
    unsafe fn load(words: &[u32; N]) -> Self::Words;
    unsafe fn add(left: Self::Words, right: Self::Words) -> Self::Words;
    unsafe fn xor(left: Self::Words, right: Self::Words) -> Self::Words;
    unsafe fn rotate_16(words: Self::Words) -> Self::Words;
    unsafe fn rotate_12(words: Self::Words) -> Self::Words;
    unsafe fn rotate_8(words: Self::Words) -> Self::Words;
    unsafe fn rotate_7(words: Self::Words) -> Self::Words;
}

/// What all blocks of a stream share while the upper half of their counters stays.
struct Shared {
    /// The state after the first column round; columns 1 to 3 do not hold the counter's lower half, so three of the 32
    /// quarter rounds of a block are done once for all.
    after_columns: [u32; 16],
    /// What is added at the end: the initial state, and the caller's offset.
    finish: [u32; 16],
}

/// Makes blocks of one stream, with `offset` added to every word.
pub(crate) struct Generator<'a> {
    stream: &'a Stream,
    offset: u32,
    high: u32,
    shared: Shared,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(stream: &'a Stream, offset: u32) -> Self {
        Self { stream, offset, high: 0, shared: Shared::new(stream, 0, offset) }
    }

    /// The blocks of `N` counters: lane `l` of vector `t` is word `t` of block `counters[l]`, plus the offset.
    ///
    /// # Safety
    ///
    /// That of [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn blocks<L: Lanes<N>, const N: usize>(
        &mut self,
        counters: &[u64; N],
    ) -> [L::Words; BLOCK_WORDS] {
        let high = counters[0] >> 32;
        let differ = counters.iter().fold(0, |differ, counter| differ | (counter >> 32 ^ high));
        if differ != 0 {
            let words = self.across_a_carry(counters);
            // SAFETY: passed on from the caller.
            return words.map(|words| unsafe { L::load(&words) });
        }
        if high as u32 != self.high {
            self.move_to(high as u32);
        }
        // SAFETY: passed on from the caller.
        unsafe { self.rounds::<L, N>(&counters.map(|counter| counter as u32)) }
    }

    #[inline(always)]
    unsafe fn rounds<L: Lanes<N>, const N: usize>(&self, low: &[u32; N]) -> [L::Words; BLOCK_WORDS] {
        // SAFETY: passed on from the caller.
        unsafe {
            let low = L::load(low);
            let mut state = self.shared.after_columns.map(|word| L::splat(word));
            state[12] = low;
            quarter_rounds::<L, N, 1>(&mut state, [COLUMNS[0]]);
            quarter_rounds::<L, N, 4>(&mut state, DIAGONALS);
            for _ in 1..DOUBLE_ROUNDS {
                quarter_rounds::<L, N, 4>(&mut state, COLUMNS);
                quarter_rounds::<L, N, 4>(&mut state, DIAGONALS);
            }
            for (words, finish) in state.iter_mut().zip(self.shared.finish) {
                *words = L::add(*words, L::splat(finish));
            }
            state[12] = L::add(state[12], low);
            state
        }
    }

    #[cold]
    #[inline(never)]
    fn move_to(&mut self, high: u32) {
        self.high = high;
        self.shared = Shared::new(self.stream, high, self.offset);
    }

    #[cold]
    #[inline(never)]
    fn across_a_carry<const N: usize>(&self, counters: &[u64; N]) -> [[u32; N]; BLOCK_WORDS] {
        self.stream.blocks(*counters).map(|words| words.map(|word| word.wrapping_add(self.offset)))
    }
}

impl Shared {
    fn new(stream: &Stream, high: u32, offset: u32) -> Self {
        let initial = stream.state(u64::from(high) << 32);
        let mut state = initial.map(|word| [word]);
        for quarter in &COLUMNS[1..] {
            super::quarter_round(&mut state, *quarter);
        }
        Self {
            after_columns: state.map(|[word]| word),
            // Word 12 of `initial` is 0: the counter's lower half is added lane by lane.
            finish: initial.map(|word| word.wrapping_add(offset)),
        }
    }
}

/// Quarter rounds that touch different words, a step of all of them at a time, so that none waits for itself.
#[inline(always)]
unsafe fn quarter_rounds<L: Lanes<N>, const N: usize, const Q: usize>(
    state: &mut [L::Words; 16],
    quarters: [[usize; 4]; Q],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        for [a, b, _, d] in quarters {
            state[a] = L::add(state[a], state[b]);
            state[d] = L::rotate_16(L::xor(state[d], state[a]));
        }
        for [_, b, c, d] in quarters {
            state[c] = L::add(state[c], state[d]);
            state[b] = L::rotate_12(L::xor(state[b], state[c]));
        }
        for [a, b, _, d] in quarters {
            state[a] = L::add(state[a], state[b]);
            state[d] = L::rotate_8(L::xor(state[d], state[a]));
        }
        for [_, b, c, d] in quarters {
            state[c] = L::add(state[c], state[d]);
            state[b] = L::rotate_7(L::xor(state[b], state[c]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi32,
        _mm256_setr_epi8, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_xor_si256,
        _mm512_add_epi32, _mm512_loadu_si512, _mm512_rol_epi32, _mm512_set1_epi32, _mm512_xor_si512,
    };

    /// Eight lanes. Rotations by whole bytes are byte shuffles: one instruction instead of three.
    pub(crate) struct Avx2;

    /// Sixteen lanes, with rotations of their own.
    pub(crate) struct Avx512;

    // SAFETY: the trait's contract gives every method the features of its level; the loads read exactly their arrays.
    unsafe impl Lanes<8> for Avx2 {
        type Words = __m256i;

        #[inline(always)]
        unsafe fn splat(word: u32) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_set1_epi32(word as i32) }
        }
        #[inline(always)]
        unsafe fn load(words: &[u32; 8]) -> __m256i {
            // SAFETY: the contract of the trait; the array is as long as the vector.
            unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn add(left: __m256i, right: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_add_epi32(left, right) }
        }
        #[inline(always)]
        unsafe fn xor(left: __m256i, right: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_xor_si256(left, right) }
        }
        #[inline(always)]
        unsafe fn rotate_16(words: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe {
                let bytes = _mm256_setr_epi8(
                    2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, //
                    2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
                );
                _mm256_shuffle_epi8(words, bytes)
            }
        }
        #[inline(always)]
        unsafe fn rotate_12(words: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_or_si256(_mm256_slli_epi32::<12>(words), _mm256_srli_epi32::<20>(words)) }
        }
        #[inline(always)]
        unsafe fn rotate_8(words: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe {
                let bytes = _mm256_setr_epi8(
                    3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, //
                    3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14,
                );
                _mm256_shuffle_epi8(words, bytes)
            }
        }
        #[inline(always)]
        unsafe fn rotate_7(words: __m256i) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_or_si256(_mm256_slli_epi32::<7>(words), _mm256_srli_epi32::<25>(words)) }
        }
    }

    // SAFETY: as above.
    unsafe impl Lanes<16> for Avx512 {
        type Words = __m512i;

        #[inline(always)]
        unsafe fn splat(word: u32) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_set1_epi32(word as i32) }
        }
        #[inline(always)]
        unsafe fn load(words: &[u32; 16]) -> __m512i {
            // SAFETY: the contract of the trait; the array is as long as the vector.
            unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn add(left: __m512i, right: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_add_epi32(left, right) }
        }
        #[inline(always)]
        unsafe fn xor(left: __m512i, right: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_xor_si512(left, right) }
        }
        #[inline(always)]
        unsafe fn rotate_16(words: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<16>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_12(words: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<12>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_8(words: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<8>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_7(words: __m512i) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<7>(words) }
        }
    }
}

/// Lanes in arrays: they let the sixteen-lane code be held to the oracle on a CPU without such registers.
#[cfg(test)]
pub(crate) struct Emulated;

#[cfg(test)]
mod emulated {
    use super::{Emulated, Lanes};

    // SAFETY: no instruction here needs a feature.
    unsafe impl<const N: usize> Lanes<N> for Emulated {
        type Words = [u32; N];

        unsafe fn splat(word: u32) -> [u32; N] {
            [word; N]
        }
        unsafe fn load(words: &[u32; N]) -> [u32; N] {
            *words
        }
        unsafe fn add(left: [u32; N], right: [u32; N]) -> [u32; N] {
            std::array::from_fn(|lane| left[lane].wrapping_add(right[lane]))
        }
        unsafe fn xor(left: [u32; N], right: [u32; N]) -> [u32; N] {
            std::array::from_fn(|lane| left[lane] ^ right[lane])
        }
        unsafe fn rotate_16(words: [u32; N]) -> [u32; N] {
            words.map(|word| word.rotate_left(16))
        }
        unsafe fn rotate_12(words: [u32; N]) -> [u32; N] {
            words.map(|word| word.rotate_left(12))
        }
        unsafe fn rotate_8(words: [u32; N]) -> [u32; N] {
            words.map(|word| word.rotate_left(8))
        }
        unsafe fn rotate_7(words: [u32; N]) -> [u32; N] {
            words.map(|word| word.rotate_left(7))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Emulated, Generator};
    use crate::base::chacha::{Key, Stream};

    fn check_each_counter<const N: usize>(blocks: impl Fn(&mut Generator<'_>, &[u64; N]) -> [[u32; N]; 16]) {
        for offset in [0, 1 << 31] {
            for id in [0, 5, u64::MAX] {
                let stream = Stream::new(Key::from_seed(42), id);
                let mut generator = Generator::new(&stream, offset);
                let carry = 1_u64 << 32;
                for first in [0, 1, carry - 100, carry - 9, carry - 1, carry, 5 * carry, 0, u64::MAX - 3] {
                    for distance in [1, 3, 1000, carry] {
                        let counters: [u64; N] =
                            std::array::from_fn(|l| first.wrapping_add(distance * l as u64));
                        let found = blocks(&mut generator, &counters);
                        for (lane, &counter) in counters.iter().enumerate() {
                            let want = stream.blocks([counter]).map(|[word]| word.wrapping_add(offset));
                            assert_eq!(found.map(|words| words[lane]), want, "{first} {distance} {lane}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_lane_holds_the_block_of_its_counter() {
        // SAFETY: emulated lanes need no feature.
        check_each_counter::<8>(|generator, counters| unsafe { generator.blocks::<Emulated, 8>(counters) });
        // SAFETY: as above.
        check_each_counter::<16>(|generator, counters| unsafe { generator.blocks::<Emulated, 16>(counters) });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn registers_hold_the_same_blocks() {
        use super::{Avx2, Avx512};
        use crate::base::simd::SimdLevel;

        #[target_feature(enable = "avx2")]
        fn avx2(generator: &mut Generator<'_>, counters: &[u64; 8]) -> [[u32; 8]; 16] {
            // SAFETY: the features are this function's; a vector and its array have the same bits.
            unsafe { std::mem::transmute(generator.blocks::<Avx2, 8>(counters)) }
        }
        #[target_feature(enable = "avx512f")]
        fn avx512(generator: &mut Generator<'_>, counters: &[u64; 16]) -> [[u32; 16]; 16] {
            // SAFETY: as above.
            unsafe { std::mem::transmute(generator.blocks::<Avx512, 16>(counters)) }
        }
        if SimdLevel::detected() >= SimdLevel::Avx2 {
            // SAFETY: the CPU has the features.
            check_each_counter::<8>(|generator, counters| unsafe { avx2(generator, counters) });
        }
        if SimdLevel::detected() >= SimdLevel::Avx512 {
            // SAFETY: the CPU has the features.
            check_each_counter::<16>(|generator, counters| unsafe { avx512(generator, counters) });
        }
    }
}
