//! Sums and finite checks over long vectors, in one fixed order of float64 additions.
//!
//! Element `i` of a 4096-block goes to lane `i % 64`, ascending; the 64 lanes are added by adjacent pairs, then the
//! blocks are, an odd one at the end of a level being carried up as it is. The order depends on the length alone, so
//! the bits are the same at every level and thread count, and the lanes keep the adders busy: one running float32 sum
//! in index order is slower than memory, and sticks at 2^24 when it adds ones.

use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::Kernel;

const LANES: usize = 64;
/// Values of a block.
pub(crate) const BLOCK: usize = 4096;
/// Blocks in a part that one thread sums: a power of two, so that a part is a subtree of the whole.
const PART_BLOCKS: usize = 64;
/// Lanes summed at a time: few enough for their sums to stay in registers.
const LANES_AT_ONCE: usize = 16;

/// The sum of the magnitudes.
pub fn sum_abs(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    fixed_order_sum(exec, values, |value| f64::from(value.abs()))
}

/// The sum of the squares, each exact in float64. Finite if and only if all values are.
pub fn sum_squares(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    fixed_order_sum(exec, values, |value| f64::from(value) * f64::from(value))
}

/// The Euclidean norm.
pub fn norm(exec: &Exec<'_>, values: &[f32]) -> Result<f64> {
    sum_squares(exec, values).map(f64::sqrt)
}

/// The index of the first NaN or infinity.
pub fn first_non_finite(exec: &Exec<'_>, values: &[f32]) -> Result<Option<usize>> {
    let part_len = PART_BLOCKS * BLOCK;
    let found = exec.map_parts(values.len().div_ceil(part_len), |part| {
        let start = part * part_len;
        let values = &values[start..values.len().min(start + part_len)];
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

/// The sum of `term(value)` in the order of this module. `term` must not return -0.
pub(crate) fn fixed_order_sum<F>(exec: &Exec<'_>, values: &[f32], term: F) -> Result<f64>
where
    F: Fn(f32) -> f64 + Copy + Send + Sync,
{
    #[inline(always)]
    fn one<F: Fn(f32) -> f64 + Copy>(term: F) -> impl Fn(&[f32]) -> [f64; 1] + Copy {
        #[inline(always)]
        move |block| [block_sum(block, term)]
    }
    let [sum] = sums_of_blocks(exec, values, one(term))?;
    Ok(sum)
}

/// The sums of the magnitudes and of the squares, in one read.
pub(crate) fn sums_abs_and_squares(exec: &Exec<'_>, values: &[f32]) -> Result<[f64; 2]> {
    sums_of_blocks(
        exec,
        values,
        #[inline(always)]
        |block| {
            // One after the other, from the first-level cache: side by side, the lanes do not stay in registers.
            let magnitudes = block_sum(block, |value| f64::from(value.abs()));
            let squares = block_sum(block, |value| f64::from(value) * f64::from(value));
            [magnitudes, squares]
        },
    )
}

/// What `sums` gives for every block, added in the order of this module.
fn sums_of_blocks<const S: usize, F>(exec: &Exec<'_>, values: &[f32], sums: F) -> Result<[f64; S]>
where
    F: Fn(&[f32]) -> [f64; S] + Copy + Send + Sync,
{
    let part_len = PART_BLOCKS * BLOCK;
    if values.len() <= part_len {
        return Ok(exec.level().run(PartSums { values, sums }));
    }
    let mut parts = exec.map_parts(values.len().div_ceil(part_len), |part| {
        let start = part * part_len;
        let values = &values[start..values.len().min(start + part_len)];
        Ok(exec.level().run(PartSums { values, sums }))
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

struct PartSums<'a, F> {
    values: &'a [f32],
    sums: F,
}

impl<const S: usize, F: Fn(&[f32]) -> [f64; S]> Kernel for PartSums<'_, F> {
    type Output = [f64; S];

    #[inline(always)]
    fn run(self) -> [f64; S] {
        let mut blocks = [[0.0; S]; PART_BLOCKS];
        let mut count = 0;
        for block in self.values.chunks(BLOCK) {
            blocks[count] = (self.sums)(block);
            count += 1;
        }
        pairwise(&mut blocks[..count])
    }
}

/// The sum of up to [`BLOCK`] values.
#[inline(always)]
pub(crate) fn block_sum<F: Fn(f32) -> f64 + Copy>(block: &[f32], term: F) -> f64 {
    let (rows, rest) = block.as_chunks::<LANES>();
    let mut lanes = [[0.0]; LANES];
    for (group, lanes) in lanes.as_chunks_mut::<LANES_AT_ONCE>().0.iter_mut().enumerate() {
        let mut sums = [0.0; LANES_AT_ONCE];
        for row in rows {
            let row = &row.as_chunks::<LANES_AT_ONCE>().0[group];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += term(value);
            }
        }
        for (lane, sum) in lanes.iter_mut().zip(sums) {
            *lane = [sum];
        }
    }
    for ([lane], &value) in lanes.iter_mut().zip(rest) {
        *lane += term(value);
    }
    let [sum] = pairwise(&mut lanes);
    sum
}

struct FirstNonFinite<'a>(&'a [f32]);

impl Kernel for FirstNonFinite<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        for (index, block) in self.0.chunks(BLOCK).enumerate() {
            // Without an early end, so that the block is one pass of wide comparisons.
            if block.iter().fold(false, |found, value| found | !value.is_finite()) {
                let inside = block.iter().position(|value| !value.is_finite());
                return inside.map(|inside| index * BLOCK + inside);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, LANES, PART_BLOCKS, first_non_finite, norm, sum_abs, sum_squares};
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

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i as f32) * 0.618).sin() * (1.0 + (i % 97) as f32)).collect()
    }

    #[test]
    fn sums_have_the_bits_of_the_written_order_everywhere() {
        let part = PART_BLOCKS * BLOCK;
        let lengths =
            (0..140).chain([4095, 4096, 4097, 8192, 12289, part - 1, part, part + 1, 3 * part + BLOCK + 5]);
        for len in lengths {
            let values = values(len);
            let abs = plain(&values.iter().map(|v| f64::from(v.abs())).collect::<Vec<_>>());
            let squares = plain(&values.iter().map(|&v| f64::from(v) * f64::from(v)).collect::<Vec<_>>());
            everywhere(|exec| {
                assert_eq!(sum_abs(exec, &values).unwrap().to_bits(), abs.to_bits(), "{len}");
                assert_eq!(sum_squares(exec, &values).unwrap().to_bits(), squares.to_bits(), "{len}");
                assert_eq!(norm(exec, &values).unwrap().to_bits(), squares.sqrt().to_bits(), "{len}");
            });
        }
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
        let len = 2 * PART_BLOCKS * BLOCK + 77;
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
