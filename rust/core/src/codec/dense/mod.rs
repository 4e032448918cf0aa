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

mod simd;

use crate::base::chacha::Stream;
use crate::base::error::Result;
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::SimdLevel;

/// Words below this are +1: 0.16 of all, the smallest word whose upper 24 bits are not below 0.16 in float32.
const PLUS_BELOW: u32 = 687_194_880;
/// Other words below this are -1.
const MINUS_BELOW: u32 = 1_374_389_504;

/// Columns in a band: their running sums stay in the first-level cache.
const BAND_COLUMNS: usize = 4096;
/// Narrower bands are not worth a thread: each computes about one block of 16 words a row that its neighbour has too.
const LEAST_BAND_COLUMNS: usize = 48;
/// Rows that are decompressed together at any level divide this.
const TILE_ROWS: usize = 256;
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
    let columns = out.len();
    let band = band_columns(columns, exec.threads());
    exec.for_each_chunk_mut(out, band, |index, out| {
        let rows = Rows { stream, columns, first: 0 };
        rows.compress_band(exec, gradients, scale, index * band, out)
    })
}

/// Writes the transposed projection of `data` (k values) times `scale` to `out`, which holds its n rows.
pub fn decompress(exec: &Exec<'_>, stream: &Stream, data: &[f32], scale: f32, out: &mut [f32]) -> Result<()> {
    let columns = data.len();
    let mut scaled = try_vec(columns)?;
    for (scaled, &value) in scaled.iter_mut().zip(data) {
        *scaled = value * scale;
    }
    let rows = (4 * WORDS_PER_CHECK / columns.max(1)).min(out.len() / (4 * exec.threads()));
    let rows = rows.next_multiple_of(TILE_ROWS).max(TILE_ROWS);
    exec.for_each_chunk_mut(out, rows, |index, out| {
        let rows = Rows { stream, columns, first: (index * rows) as u64 };
        rows.decompress(exec, &scaled, out)
    })
}

/// Columns of a band: an even share of the threads, no more than the cache takes, no less than pays.
fn band_columns(columns: usize, threads: usize) -> usize {
    let bands = columns.div_ceil(BAND_COLUMNS).next_multiple_of(threads.max(1));
    let even = columns.div_ceil(bands.max(1)).max(LEAST_BAND_COLUMNS);
    // Where whole blocks make up a row, whole blocks make up a band.
    if columns.is_multiple_of(16) { even.next_multiple_of(16) } else { even }
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

    /// Columns `start .. start + out.len()` of the projection.
    fn compress_band(
        &self,
        exec: &Exec<'_>,
        gradients: &[f32],
        scale: f32,
        start: usize,
        out: &mut [f32],
    ) -> Result<()> {
        match exec.level().min(SimdLevel::detected()) {
            #[cfg(target_arch = "x86_64")]
            level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => {
                simd::compress_band(self, level, exec, gradients, scale, start, out)
            }
            _ => self.compress_band_scalar(exec, gradients, scale, start, out),
        }
    }

    /// The rows' values of the transposed projection; `first` is a multiple of [`TILE_ROWS`].
    fn decompress(&self, exec: &Exec<'_>, scaled: &[f32], out: &mut [f32]) -> Result<()> {
        match exec.level().min(SimdLevel::detected()) {
            #[cfg(target_arch = "x86_64")]
            level @ (SimdLevel::Avx2 | SimdLevel::Avx512) => simd::decompress(self, level, exec, scaled, out),
            _ => self.decompress_scalar(exec, scaled, out),
        }
    }

    fn compress_band_scalar(
        &self,
        exec: &Exec<'_>,
        gradients: &[f32],
        scale: f32,
        start: usize,
        out: &mut [f32],
    ) -> Result<()> {
        out.fill(0.0);
        let mut words: Vec<u32> = try_vec(out.len())?;
        let rows_per_check = (WORDS_PER_CHECK / 8 / out.len().max(1)).max(1);
        for (row, &gradient) in gradients.iter().enumerate() {
            if row.is_multiple_of(rows_per_check) {
                exec.check()?;
            }
            self.stream.words(SimdLevel::Scalar, self.word(row, start), &mut words);
            let value = gradient * scale;
            for (sum, &word) in out.iter_mut().zip(&words) {
                *sum += signed(word, value);
            }
        }
        Ok(())
    }

    fn decompress_scalar(&self, exec: &Exec<'_>, scaled: &[f32], out: &mut [f32]) -> Result<()> {
        const AT_ONCE: usize = 1024;
        let mut words = [0; AT_ONCE];
        for (row, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0;
            for (index, values) in scaled.chunks(AT_ONCE).enumerate() {
                if (row * scaled.len() / AT_ONCE + index).is_multiple_of(64) {
                    exec.check()?;
                }
                let words = &mut words[..values.len()];
                self.stream.words(SimdLevel::Scalar, self.word(row, index * AT_ONCE), words);
                for (&word, &value) in words.iter().zip(values) {
                    sum += signed(word, value);
                }
            }
            *out = sum;
        }
        Ok(())
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
    use super::{Rows, band_columns, compress, decompress};
    use crate::base::chacha::{Key, Stream};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};
    use std::sync::atomic::AtomicBool;

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
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
    }

    fn everywhere(check: impl Fn(&Exec<'_>)) {
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

    fn wave(len: usize) -> Vec<f32> {
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
                rows.decompress(&exec, scaled, &mut x).unwrap();
                assert_eq!(bits(&x), bits(&want));
                let mut y = vec![0.0; columns as usize];
                rows.compress_band(&exec, &values, 1.0, 0, &mut y).unwrap();
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
        assert_eq!(band_columns(10_000, 2), 2512);
        assert_eq!(band_columns(0, 2), 48);
    }

    #[test]
    fn a_cancelled_call_stops() {
        let cancel = AtomicBool::new(true);
        let stream = Stream::new(Key::from_seed(8), 2);
        for level in SimdLevel::available() {
            let exec = Exec::new(level, None, &cancel);
            assert_eq!(compress(&exec, &stream, &[1.0; 9], 1.0, &mut [0.0; 64]), Err(Error::Interrupted));
            assert_eq!(decompress(&exec, &stream, &[1.0; 64], 1.0, &mut [0.0; 9]), Err(Error::Interrupted));
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
