//! A matrix that is kept: two bits an entry, made once, for many vectors under the same matrix.
//!
//! A word holds 16 rows of a column, the first of them in the lowest bits: 2 for +1, 3 for -1, 0 for 0. Words of a *tile*, 16
//! rows, are side by side, column by column. [`PackedMatrix::compress`] and [`PackedMatrix::decompress`] have the bits of
//! the functions that make the matrix anew: they add the same values in the same order.

use super::{
    BAND_COLUMNS, Choices, Gradients, ROWS, Rows, TILE_ROWS, WORDS_PER_CHECK, code, require_words,
    rows_at_once,
};
use crate::base::chacha::Stream;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::SimdLevel;

/// All entries of a dense matrix, packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedMatrix {
    rows: usize,
    columns: usize,
    words: Vec<u32>,
}

impl PackedMatrix {
    /// The bytes that a matrix takes, if they can be counted.
    pub fn bytes(rows: usize, columns: usize) -> Option<usize> {
        rows.div_ceil(ROWS).checked_mul(columns)?.checked_mul(size_of::<u32>())
    }

    /// The matrix of a stream. Costs about as much as one compression under it.
    pub fn new(exec: &Exec<'_>, stream: &Stream, rows: usize, columns: usize) -> Result<Self> {
        require_words("n", rows, columns)?;
        let bytes = Self::bytes(rows, columns).ok_or(Error::Memory { bytes: usize::MAX })?;
        let mut words = try_vec(bytes / size_of::<u32>())?;
        let rows_here = rows_at_once(exec, rows, columns);
        exec.for_each_chunk_mut(&mut words, rows_here / ROWS * columns, |index, words| {
            Rows { stream, columns, first: (index * rows_here) as u64 }.pack(exec, words)
        })?;
        Ok(Self { rows, columns, words })
    }

    /// Values of the vectors that are compressed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of their projections.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The bytes of its words.
    pub fn nbytes(&self) -> usize {
        size_of_val(&self.words[..])
    }

    /// Writes the projection of `gradients` (a value a row) times `scale` to `out`.
    pub fn compress(&self, exec: &Exec<'_>, gradients: &[f32], scale: f32, out: &mut [f32]) -> Result<()> {
        debug_assert_eq!((gradients.len(), out.len()), (self.rows, self.columns));
        let gradients = Gradients { values: gradients, len: gradients.len(), scale };
        // A band is a piece of every tile: pieces below a page of memory are read at a third of the speed (1 KiB of each
        // 4 KiB: 13.9 ms instead of 4.4).
        let even = self.columns.div_ceil(exec.threads()).next_multiple_of(ROWS);
        let band = even.clamp(BAND_COLUMNS / 2, BAND_COLUMNS);
        exec.for_each_chunk_mut(out, band, |index, out| {
            out.fill(0.0);
            add_tiles(exec, &self.words, self.columns, index * band, out, |tile| {
                gradients.tile(0, tile * ROWS)
            })
        })
    }

    /// Writes the transposed projection of `data` (a value a column) times `scale` to `out`.
    pub fn decompress(&self, exec: &Exec<'_>, data: &[f32], scale: f32, out: &mut [f32]) -> Result<()> {
        debug_assert_eq!((out.len(), data.len()), (self.rows, self.columns));
        if self.columns == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let values = Choices::new(&[data], scale)?;
        let even = self.rows.div_ceil(4 * exec.threads()).next_multiple_of(TILE_ROWS);
        let rows = even.min((WORDS_PER_CHECK / self.columns).next_multiple_of(TILE_ROWS)).max(TILE_ROWS);
        exec.for_each_chunk_mut(out, rows, |index, out| {
            let words = &self.words[index * rows / ROWS * self.columns..];
            decompress_tiles(exec, words, &values.of, out)
        })
    }
}

impl Rows<'_> {
    /// Packs the rows from `first` (a multiple of [`TILE_ROWS`]) on, as many tiles as `tiles` has room for.
    pub(super) fn pack(&self, exec: &Exec<'_>, tiles: &mut [u32]) -> Result<()> {
        match exec.level().min(SimdLevel::detected()) {
            #[cfg(target_arch = "x86_64")]
            level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => super::simd::pack(self, level, exec, tiles),
            _ => self.pack_scalar(exec, tiles),
        }
    }

    pub(super) fn pack_scalar(&self, exec: &Exec<'_>, tiles: &mut [u32]) -> Result<()> {
        if self.columns == 0 {
            return Ok(());
        }
        let mut words = try_vec(ROWS * self.columns)?;
        for (tile, packed) in tiles.chunks_exact_mut(self.columns).enumerate() {
            exec.check()?;
            self.stream.words(SimdLevel::Scalar, self.word(tile * ROWS, 0), &mut words);
            for words in words.chunks_exact(self.columns) {
                for (packed, &word) in packed.iter_mut().zip(words) {
                    *packed = *packed >> 2 | code(word) << 30;
                }
            }
        }
        Ok(())
    }
}

