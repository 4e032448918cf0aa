//! The largest values of every chunk, with their places.
//!
//! A chunk is 4096 values, so that a place takes 12 bits; a chunk sends as many values as the ratio says, and at least one.
//! Equal magnitudes are taken by their place, so the choice is the same everywhere.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;
use crate::base::simd::Kernel;
use crate::codec::config::Ratio;

/// Values of a chunk.
pub const CHUNK: usize = 4096;
/// Chunks that are worth a thread.
const PART_CHUNKS: usize = 16;
/// Values of a chunk that are looked at to guess where the largest ones begin.
const SAMPLE: usize = 256;
const MAGNITUDE: u32 = 0x7fff_ffff;

/// How many values of a chunk of `len` are sent.
fn count(len: usize, ratio: Ratio) -> usize {
    ((len as f32 * ratio.get()).ceil() as usize).max(1)
}

/// How many of `n` values are sent.
pub fn compressed_dim(n: usize, ratio: Ratio) -> usize {
    let rest = n % CHUNK;
    n / CHUNK * count(CHUNK, ratio) + if rest > 0 { count(rest, ratio) } else { 0 }
}

/// Bytes of `k` indices; no value if that is beyond the machine.
pub fn index_bytes(k: usize) -> Option<usize> {
    Some(k.checked_mul(3)?.div_ceil(2))
}

/// Writes the packed places of the largest values of `gradients` to `indices` and the values themselves to `out`.
pub fn compress(
    exec: &Exec<'_>,
    gradients: &[f32],
    ratio: Ratio,
    indices: &mut [u8],
    out: &mut [f32],
) -> Result<()> {
    let whole = count(CHUNK, ratio);
    let mut places: Vec<u16> = try_vec(out.len())?;
    let parts = gradients
        .chunks(PART_CHUNKS * CHUNK)
        .zip(out.chunks_mut(PART_CHUNKS * whole))
        .zip(places.chunks_mut(PART_CHUNKS * whole));
    let mut parts: Vec<_> = parts.collect();
    exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
        for ((values, out), places) in parts {
            let chunks = values.chunks(CHUNK).zip(out.chunks_mut(whole)).zip(places.chunks_mut(whole));
            let mut candidates: Vec<u64> = try_vec(CHUNK)?;
            for ((values, out), places) in chunks {
                exec.level().run(Select { values, candidates: &mut candidates, out, places });
            }
        }
        Ok(())
    })?;
    pack(&places, indices);
    Ok(())
}

/// Writes the values to their places in `out`, and zeros to all others. The indices are valid.
pub fn decompress(
    exec: &Exec<'_>,
    indices: &[u8],
    data: &[f32],
    ratio: Ratio,
    out: &mut [f32],
) -> Result<()> {
    let whole = count(CHUNK, ratio);
    exec.for_each_chunk_mut(out, PART_CHUNKS * CHUNK, |part, out| {
        for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
            let start = (part * PART_CHUNKS + chunk) * whole;
            let data = &data[start..start + count(out.len(), ratio)];
            out.fill(0.0);
            for (at, &value) in data.iter().enumerate() {
                out[unpack(indices, start + at)] = value;
            }
        }
        Ok(())
    })
}

/// [`Error::Wire`] unless `indices` are what [`compress`] can have made.
pub fn check(indices: &[u8], n: usize, ratio: Ratio) -> Result<()> {
    let (mut at, mut start) = (0, 0);
    while start < n {
        let len = CHUNK.min(n - start);
        let mut least = 0;
        for _ in 0..count(len, ratio) {
            let index = unpack(indices, at);
            if index < least || index >= len {
                let message = format!(
                    "got {index} as number {at}, wanted {least} to {} in the chunk of values {start} to {}",
                    len - 1,
                    start + len - 1
                );
                return Err(Error::wire("indices", message));
            }
            least = index + 1;
            at += 1;
        }
        start += len;
    }
    if at % 2 == 1 && indices[indices.len() - 1] >> 4 != 0 {
        return Err(Error::wire("indices", "the unused bits of the last byte are not 0"));
    }
    Ok(())
}

