//! Sums over axes, repetition along axes, and permutation of axes.
//!
//! Neighbouring axes that are treated alike are merged first, so that the inner loop is as long as it can be.

use crate::base::simd::{Kernel, SimdLevel};

/// Lanes of a row's sum: element i goes to lane i mod 16, lanes are combined pairwise.
const LANES: usize = 16;

/// Elements that are summed in f32 before the sum goes on in f64.
const BLOCK: usize = 4096;

struct RowSum<'a>(&'a [f32]);

impl Kernel for RowSum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        row_sum(self.0)
    }
}

/// The sum of a row of any length, in its fixed order.
#[inline(always)]
pub fn row_sum(row: &[f32]) -> f32 {
    if row.len() <= BLOCK {
        return block_sum(row);
    }
    row.chunks(BLOCK).map(|block| f64::from(block_sum(block))).sum::<f64>() as f32
}

#[inline(always)]
fn block_sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += value;
    }
    pairwise(lanes)
}

/// The sum of sixteen lanes: ((0+1)+(2+3))+...
#[inline(always)]
pub fn pairwise(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = lanes[2 * lane] + lanes[2 * lane + 1];
        }
        width /= 2;
    }
    lanes[0]
}

/// Lengths of merged axes, each with whether it is one of the marked ones.
fn merged(sizes: &[usize], marked: impl Fn(usize) -> bool) -> Vec<(usize, bool)> {
    let mut axes: Vec<(usize, bool)> = Vec::with_capacity(sizes.len());
    for (axis, &size) in sizes.iter().enumerate() {
        match axes.last_mut() {
            Some(last) if last.1 == marked(axis) || size == 1 => last.0 *= size,
            Some(last) if last.0 == 1 => *last = (size, marked(axis)),
            _ => axes.push((size, marked(axis))),
        }
    }
    axes
}

/// Calls `body(full, kept)` for every row along the last merged axis: offsets into the array with all axes, and into
/// the one without the marked axes.
fn for_each_row(axes: &[(usize, bool)], mut body: impl FnMut(usize, usize)) {
    let Some((&(inner, inner_marked), outer)) = axes.split_last() else {
        return;
    };
    let mut strides = vec![0; outer.len()];
    let mut kept = if inner_marked { 1 } else { inner };
    for (stride, &(size, is_marked)) in strides.iter_mut().zip(outer).rev() {
        if !is_marked {
            *stride = kept;
            kept *= size;
        }
    }
    let rows: usize = outer.iter().map(|axis| axis.0).product();
    let mut index = vec![0; outer.len()];
    let mut place = 0;
    for row in 0..rows {
        body(row * inner, place);
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            place += strides[axis];
            if index[axis] < outer[axis].0 {
                break;
            }
            place -= strides[axis] * outer[axis].0;
            index[axis] = 0;
        }
    }
}

struct AddScaled<'a>(&'a mut [f32], &'a [f32], f32);

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, x) in self.0.iter_mut().zip(self.1) {
            *out = x.mul_add(self.2, *out);
        }
    }
}

/// `out += scale * sum over the marked axes of x`; `out` has the other axes. Rows are added in C order.
pub fn add_sums(
    level: SimdLevel,
    x: &[f32],
    sizes: &[usize],
    marked: impl Fn(usize) -> bool,
    scale: f32,
    out: &mut [f32],
) {
    let axes = merged(sizes, marked);
    let Some(&(inner, inner_marked)) = axes.last() else {
        out[0] = x[0].mul_add(scale, out[0]);
        return;
    };
    if inner == 0 {
        return;
    }
    for_each_row(&axes, |full, kept| {
        let row = &x[full..full + inner];
        if inner_marked {
            out[kept] = level.run(RowSum(row)).mul_add(scale, out[kept]);
        } else {
            level.run(AddScaled(&mut out[kept..kept + inner], row, scale));
        }
    });
}

/// `out = x` (or `out += scale * x`) repeated along the marked axes; `x` has the other axes.
pub fn repeat(
    level: SimdLevel,
    x: &[f32],
    sizes: &[usize],
    marked: impl Fn(usize) -> bool,
    scale_and_add: Option<f32>,
    out: &mut [f32],
) {
    let axes = merged(sizes, marked);
    let Some(&(inner, inner_marked)) = axes.last() else {
        out[0] = scale_and_add.map_or(x[0], |scale| x[0].mul_add(scale, out[0]));
        return;
    };
    if inner == 0 {
        return;
    }
    for_each_row(&axes, |full, kept| {
        let row = &mut out[full..full + inner];
        match (scale_and_add, inner_marked) {
            (None, true) => row.fill(x[kept]),
            (None, false) => row.copy_from_slice(&x[kept..kept + inner]),
            (Some(scale), true) => {
                let value = x[kept] * scale;
                for out in row {
                    *out += value;
                }
            }
            (Some(scale), false) => level.run(AddScaled(row, &x[kept..kept + inner], scale)),
        }
    });
}

