//! Matrix products in a stated order.
//!
//! Every element of the result is one chain of fused multiply-adds over the inner index, ascending, from zero; the
//! chain is then added to zero, or to what was there. How rows and columns are blocked never shows.
//!
//! The right operand is packed into panels of [`PANEL`] columns (the last one filled up with zeros), so that the inner
//! loop reads one row of a panel and broadcasts one element of each of the rows it works on:
//!
//! ```text
//!   right (depth x columns)          panels
//!   r00 r01 ... r0n                  [r00 .. r0p][r10 .. r1p] ... | [r0p+1 .. ]
//! ```

use crate::base::error::Result;
use crate::base::exec::Exec;
use crate::base::simd::{Kernel, SimdLevel};

/// Columns of a panel: one AVX-512 register, two of AVX2.
pub const PANEL: usize = 16;

/// How many multiply-adds one thread does before a second one pays.
const SPLIT_ABOVE: usize = 4_000_000;

/// How many floats the panels of a matrix take.
pub fn panels_len(depth: usize, columns: usize) -> usize {
    depth * columns.div_ceil(PANEL) * PANEL
}

struct Pack<'a> {
    matrix: &'a [f32],
    depth: usize,
    columns: usize,
    panels: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (p, panel) in self.panels.chunks_exact_mut(self.depth * PANEL).enumerate() {
            let first = p * PANEL;
            let width = PANEL.min(self.columns - first);
            for (row, source) in panel.chunks_exact_mut(PANEL).zip(self.matrix.chunks_exact(self.columns)) {
                row[..width].copy_from_slice(&source[first..first + width]);
                row[width..].fill(0.0);
            }
        }
    }
}

struct PackTransposed<'a> {
    matrix: &'a [f32],
    depth: usize,
    columns: usize,
    panels: &'a mut [f32],
}

impl Kernel for PackTransposed<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (p, panel) in self.panels.chunks_exact_mut(self.depth * PANEL).enumerate() {
            let first = p * PANEL;
            let width = PANEL.min(self.columns - first);
            if width < PANEL {
                panel.fill(0.0);
            }
            for (column, source) in
                self.matrix[first * self.depth..].chunks_exact(self.depth).take(width).enumerate()
            {
                for (row, &value) in panel.chunks_exact_mut(PANEL).zip(source) {
                    row[column] = value;
                }
            }
        }
    }
}

/// Packs a matrix (depth, columns).
pub fn pack(level: SimdLevel, matrix: &[f32], depth: usize, columns: usize, panels: &mut [f32]) {
    if depth * columns > 0 {
        level.run(Pack { matrix, depth, columns, panels });
    }
}

/// Packs the transpose (depth, columns) of a matrix (columns, depth).
pub fn pack_transposed(level: SimdLevel, matrix: &[f32], depth: usize, columns: usize, panels: &mut [f32]) {
    if depth * columns > 0 {
        level.run(PackTransposed { matrix, depth, columns, panels });
    }
}

/// The left operand: its elements, and whether it is stored transposed (depth, rows).
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// Elements in C order.
    pub matrix: &'a [f32],
    /// Whether they are stored as (depth, rows).
    pub transposed: bool,
}

/// The sizes of a product.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Rows of the result.
    pub rows: usize,
    /// The inner length.
    pub depth: usize,
    /// Columns of the result.
    pub columns: usize,
}

struct Multiply<'a, const ROWS: usize> {
    left: Left<'a>,
    sizes: Sizes,
    panels: &'a [f32],
    /// First row of the result, when `out` holds some of the rows.
    first_row: usize,
    out: &'a mut [f32],
    accumulate: bool,
}

// The sums of a block stay in registers only as long as nothing takes their address: they are indexed by constants,
// returned and stored by value, and the two layouts of the left operand have a loop each.

