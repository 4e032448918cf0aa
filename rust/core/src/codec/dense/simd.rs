//! The dense projection in vector registers: one keystream block a lane, words used where they are made.
//!
//! A lane has 16 rows of its own. Sixteen rows are exactly k blocks, so all lanes start on a block and are at the same
//! column at the same time, at any k and without a mask. What the words of a vector say is then
//!
//! * decompress: added to the sums of the lanes' rows at once;
//! * compress: kept in two bits an entry until the 16 rows are complete. Lanes turn from rows to columns there, since the
//!   rows of a column must be added one after the other.
//!
//! All is written once over [`Entries`]; the levels differ in a few instructions.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::{
    __m256, __m256i, __m512, __mmask16, _mm_loadu_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_broadcast_ps,
    _mm256_cmpgt_epi32, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_or_si256, _mm256_permutevar_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_srlv_epi32, _mm256_storeu_ps,
    _mm256_storeu_si256, _mm512_add_ps, _mm512_broadcast_f32x4, _mm512_cmplt_epi32_mask, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_add_ps, _mm512_mask_blend_ps, _mm512_mask_or_epi32,
    _mm512_mask_xor_epi32, _mm512_permutevar_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_srli_epi32,
    _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};

use std::marker::PhantomData;

use super::{
    AT_ONCE, BAND_COLUMNS, Choices, Gradients, MINUS_BELOW, PLUS_BELOW, ROWS, Rows, WORDS_PER_CHECK,
};
use crate::base::chacha::BLOCK_WORDS;
use crate::base::chacha::simd::{Avx2, Avx512, Generator, Lanes};
use crate::base::error::{Error, Result};
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
    /// What words say of their entries.
    type Codes: Copy;
    /// What an entry can make of a value, for codes and for packed entries.
    type Choices: Copy;
    type PackedChoices: Copy;

    unsafe fn zeros() -> Self::Floats;
    unsafe fn load_floats(values: &[f32; N]) -> Self::Floats;
    unsafe fn store_floats(values: &mut [f32; N], floats: Self::Floats);
    unsafe fn store(words: &mut [u32; N], vector: Self::Words);

    unsafe fn codes(words: Self::Words) -> Self::Codes;
    unsafe fn choices(choices: &[f32; 4]) -> Self::Choices;
    /// Adds what each entry makes of the value: the value, its negative, or nothing.
    unsafe fn add_entries(sums: Self::Floats, codes: Self::Codes, choices: Self::Choices) -> Self::Floats;

    /// Packs one more entry a lane: those before it move down by two bits.
    unsafe fn pack(packed: Self::Words, codes: Self::Codes) -> Self::Words;
    unsafe fn packed_choices(choices: &[f32; 4]) -> Self::PackedChoices;
    /// [`Self::add_entries`] for the entries in the two lowest bits.
    unsafe fn add_packed(
        sums: Self::Floats,
        packed: Self::Words,
        choices: Self::PackedChoices,
    ) -> Self::Floats;
    /// Drops the entries in the two lowest bits.
    unsafe fn next_packed(packed: Self::Words) -> Self::Words;
    /// The entries of one word, from entry `first` (a multiple of N) on, in the two lowest bits of a lane each.
    unsafe fn spread(word: u32, first: usize) -> Self::Words;
}

/// [`Rows::compress_band`] at a level that the CPU has.
pub(super) fn compress_band(
    rows: &Rows<'_>,
    level: SimdLevel,
    exec: &Exec<'_>,
    gradients: &Gradients<'_>,
    start: usize,
    out: &mut [&mut [f32]],
) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(
        rows: &Rows<'_>,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        start: usize,
        out: &mut [&mut [f32]],
    ) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_band_lanes::<Avx2, 8>(rows, exec, gradients, start, out) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(
        rows: &Rows<'_>,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        start: usize,
        out: &mut [&mut [f32]],
    ) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_band_lanes::<Avx512, 16>(rows, exec, gradients, start, out) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(rows, exec, gradients, start, out),
            _ => avx2(rows, exec, gradients, start, out),
        }
    }
}

