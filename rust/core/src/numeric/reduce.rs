//! Sums and finite checks over long vectors, in one fixed order of float64 additions.
//!
//! Element `i` of a 4096-block goes to lane `i % 64`, ascending; the 64 lanes are added by adjacent pairs, then the
//! blocks are, an odd one at the end of a level being carried up as it is. The order depends on the length alone, so
//! the bits are the same at every level and thread count, and the lanes keep the adders busy: one running float32 sum
//! in index order is slower than memory, and sticks at 2^24 when it adds ones.

use std::marker::PhantomData;

use super::elementwise::check_len;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::Kernel;

const LANES: usize = 64;
/// Values of a block.
pub(crate) const BLOCK: usize = 4096;
/// Blocks in a part that one thread sums: a power of two, so that a part is a subtree of the whole.
const PART_BLOCKS: usize = 64;
const PART: usize = PART_BLOCKS * BLOCK;
/// Values that one block adds before another has its turn. Two blocks by turns wait less for memory than one, and short
/// turns of long pieces keep the reads in order (the norm of 25e6 values on one Zen 3 core: 0.21 ns a value; a block at a
/// time, 16 lanes at once: 0.52).
const TURN: usize = 4 * LANES;
/// Lanes summed at a time: few enough for their sums to stay in registers, and two whole cache lines of values.
const LANES_AT_ONCE: usize = 32;

/// The sum of the magnitudes.
pub fn sum_abs(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    let [sum] = sums::<1, Magnitudes>(exec, values)?;
    Ok(sum)
}

/// The sum of the squares, each exact in float64. Finite if and only if all values are.
pub fn sum_squares(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    let [sum] = sums::<1, Squares>(exec, values)?;
    Ok(sum)
}

/// The sums of the magnitudes and of the squares, in one read.
pub(crate) fn sums_abs_and_squares(exec: &Exec<'_>, values: &[f32]) -> Result<[f64; 2]> {
    sums::<2, MagnitudesAndSquares>(exec, values)
}

/// The Euclidean norm.
pub fn norm(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    sum_squares(exec, values).map(f64::sqrt)
}

/// [`norm`], and `out[i] = map(values[i])` in the same read.
pub(crate) fn norm_and_map<B: Send>(
    exec: &Exec<'_>,
    values: &[f32],
    out: &mut [B],
    map: impl Fn(f32) -> B + Copy + Send + Sync,
) -> Result<f64> {
    let [sum] =
        over_parts(exec, values, out, |_, values, out| part::<1, Squares, _>(exec, values, out, map))?;
    Ok(sum.sqrt())
}

/// [`norm`], and `fill(start, values, out)` for the values from `start` on of each part, while they are in the cache.
pub(crate) fn norm_and_fill<B: Send>(
    exec: &Exec<'_>,
    values: &[f32],
    out: &mut [B],
    fill: impl Fn(usize, &[f32], &mut [B]) + Send + Sync,
) -> Result<f64> {
    let [sum] = over_parts(exec, values, out, |start, values, out| {
        fill(start, values, out);
        part::<1, Squares, _>(exec, values, &mut nothing(values), |_| ())
    })?;
    Ok(sum.sqrt())
}

/// The index of the first NaN or infinity.
pub fn first_non_finite(exec: &Exec<'_>, values: &[f32]) -> Result<Option<usize>> {
    let found = exec.map_parts(values.len().div_ceil(PART), |part| {
        let start = part * PART;
        let values = &values[start..values.len().min(start + PART)];
        Ok(exec.level().run(FirstNonFinite(values)).map(|index| start + index))
    })?;
    Ok(found.into_iter().flatten().next())
}

/// [`Error::NonFinite`] under the name `argument` if there is a NaN or an infinity.
pub fn require_finite(exec: &Exec<'_>, argument: &str, values: &[f32]) -> Result<()> {
    match first_non_finite(exec, values)? {
        Some(index) => Err(Error::NonFinite { argument: argument.into(), index, value: values[index] }),
        None => Ok(()),
    }
}

/// What is summed of every value: terms that are never -0.
trait Terms<const S: usize> {
    /// Adds the terms of consecutive values, the first of which belongs to lane 0.
    fn add(lanes: &mut [[f64; LANES]; S], values: &[f32]);
}

struct Magnitudes;

impl Terms<1> for Magnitudes {
    #[inline(always)]
    fn add([lanes]: &mut [[f64; LANES]; 1], values: &[f32]) {
        add::<LANES_AT_ONCE>(lanes, values, |value| f64::from(value.abs()));
    }
}