/// Adds what the entries of some tiles of `columns` words make of `values` (of a tile) to the sums in `out`, which are those of the
/// columns from `start` on.
pub(super) fn add_tiles(
    exec: &Exec<'_>,
    tiles: &[u32],
    columns: usize,
    start: usize,
    out: &mut [f32],
    values: impl Fn(usize) -> [[f32; 4]; ROWS],
) -> Result<()> {
    // Sums in memory of their own: at its ends, `out` shares cache lines with what other threads write, and each tile writes
    // all sums.
    let mut sums = try_vec(out.len())?;
    sums.copy_from_slice(out);
    let tiles_per_check = (WORDS_PER_CHECK / ROWS / out.len().max(1)).max(1);
    for (index, tile) in tiles.chunks_exact(columns).enumerate() {
        if index.is_multiple_of(tiles_per_check) {
            exec.check()?;
        }
        compress_tile(exec.level(), &tile[start..][..sums.len()], &values(index), &mut sums);
    }
    out.copy_from_slice(&sums);
    Ok(())
}

/// Adds what the entries of a tile make of the values of its rows to the sums of its columns.
fn compress_tile(level: SimdLevel, tile: &[u32], values: &[[f32; 4]; ROWS], sums: &mut [f32]) {
    match level.min(SimdLevel::detected()) {
        #[cfg(target_arch = "x86_64")]
        level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => {
            super::simd::compress_tile(level, tile, values, sums);
        }
        _ => compress_tile_scalar(tile, values, sums),
    }
}

/// Writes the sums of as many rows as `out` has, over their entries in `tiles`.
fn decompress_tiles(exec: &Exec<'_>, tiles: &[u32], values: &[[f32; 4]], out: &mut [f32]) -> Result<()> {
    match exec.level().min(SimdLevel::detected()) {
        #[cfg(target_arch = "x86_64")]
        level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => {
            super::simd::decompress_tiles(level, exec, tiles, values, out)
        }
        _ => decompress_tiles_scalar(exec, tiles, values, out),
    }
}

pub(super) fn compress_tile_scalar(tile: &[u32], values: &[[f32; 4]; ROWS], sums: &mut [f32]) {
    const LANES: usize = 16;
    let ((tiles, tile), (many_sums, sums)) = (tile.as_chunks::<LANES>(), sums.as_chunks_mut::<LANES>());
    for (tile, sums) in tiles.iter().zip(many_sums) {
        let (mut packed, mut here) = (*tile, *sums);
        for value in values {
            for lane in 0..LANES {
                here[lane] += chosen(packed[lane], value[2]);
                packed[lane] >>= 2;
            }
        }
        *sums = here;
    }
    for (&packed, sum) in tile.iter().zip(sums) {
        for (row, value) in values.iter().enumerate() {
            *sum += chosen(packed >> (2 * row), value[2]);
        }
    }
}

pub(super) fn decompress_tiles_scalar(
    exec: &Exec<'_>,
    tiles: &[u32],
    values: &[[f32; 4]],
    out: &mut [f32],
) -> Result<()> {
    for (tile, out) in tiles.chunks_exact(values.len().max(1)).zip(out.chunks_mut(ROWS)) {
        exec.check()?;
        let mut sums = [0.0; ROWS];
        for (&packed, value) in tile.iter().zip(values) {
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum += chosen(packed >> (2 * row), value[2]);
            }
        }
        out.copy_from_slice(&sums[..out.len()]);
    }
    Ok(())
}

/// What the entry in the two lowest bits makes of a value.
#[inline(always)]
fn chosen(packed: u32, value: f32) -> f32 {
    let any = (packed << 30).cast_signed() >> 31;
    f32::from_bits(value.to_bits() & any.cast_unsigned() ^ packed << 31)
}

#[cfg(test)]
mod tests {
    use super::{PackedMatrix, ROWS, chosen, compress_tile_scalar, decompress_tiles_scalar};
    use crate::base::chacha::{Key, Stream};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::codec::dense::tests::{bits, everywhere, wave};
    use crate::codec::dense::{choices, compress, decompress};
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    fn check_both(stream: &Stream, gradients: &[f32], data: &[f32], scale: f32) {
        let (n, k) = (gradients.len(), data.len());
        let scalar = Exec::serial(SimdLevel::Scalar);
        let (mut want_y, mut want_x) = (vec![0.0; k], vec![0.0; n]);
        compress(&scalar, stream, gradients, scale, &mut want_y).unwrap();
        decompress(&scalar, stream, data, scale, &mut want_x).unwrap();
        let want = PackedMatrix::new(&scalar, stream, n, k).unwrap();
        everywhere(|exec| {
            let matrix = PackedMatrix::new(exec, stream, n, k).unwrap();
            assert_eq!(matrix, want, "{} {n} {k}", exec.level().name());
            assert_eq!(Some(matrix.nbytes()), PackedMatrix::bytes(n, k));
            let (mut y, mut x) = (vec![7.0; k], vec![7.0; n]);
            matrix.compress(exec, gradients, scale, &mut y).unwrap();
            assert_eq!(bits(&y), bits(&want_y), "{} {} {n} {k}", exec.level().name(), exec.threads());
            matrix.decompress(exec, data, scale, &mut x).unwrap();
            assert_eq!(bits(&x), bits(&want_x), "{} {} {n} {k}", exec.level().name(), exec.threads());
        });
    }