/// [`Rows::decompress`] at a level that the CPU has.
pub(super) fn decompress(
    rows: &Rows<'_>,
    level: SimdLevel,
    exec: &Exec<'_>,
    values: &Choices,
    out: &mut [&mut [f32]],
) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(rows: &Rows<'_>, exec: &Exec<'_>, values: &Choices, out: &mut [&mut [f32]]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_vectors::<Avx2, 8>(rows, exec, values, out) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(rows: &Rows<'_>, exec: &Exec<'_>, values: &Choices, out: &mut [&mut [f32]]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_vectors::<Avx512, 16>(rows, exec, values, out) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(rows, exec, values, out),
            _ => avx2(rows, exec, values, out),
        }
    }
}

#[inline(always)]
unsafe fn compress_band_lanes<L: Entries<N>, const N: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    gradients: &Gradients<'_>,
    start: usize,
    out: &mut [&mut [f32]],
) -> Result<()> {
    let len = out.first().map_or(0, |out| out.len());
    let mut packer = Packer::<L, N>::new(rows, start, len)?;
    let mut tiles: Vec<u32> = try_vec(N * len)?;
    for out in &mut *out {
        out.fill(0.0);
    }
    let mut row = 0;
    while gradients.len - row >= LEAST_ROWS {
        exec.check()?;
        // SAFETY: the features are passed on from the caller.
        unsafe { packer.pack(exec, row, &mut tiles, len, 0)? };
        for (lane, tile) in tiles.chunks_exact(len.max(1)).enumerate() {
            for (gradient, out) in out.iter_mut().enumerate() {
                let values = gradients.tile(gradient, row + lane * ROWS);
                // SAFETY: as above.
                unsafe { compress_tile_lanes::<L, N>(tile, &values, out) };
            }
        }
        row = gradients.len.min(row + N * ROWS);
    }
    rows.add_rows(exec, gradients, row, start, out)
}

