//! The dense random projection: an n x k matrix of -1, 0 and +1 that exists only while it is used.
//!
//! Entry (i, j) is decided by word `i * k + j` of a `ChaCha8` keystream: +1 with probability 0.16, -1 with 0.16, else 0.
//! [`compress`] multiplies by it, [`decompress`] by its transpose. Both are defined as a plain loop of float32 additions
//! and keep its order, so their results are those of the plain loop to the bit, for every size, level and thread
//! count:
//!
//! * compress: `y[j]` = sum over i, ascending, of ±(g\[i\] * scale); threads share the columns;
//! * decompress: `x[i]` = sum over j, ascending, of ±(c\[j\] * scale); threads share the rows.
//!
//! A zero entry contributes nothing at all: it never multiplies, so an infinity stays out of it.

pub mod packed;
mod simd;

use crate::base::chacha::Stream;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::SimdLevel;

/// Words below this are +1: 0.16 of all, the smallest word whose upper 24 bits are not below 0.16 in float32.
const PLUS_BELOW: u32 = 687_194_880;
/// Other words below this are -1.
const MINUS_BELOW: u32 = 1_374_389_504;

/// Rows that make up whole blocks of the keystream whatever their length. Their entries are packed in a word a column.
const ROWS: usize = 16;
/// Columns in a band: their entries in many rows stay in the second-level cache.
const BAND_COLUMNS: usize = 2048;
/// In a matrix of no more columns, threads share the rows: with bands, each would make a good part of a block a row that its
/// neighbour makes too.
const NARROW_COLUMNS: usize = 4096;
/// Words of packed entries that a thread makes at a time there.
const PACKED_AT_ONCE: usize = 1 << 14;
/// Narrower bands are not worth a thread: each computes about one block of 16 words a row that its neighbour has too.
const LEAST_BAND_COLUMNS: usize = 48;
/// Rows that are decompressed together at any level divide this.
const TILE_ROWS: usize = 256;
/// Vectors that share a pass over the matrix: as many running sums as registers hold beside what decides the entries.
const AT_ONCE: usize = 8;
/// Words that the plain loops have made before they use them: 252 blocks, and a part of one more four times.
const WORDS_AT_ONCE: usize = 4032;
/// Words between two looks at whether to stop: some milliseconds of work.
const WORDS_PER_CHECK: usize = 1 << 20;

/// Writes the projection of `gradients` times `scale` to `out`, which holds its k columns.
pub fn compress(
    exec: &Exec<'_>,
    stream: &Stream,
    gradients: &[f32],
    scale: f32,
    out: &mut [f32],
) -> Result<()> {
    compress_many(exec, stream, 1, gradients, scale, out)
}

/// [`compress`] of `count` gradients of one length, one behind the other, under one pass over the matrix.
pub fn compress_many(
    exec: &Exec<'_>,
    stream: &Stream,
    count: usize,
    gradients: &[f32],
    scale: f32,
    out: &mut [f32],
) -> Result<()> {
    let (len, columns) = (gradients.len() / count.max(1), out.len() / count.max(1));
    require_words("gradients", len, columns)?;
    let (rows, gradients) = (Rows { stream, columns, first: 0 }, Gradients { values: gradients, len, scale });
    if exec.threads() > 1 && columns <= NARROW_COLUMNS && len >= 2 * TILE_ROWS {
        return rows.compress_narrow(exec, &gradients, count, out);
    }
    let band = band_columns(columns, exec.threads());
    let mut parts = parts(out, columns, band)?;
    exec.for_each_chunk_mut(&mut parts, count, |index, parts| {
        rows.compress_band(exec, &gradients, index * band, parts)
    })
}

/// Writes the transposed projection of `data` (k values) times `scale` to `out`, which holds its n rows.
pub fn decompress(exec: &Exec<'_>, stream: &Stream, data: &[f32], scale: f32, out: &mut [f32]) -> Result<()> {
    decompress_many(exec, stream, &[data], scale, out)
}

/// [`decompress`] of several projections of one length, to rows of `out` one behind the other. Eight share a pass over the
/// matrix.
pub fn decompress_many(
    exec: &Exec<'_>,
    stream: &Stream,
    data: &[&[f32]],
    scale: f32,
    out: &mut [f32],
) -> Result<()> {
    let (len, columns) = (out.len() / data.len().max(1), data.first().map_or(0, |data| data.len()));
    require_words("compressed", len, columns)?;
    if len == 0 {
        return Ok(());
    }
    for (data, out) in data.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE * len)) {
        let values = Choices::new(data, scale)?;
        let rows = rows_at_once(exec, len, columns);
        let mut parts = parts(out, len, rows)?;
        exec.for_each_chunk_mut(&mut parts, data.len(), |index, parts| {
            Rows { stream, columns, first: (index * rows) as u64 }.decompress(exec, &values, parts)
        })?;
    }
    Ok(())
}