#[inline(always)]
fn block<const R: usize>(
    left: &[f32],
    sizes: Sizes,
    row: usize,
    panel: &[[f32; PANEL]],
) -> [[f32; PANEL]; R] {
    let depth = sizes.depth;
    let mut rows = [&left[..0]; R];
    for r in 0..R {
        rows[r] = &left[(row + r) * depth..][..depth];
    }
    let panel = &panel[..depth];
    let mut sums = [[0.0_f32; PANEL]; R];
    for d in 0..depth {
        let right = panel[d];
        for r in 0..R {
            let left = rows[r][d];
            for c in 0..PANEL {
                sums[r][c] = left.mul_add(right[c], sums[r][c]);
            }
        }
    }
    sums
}

#[inline(always)]
fn block_transposed<const R: usize>(
    left: &[f32],
    sizes: Sizes,
    row: usize,
    panel: &[[f32; PANEL]],
) -> [[f32; PANEL]; R] {
    let mut sums = [[0.0_f32; PANEL]; R];
    for (right, left) in panel.iter().zip(left.chunks_exact(sizes.rows)) {
        let Some(left) = left[row..].first_chunk::<R>() else { return sums };
        for r in 0..R {
            let left = left[r];
            for c in 0..PANEL {
                sums[r][c] = left.mul_add(right[c], sums[r][c]);
            }
        }
    }
    sums
}

/// Writes a block's sums to rows of `out`, or adds them, from a column on.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // constant indices keep the sums in registers
fn store<const R: usize>(
    sums: [[f32; PANEL]; R],
    row: usize,
    first: usize,
    columns: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    let width = PANEL.min(columns - first);
    for r in 0..R {
        let start = (row + r) * columns + first;
        if width == PANEL {
            let Some(out) = out[start..].first_chunk_mut::<PANEL>() else { return };
            let mut whole = if accumulate { *out } else { [0.0; PANEL] };
            for c in 0..PANEL {
                whole[c] += sums[r][c];
            }
            *out = whole;
        } else {
            let mut whole = [0.0_f32; PANEL];
            whole.copy_from_slice(&sums[r]);
            for (out, sum) in out[start..start + width].iter_mut().zip(whole) {
                *out = if accumulate { *out } else { 0.0 } + sum;
            }
        }
    }
}

impl<const ROWS: usize> Kernel for Multiply<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { left, sizes, panels, first_row, out, accumulate } = self;
        let Sizes { depth, columns, .. } = sizes;
        let rows = out.len() / columns;
        let (panels, _) = panels.as_chunks::<PANEL>();
        for (p, panel) in panels.chunks_exact(depth).enumerate() {
            let first = p * PANEL;
            let mut row = 0;
            while row + ROWS <= rows {
                let source = first_row + row;
                let sums: [_; ROWS] = if left.transposed {
                    block_transposed(left.matrix, sizes, source, panel)
                } else {
                    block(left.matrix, sizes, source, panel)
                };
                store(sums, row, first, columns, out, accumulate);
                row += ROWS;
            }
            while row < rows {
                let source = first_row + row;
                let sums: [_; 1] = if left.transposed {
                    block_transposed(left.matrix, sizes, source, panel)
                } else {
                    block(left.matrix, sizes, source, panel)
                };
                store(sums, row, first, columns, out, accumulate);
                row += 1;
            }
        }
    }
}

