//! The dense projection in vector registers: one keystream block a lane, words used where they are made.
//!
//! A vector of words then holds columns 16 apart, at any k and without a transpose. What makes that work:
//!
//! * compress keeps the running sums of its columns in 16 arrays, column `j` in array `j % 16` at `j / 16`, so that the
//!   columns of a vector are neighbours. A group of lanes takes the next blocks of its band, whatever their rows, and
//!   is added once for every row it has a part of: what is not of that row lands before or behind the row's columns, in
//!   places that nobody reads;
//! * decompress gives every lane 16 rows of its own. Sixteen rows are exactly k blocks, so all lanes start on a block and
//!   are at the same column at the same time, and no mask is needed.
//!
//! Both are written once over [`Entries`]; the levels differ in a few instructions.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_and_ps, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmpgt_epi32,
    _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_cmplt_epi32_mask,
    _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_maskz_mov_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

use std::hint::black_box;

use super::{MINUS_BELOW, PLUS_BELOW, Rows, WORDS_PER_CHECK};
use crate::base::chacha::BLOCK_WORDS;
use crate::base::chacha::simd::{Avx2, Avx512, Generator, Lanes};
use crate::base::error::Result;
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::SimdLevel;

/// Added to every word, so that unsigned order becomes the signed order that vectors can compare.
const OFFSET: u32 = 1 << 31;

/// What the projection does with a vector of words (offset by [`OFFSET`]).
///
/// # Safety
///
/// That of [`Lanes`].
unsafe trait Entries<const N: usize>: Lanes<N> {
    type Floats: Copy;

    unsafe fn splat_float(value: f32) -> Self::Floats;
    unsafe fn load_floats(values: *const f32) -> Self::Floats;
    unsafe fn store_floats(values: *mut f32, floats: Self::Floats);
    unsafe fn add_floats(left: Self::Floats, right: Self::Floats) -> Self::Floats;
    /// `plus`, `minus` or +0, as each word says.
    unsafe fn signed(words: Self::Words, plus: Self::Floats, minus: Self::Floats) -> Self::Floats;
}

/// [`Rows::compress_band`] at a level that the CPU has.
pub(super) fn compress_band(
    rows: &Rows<'_>,
    level: SimdLevel,
    exec: &Exec<'_>,
    gradients: &[f32],
    scale: f32,
    start: usize,
    out: &mut [f32],
) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(
        rows: &Rows<'_>,
        exec: &Exec<'_>,
        gradients: &[f32],
        scale: f32,
        start: usize,
        out: &mut [f32],
    ) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_band_lanes::<Avx2, 8>(rows, exec, gradients, scale, start, out) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(
        rows: &Rows<'_>,
        exec: &Exec<'_>,
        gradients: &[f32],
        scale: f32,
        start: usize,
        out: &mut [f32],
    ) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_band_lanes::<Avx512, 16>(rows, exec, gradients, scale, start, out) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(rows, exec, gradients, scale, start, out),
            _ => avx2(rows, exec, gradients, scale, start, out),
        }
    }
}