/// [`Rows::pack_scalar`] at a level that the CPU has.
pub(super) fn pack(rows: &Rows<'_>, level: SimdLevel, exec: &Exec<'_>, tiles: &mut [u32]) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(rows: &Rows<'_>, exec: &Exec<'_>, tiles: &mut [u32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { pack_tiles::<Avx2, 8>(rows, exec, tiles) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(rows: &Rows<'_>, exec: &Exec<'_>, tiles: &mut [u32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { pack_tiles::<Avx512, 16>(rows, exec, tiles) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(rows, exec, tiles),
            _ => avx2(rows, exec, tiles),
        }
    }
}

/// [`compress_tile_scalar`](super::packed::compress_tile_scalar) at a level that the CPU has.
pub(super) fn compress_tile(level: SimdLevel, tile: &[u32], values: &[[f32; 4]; ROWS], sums: &mut [f32]) {
    #[target_feature(enable = "avx2")]
    fn avx2(tile: &[u32], values: &[[f32; 4]; ROWS], sums: &mut [f32]) {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_tile_lanes::<Avx2, 8>(tile, values, sums) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(tile: &[u32], values: &[[f32; 4]; ROWS], sums: &mut [f32]) {
        // SAFETY: this function has the features of the lanes.
        unsafe { compress_tile_lanes::<Avx512, 16>(tile, values, sums) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(tile, values, sums),
            _ => avx2(tile, values, sums),
        }
    }
}

/// [`decompress_tiles_scalar`](super::packed::decompress_tiles_scalar) at a level that the CPU has.
pub(super) fn decompress_tiles(
    level: SimdLevel,
    exec: &Exec<'_>,
    tiles: &[u32],
    values: &[[f32; 4]],
    out: &mut [f32],
) -> Result<()> {
    #[target_feature(enable = "avx2")]
    fn avx2(exec: &Exec<'_>, tiles: &[u32], values: &[[f32; 4]], out: &mut [f32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_tiles_lanes::<Avx2, 8, 2>(exec, tiles, values, out) }
    }
    #[target_feature(enable = "avx512f")]
    fn avx512(exec: &Exec<'_>, tiles: &[u32], values: &[[f32; 4]], out: &mut [f32]) -> Result<()> {
        // SAFETY: this function has the features of the lanes.
        unsafe { decompress_tiles_lanes::<Avx512, 16, 1>(exec, tiles, values, out) }
    }
    assert!(level <= SimdLevel::detected());
    // SAFETY: the CPU has the features of `level`.
    unsafe {
        match level {
            SimdLevel::Avx512 => avx512(exec, tiles, values, out),
            _ => avx2(exec, tiles, values, out),
        }
    }
}

/// Fewer rows than this are left to the plain loop: the time of all lanes is taken for them.
const LEAST_ROWS: usize = 48;

/// Packs the entries of a band of columns, [`ROWS`] rows a lane.
struct Packer<'a, L: Entries<N>, const N: usize> {
    rows: &'a Rows<'a>,
    generator: Generator<'a, N>,
    start: usize,
    /// The entries so far, column by column.
    packed: Vec<[u32; N]>,
    lanes: PhantomData<L>,
}

impl<'a, L: Entries<N>, const N: usize> Packer<'a, L, N> {
    fn new(rows: &'a Rows<'a>, start: usize, len: usize) -> Result<Self> {
        let mut packed = Vec::new();
        if packed.try_reserve_exact(len).is_err() {
            return Err(Error::Memory { bytes: len.saturating_mul(4 * N) });
        }
        packed.resize(len, [0; N]);
        let generator = Generator::new(rows.stream, OFFSET, rows.columns as u64);
        Ok(Self { rows, generator, start, packed, lanes: PhantomData })
    }

    /// Packs the rows from `row` (a multiple of [`ROWS`]) on into at most N tiles of `columns_kept` words, from word `column` of
    /// each on.
    #[inline(always)]
    unsafe fn pack(
        &mut self,
        exec: &Exec<'_>,
        row: usize,
        tiles: &mut [u32],
        columns_kept: usize,
        column: usize,
    ) -> Result<()> {
        let (columns, len) = (self.rows.columns as u64, self.packed.len());
        let first_block = self.rows.word(row, 0) / 16;
        let Self { generator, packed, .. } = self;
        // SAFETY: the features are passed on from the caller.
        unsafe {
            // The block at the end of a row is often the one at the start of the next.
            let mut at = 0;
            let mut words = generator.blocks::<L>(first_block);
            let mut unchecked = 0;
            for row in 0..ROWS as u64 {
                let first = row * columns + self.start as u64;
                let mut column = 0;
                while column < len {
                    let word = first + column as u64;
                    let (block, inside) = (word / 16, (word % 16) as usize);
                    if block != at {
                        at = block;
                        words = generator.blocks::<L>(first_block.wrapping_add(block));
                        unchecked += 1;
                        if unchecked == WORDS_PER_CHECK / 8 / (16 * N) {
                            unchecked = 0;
                            exec.check()?;
                        }
                    }
                    match packed.get_mut(column..column + BLOCK_WORDS) {
                        Some(packed) if inside == 0 => {
                            for (packed, &words) in packed.iter_mut().zip(&words) {
                                L::store(packed, L::pack(L::load(packed), L::codes(words)));
                            }
                            column += BLOCK_WORDS;
                        }
                        _ => {
                            for (packed, &words) in packed[column..].iter_mut().zip(&words[inside..]) {
                                L::store(packed, L::pack(L::load(packed), L::codes(words)));
                                column += 1;
                            }
                        }
                    }
                }
            }
        }
        for (lane, tile) in tiles.chunks_exact_mut(columns_kept.max(1)).enumerate() {
            for (tile, packed) in tile[column..].iter_mut().zip(&*packed) {
                *tile = packed[lane];
            }
        }
        Ok(())
    }
}

#[inline(always)]
unsafe fn pack_tiles<L: Entries<N>, const N: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    tiles: &mut [u32],
) -> Result<()> {
    let columns = rows.columns;
    for start in (0..columns).step_by(BAND_COLUMNS) {
        let mut packer = Packer::<L, N>::new(rows, start, BAND_COLUMNS.min(columns - start))?;
        for (index, tiles) in tiles.chunks_mut(N * columns).enumerate() {
            exec.check()?;
            // SAFETY: the features are passed on from the caller.
            unsafe { packer.pack(exec, index * N * ROWS, tiles, columns, start)? };
        }
    }
    Ok(())
}

/// Adds what the entries of a tile make of the values of its rows to the sums of its columns.
#[inline(always)]
unsafe fn compress_tile_lanes<L: Entries<N>, const N: usize>(
    tile: &[u32],
    values: &[[f32; 4]; ROWS],
    sums: &mut [f32],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let ((tiles, tile), (sums, rest)) = (tile.as_chunks::<N>(), sums.as_chunks_mut::<N>());
        let ((tiles, tiles_rest), (sums, sums_rest)) = (tiles.as_chunks::<4>(), sums.as_chunks_mut::<4>());
        for (tiles, sums) in tiles.iter().zip(sums) {
            compress_columns::<L, N, 4>(tiles, values, sums);
        }
        for (tile, sums) in tiles_rest.iter().zip(sums_rest) {
            compress_columns::<L, N, 1>(&[*tile], values, std::array::from_mut(sums));
        }
        if !tile.is_empty() {
            let (mut last_tile, mut last) = ([0; N], [0.0; N]);
            last_tile[..tile.len()].copy_from_slice(tile);
            last[..rest.len()].copy_from_slice(rest);
            compress_columns::<L, N, 1>(&[last_tile], values, std::array::from_mut(&mut last));
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

/// As [`compress_tile_lanes`], for `V` vectors of columns.
#[inline(always)]
unsafe fn compress_columns<L: Entries<N>, const N: usize, const V: usize>(
    tile: &[[u32; N]; V],
    values: &[[f32; 4]; ROWS],
    out: &mut [[f32; N]; V],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut packed = [L::load(&tile[0]); V];
        let mut sums = [L::zeros(); V];
        for v in 0..V {
            packed[v] = L::load(&tile[v]);
            sums[v] = L::load_floats(&out[v]);
        }
        for value in values {
            let choices = L::packed_choices(value);
            for v in 0..V {
                sums[v] = L::add_packed(sums[v], packed[v], choices);
                packed[v] = L::next_packed(packed[v]);
            }
        }
        for v in 0..V {
            L::store_floats(&mut out[v], sums[v]);
        }
    }
}

#[inline(always)]
unsafe fn decompress_tiles_lanes<L: Entries<N>, const N: usize, const H: usize>(
    exec: &Exec<'_>,
    tiles: &[u32],
    values: &[[f32; 4]],
    out: &mut [f32],
) -> Result<()> {
    const AT_ONCE: usize = 4;
    let columns = values.len();
    for (tiles, out) in tiles.chunks(AT_ONCE * columns).zip(out.chunks_mut(AT_ONCE * ROWS)) {
        exec.check()?;
        if tiles.len() == AT_ONCE * columns {
            // SAFETY: passed on from the caller.
            unsafe { decompress_at_once::<L, N, H, AT_ONCE>(tiles, values, out) };
        } else {
            for (tile, out) in tiles.chunks_exact(columns).zip(out.chunks_mut(ROWS)) {
                // SAFETY: as above.
                unsafe { decompress_at_once::<L, N, H, 1>(tile, values, out) };
            }
        }
    }
    Ok(())
}

/// The rows of `T` tiles: their sums are independent of each other, so that none waits for itself. A tile takes `H` vectors.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Indexed by constants, sums stay in registers.
unsafe fn decompress_at_once<L: Entries<N>, const N: usize, const H: usize, const T: usize>(
    tiles: &[u32],
    values: &[[f32; 4]],
    out: &mut [f32],
) {
    let columns = values.len();
    let mut of_tile = [&tiles[..columns]; T];
    for t in 0..T {
        of_tile[t] = &tiles[t * columns..][..columns];
    }
    // SAFETY: passed on from the caller.
    unsafe {
        let mut sums = [[L::zeros(); H]; T];
        for (column, value) in values.iter().enumerate() {
            let choices = L::packed_choices(value);
            for t in 0..T {
                for h in 0..H {
                    sums[t][h] = L::add_packed(sums[t][h], L::spread(of_tile[t][column], h * N), choices);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_mut(ROWS)) {
            let mut finished = [[0.0; N]; H];
            for h in 0..H {
                L::store_floats(&mut finished[h], sums[h]);
            }
            out.copy_from_slice(&finished.as_flattened()[..out.len()]);
        }
    }
}

#[inline(always)]
unsafe fn decompress_vectors<L: Entries<N>, const N: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    values: &Choices,
    out: &mut [&mut [f32]],
) -> Result<()> {
    // SAFETY: passed on from the caller.
    unsafe {
        match values.vectors {
            1 => decompress_lanes::<L, N, 1>(rows, exec, values, out),
            2 => decompress_lanes::<L, N, 2>(rows, exec, values, out),
            4 => decompress_lanes::<L, N, 4>(rows, exec, values, out),
            _ => decompress_lanes::<L, N, AT_ONCE>(rows, exec, values, out),
        }
    }
}

#[inline(always)]
unsafe fn decompress_lanes<L: Entries<N>, const N: usize, const V: usize>(
    rows: &Rows<'_>,
    exec: &Exec<'_>,
    values: &Choices,
    out: &mut [&mut [f32]],
) -> Result<()> {
    let (values, _) = values.of.as_chunks::<V>();
    let columns = values.len();
    if columns == 0 {
        for out in out {
            out.fill(0.0);
        }
        return Ok(());
    }
    let len = out.first().map_or(0, |out| out.len());
    let mut generator = Generator::new(rows.stream, OFFSET, columns as u64);
    for tile in (0..len).step_by(16 * N) {
        let first_block = rows.word(tile, 0) / 16;
        let (mut row, mut column) = (tile, 0);
        // SAFETY: the features are passed on from the caller, and `finished` has a place for every lane.
        unsafe {
            let zeros = [L::zeros(); V];
            let mut sums = zeros;
            let mut finish = |sums: [L::Floats; V], row: usize| {
                for (sums, out) in sums.iter().zip(&mut *out) {
                    let mut finished = [0.0; N];
                    L::store_floats(&mut finished, *sums);
                    for (lane, value) in finished.into_iter().enumerate() {
                        if let Some(out) = out.get_mut(row + 16 * lane) {
                            *out = value;
                        }
                    }
                }
            };
            for block in 0..columns {
                if block % (WORDS_PER_CHECK / 8 / (16 * N)) == 0 {
                    exec.check()?;
                }
                let words = generator.blocks::<L>(first_block.wrapping_add(block as u64));
                if let Some(values) = values.get(column..column + BLOCK_WORDS) {
                    for (&words, values) in words.iter().zip(values) {
                        sums = add_column::<L, N, V>(sums, L::codes(words), values);
                    }
                    column += BLOCK_WORDS;
                } else {
                    for &words in &words {
                        if column == columns {
                            finish(sums, row);
                            (sums, row, column) = (zeros, row + 1, 0);
                        }
                        sums = add_column::<L, N, V>(sums, L::codes(words), &values[column]);
                        column += 1;
                    }
                }
                if column == columns {
                    finish(sums, row);
                    (sums, row, column) = (zeros, row + 1, 0);
                }
            }
        }
    }
    Ok(())
}

/// Adds what the entries of one column make of the values of some vectors.
#[inline(always)]
unsafe fn add_column<L: Entries<N>, const N: usize, const V: usize>(
    mut sums: [L::Floats; V],
    codes: L::Codes,
    values: &[[f32; 4]; V],
) -> [L::Floats; V] {
    for v in 0..V {
        // SAFETY: passed on from the caller.
        sums[v] = unsafe { L::add_entries(sums[v], codes, L::choices(&values[v])) };
    }
    sums
}

/// A bound on words, offset as they are.
const fn bound(word: u32) -> u32 {
    word.wrapping_add(OFFSET)
}

// SAFETY: the contract of `Lanes` gives every method the features of its level; arrays are as long as their vectors.
unsafe impl Entries<8> for Avx2 {
    type Floats = __m256;
    /// In the two lower bits of every word: 2 for +1, 3 for -1, 0 for 0.
    type Codes = __m256i;
    /// The four choices twice, as permutations take them.
    type Choices = __m256;
    type PackedChoices = __m256;

    #[inline(always)]
    unsafe fn zeros() -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load_floats(values: &[f32; 8]) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_floats(values: &mut [f32; 8], floats: __m256) {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), floats) }
    }
    #[inline(always)]
    unsafe fn store(words: &mut [u32; 8], vector: __m256i) {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) }
    }
    #[inline(always)]
    unsafe fn codes(words: __m256i) -> __m256i {
        // SAFETY: the contract of the trait.
        unsafe {
            // Each comparison gives -1 or 0: their sum is -2, -1 or 0.
            let is_plus = _mm256_cmpgt_epi32(Self::splat(bound(PLUS_BELOW)), words);
            let is_any = _mm256_cmpgt_epi32(Self::splat(bound(MINUS_BELOW)), words);
            _mm256_add_epi32(is_plus, is_any)
        }
    }
    #[inline(always)]
    unsafe fn choices(choices: &[f32; 4]) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_broadcast_ps(&_mm_loadu_ps(choices.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn add_entries(sums: __m256, codes: __m256i, choices: __m256) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_add_ps(sums, _mm256_permutevar_ps(choices, codes)) }
    }
    #[inline(always)]
    unsafe fn pack(packed: __m256i, codes: __m256i) -> __m256i {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_or_si256(_mm256_srli_epi32::<2>(packed), _mm256_slli_epi32::<30>(codes)) }
    }
    #[inline(always)]
    unsafe fn packed_choices(choices: &[f32; 4]) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { Self::choices(choices) }
    }
    #[inline(always)]
    unsafe fn add_packed(sums: __m256, packed: __m256i, choices: __m256) -> __m256 {
        // SAFETY: the contract of the trait.
        unsafe { Self::add_entries(sums, packed, choices) }
    }
    #[inline(always)]
    unsafe fn next_packed(packed: __m256i) -> __m256i {
        // SAFETY: the contract of the trait.
        unsafe { _mm256_srli_epi32::<2>(packed) }
    }
    #[inline(always)]
    unsafe fn spread(word: u32, first: usize) -> __m256i {
        // SAFETY: the contract of the trait.
        unsafe {
            let places = _mm256_loadu_si256(PLACES[first..first + 8].as_ptr().cast());
            _mm256_srlv_epi32(Self::splat(word), places)
        }
    }
}