/// Refuses a matrix whose words cannot all be numbered, even in the blocks that its last vectors reach into.
fn require_words(argument: &str, rows: usize, columns: usize) -> Result<()> {
    match (rows as u64).checked_mul(columns as u64) {
        Some(words) if words < 1 << 63 => Ok(()),
        _ => Err(Error::argument(
            argument,
            format!(
                "{rows} values and {columns} dimensions need 2**63 words of the keystream or more; split them"
            ),
        )),
    }
}

/// Rows that a thread takes at a time: a few milliseconds of work, or some shares for every thread.
fn rows_at_once(exec: &Exec<'_>, rows: usize, columns: usize) -> usize {
    let rows = (4 * WORDS_PER_CHECK / columns.max(1)).min(rows / (4 * exec.threads()));
    rows.next_multiple_of(TILE_ROWS).max(TILE_ROWS)
}

/// Columns of a band: an even share of the threads, no more than the cache takes, no less than pays.
fn band_columns(columns: usize, threads: usize) -> usize {
    let bands = columns.div_ceil(BAND_COLUMNS).next_multiple_of(threads.max(1));
    let even = columns.div_ceil(bands.max(1)).max(LEAST_BAND_COLUMNS);
    // Where whole blocks make up a row, whole blocks make up a band.
    if columns.is_multiple_of(16) { even.next_multiple_of(16) } else { even }
}

/// Cuts vectors of `len` values into parts of `part` values: the first part of each, then the second of each, and so on.
fn parts(vectors: &mut [f32], len: usize, part: usize) -> Result<Vec<&mut [f32]>> {
    if vectors.is_empty() {
        return Ok(Vec::new());
    }
    let count = vectors.len() / len * len.div_ceil(part);
    let mut parts = Vec::new();
    if parts.try_reserve_exact(count).is_err() {
        return Err(Error::Memory { bytes: count.saturating_mul(size_of::<&[f32]>()) });
    }
    let mut rest: Vec<_> = vectors.chunks_mut(len).map(|vector| vector.chunks_mut(part)).collect();
    for _ in 0..len.div_ceil(part) {
        parts.extend(rest.iter_mut().filter_map(Iterator::next));
    }
    Ok(parts)
}

/// Gradients of one length, one behind the other, and the factor of their values.
struct Gradients<'a> {
    values: &'a [f32],
    len: usize,
    scale: f32,
}

impl Gradients<'_> {
    /// The value of one gradient in a row, times the factor.
    #[inline(always)]
    fn scaled(&self, gradient: usize, row: usize) -> f32 {
        self.values[gradient * self.len + row] * self.scale
    }

    /// What entries can make of the values in [`ROWS`] rows from `first` on; behind the last row, nothing.
    #[inline(always)]
    fn tile(&self, gradient: usize, first: usize) -> [[f32; 4]; ROWS] {
        let mut tile = [choices(0.0); ROWS];
        let values = &self.values[gradient * self.len..][..self.len];
        for (choices_of, &value) in tile.iter_mut().zip(values.get(first..).unwrap_or_default()) {
            *choices_of = choices(value * self.scale);
        }
        tile
    }
}

/// What an entry can make of each value of some projections, times a factor: +0 twice, the value, and its negative. The
/// two lower bits of an entry's code select one of them.
struct Choices {
    /// Those of a column side by side.
    of: Vec<[f32; 4]>,
    vectors: usize,
}

impl Choices {
    /// Of projections of one length.
    fn new(data: &[&[f32]], scale: f32) -> Result<Self> {
        let vectors = data.len().next_power_of_two();
        let mut of = try_vec(data.first().map_or(0, |data| data.len()).saturating_mul(vectors))?;
        for (vector, data) in data.iter().enumerate() {
            for (column, &value) in data.iter().enumerate() {
                of[column * vectors + vector] = choices(value * scale);
            }
        }
        Ok(Self { of, vectors })
    }
}

/// What an entry can make of a value: see [`Choices`].
#[inline(always)]
fn choices(value: f32) -> [f32; 4] {
    [0.0, 0.0, value, -value]
}