struct Squares;

impl Terms<1> for Squares {
    #[inline(always)]
    fn add([lanes]: &mut [[f64; LANES]; 1], values: &[f32]) {
        add::<LANES_AT_ONCE>(lanes, values, |value| f64::from(value) * f64::from(value));
    }
}

struct MagnitudesAndSquares;

impl Terms<2> for MagnitudesAndSquares {
    #[inline(always)]
    fn add([magnitudes, squares]: &mut [[f64; LANES]; 2], values: &[f32]) {
        // One after the other, from the first-level cache: side by side, the lanes do not stay in registers.
        Magnitudes::add(std::array::from_mut(magnitudes), values);
        Squares::add(std::array::from_mut(squares), values);
    }
}

fn sums<const S: usize, T: Terms<S>>(exec: &Exec<'_>, values: &[f32]) -> Result<[f64; S]> {
    over_parts(exec, values, &mut nothing(values), |_, values, out| {
        part::<S, T, _>(exec, values, out, |_| ())
    })
}

/// Places for what values become where that is nothing: they take no memory.
fn nothing(values: &[f32]) -> Vec<()> {
    vec![(); values.len()]
}

/// What `sums(start, values, out)` gives for every part, added in the order of this module.
fn over_parts<const S: usize, B: Send>(
    exec: &Exec<'_>,
    values: &[f32],
    out: &mut [B],
    sums: impl Fn(usize, &[f32], &mut [B]) -> [f64; S] + Send + Sync,
) -> Result<[f64; S]> {
    check_len(values.len(), out.len())?;
    if values.len() <= PART {
        exec.check()?;
        return Ok(sums(0, values, out));
    }
    let mut parts = exec.map_chunks_mut(out, PART, |part, out| {
        let start = part * PART;
        Ok(sums(start, &values[start..][..out.len()], out))
    })?;
    Ok(pairwise(&mut parts))
}

/// Adds sums of blocks, or of the same power of two of blocks each, by adjacent pairs until one is left; 0 when there is
/// none.
#[inline(always)]
pub(crate) fn pairwise<const S: usize>(sums: &mut [[f64; S]]) -> [f64; S] {
    let mut len = sums.len();
    if len == 0 {
        return [0.0; S];
    }
    while len > 1 {
        for pair in 0..len / 2 {
            let (mut sum, right) = (sums[2 * pair], sums[2 * pair + 1]);
            for (sum, right) in sum.iter_mut().zip(right) {
                *sum += right;
            }
            sums[pair] = sum;
        }
        if len % 2 == 1 {
            sums[len / 2] = sums[len - 1];
        }
        len = len.div_ceil(2);
    }
    sums[0]
}

fn part<const S: usize, T: Terms<S>, B>(
    exec: &Exec<'_>,
    values: &[f32],
    out: &mut [B],
    map: impl Fn(f32) -> B + Copy,
) -> [f64; S] {
    exec.level().run(PartSums { values, out, map, terms: PhantomData::<[T; S]> })
}

struct PartSums<'a, const S: usize, B, M, T> {
    values: &'a [f32],
    out: &'a mut [B],
    map: M,
    terms: PhantomData<[T; S]>,
}

impl<const S: usize, B, M: Fn(f32) -> B + Copy, T: Terms<S>> Kernel for PartSums<'_, S, B, M, T> {
    type Output = [f64; S];

    #[inline(always)]
    fn run(self) -> [f64; S] {
        let map = self.map;
        let (blocks, rest) = self.values.as_chunks::<BLOCK>();
        let (out, out_rest) = self.out.as_chunks_mut::<BLOCK>();
        let half = blocks.len() / 2;
        let (first, second) = blocks.split_at(half);
        let (out_first, out_second) = out.split_at_mut(half);
        let mut sums = [[0.0; S]; PART_BLOCKS];
        for index in 0..half {
            let outs = [&mut out_first[index], &mut out_second[index]];
            let pair = pair_sums::<S, T, B>([&first[index], &second[index]], outs, map);
            [sums[index], sums[half + index]] = pair;
        }
        let mut count = 2 * half;
        let last = second.get(half).zip(out_second.get_mut(half));
        let last = last.map(|(values, out)| (values.as_slice(), out.as_mut_slice()));
        for (values, out) in last.into_iter().chain([(rest, out_rest)]) {
            if !values.is_empty() {
                let mut lanes = [[0.0; LANES]; S];
                write(values, out, map);
                T::add(&mut lanes, values);
                sums[count] = lane_sums(lanes);
                count += 1;
            }
        }
        pairwise(&mut sums[..count])
    }
}