/// The lowest bits of the entries in a word.
const PLACES: [u32; ROWS] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

// SAFETY: as above.
unsafe impl Entries<16> for Avx512 {
    type Floats = __m512;
    /// Which entries are +1, and which are not 0.
    type Codes = (__mmask16, __mmask16);
    /// The value and its negative.
    type Choices = (__m512, __m512);
    /// The four choices four times, as permutations take them.
    type PackedChoices = __m512;

    #[inline(always)]
    unsafe fn zeros() -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load_floats(values: &[f32; 16]) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store_floats(values: &mut [f32; 16], floats: __m512) {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), floats) }
    }
    #[inline(always)]
    unsafe fn store(words: &mut [u32; 16], vector: Self::Words) {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) }
    }
    #[inline(always)]
    unsafe fn codes(words: Self::Words) -> (__mmask16, __mmask16) {
        // SAFETY: the contract of the trait.
        unsafe {
            let is_plus = _mm512_cmplt_epi32_mask(words, Self::splat(bound(PLUS_BELOW)));
            let is_any = _mm512_cmplt_epi32_mask(words, Self::splat(bound(MINUS_BELOW)));
            (is_plus, is_any)
        }
    }
    #[inline(always)]
    unsafe fn choices(choices: &[f32; 4]) -> (__m512, __m512) {
        // SAFETY: the contract of the trait.
        unsafe { (_mm512_set1_ps(choices[2]), _mm512_set1_ps(choices[3])) }
    }
    #[inline(always)]
    unsafe fn add_entries(
        sums: __m512,
        (is_plus, is_any): (__mmask16, __mmask16),
        (plus, minus): (__m512, __m512),
    ) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_mask_add_ps(sums, is_any, sums, _mm512_mask_blend_ps(is_plus, minus, plus)) }
    }
    #[inline(always)]
    unsafe fn pack(packed: Self::Words, (is_plus, is_any): (__mmask16, __mmask16)) -> Self::Words {
        // SAFETY: the contract of the trait.
        unsafe {
            let packed = _mm512_srli_epi32::<2>(packed);
            let packed = _mm512_mask_or_epi32(packed, is_any, packed, Self::splat(3 << 30));
            _mm512_mask_xor_epi32(packed, is_plus, packed, Self::splat(1 << 30))
        }
    }
    #[inline(always)]
    unsafe fn packed_choices(choices: &[f32; 4]) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_broadcast_f32x4(_mm_loadu_ps(choices.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn add_packed(sums: __m512, packed: Self::Words, choices: __m512) -> __m512 {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_add_ps(sums, _mm512_permutevar_ps(choices, packed)) }
    }
    #[inline(always)]
    unsafe fn next_packed(packed: Self::Words) -> Self::Words {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_srli_epi32::<2>(packed) }
    }
    #[inline(always)]
    unsafe fn spread(word: u32, _first: usize) -> Self::Words {
        // SAFETY: the contract of the trait.
        unsafe { _mm512_srlv_epi32(Self::splat(word), _mm512_loadu_si512(PLACES.as_ptr().cast())) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Choices, Entries, Gradients, MINUS_BELOW, PLUS_BELOW, bound};
    use super::{compress_band_lanes, decompress_vectors};
    use crate::base::chacha::simd::Emulated;
    use crate::base::chacha::{Key, Stream};
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::dense::{AT_ONCE, Rows};

    // SAFETY: no instruction here needs a feature.
    unsafe impl<const N: usize> Entries<N> for Emulated {
        type Floats = [f32; N];
        type Codes = [u32; N];
        type Choices = [f32; 4];
        type PackedChoices = [f32; 4];

        unsafe fn zeros() -> [f32; N] {
            [0.0; N]
        }
        unsafe fn load_floats(values: &[f32; N]) -> [f32; N] {
            *values
        }
        unsafe fn store_floats(values: &mut [f32; N], floats: [f32; N]) {
            *values = floats;
        }
        unsafe fn store(words: &mut [u32; N], vector: [u32; N]) {
            *words = vector;
        }
        unsafe fn codes(words: [u32; N]) -> [u32; N] {
            words.map(|word| match word as i32 {
                word if word < bound(PLUS_BELOW) as i32 => 2,
                word if word < bound(MINUS_BELOW) as i32 => 3,
                _ => 0,
            })
        }
        unsafe fn choices(choices: &[f32; 4]) -> [f32; 4] {
            *choices
        }
        unsafe fn add_entries(sums: [f32; N], codes: [u32; N], choices: [f32; 4]) -> [f32; N] {
            std::array::from_fn(|lane| sums[lane] + choices[codes[lane] as usize])
        }
        unsafe fn pack(packed: [u32; N], codes: [u32; N]) -> [u32; N] {
            std::array::from_fn(|lane| packed[lane] >> 2 | codes[lane] << 30)
        }
        unsafe fn packed_choices(choices: &[f32; 4]) -> [f32; 4] {
            *choices
        }
        unsafe fn add_packed(sums: [f32; N], packed: [u32; N], choices: [f32; 4]) -> [f32; N] {
            std::array::from_fn(|lane| sums[lane] + choices[packed[lane] as usize % 4])
        }
        unsafe fn next_packed(packed: [u32; N]) -> [u32; N] {
            packed.map(|packed| packed >> 2)
        }
        unsafe fn spread(word: u32, first: usize) -> [u32; N] {
            std::array::from_fn(|lane| word >> (2 * (first + lane)))
        }
    }

    /// The sixteen-lane form runs here on any CPU, with arrays for registers.
    #[test]
    fn sixteen_lanes_agree_with_the_scalar_body() {
        let stream = Stream::new(Key::from_seed(3), 9);
        let exec = Exec::serial(SimdLevel::Scalar);
        let values: Vec<f32> = (0..600).map(|i| ((i * i) as f32).sin() * 3.0).collect();
        let vectors = |count: usize, len: usize, fill: f32| vec![vec![fill; len]; count];
        for columns in (1..40).chain([63, 64, 65, 100, 255, 256, 257, 300, 513]) {
            let rows = Rows { stream: &stream, columns, first: 512 };
            let count = columns % AT_ONCE + 1;
            for (start, end) in [(0, columns), (columns / 3, columns), (columns / 3, columns - columns / 4)] {
                for n in [0, 1, 2, 33, 70] {
                    let gradients = Gradients { values: &values[..count * n], len: n, scale: 0.3 };
                    let (mut want, mut got) =
                        (vectors(count, end - start, 0.0), vectors(count, end - start, 9.0));
                    let mut parts: Vec<_> = want.iter_mut().map(|want| &mut want[..]).collect();
                    rows.compress_band_scalar(&exec, &gradients, start, &mut parts).unwrap();
                    let mut parts: Vec<_> = got.iter_mut().map(|got| &mut got[..]).collect();
                    // SAFETY: emulated lanes need no feature.
                    unsafe {
                        compress_band_lanes::<Emulated, 16>(&rows, &exec, &gradients, start, &mut parts)
                    }
                    .unwrap();
                    assert_eq!(got, want, "{columns} {start} {end} {n}");
                }
            }
            for n in [0, 1, 15, 16, 17, 255, 256, 257, 600] {
                let data: Vec<_> = (0..count).map(|vector| &values[vector..vector + columns]).collect();
                let choices = Choices::new(&data, 1.0).unwrap();
                let (mut want, mut got) = (vectors(count, n, 0.0), vectors(count, n, 9.0));
                let mut parts: Vec<_> = want.iter_mut().map(|want| &mut want[..]).collect();
                rows.decompress_scalar(&exec, &choices, &mut parts).unwrap();
                let mut parts: Vec<_> = got.iter_mut().map(|got| &mut got[..]).collect();
                // SAFETY: emulated lanes need no feature.
                unsafe { decompress_vectors::<Emulated, 16>(&rows, &exec, &choices, &mut parts) }.unwrap();
                assert_eq!(got, want, "{columns} {n}");
            }
        }
    }
}