fn pack(places: &[u16], bytes: &mut [u8]) {
    for (pair, bytes) in places.chunks(2).zip(bytes.chunks_mut(3)) {
        let bits = u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 12;
        for (byte, &packed) in bytes.iter_mut().zip(&bits.to_le_bytes()) {
            *byte = packed;
        }
    }
}

fn unpack(bytes: &[u8], index: usize) -> usize {
    let start = index / 2 * 3 + index % 2;
    let pair = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
    usize::from(if index.is_multiple_of(2) { pair & 0xfff } else { pair >> 4 })
}

struct Select<'a> {
    values: &'a [f32],
    candidates: &'a mut [u64],
    out: &'a mut [f32],
    places: &'a mut [u16],
}

impl Kernel for Select<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { values, candidates, out, places } = self;
        let wanted = out.len();
        let mut found = gather(values, guess(values, wanted), candidates);
        if found < wanted {
            found = gather(values, 0, candidates);
        }
        let candidates = &mut candidates[..found];
        if wanted < found {
            candidates.select_nth_unstable_by(wanted - 1, |a, b| b.cmp(a));
        }
        let mut kept = [0_u64; CHUNK / 64];
        for &candidate in &candidates[..wanted] {
            let place = CHUNK - 1 - (candidate as usize & (CHUNK - 1));
            kept[place / 64] |= 1 << (place % 64);
        }
        let mut at = 0;
        for (word, &kept) in kept.iter().enumerate() {
            let mut left = kept;
            while left != 0 {
                let place = 64 * word + left.trailing_zeros() as usize;
                (out[at], places[at]) = (values[place], place as u16);
                at += 1;
                left &= left - 1;
            }
        }
    }
}

/// A magnitude that probably somewhat more than `wanted` values reach, from a sample of them.
#[inline(always)]
fn guess(values: &[f32], wanted: usize) -> u32 {
    if values.len() < CHUNK {
        return 0;
    }
    let mut sample = [0; SAMPLE];
    for (place, sample) in sample.iter_mut().enumerate() {
        // Neighbours are often alike: one of every sixteen, at a place that moves on.
        let at = place * (CHUNK / SAMPLE) + place % (CHUNK / SAMPLE);
        *sample = values[at].to_bits() & MAGNITUDE;
    }
    // Expected rank, and three standard deviations of it more.
    let expected = wanted as f32 * (SAMPLE as f32 / CHUNK as f32);
    let rank = (expected + 3.0 * expected.sqrt()) as usize + 2;
    if rank >= SAMPLE { 0 } else { *sample.select_nth_unstable_by(rank, |a, b| b.cmp(a)).1 }
}

