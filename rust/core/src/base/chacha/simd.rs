//! Keystream blocks in vector registers, one block a lane, for the kernels that use words where they are made.
//!
//! The rounds are written once over [`Lanes`], which names the few instructions they need at each level.

use super::{BLOCK_WORDS, DOUBLE_ROUNDS, Stream, quarter_round};

/// Vectors of `N` words and the instructions of one level.
///
/// # Safety
///
/// Every method may only be called on a CPU that has the level's features, from code compiled with them (all of it is
/// `#[inline(always)]` down from a function with `#[target_feature]`).
pub(crate) unsafe trait Lanes<const N: usize> {
    /// `N` unsigned 32-bit words.
    type Words: Copy;
    /// What rotations need.
    type Turns: Copy;

    fn turns() -> Self::Turns;

    unsafe fn splat(word: u32) -> Self::Words;
    unsafe fn load(words: &[u32; N]) -> Self::Words;
    unsafe fn add(left: Self::Words, right: Self::Words) -> Self::Words;
    unsafe fn xor(left: Self::Words, right: Self::Words) -> Self::Words;
    unsafe fn rotate_16(words: Self::Words, turns: Self::Turns) -> Self::Words;
    unsafe fn rotate_12(words: Self::Words, turns: Self::Turns) -> Self::Words;
    unsafe fn rotate_8(words: Self::Words, turns: Self::Turns) -> Self::Words;
    unsafe fn rotate_7(words: Self::Words, turns: Self::Turns) -> Self::Words;
}

/// What all blocks of a stream share while the upper half of their counters stays.
struct Shared {
    /// The state after the first column round; columns 1 to 3 do not hold the counter's lower half, so three of the 32
    /// quarter rounds of a block are done once for all.
    after_columns: [[u32; 4]; 4],
    /// What is added at the end: the initial state, and the caller's offset.
    finish: [u32; 16],
}

/// Makes blocks of one stream, `stride` apart from lane to lane, with `offset` added to every word.
pub(crate) struct Generator<'a, const N: usize> {
    stream: &'a Stream,
    offset: u32,
    stride: u64,
    /// How far the counter of each lane is from the first, modulo 2^32.
    distances: [u32; N],
    high: u32,
    shared: Shared,
}

impl<'a, const N: usize> Generator<'a, N> {
    pub(crate) fn new(stream: &'a Stream, offset: u32, stride: u64) -> Self {
        let distances = std::array::from_fn(|lane| (stride as u32).wrapping_mul(lane as u32));
        Self { stream, offset, stride, distances, high: 0, shared: Shared::new(stream, 0, offset) }
    }

    /// `N` blocks: lane `l` of vector `t` is word `t` of block `first + l * stride`, plus the offset.
    ///
    /// # Safety
    ///
    /// That of [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn blocks<L: Lanes<N>>(&mut self, first: u64) -> [L::Words; BLOCK_WORDS] {
        let high = first >> 32;
        let last = self.stride.checked_mul(N as u64 - 1).and_then(|reach| first.checked_add(reach));
        if last.is_none_or(|last| last >> 32 != high) {
            let words = self.across_a_carry(first);
            // SAFETY: passed on from the caller.
            return words.map(|words| unsafe { L::load(&words) });
        }
        if high as u32 != self.high {
            self.move_to(high as u32);
        }
        // SAFETY: passed on from the caller.
        unsafe { self.rounds::<L>(L::add(L::splat(first as u32), L::load(&self.distances))) }
    }

    #[inline(always)]
    unsafe fn rounds<L: Lanes<N>>(&self, low: L::Words) -> [L::Words; BLOCK_WORDS] {
        // SAFETY: passed on from the caller.
        unsafe {
            let turns = L::turns();
            let [a, b, c, d] = &self.shared.after_columns;
            let [mut a, mut b, mut c, mut d] =
                [splat_row::<L, N>(a), splat_row::<L, N>(b), splat_row::<L, N>(c), splat_row::<L, N>(d)];
            let column = quarter_rounds::<L, N, 1>([[a[0]], [b[0]], [c[0]], [low]], turns);
            [[a[0]], [b[0]], [c[0]], [d[0]]] = column;
            let mut state = diagonal_round::<L, N>([a, b, c, d], turns);
            for _ in 1..DOUBLE_ROUNDS {
                state = diagonal_round::<L, N>(quarter_rounds::<L, N, 4>(state, turns), turns);
            }
            let [a, b, c, d] = state;
            let mut words = [
                a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2],
                d[3],
            ];
            for (words, finish) in words.iter_mut().zip(self.shared.finish) {
                *words = L::add(*words, L::splat(finish));
            }
            words[12] = L::add(words[12], low);
            words
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
    fn across_a_carry(&self, first: u64) -> [[u32; N]; BLOCK_WORDS] {
        let counters = std::array::from_fn(|lane| first.wrapping_add(self.stride.wrapping_mul(lane as u64)));
        self.stream.blocks(counters).map(|words| words.map(|word| word.wrapping_add(self.offset)))
    }
}