/// [`Rows::decompress`] at a level that the CPU has.
pub(super) fn decompress(
    rows: &Rows<'_>,
    level: SimdLevel,
    exec: &Exec<'_>,
    scaled: &[f32],
    out: &mut [f32],
) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(rows: &Rows<'_>, exec: &Exec<'_>, scaled: &[f32], out: &mut [f32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_lanes::<Avx2, 8>(rows, exec, scaled, out) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(rows: &Rows<'_>, exec: &Exec<'_>, scaled: &[f32], out: &mut [f32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_lanes::<Avx512, 16>(rows, exec, scaled, out) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(rows, exec, scaled, out),
            _ => avx2(rows, exec, scaled, out),
        }
    }
}

/// The part of one row that lies in a band, and where its blocks are in the current group of lanes.
#[derive(Clone, Copy)]
struct Segment {
    row: usize,
    /// Its first word.
    word: u64,
    /// Lane of its first block; negative when that was in an earlier group.
    lane: i64,
    /// Blocks after the first.
    more: i64,
}

impl Segment {
    fn new(rows: &Rows<'_>, row: usize, start: usize, len: usize) -> Self {
        let word = rows.word(row, start);
        let more = word.wrapping_add(len as u64 - 1) / 16 - word / 16;
        Self { row, word, lane: 0, more: more as i64 }
    }

    /// The segment of the next row. It shares the lane of this one's last block if it starts in that block.
    fn next(&self, rows: &Rows<'_>, start: usize, len: usize) -> Self {
        let next = Self::new(rows, self.row + 1, start, len);
        let blocks_on = (next.word / 16 - self.word / 16) as i64;
        Self { lane: self.lane + blocks_on.min(self.more + 1), ..next }
    }

    /// The column of the band that word 0 of lane 0 would be in this row.
    fn column(&self) -> i64 {
        ((self.word / 16) as i64 - self.lane) * 16 - self.word as i64
    }

    fn ends_before(&self, lane: i64) -> bool {
        self.lane + self.more < lane
    }
}

#[inline(always)]
unsafe fn compress_band_lanes<L: Entries<N>, const N: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    gradients: &[f32],
    scale: f32,
    start: usize,
    out: &mut [f32],
) -> Result<()> {
    let len = out.len();
    if len == 0 || gradients.is_empty() {
        out.fill(0.0);
        return Ok(());
    }
    let lanes = N as i64;
    // Lanes that are not of a row add to places before or behind its columns, N at most, which nobody reads.
    let stride = len.div_ceil(BLOCK_WORDS) + 2 * N + 1;
    let mut sums: Vec<f32> = try_vec(BLOCK_WORDS * stride)?;
    // Where columns c, c + 16 and so on are, for the 16 words of a block that starts at column 0 to 15.
    let places: [usize; 2 * BLOCK_WORDS] = std::array::from_fn(|c| c % 16 * stride + c / 16 + N);
    let mut generator = Generator::new(rows.stream, OFFSET);
    let mut counters = [0; N];
    let mut group = Vec::new();
    let mut next = Some(Segment::new(rows, 0, start, len));
    let mut groups = 0;
    while let Some(mut segment) = next {
        if groups % (WORDS_PER_CHECK / 8 / (16 * N)) == 0 {
            exec.check()?;
        }
        groups += 1;
        // Which rows the next N blocks of the band belong to.
        group.clear();
        next = loop {
            let first_block = (segment.word / 16).wrapping_sub(segment.lane as u64);
            for (lane, counter) in counters.iter_mut().enumerate().skip(segment.lane.max(0) as usize) {
                *counter = first_block.wrapping_add(lane as u64);
            }
            group.push(segment);
            if !segment.ends_before(lanes) {
                break Some(segment);
            }
            if segment.row + 1 == gradients.len() {
                break None;
            }
            segment = segment.next(rows, start, len);
            if segment.lane >= lanes {
                break Some(segment);
            }
        };
        if let Some(next) = &mut next {
            next.lane -= lanes;
        }
        // SAFETY: the features are passed on from the caller, and `places` and `sums` fit each other and the band.
        unsafe {
            let mut words = generator.blocks::<L, N>(&counters);
            if let [segment] = group[..] {
                let value = gradients[segment.row] * scale;
                add_row::<L, N>(&words, segment.column(), value, &places, &mut sums);
            } else {
                for segment in &group {
                    // Opaque, or the comparisons are taken out of this loop, and their results through memory.
                    let words = black_box(&mut words);
                    let value = gradients[segment.row] * scale;
                    add_row::<L, N>(words, segment.column(), value, &places, &mut sums);
                }
            }
        }
    }
    for (column, out) in out.iter_mut().enumerate() {
        *out = sums[places[column % 16] + column / 16];
    }
    Ok(())
}

/// Adds the entries of one row: lane `l` of word `t` is column `column` + t + 16 l of the band.
///
/// # Safety
///
/// That of [`Lanes`], and `sums` must have the places of all those columns.
#[inline(always)]
unsafe fn add_row<L: Entries<N>, const N: usize>(
    words: &[L::Words; BLOCK_WORDS],
    column: i64,
    value: f32,
    places: &[usize; 2 * BLOCK_WORDS],
    sums: &mut [f32],
) {
    let (block, inside) = ((column >> 4) as isize, (column & 15) as usize);
    debug_assert!(places[inside] as isize + block >= 0);
    debug_assert!(places[inside + 15] as isize + block + N as isize <= sums.len() as isize);
    // SAFETY: passed on from the caller.
    unsafe {
        let (plus, minus) = (L::splat_float(value), L::splat_float(-value));
        // By itself it may lie before all sums: only with a place added is it among them again.
        let first = sums.as_mut_ptr().wrapping_offset(block);
        let places = &places[inside..inside + BLOCK_WORDS];
        for t in 0..BLOCK_WORDS {
            let sum = first.wrapping_add(places[t]);
            L::store_floats(sum, L::add_floats(L::load_floats(sum), L::signed(words[t], plus, minus)));
        }
    }
}