/// The sums of two whole blocks.
#[inline(always)]
fn pair_sums<const S: usize, T: Terms<S>, B>(
    [first, second]: [&[f32; BLOCK]; 2],
    [out_first, out_second]: [&mut [B; BLOCK]; 2],
    map: impl Fn(f32) -> B + Copy,
) -> [[f64; S]; 2] {
    let (first, second) = (first.as_chunks::<TURN>().0, second.as_chunks::<TURN>().0);
    let out_first = out_first.as_chunks_mut::<TURN>().0;
    let out_second = out_second.as_chunks_mut::<TURN>().0;
    let mut lanes_first = [[0.0; LANES]; S];
    let mut lanes_second = [[0.0; LANES]; S];
    for (((first, second), out_first), out_second) in first.iter().zip(second).zip(out_first).zip(out_second)
    {
        write(first, out_first, map);
        write(second, out_second, map);
        T::add(&mut lanes_first, first);
        T::add(&mut lanes_second, second);
    }
    [lane_sums(lanes_first), lane_sums(lanes_second)]
}

/// The sum of up to [`BLOCK`] values.
#[inline(always)]
pub(crate) fn block_sum<F: Fn(f32) -> f64 + Copy>(block: &[f32], term: F) -> f64 {
    // Fewer at once than above: a term may need registers of its own.
    const LANES_AT_ONCE: usize = 16;
    let mut lanes = [0.0; LANES];
    add::<LANES_AT_ONCE>(&mut lanes, block, term);
    let [sum] = lane_sums([lanes]);
    sum
}

#[inline(always)]
fn write<B>(values: &[f32], out: &mut [B], map: impl Fn(f32) -> B) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out = map(value);
    }
}

/// Adds the terms of consecutive values to their lanes, ascending.
#[inline(always)]
fn add<const AT_ONCE: usize>(lanes: &mut [f64; LANES], values: &[f32], term: impl Fn(f32) -> f64) {
    let (rows, rest) = values.as_chunks::<LANES>();
    for (group, lanes) in lanes.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let mut sums = *lanes;
        for row in rows {
            let row = &row.as_chunks::<AT_ONCE>().0[group];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += term(value);
            }
        }
        *lanes = sums;
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += term(value);
    }
}

#[inline(always)]
fn lane_sums<const S: usize>(mut lanes: [[f64; LANES]; S]) -> [f64; S] {
    let mut sums = [0.0; S];
    for (sum, lanes) in sums.iter_mut().zip(&mut lanes) {
        [*sum] = pairwise(lanes.as_chunks_mut::<1>().0);
    }
    sums
}

struct FirstNonFinite<'a>(&'a [f32]);

impl Kernel for FirstNonFinite<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        // Looked for first, in two streams as the sums are; its place only when there is one.
        let (rows, rest) = self.0.as_chunks::<LANES>();
        let (first, second) = rows.split_at(rows.len() / 2);
        let mut found = non_finite(rest);
        for (first, second) in first.iter().zip(second) {
            found |= non_finite(first) | non_finite(second);
        }
        found |= non_finite(second[first.len()..].as_flattened());
        if found { self.0.iter().position(|value| !value.is_finite()) } else { None }
    }
}