    #[test]
    fn a_kept_matrix_gives_the_bits_of_one_that_is_made_anew() {
        let values = wave(5000);
        let stream = Stream::new(Key::from_seed(4), 1);
        for k in [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 257] {
            for n in [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 1025] {
                check_both(&stream, &values[..n], &values[100..100 + k], 0.37);
            }
        }
        for (n, k) in [(3, 5000), (5000, 3), (600, 2049)] {
            check_both(&stream, &values[..n], &values[..k], 0.37);
        }
    }

    #[test]
    fn special_values_pass_through_their_entries_and_no_others() {
        let stream = Stream::new(Key::from_seed(5), 1);
        for (place, value) in
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -1e-45, f32::MAX].into_iter().enumerate()
        {
            let mut values = wave(140);
            values[20 * place] = value;
            check_both(&stream, &values, &values[..129], 1.0);
        }
        check_both(&stream, &[-0.0; 130], &[-0.0; 70], 1.0);
    }

    #[test]
    fn a_zero_entry_makes_zero_of_an_infinity() {
        for value in [3.5, -0.0, f32::INFINITY, f32::NEG_INFINITY] {
            for (code, &want) in choices(value).iter().enumerate().filter(|&(code, _)| code != 1) {
                assert_eq!(chosen(code as u32 | 0xFFFF_FFF0, value).to_bits(), want.to_bits());
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_counted_are_refused() {
        assert_eq!(PackedMatrix::bytes(17, 10), Some(80));
        assert_eq!(PackedMatrix::bytes(usize::MAX, usize::MAX), None);
        let stream = Stream::new(Key::from_seed(5), 1);
        let exec = Exec::serial(SimdLevel::Scalar);
        let refused = PackedMatrix::new(&exec, &stream, 1 << 40, 1 << 20);
        assert!(matches!(refused, Err(Error::Memory { .. })));
        let refused = PackedMatrix::new(&exec, &stream, usize::MAX, usize::MAX);
        assert!(matches!(refused, Err(Error::Argument { .. })));
    }

    #[test]
    fn a_cancelled_call_stops_inside_its_loops() {
        let cancel = AtomicBool::new(true);
        let stream = Stream::new(Key::from_seed(8), 2);
        let mut words = vec![0; 64];
        for level in SimdLevel::available() {
            let exec = Exec::new(level, None, &cancel);
            let rows = super::Rows { stream: &stream, columns: 64, first: 0 };
            assert_eq!(rows.pack(&exec, &mut words), Err(Error::Interrupted));
            let stopped = super::decompress_tiles(&exec, &words, &[[0.0; 4]; 64], &mut [0.0; 16]);
            assert_eq!(stopped, Err(Error::Interrupted));
        }
    }

    /// The plain bodies against a lookup of each entry.
    #[test]
    fn the_plain_bodies_look_up_every_entry() {
        let words: Vec<u32> = (0..37_u32).map(|i| i.wrapping_mul(0x9E37_79B9) & 0xBBBB_BBBB).collect();
        let words: Vec<u32> = words.iter().map(|w| w & !(!(w >> 1) & 0x5555_5555)).collect();
        let values: Vec<_> = wave(37).into_iter().map(choices).collect();
        let entry = |word: u32, row: usize, value: &[f32; 4]| value[(word >> (2 * row)) as usize % 4];
        let tile: [_; ROWS] = std::array::from_fn(|row| values[row]);
        let mut sums = vec![1.0; 37];
        compress_tile_scalar(&words, &tile, &mut sums);
        for (&word, sum) in words.iter().zip(sums) {
            let want = tile.iter().enumerate().fold(1.0, |sum, (row, value)| sum + entry(word, row, value));
            assert_eq!(sum, want);
        }
        let mut out = vec![9.0; ROWS];
        let exec = Exec::serial(SimdLevel::Scalar);
        decompress_tiles_scalar(&exec, &words, &values, &mut out).unwrap();
        for (row, out) in out.into_iter().enumerate() {
            let want =
                words.iter().zip(&values).fold(0.0, |sum, (&word, value)| sum + entry(word, row, value));
            assert_eq!(out, want);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_kept_matrix_gives_the_bits_of_one_that_is_made_anew(
            seed: u64,
            id: u64,
            gradients in proptest::collection::vec(any::<f32>(), 0..400),
            data in proptest::collection::vec(any::<f32>(), 1..300),
        ) {
            check_both(&Stream::new(Key::from_seed(seed), id), &gradients, &data, 0.5);
        }
    }
}