#[inline(always)]
unsafe fn decompress_lanes<L: Entries<N>, const N: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    scaled: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let columns = scaled.len();
    if columns == 0 {
        out.fill(0.0);
        return Ok(());
    }
    let blocks = columns as u64;
    let mut generator = Generator::new(rows.stream, OFFSET);
    for (tile, out) in out.chunks_mut(16 * N).enumerate() {
        let first_block = rows.word(tile * 16 * N, 0) / 16;
        let mut counters: [u64; N] =
            std::array::from_fn(|lane| first_block.wrapping_add(blocks.wrapping_mul(lane as u64)));
        let (mut row, mut column) = (0, 0);
        // SAFETY: the features are passed on from the caller, and `finished` has a place for every lane.
        unsafe {
            let mut sums = L::splat_float(0.0);
            let mut finish = |sums: L::Floats, row: usize| {
                let mut finished = [0.0; N];
                L::store_floats(finished.as_mut_ptr(), sums);
                for (lane, value) in finished.into_iter().enumerate() {
                    if let Some(out) = out.get_mut(row + 16 * lane) {
                        *out = value;
                    }
                }
            };
            for block in 0..columns {
                if block % (WORDS_PER_CHECK / (16 * N)) == 0 {
                    exec.check()?;
                }
                let words = generator.blocks::<L, N>(&counters);
                for counter in &mut counters {
                    *counter = counter.wrapping_add(1);
                }
                if let Some(values) = scaled.get(column..column + BLOCK_WORDS) {
                    for (&words, &value) in words.iter().zip(values) {
                        sums = L::add_floats(
                            sums,
                            L::signed(words, L::splat_float(value), L::splat_float(-value)),
                        );
                    }
                    column += BLOCK_WORDS;
                } else {
                    for &words in &words {
                        if column == columns {
                            finish(sums, row);
                            (sums, row, column) = (L::splat_float(0.0), row + 1, 0);
                        }
                        let value = scaled[column];
                        sums = L::add_floats(
                            sums,
                            L::signed(words, L::splat_float(value), L::splat_float(-value)),
                        );
                        column += 1;
                    }
                }
                if column == columns {
                    finish(sums, row);
                    (sums, row, column) = (L::splat_float(0.0), row + 1, 0);
                }
            }
        }
    }
    Ok(())
}

/// A bound on words, offset as they are.
const fn bound(word: u32) -> u32 {
    word.wrapping_add(OFFSET)
}

// SAFETY: the contract of `Lanes` gives every method the features of its level.
unsafe impl Entries<8> for Avx2 {
    type Floats = __m256;

    #[inline(always)]
    unsafe fn splat_float(value: f32) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_floats(values: *const f32) -> __m256 {
        // SAFETY: the caller has eight floats there.
        unsafe { _mm256_loadu_ps(values) }
    }
    #[inline(always)]
    unsafe fn store_floats(values: *mut f32, floats: __m256) {
        // SAFETY: the caller has eight floats there.
        unsafe { _mm256_storeu_ps(values, floats) }
    }
    #[inline(always)]
    unsafe fn add_floats(left: __m256, right: __m256) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_add_ps(left, right) }
    }
    #[inline(always)]
    unsafe fn signed(words: Self::Words, plus: __m256, minus: __m256) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe {
            let is_plus = _mm256_cmpgt_epi32(Self::splat(bound(PLUS_BELOW)), words);
            let is_any = _mm256_cmpgt_epi32(Self::splat(bound(MINUS_BELOW)), words);
            let value = _mm256_blendv_ps(minus, plus, _mm256_castsi256_ps(is_plus));
            _mm256_and_ps(value, _mm256_castsi256_ps(is_any))
        }
    }
}

// SAFETY: as above.
unsafe impl Entries<16> for Avx512 {
    type Floats = __m512;