/// `out = left * right`, or `out += left * right`, with the right operand packed.
pub fn multiply(
    exec: &Exec<'_>,
    left: Left<'_>,
    panels: &[f32],
    sizes: Sizes,
    out: &mut [f32],
    accumulate: bool,
) -> Result<()> {
    let Sizes { rows, depth, columns } = sizes;
    if rows * columns == 0 {
        return Ok(());
    }
    if depth == 0 {
        if !accumulate {
            out.fill(0.0);
        }
        return Ok(());
    }
    let work_of_a_row = depth * columns;
    let rows_of_a_chunk = (SPLIT_ABOVE / work_of_a_row).div_ceil(8) * 8;
    exec.for_each_chunk_mut(out, rows_of_a_chunk.max(8) * columns, |chunk, out| {
        let first_row = chunk * rows_of_a_chunk.max(8);
        // Eight neighbours of a transposed operand would make LLVM vectorise across the rows at AVX-512, with the sums
        // gathered from the stack and scattered back at every step.
        if exec.level() == SimdLevel::Avx512 && !left.transposed {
            exec.level().run(Multiply::<8> { left, sizes, panels, first_row, out, accumulate });
        } else {
            exec.level().run(Multiply::<4> { left, sizes, panels, first_row, out, accumulate });
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{Left, Sizes, multiply, pack, pack_transposed, panels_len};
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut stream = SplitMix64::new(seed);
        (0..len).map(|_| (2.0 * stream.unit() - 1.0) as f32).collect()
    }

    fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| matrix[(i % rows) * columns + i / rows]).collect()
    }

    /// The stated order, element by element.
    fn chains(left: &[f32], right: &[f32], sizes: Sizes) -> Vec<f32> {
        let Sizes { rows, depth, columns } = sizes;
        let chain = |i: usize| {
            let (row, column) = (i / columns, i % columns);
            (0..depth).fold(0.0_f32, |sum, d| left[row * depth + d].mul_add(right[d * columns + column], sum))
        };
        (0..rows * columns).map(chain).collect()
    }

    #[test]
    fn products_have_the_bits_of_the_stated_chain_at_every_level_and_blocking() {
        for (rows, depth, columns) in [
            (1, 1, 1),
            (8, 30, 100),
            (7, 3, 33),
            (9, 100, 27),
            (13, 17, 16),
            (100, 8, 27),
            (2, 0, 3),
            (0, 4, 5),
        ] {
            let sizes = Sizes { rows, depth, columns };
            let (left, right) = (random(rows * depth, 1), random(depth * columns, 2));
            let want = chains(&left, &right, sizes);
            let flipped = (transposed(&left, rows, depth), transposed(&right, depth, columns));
            for level in SimdLevel::available() {
                let exec = Exec::serial(level);
                let mut panels = vec![f32::NAN; panels_len(depth, columns)];
                pack(level, &right, depth, columns, &mut panels);
                let mut again = panels.clone();
                pack_transposed(level, &flipped.1, depth, columns, &mut again);
                assert_eq!(panels, again);
                for (matrix, transposed) in [(&left, false), (&flipped.0, true)] {
                    let left = Left { matrix, transposed };
                    let mut out = vec![f32::NAN; rows * columns];
                    multiply(&exec, left, &panels, sizes, &mut out, false).unwrap();
                    assert_eq!(out, want);
                    multiply(&exec, left, &panels, sizes, &mut out, true).unwrap();
                    assert_eq!(out, want.iter().map(|x| x + x).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn a_chain_that_ends_in_minus_zero_looks_the_same_in_every_column() {
        let mut panels = vec![0.0; panels_len(1, 17)];
        pack(SimdLevel::detected(), &[-1e-30; 17], 1, 17, &mut panels);
        let (left, mut out) = (Left { matrix: &[1e-30], transposed: false }, vec![1.0; 17]);
        let sizes = Sizes { rows: 1, depth: 1, columns: 17 };
        multiply(&Exec::serial(SimdLevel::detected()), left, &panels, sizes, &mut out, false).unwrap();
        assert!(out.iter().all(|value| value.to_bits() == 0));
    }

    #[test]
    fn threads_do_not_show() {
        let sizes = Sizes { rows: 103, depth: 300, columns: 400 };
        let (left, right) = (random(103 * 300, 1), random(300 * 400, 2));
        let want = chains(&left, &right, sizes);
        let mut panels = vec![0.0; panels_len(300, 400)];
        pack(SimdLevel::detected(), &right, 300, 400, &mut panels);
        let cancel = std::sync::atomic::AtomicBool::new(false);
        for threads in 1..4 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let exec = Exec::new(SimdLevel::detected(), Some(&pool), &cancel);
            let mut out = vec![0.0; 103 * 400];
            let left = Left { matrix: &left, transposed: false };
            multiply(&exec, left, &panels, sizes, &mut out, false).unwrap();
            assert_eq!(out, want);
        }
    }
}