/// Calls `body(destination, source)` for every element of an array of `sizes` whose axis i is axis `permutation[i]`
/// of the source.
pub fn for_each_permuted(sizes: &[usize], permutation: &[usize], mut body: impl FnMut(usize, usize)) {
    let rank = sizes.len();
    let mut source_sizes = vec![0; rank];
    for (axis, &from) in permutation.iter().enumerate() {
        source_sizes[from] = sizes[axis];
    }
    let mut source_strides = vec![1; rank];
    for axis in (0..rank.saturating_sub(1)).rev() {
        source_strides[axis] = source_strides[axis + 1] * source_sizes[axis + 1];
    }
    let strides: Vec<usize> = permutation.iter().map(|&from| source_strides[from]).collect();
    let mut index = vec![0; rank];
    let mut source = 0;
    for destination in 0..sizes.iter().product() {
        body(destination, source);
        for axis in (0..rank).rev() {
            index[axis] += 1;
            source += strides[axis];
            if index[axis] < sizes[axis] {
                break;
            }
            source -= strides[axis] * sizes[axis];
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{add_sums, for_each_permuted, repeat};
    use crate::base::simd::SimdLevel;

    /// Marked and kept axes by plain index arithmetic.
    fn kept_place(mut flat: usize, sizes: &[usize], marked: &[bool]) -> usize {
        let mut index = vec![0; sizes.len()];
        for axis in (0..sizes.len()).rev() {
            index[axis] = flat % sizes[axis];
            flat /= sizes[axis];
        }
        let kept = (0..sizes.len()).filter(|&axis| !marked[axis]);
        kept.fold(0, |place, axis| place * sizes[axis] + index[axis])
    }

    #[test]
    fn sums_and_repetitions_agree_with_index_arithmetic() {
        for sizes in
            [vec![], vec![5], vec![3, 4], vec![2, 3, 4], vec![2, 1, 3, 5], vec![1, 1], vec![7, 20, 1]]
        {
            let total: usize = sizes.iter().product();
            // Whole numbers, so that the order of additions cannot show.
            let x: Vec<f32> = (0..total).map(|i| ((i * 7) % 23) as f32).collect();
            for mask in 0..1_u32 << sizes.len() {
                let marked: Vec<bool> = (0..sizes.len()).map(|axis| mask >> axis & 1 == 1).collect();
                let kept: usize =
                    sizes.iter().zip(&marked).filter(|(_, marked)| !**marked).map(|(size, _)| size).product();
                let mut want = vec![0.0_f32; kept];
                for (i, value) in x.iter().enumerate() {
                    want[kept_place(i, &sizes, &marked)] += value;
                }
                for level in SimdLevel::available() {
                    let mut sums = vec![1.0; kept];
                    add_sums(level, &x, &sizes, |axis| marked[axis], 2.0, &mut sums);
                    assert_eq!(sums, want.iter().map(|sum| 1.0 + 2.0 * sum).collect::<Vec<_>>());
                    let mut back = vec![f32::NAN; total];
                    repeat(level, &want, &sizes, |axis| marked[axis], None, &mut back);
                    let repeated: Vec<f32> =
                        (0..total).map(|i| want[kept_place(i, &sizes, &marked)]).collect();
                    assert_eq!(back, repeated);
                    repeat(level, &want, &sizes, |axis| marked[axis], Some(3.0), &mut back);
                    assert_eq!(back, repeated.iter().map(|value| 4.0 * value).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn long_sums_do_not_stick() {
        let ones = vec![1.0_f32; 20_000_000];
        let mut sum = [0.0];
        add_sums(SimdLevel::detected(), &ones, &[ones.len()], |_| true, 1.0, &mut sum);
        assert_eq!(sum, [20_000_000.0]);
    }

    #[test]
    fn permutations_place_every_element() {
        let mut out = vec![0; 6];
        for_each_permuted(&[3, 2], &[1, 0], |to, from| out[to] = from);
        assert_eq!(out, [0, 3, 1, 4, 2, 5]);
        let mut out = vec![0; 24];
        // (2, 3, 4) -> (4, 2, 3)
        for_each_permuted(&[4, 2, 3], &[2, 0, 1], |to, from| out[to] = from);
        let want: Vec<usize> = (0..24).map(|i| (i / 3 % 2) * 12 + (i % 3) * 4 + i / 6).collect();
        assert_eq!(out, want);
    }
}