    #[inline(always)]
    unsafe fn splat_float(value: f32) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_floats(values: *const f32) -> __m512 {
        // SAFETY: the caller has sixteen floats there.
        unsafe { _mm512_loadu_ps(values) }
    }
    #[inline(always)]
    unsafe fn store_floats(values: *mut f32, floats: __m512) {
        // SAFETY: the caller has sixteen floats there.
        unsafe { _mm512_storeu_ps(values, floats) }
    }
    #[inline(always)]
    unsafe fn add_floats(left: __m512, right: __m512) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_add_ps(left, right) }
    }
    #[inline(always)]
    unsafe fn signed(words: Self::Words, plus: __m512, minus: __m512) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe {
            let is_plus = _mm512_cmplt_epi32_mask(words, Self::splat(bound(PLUS_BELOW)));
            let is_any = _mm512_cmplt_epi32_mask(words, Self::splat(bound(MINUS_BELOW)));
            _mm512_maskz_mov_ps(is_any, _mm512_mask_blend_ps(is_plus, minus, plus))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Entries, MINUS_BELOW, PLUS_BELOW, bound, compress_band_lanes, decompress_lanes};
    use crate::base::chacha::simd::Emulated;
    use crate::base::chacha::{Key, Stream};
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::dense::Rows;

    // SAFETY: no instruction here needs a feature.
    unsafe impl<const N: usize> Entries<N> for Emulated {
        type Floats = [f32; N];

        unsafe fn splat_float(value: f32) -> [f32; N] {
            [value; N]
        }
        unsafe fn load_floats(values: *const f32) -> [f32; N] {
            // SAFETY: the caller has N floats there.
            unsafe { values.cast::<[f32; N]>().read_unaligned() }
        }
        unsafe fn store_floats(values: *mut f32, floats: [f32; N]) {
            // SAFETY: the caller has N floats there.
            unsafe { values.cast::<[f32; N]>().write_unaligned(floats) }
        }
        unsafe fn add_floats(left: [f32; N], right: [f32; N]) -> [f32; N] {
            std::array::from_fn(|lane| left[lane] + right[lane])
        }
        unsafe fn signed(words: [u32; N], plus: [f32; N], minus: [f32; N]) -> [f32; N] {
            std::array::from_fn(|lane| match words[lane] as i32 {
                word if word < bound(PLUS_BELOW) as i32 => plus[lane],
                word if word < bound(MINUS_BELOW) as i32 => minus[lane],
                _ => 0.0,
            })
        }
    }

    /// The sixteen-lane form runs here on any CPU, with arrays for registers.
    #[test]
    fn sixteen_lanes_agree_with_the_scalar_body() {
        let stream = Stream::new(Key::from_seed(3), 9);
        let exec = Exec::serial(SimdLevel::Scalar);
        let values: Vec<f32> = (0..600).map(|i| ((i * i) as f32).sin() * 3.0).collect();
        for columns in (1..40).chain([63, 64, 65, 100, 255, 256, 257, 300, 513]) {
            let rows = Rows { stream: &stream, columns, first: 512 };
            for (start, end) in [(0, columns), (columns / 3, columns), (columns / 3, columns - columns / 4)] {
                for n in [0, 1, 2, 33, 70] {
                    let (mut want, mut got) = (vec![0.0; end - start], vec![9.0; end - start]);
                    rows.compress_band_scalar(&exec, &values[..n], 0.3, start, &mut want).unwrap();
                    // SAFETY: emulated lanes need no feature.
                    unsafe {
                        compress_band_lanes::<Emulated, 16>(&rows, &exec, &values[..n], 0.3, start, &mut got)
                    }
                    .unwrap();
                    assert_eq!(got, want, "{columns} {start} {end} {n}");
                }
            }
            for n in [0, 1, 15, 16, 17, 255, 256, 257, 600] {
                let (mut want, mut got) = (vec![0.0; n], vec![9.0; n]);
                rows.decompress_scalar(&exec, &values[..columns], &mut want).unwrap();
                // SAFETY: emulated lanes need no feature.
                unsafe { decompress_lanes::<Emulated, 16>(&rows, &exec, &values[..columns], &mut got) }
                    .unwrap();
                assert_eq!(got, want, "{columns} {n}");
            }
        }
    }
}