/// Without an early end: a pass of wide comparisons.
#[inline(always)]
fn non_finite(values: &[f32]) -> bool {
    let mut found = false;
    for value in values {
        found |= !value.is_finite();
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        BLOCK, LANES, PART, block_sum, first_non_finite, norm, norm_and_fill, norm_and_map, sum_abs,
        sum_squares, sums_abs_and_squares,
    };
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;

    /// The order of the module's first paragraph, one addition after the other.
    fn plain(terms: &[f64]) -> f64 {
        fn level_by_level(mut values: Vec<f64>) -> f64 {
            while values.len() > 1 {
                values =
                    values.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap()).collect();
            }
            values.first().copied().unwrap_or(0.0)
        }
        let blocks = terms.chunks(BLOCK).map(|block| {
            let mut lanes = vec![0.0; LANES];
            for (i, term) in block.iter().enumerate() {
                lanes[i % LANES] += term;
            }
            level_by_level(lanes)
        });
        level_by_level(blocks.collect())
    }

    /// Lengths that no register divides, and those around the ends of blocks, pairs of blocks and parts.
    pub(crate) fn lengths() -> impl Iterator<Item = usize> {
        let blocks = [4095, 4096, 4097, 8191, 8192, 8193, 12288, 12289];
        let parts = [PART - BLOCK - 3, PART - 1, PART, PART + 1, 3 * PART + BLOCK + 5];
        (0..140).chain(blocks).chain(parts)
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i as f32) * 0.618).sin() * (1.0 + (i % 97) as f32)).collect()
    }

    #[test]
    fn sums_have_the_bits_of_the_written_order_everywhere() {
        for len in lengths() {
            let values = values(len);
            let abs = plain(&values.iter().map(|v| f64::from(v.abs())).collect::<Vec<_>>());
            let squares = plain(&values.iter().map(|&v| f64::from(v) * f64::from(v)).collect::<Vec<_>>());
            everywhere(|exec| {
                assert_eq!(sum_abs(exec, &values).unwrap().to_bits(), abs.to_bits(), "{len}");
                assert_eq!(sum_squares(exec, &values).unwrap().to_bits(), squares.to_bits(), "{len}");
                assert_eq!(norm(exec, &values).unwrap().to_bits(), squares.sqrt().to_bits(), "{len}");
                assert_eq!(sums_abs_and_squares(exec, &values).unwrap(), [abs, squares], "{len}");
            });
            if len <= BLOCK {
                assert_eq!(block_sum(&values, |value| f64::from(value.abs())).to_bits(), abs.to_bits());
            }
        }
    }

    #[test]
    fn every_value_is_mapped_to_its_own_place_beside_the_norm() {
        everywhere(|exec| {
            for len in lengths() {
                let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
                let wanted = norm(exec, &values).unwrap();
                let mut out = vec![9; len];
                let found = norm_and_map(exec, &values, &mut out, |value| value as u32 + 1).unwrap();
                assert!(out.iter().zip(1..).all(|(&got, want)| got == want), "{len}");
                assert_eq!(found.to_bits(), wanted.to_bits());
                let fill = |start: usize, values: &[f32], out: &mut [u32]| {
                    assert_eq!(values[0], start as f32);
                    out.fill(start as u32);
                };
                if len > 0 {
                    let found = norm_and_fill(exec, &values, &mut out, fill).unwrap();
                    assert!(
                        out.chunks(PART).zip(0..).all(|(part, i)| part.iter().all(|&o| o == i * PART as u32))
                    );
                    assert_eq!(found.to_bits(), wanted.to_bits());
                }
            }
        });
    }

    #[test]
    fn sums_do_not_depend_on_where_the_slice_starts_in_memory() {
        let values = values(5000);
        for start in 1..9 {
            let exec = Exec::serial(SimdLevel::detected());
            let moved = sum_abs(&exec, &values[start..]).unwrap();
            let copy = values[start..].to_vec();
            let fresh = sum_abs(&exec, &copy).unwrap();
            assert_eq!(moved.to_bits(), fresh.to_bits());
        }
    }

    #[test]
    fn ones_are_counted_beyond_the_last_whole_float32() {
        let count = (1 << 24) + (1 << 20);
        let ones = vec![1.0; count];
        assert_eq!(sum_abs(&Exec::serial(SimdLevel::detected()), &ones).unwrap(), count as f64);
    }

    #[test]
    fn squares_of_the_largest_values_do_not_overflow() {
        let exec = Exec::serial(SimdLevel::detected());
        let power = 2.0_f32.powi(127);
        assert_eq!(norm(&exec, &vec![power; 10_000]).unwrap(), 100.0 * f64::from(power));
        let largest = vec![f32::MAX; 10_000];
        assert!(sum_squares(&exec, &largest).unwrap().is_finite());
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = largest.clone();
            values[7000] = poison;
            assert!(!sum_squares(&exec, &values).unwrap().is_finite());
        }
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_found_everywhere() {
        let len = 2 * PART + 77;
        let mut values = values(len);
        values[0] = f32::MAX;
        values[1] = f32::from_bits(1);
        everywhere(|exec| assert_eq!(first_non_finite(exec, &values).unwrap(), None));
        for (index, value) in
            [(len - 1, f32::NAN), (300_000, f32::NEG_INFINITY), (4096, f32::INFINITY), (3, f32::NAN)]
        {
            values[index] = value;
            everywhere(|exec| assert_eq!(first_non_finite(exec, &values).unwrap(), Some(index)));
        }
        assert_eq!(first_non_finite(&Exec::serial(SimdLevel::Scalar), &[]).unwrap(), None);
    }
}