/// The rows of a matrix from `first` on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    stream: &'a Stream,
    columns: usize,
    first: u64,
}

impl Rows<'_> {
    /// The index of the word of entry (`first + row`, `column`).
    fn word(&self, row: usize, column: usize) -> u64 {
        let row = self.first.wrapping_add(row as u64);
        row.wrapping_mul(self.columns as u64).wrapping_add(column as u64)
    }

    /// From column `start` on, the columns of the projections of some gradients that `out` has room for.
    fn compress_band(
        &self,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        start: usize,
        out: &mut [&mut [f32]],
    ) -> Result<()> {
        match exec.level().min(SimdLevel::detected()) {
            #[cfg(target_arch = "x86_64")]
            level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => {
                simd::compress_band(self, level, exec, gradients, start, out)
            }
            _ => self.compress_band_scalar(exec, gradients, start, out),
        }
    }

    /// The projections of `count` gradients by a narrow matrix: threads share the rows to make the entries of some of them,
    /// and the columns to add these.
    fn compress_narrow(
        &self,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        count: usize,
        out: &mut [f32],
    ) -> Result<()> {
        out.fill(0.0);
        if out.is_empty() {
            return Ok(());
        }
        let (columns, threads) = (self.columns, exec.threads());
        let tiles = gradients.len.div_ceil(ROWS);
        let fair = tiles.div_ceil(threads).min(PACKED_AT_ONCE / columns);
        let tiles_of_piece = fair.next_multiple_of(TILE_ROWS / ROWS).max(TILE_ROWS / ROWS);
        let at_once = tiles.min(4 * threads * tiles_of_piece);
        let mut words = try_vec(at_once * columns)?;
        let band = columns.div_ceil(threads).next_multiple_of(ROWS);
        let mut parts = parts(out, columns, band)?;
        for first in (0..tiles).step_by(at_once) {
            let words = &mut words[..at_once.min(tiles - first) * columns];
            exec.for_each_chunk_mut(words, tiles_of_piece * columns, |index, words| {
                let first = self.first + ((first + index * tiles_of_piece) * ROWS) as u64;
                Self { first, ..*self }.pack(exec, words)
            })?;
            exec.for_each_chunk_mut(&mut parts, count, |index, parts| {
                for (gradient, out) in parts.iter_mut().enumerate() {
                    let first_row = first * ROWS;
                    packed::add_tiles(exec, words, columns, index * band, out, |tile| {
                        gradients.tile(gradient, first_row + tile * ROWS)
                    })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The rows' values of the transposed projection of some vectors; `first` is a multiple of [`TILE_ROWS`].
    fn decompress(&self, exec: &Exec<'_>, values: &Choices, out: &mut [&mut [f32]]) -> Result<()> {
        match exec.level().min(SimdLevel::detected()) {
            #[cfg(target_arch = "x86_64")]
            level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => simd::decompress(self, level, exec, values, out),
            _ => self.decompress_scalar(exec, values, out),
        }
    }

    fn compress_band_scalar(
        &self,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        start: usize,
        out: &mut [&mut [f32]],
    ) -> Result<()> {
        for out in &mut *out {
            out.fill(0.0);
        }
        self.add_rows(exec, gradients, 0, start, out)
    }

    /// Adds the rows from `first` on to the sums in `out`.
    fn add_rows(
        &self,
        exec: &Exec<'_>,
        gradients: &Gradients<'_>,
        first: usize,
        start: usize,
        out: &mut [&mut [f32]],
    ) -> Result<()> {
        let len = out.first().map_or(0, |out| out.len());
        if len == 0 {
            return Ok(());
        }
        // Whole rows follow each other in the keystream.
        let at_once = if len == self.columns { (WORDS_AT_ONCE / len).max(1) } else { 1 };
        let mut words: Vec<u32> = try_vec(len * at_once.min(gradients.len))?;
        for first in (first..gradients.len).step_by(at_once) {
            exec.check()?;
            let words = &mut words[..len * at_once.min(gradients.len - first)];
            self.stream.words(exec.level(), self.word(first, start), words);
            for (row, words) in words.chunks_exact(len).enumerate() {
                for (gradient, out) in out.iter_mut().enumerate() {
                    let value = gradients.scaled(gradient, first + row);
                    for (sum, &word) in out.iter_mut().zip(words) {
                        *sum += signed(word, value);
                    }
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::needless_range_loop)] // All rows are indexed.
    fn decompress_scalar(&self, exec: &Exec<'_>, values: &Choices, out: &mut [&mut [f32]]) -> Result<()> {
        /// Rows whose sums do not wait for each other.
        const ROWS: usize = 4;
        const COLUMNS: usize = WORDS_AT_ONCE / ROWS;
        let mut words = [0; WORDS_AT_ONCE];
        let mut values_here = [0.0; COLUMNS];
        let mut terms = [[0.0; COLUMNS]; ROWS];
        let len = out.first().map_or(0, |out| out.len());
        for first in (0..len).step_by(ROWS) {
            let mut sums = [[0.0; ROWS]; AT_ONCE];
            for (index, choices) in values.of.chunks(COLUMNS * values.vectors).enumerate() {
                exec.check()?;
                let columns = choices.len() / values.vectors;
                let words = &mut words[..ROWS * columns];
                if columns == self.columns {
                    // Whole rows follow each other in the keystream.
                    self.stream.words(SimdLevel::Scalar, self.word(first, 0), words);
                } else {
                    for (row, words) in words.chunks_exact_mut(columns).enumerate() {
                        let word = self.word(first + row, index * COLUMNS);
                        self.stream.words(SimdLevel::Scalar, word, words);
                    }
                }
                for (vector, sums) in sums[..out.len()].iter_mut().enumerate() {
                    for (value, choices) in values_here.iter_mut().zip(choices.chunks_exact(values.vectors)) {
                        *value = choices[vector][2];
                    }
                    for (terms, words) in terms.iter_mut().zip(words.chunks_exact(columns)) {
                        for ((term, &word), &value) in terms.iter_mut().zip(words).zip(&values_here) {
                            *term = signed(word, value);
                        }
                    }
                    for column in 0..columns {
                        for row in 0..ROWS {
                            sums[row] += terms[row][column];
                        }
                    }
                }
            }
            for (out, sums) in out.iter_mut().zip(sums) {
                let out = &mut out[first..];
                let rows = out.len().min(ROWS);
                out[..rows].copy_from_slice(&sums[..rows]);
            }
        }
        Ok(())
    }
}

/// The entry of a word in two bits: 2 for +1, 3 for -1, 0 for 0. An index into [`choices`].
fn code(word: u32) -> u32 {
    if word < PLUS_BELOW {
        2
    } else if word < MINUS_BELOW {
        3
    } else {
        0
    }
}

/// What the entry of `word` makes of `value`. The +0 of a zero entry changes no sum that started at +0, since such a sum
/// is never -0; so a sum may add it instead of branching.
#[inline(always)]
fn signed(word: u32, value: f32) -> f32 {
    if word < PLUS_BELOW {
        value
    } else if word < MINUS_BELOW {
        -value
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Choices, Gradients, Rows, band_columns, compress, compress_many, decompress, decompress_many,
    };
    use super::{parts, require_words};
    use crate::base::chacha::{Key, Stream};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A uniform float32 of 24 bits, as `rand` 0.8 draws it.
    fn uniform(rng: &mut ChaCha8Rng) -> f32 {
        (rng.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    fn rng(seed: u64, id: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(id);
        rng
    }

    fn plain_compress(seed: u64, id: u64, gradients: &[f32], scale: f32, k: usize) -> Vec<f32> {
        let mut rng = rng(seed, id);
        let mut y = vec![0.0_f32; k];
        for &gradient in gradients {
            for sum in &mut y {
                let r = uniform(&mut rng);
                if r < 0.16 {
                    *sum += gradient * scale;
                } else if r < 0.32 {
                    *sum -= gradient * scale;
                }
            }
        }
        y
    }

    fn plain_decompress(seed: u64, id: u64, data: &[f32], scale: f32, n: usize) -> Vec<f32> {
        let mut rng = rng(seed, id);
        let row = |_| {
            let mut sum = 0.0_f32;
            for &value in data {
                let r = uniform(&mut rng);
                if r < 0.16 {
                    sum += value * scale;
                } else if r < 0.32 {
                    sum -= value * scale;
                }
            }
            sum
        };
        (0..n).map(row).collect()
    }

    /// Bits, with every NaN alike: which sign and payload an addition gives to a NaN is the processor's choice.
    pub(super) fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
    }

    pub(super) fn everywhere(check: impl Fn(&Exec<'_>)) {
        let never = AtomicBool::new(false);
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let pools = [pool(2), pool(3)];
        for level in SimdLevel::available() {
            check(&Exec::serial(level));
            for pool in &pools {
                check(&Exec::new(level, Some(pool), &never));
            }
        }
    }

    fn check_both(seed: u64, id: u64, gradients: &[f32], k: usize, data: &[f32], scale: f32) {
        let stream = Stream::new(Key::from_seed(seed), id);
        let n = gradients.len();
        let want_y = bits(&plain_compress(seed, id, gradients, scale, k));
        let want_x = bits(&plain_decompress(seed, id, &data[..k], scale, n));
        everywhere(|exec| {
            let (mut y, mut x) = (vec![7.0; k], vec![7.0; n]);
            compress(exec, &stream, gradients, scale, &mut y).unwrap();
            assert_eq!(bits(&y), want_y, "{} {} {n} {k}", exec.level().name(), exec.threads());
            decompress(exec, &stream, &data[..k], scale, &mut x).unwrap();
            assert_eq!(bits(&x), want_x, "{} {} {n} {k}", exec.level().name(), exec.threads());
        });
    }

    pub(super) fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    #[test]
    fn every_small_size_has_the_bits_of_the_plain_loop() {
        let values = wave(200);
        for k in (1..36).chain([47, 48, 49, 127, 128, 129]) {
            for n in [0, 1, 2, 3, 15, 16, 17, 31, 33, 127, 128, 129, 200] {
                check_both(1, 0, &values[..n], k, &values, 0.37);
            }
        }
    }

    #[test]
    fn larger_sizes_have_the_bits_of_the_plain_loop() {
        let values = wave(9000);
        for (n, k) in
            [(1000, 100), (777, 333), (500, 64), (301, 257), (200, 1000), (300, 999), (3, 9000), (9000, 3)]
        {
            check_both(42, 7, &values[..n], k, &values, 1.0 / (n as f32).sqrt());
        }
    }

    #[test]
    fn special_values_pass_through_their_entries_and_no_others() {
        let special = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE / 4.0,
            -1e-45,
            f32::MAX,
        ];
        for (place, &value) in special.iter().enumerate() {
            let mut values = vec![0.0; 140];
            values[place] = value;
            check_both(5, 1, &values[..40], 64, &values, 0.5);
            values[place + 100] = -value;
            check_both(5, 1, &values, 129, &values, 1.0);
        }
        check_both(5, 1, &[-0.0; 130], 70, &[-0.0; 130], 1.0);
        check_both(5, 1, &[1e-45; 130], 70, &[1e-45; 130], 1.0);
    }

    #[test]
    fn slices_may_start_anywhere_in_memory() {
        let values = wave(400);
        for start in 1..9 {
            check_both(5, 2, &values[start..start + 130], 70, &values[2 * start..], 1.0);
        }
    }

    #[test]
    fn rows_far_down_take_the_blocks_behind_the_32_bit_counter() {
        let stream = Stream::new(Key::from_seed(8), 2);
        let values = wave(600);
        for columns in [64, 100, 257] {
            // Rows around word 2^36, the start of block 2^32.
            let first = (1_u64 << 36) / columns / 256 * 256;
            let rows = Rows { stream: &stream, columns: columns as usize, first };
            let scaled = &values[..columns as usize];
            let mut oracle = rng(8, 2);
            oracle.set_word_pos(u128::from(first * columns));
            let want: Vec<f32> = (0..600)
                .map(|_| scaled.iter().fold(0.0, |sum, &v| sum + super::signed(oracle.next_u32(), v)))
                .collect();
            oracle.set_word_pos(u128::from(first * columns));
            let mut want_y = vec![0.0; columns as usize];
            for &value in &values {
                for sum in &mut want_y {
                    *sum += super::signed(oracle.next_u32(), value);
                }
            }
            for level in SimdLevel::available() {
                let exec = Exec::serial(level);
                let mut x = vec![0.0; 600];
                let choices = Choices::new(&[scaled], 1.0).unwrap();
                rows.decompress(&exec, &choices, &mut [&mut x]).unwrap();
                assert_eq!(bits(&x), bits(&want));
                let mut y = vec![0.0; columns as usize];
                let gradients = Gradients { values: &values, len: 600, scale: 1.0 };
                rows.compress_band(&exec, &gradients, 0, &mut [&mut y]).unwrap();
                assert_eq!(bits(&y), bits(&want_y));
            }
        }
    }

    #[test]
    fn the_integer_bounds_are_those_of_the_uniform_float() {
        let float = |word: u32| (word >> 8) as f32 * (1.0 / 16_777_216.0);
        for (bound, limit) in [(super::PLUS_BELOW, 0.16), (super::MINUS_BELOW, 0.32)] {
            assert!(float(bound - 1) < limit);
            assert!(float(bound) >= limit);
        }
    }

    #[test]
    fn bands_cover_the_columns_in_shares_of_the_threads() {
        assert_eq!(band_columns(100, 1), 100);
        assert_eq!(band_columns(100, 2), 50);
        assert_eq!(band_columns(1000, 2), 500);
        assert_eq!(band_columns(1024, 3), 352);
        assert_eq!(band_columns(64, 8), 48);
        assert_eq!(band_columns(10_000, 2), 1680);
        assert_eq!(band_columns(0, 2), 48);
    }

    #[test]
    fn parts_come_in_the_order_of_places_then_vectors() {
        let mut vectors: Vec<f32> = (0..10_u8).map(f32::from).collect();
        let found = parts(&mut vectors, 5, 2).unwrap();
        assert_eq!(found, [&[0.0, 1.0][..], &[5.0, 6.0], &[2.0, 3.0], &[7.0, 8.0], &[4.0], &[9.0]]);
        assert_eq!(parts(&mut [], 0, 3).unwrap(), Vec::<&[f32]>::new());
    }

    #[test]
    fn several_vectors_have_the_bits_of_their_single_calls() {
        let values = wave(20_000);
        let stream = Stream::new(Key::from_seed(11), 3);
        for (n, k) in [(0, 64), (1, 1), (33, 17), (150, 100), (70, 333), (40, 1000), (300, 64)] {
            for count in (0..10).chain([15, 16, 17]) {
                let mut gradients = values[..count * n].to_vec();
                if let Some(value) = gradients.get_mut(n / 2) {
                    *value = f32::INFINITY;
                }
                let data: Vec<&[f32]> = (0..count).map(|vector| &values[vector..vector + k]).collect();
                let (mut want_y, mut want_x) = (vec![0.0; count * k], vec![0.0; count * n]);
                let scalar = Exec::serial(SimdLevel::Scalar);
                for vector in 0..count {
                    let gradient = &gradients[vector * n..][..n];
                    compress(&scalar, &stream, gradient, 0.3, &mut want_y[vector * k..][..k]).unwrap();
                    let x = &mut want_x[vector * n..][..n];
                    decompress(&scalar, &stream, data[vector], 0.3, x).unwrap();
                }
                everywhere(|exec| {
                    let (mut y, mut x) = (vec![7.0; count * k], vec![7.0; count * n]);
                    compress_many(exec, &stream, count, &gradients, 0.3, &mut y).unwrap();
                    assert_eq!(bits(&y), bits(&want_y), "{} {n} {k} {count}", exec.level().name());
                    decompress_many(exec, &stream, &data, 0.3, &mut x).unwrap();
                    assert_eq!(bits(&x), bits(&want_x), "{} {n} {k} {count}", exec.level().name());
                });
            }
        }
    }

    #[test]
    fn matrices_of_more_words_than_can_be_numbered_are_refused() {
        assert_eq!(require_words("gradients", 1 << 32, (1 << 31) - 1), Ok(()));
        for (rows, columns) in [(1 << 32, 1 << 31), (usize::MAX, usize::MAX), (1 << 63, 1)] {
            let refused = require_words("gradients", rows, columns);
            assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "gradients"));
        }
    }

    /// Some seconds of work at any level, stopped from another thread: were it not seen, the call would end well.
    #[test]
    fn a_call_is_stopped_while_it_computes() {
        let stream = Stream::new(Key::from_seed(8), 2);
        for level in SimdLevel::available() {
            for compressing in [true, false] {
                let cancel = AtomicBool::new(false);
                let exec = Exec::new(level, None, &cancel);
                let stopped = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        cancel.store(true, Ordering::Relaxed);
                    });
                    if compressing {
                        compress(&exec, &stream, &vec![1.0; 1 << 22], 1.0, &mut [0.0; 1000])
                    } else {
                        decompress(&exec, &stream, &[1.0; 1000], 1.0, &mut vec![0.0; 1 << 22])
                    }
                });
                assert_eq!(stopped, Err(Error::Interrupted), "{}", level.name());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_matrix_has_the_bits_of_the_plain_loop(
            seed: u64,
            id: u64,
            values in proptest::collection::vec(any::<f32>(), 0..400),
            k in 1_usize..400,
            scale in 0.001_f32..2.0,
        ) {
            let data: Vec<f32> = (0..k).map(|j| values.get(j).copied().unwrap_or(j as f32)).collect();
            check_both(seed, id, &values, k, &data, scale);
        }
    }
}