impl Shared {
    fn new(stream: &Stream, high: u32, offset: u32) -> Self {
        let initial = stream.state(u64::from(high) << 32);
        let mut state = initial.map(|word| [word]);
        for column in 1..4 {
            quarter_round(&mut state, column, column + 4, column + 8, column + 12);
        }
        Self {
            after_columns: std::array::from_fn(|row| {
                std::array::from_fn(|column| state[4 * row + column][0])
            }),
            // Word 12 of `initial` is 0: the counter's lower half is added lane by lane.
            finish: initial.map(|word| word.wrapping_add(offset)),
        }
    }
}

#[inline(always)]
unsafe fn splat_row<L: Lanes<N>, const N: usize>(row: &[u32; 4]) -> [L::Words; 4] {
    // SAFETY: passed on from the caller.
    unsafe { [L::splat(row[0]), L::splat(row[1]), L::splat(row[2]), L::splat(row[3])] }
}

/// `Q` quarter rounds of the words of four rows, a step of all of them at a time, so that none waits for itself.
#[inline(always)]
unsafe fn quarter_rounds<L: Lanes<N>, const N: usize, const Q: usize>(
    [mut a, mut b, mut c, mut d]: [[L::Words; Q]; 4],
    turns: L::Turns,
) -> [[L::Words; Q]; 4] {
    // SAFETY: passed on from the caller.
    unsafe {
        for i in 0..Q {
            a[i] = L::add(a[i], b[i]);
            d[i] = L::rotate_16(L::xor(d[i], a[i]), turns);
        }
        for i in 0..Q {
            c[i] = L::add(c[i], d[i]);
            b[i] = L::rotate_12(L::xor(b[i], c[i]), turns);
        }
        for i in 0..Q {
            a[i] = L::add(a[i], b[i]);
            d[i] = L::rotate_8(L::xor(d[i], a[i]), turns);
        }
        for i in 0..Q {
            c[i] = L::add(c[i], d[i]);
            b[i] = L::rotate_7(L::xor(b[i], c[i]), turns);
        }
    }
    [a, b, c, d]
}