/// Keys of the values of at least that magnitude: larger magnitudes first, then lower places.
#[inline(always)]
fn gather(values: &[f32], least: u32, candidates: &mut [u64]) -> usize {
    let mut found = 0;
    // So that no place needs a look at the length.
    let candidates = &mut candidates[..CHUNK];
    for (place, value) in values.iter().enumerate() {
        let magnitude = value.to_bits() & MAGNITUDE;
        // Written in any case, and kept if it counts: no branch to mispredict.
        candidates[found & (CHUNK - 1)] = u64::from(magnitude) << 12 | (CHUNK - 1 - place) as u64;
        found += usize::from(magnitude >= least);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, check, compress, compressed_dim, count, decompress, index_bytes, unpack};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;
    use crate::codec::config::Ratio;

    /// The definition: sort, take, sort.
    fn plain(values: &[f32], ratio: Ratio) -> (Vec<usize>, Vec<f32>) {
        let (mut places, mut kept) = (Vec::new(), Vec::new());
        for chunk in values.chunks(CHUNK) {
            let mut order: Vec<usize> = (0..chunk.len()).collect();
            order.sort_by_key(|&place| (u32::MAX - (chunk[place].to_bits() & 0x7fff_ffff), place));
            order.truncate(count(chunk.len(), ratio));
            order.sort_unstable();
            kept.extend(order.iter().map(|&place| chunk[place]));
            places.extend(order);
        }
        (places, kept)
    }

    fn check_all(values: &[f32], ratio: f32) {
        let ratio = Ratio::new(ratio).unwrap();
        let k = compressed_dim(values.len(), ratio);
        let (want_places, want) = plain(values, ratio);
        assert_eq!(want.len(), k);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        everywhere(|exec| {
            let (mut indices, mut out) = (vec![255; index_bytes(k).unwrap()], vec![9.0; k]);
            compress(exec, values, ratio, &mut indices, &mut out).unwrap();
            let places: Vec<usize> = (0..k).map(|at| unpack(&indices, at)).collect();
            assert_eq!(places, want_places, "{} {ratio:?}", values.len());
            assert_eq!(bits(&out), bits(&want));
            check(&indices, values.len(), ratio).unwrap();
            let mut back = vec![7.0; values.len()];
            decompress(exec, &indices, &out, ratio, &mut back).unwrap();
            let mut scattered = vec![0.0; values.len()];
            let mut at = 0;
            for (chunk, values) in values.chunks(CHUNK).enumerate() {
                for _ in 0..count(values.len(), ratio) {
                    scattered[chunk * CHUNK + want_places[at]] = want[at];
                    at += 1;
                }
            }
            assert_eq!(bits(&back), bits(&scattered));
        });
    }

    #[test]
    fn the_largest_are_those_of_a_full_sort_for_every_size_and_ratio() {
        let mut stream = SplitMix64::new(4);
        let values: Vec<f32> = (0..3 * CHUNK + 77).map(|_| (1.0 / (stream.unit() - 0.5)) as f32).collect();
        for n in [0, 1, 2, 3, 63, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 77] {
            for ratio in [1e-9, 0.0055, 0.1, 0.5, 0.999, 1.0] {
                check_all(&values[..n], ratio);
            }
        }
    }

    #[test]
    fn ties_specials_and_samples_that_mislead_are_no_exception() {
        check_all(&vec![0.0; 5000], 0.01);
        check_all(&vec![-1.0; CHUNK], 0.3);
        let mut values = vec![1.0; CHUNK];
        (values[7], values[9], values[4000]) = (f32::NAN, f32::NEG_INFINITY, -f32::MAX);
        (values[100], values[101]) = (-0.0, 1e-45);
        check_all(&values, 0.0005);
        // Every sampled value is large, then every sampled value is small.
        for sampled in [100.0, 0.01] {
            let mut values: Vec<f32> = (0..CHUNK).map(|i| 1.0 + i as f32 * 1e-4).collect();
            for place in 0..256 {
                values[place * 16 + place % 16] = sampled;
            }
            check_all(&values, 0.1);
        }
        // One place holds all that is large, whichever it is.
        for place in (0..CHUNK).step_by(37) {
            let mut values = vec![0.0; CHUNK];
            values[place] = -3.0;
            check_all(&values, 0.0001);
        }
    }

    #[test]
    fn indices_that_selection_cannot_make_are_refused() {
        let ratio = Ratio::new(0.1).unwrap();
        let mut out = [0.0; 3];
        let mut indices = [0; 5];
        let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let exec = Exec::serial(SimdLevel::detected());
        compress(&exec, &values, ratio, &mut indices, &mut out).unwrap();
        assert_eq!(indices, [27, 192, 1, 29, 0]);
        let refused =
            |indices: &[u8]| matches!(check(indices, 30, ratio), Err(Error::Wire { field: "indices", .. }));
        assert!(!refused(&indices));
        assert!(refused(&[28, 192, 1, 29, 0]));
        assert!(refused(&[29, 192, 1, 29, 0]));
        assert!(refused(&[27, 192, 1, 30, 0]));
        assert!(refused(&[27, 192, 1, 29, 16]));
    }
}