/// The quarter rounds along the diagonals of the four rows.
#[inline(always)]
unsafe fn diagonal_round<L: Lanes<N>, const N: usize>(
    [a, [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]]: [[L::Words; 4]; 4],
    turns: L::Turns,
) -> [[L::Words; 4]; 4] {
    // SAFETY: passed on from the caller.
    let [a, [b1, b2, b3, b0], [c2, c3, c0, c1], [d3, d0, d1, d2]] = unsafe {
        quarter_rounds::<L, N, 4>([a, [b1, b2, b3, b0], [c2, c3, c0, c1], [d3, d0, d1, d2]], turns)
    };
    [a, [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]]
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi32,
        _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_xor_si256, _mm512_add_epi32,
        _mm512_loadu_si512, _mm512_rol_epi32, _mm512_set1_epi32, _mm512_xor_si512,
    };
    use std::hint::black_box;

    /// Eight lanes. Rotations by whole bytes are byte shuffles: one instruction instead of three.
    pub(crate) struct Avx2;

    /// Orders of bytes that rotate words by 16 and by 8 bits.
    #[derive(Clone, Copy)]
    pub(crate) struct ByteTurns {
        by_16: __m256i,
        by_8: __m256i,
    }

    /// Sixteen lanes, with rotations of their own.
    pub(crate) struct Avx512;

    // SAFETY: the trait's contract gives every method the features of its level; the loads read exactly their arrays.
    unsafe impl Lanes<8> for Avx2 {
        type Words = __m256i;
        type Turns = ByteTurns;

        #[inline(always)]
        fn turns() -> ByteTurns {
            let by_16 = [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13];
            let by_8 = [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14];
            // What the compiler knows of a shuffle it splits or doubles, to merge it with the one before.
            let orders: [[[u8; 16]; 2]; 2] = black_box([[by_16; 2], [by_8; 2]]);
            // SAFETY: the contract of the trait; the arrays are as long as the vectors.
            unsafe {
                ByteTurns {
                    by_16: _mm256_loadu_si256(orders[0].as_ptr().cast()),
                    by_8: _mm256_loadu_si256(orders[1].as_ptr().cast()),
                }
            }
        }

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
        unsafe fn rotate_16(words: __m256i, turns: ByteTurns) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_shuffle_epi8(words, turns.by_16) }
        }
        #[inline(always)]
        unsafe fn rotate_12(words: __m256i, _: ByteTurns) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_or_si256(_mm256_slli_epi32::<12>(words), _mm256_srli_epi32::<20>(words)) }
        }
        #[inline(always)]
        unsafe fn rotate_8(words: __m256i, turns: ByteTurns) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_shuffle_epi8(words, turns.by_8) }
        }
        #[inline(always)]
        unsafe fn rotate_7(words: __m256i, _: ByteTurns) -> __m256i {
            // SAFETY: the contract of the trait.
            unsafe { _mm256_or_si256(_mm256_slli_epi32::<7>(words), _mm256_srli_epi32::<25>(words)) }
        }
    }

    // SAFETY: as above.
    unsafe impl Lanes<16> for Avx512 {
        type Words = __m512i;
        type Turns = ();

        #[inline(always)]
        fn turns() {}

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
        unsafe fn rotate_16(words: __m512i, (): ()) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<16>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_12(words: __m512i, (): ()) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<12>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_8(words: __m512i, (): ()) -> __m512i {
            // SAFETY: the contract of the trait.
            unsafe { _mm512_rol_epi32::<8>(words) }
        }
        #[inline(always)]
        unsafe fn rotate_7(words: __m512i, (): ()) -> __m512i {
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
        type Turns = ();

        fn turns() {}

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
        unsafe fn rotate_16(words: [u32; N], (): ()) -> [u32; N] {
            words.map(|word| word.rotate_left(16))
        }
        unsafe fn rotate_12(words: [u32; N], (): ()) -> [u32; N] {
            words.map(|word| word.rotate_left(12))
        }
        unsafe fn rotate_8(words: [u32; N], (): ()) -> [u32; N] {
            words.map(|word| word.rotate_left(8))
        }
        unsafe fn rotate_7(words: [u32; N], (): ()) -> [u32; N] {
            words.map(|word| word.rotate_left(7))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Emulated, Generator};
    use crate::base::chacha::{Key, Stream};

    fn check_each_counter<const N: usize>(blocks: impl Fn(&mut Generator<'_, N>, u64) -> [[u32; N]; 16]) {
        let carry = 1_u64 << 32;
        for offset in [0, 1 << 31] {
            for id in [0, 5, u64::MAX] {
                let stream = Stream::new(Key::from_seed(42), id);
                for stride in [1, 3, 1000, carry - 1, carry, 1 << 62] {
                    let mut generator = Generator::new(&stream, offset, stride);
                    for first in [0, 1, carry - 100, carry - 9, carry - 1, carry, 5 * carry, 0, u64::MAX - 3]
                    {
                        let found = blocks(&mut generator, first);
                        for lane in 0..N {
                            let counter = first.wrapping_add(stride.wrapping_mul(lane as u64));
                            let want = stream.blocks([counter]).map(|[word]| word.wrapping_add(offset));
                            assert_eq!(found.map(|words| words[lane]), want, "{first} {stride} {lane}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_lane_holds_the_block_of_its_counter() {
        // SAFETY: emulated lanes need no feature.
        check_each_counter::<8>(|generator, first| unsafe { generator.blocks::<Emulated>(first) });
        // SAFETY: as above.
        check_each_counter::<16>(|generator, first| unsafe { generator.blocks::<Emulated>(first) });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn registers_hold_the_same_blocks() {
        use super::{Avx2, Avx512};
        use crate::base::simd::SimdLevel;

        #[target_feature(enable = "avx2")]
        fn avx2(generator: &mut Generator<'_, 8>, first: u64) -> [[u32; 8]; 16] {
            // SAFETY: the features are this function's; a vector and its array have the same bits.
            unsafe { std::mem::transmute(generator.blocks::<Avx2>(first)) }
        }
        #[target_feature(enable = "avx512f")]
        fn avx512(generator: &mut Generator<'_, 16>, first: u64) -> [[u32; 16]; 16] {
            // SAFETY: as above.
            unsafe { std::mem::transmute(generator.blocks::<Avx512>(first)) }
        }
        if SimdLevel::detected() >= SimdLevel::Avx2 {
            // SAFETY: the CPU has the features.
            check_each_counter::<8>(|generator, first| unsafe { avx2(generator, first) });
        }
        if SimdLevel::detected() >= SimdLevel::Avx512 {
            // SAFETY: the CPU has the features.
            check_each_counter::<16>(|generator, first| unsafe { avx512(generator, first) });
        }
    }
}
