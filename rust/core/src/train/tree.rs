//! The tree in which leaves are added: neighbours pairwise, an odd one carried up.
//!
//! Eight leaves give ((0+1)+(2+3))+((4+5)+(6+7)). The shape depends on the number of leaves alone, so that any split of
//! aligned leaves over threads or machines adds up to the same bits.

use crate::base::error::Result;
use crate::base::exec::Exec;
use crate::engine::kernels::elementwise::update;

/// Elements whose whole tree is added while they are in cache.
const BLOCK: usize = 512;

/// The sum of numbers in the tree's order.
pub fn sum(mut leaves: Vec<f64>) -> f64 {
    let mut stride = 1;
    while stride < leaves.len() {
        for i in (0..leaves.len() - stride).step_by(2 * stride) {
            leaves[i] += leaves[i + stride];
        }
        stride *= 2;
    }
    leaves.first().copied().unwrap_or_default()
}

/// Adds leaves, each `len` long and one after another, in the tree's order; the first one becomes the sum.
pub fn add_leaves(exec: &Exec<'_>, leaves: &mut [f32], len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let count = leaves.len() / len;
    for start in (0..len).step_by(BLOCK) {
        let width = BLOCK.min(len - start);
        let mut stride = 1;
        while stride < count {
            for i in (0..count - stride).step_by(2 * stride) {
                let (left, right) = leaves.split_at_mut((i + stride) * len);
                let left = &mut left[i * len + start..][..width];
                update(exec.level(), left, [&right[start..start + width]], |a, [b]| a + b);
            }
            stride *= 2;
        }
    }
    exec.check()
}

#[cfg(test)]
mod tests {
    use super::{add_leaves, sum};
    use crate::base::exec::Exec;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;

    /// The definition: halve the list by adding neighbours until one is left.
    fn by_definition(mut leaves: Vec<Vec<f32>>) -> Vec<f32> {
        while leaves.len() > 1 {
            leaves = leaves
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => a.iter().zip(b).map(|(a, b)| a + b).collect(),
                    _ => pair[0].clone(),
                })
                .collect();
        }
        leaves.remove(0)
    }

    #[test]
    fn leaves_are_added_as_defined_for_every_count() {
        let mut stream = SplitMix64::new(1);
        for count in 1..20 {
            for len in [1, 7, 1300] {
                let leaves: Vec<Vec<f32>> =
                    (0..count).map(|_| (0..len).map(|_| stream.unit() as f32).collect()).collect();
                let mut flat = leaves.concat();
                add_leaves(&Exec::serial(SimdLevel::detected()), &mut flat, len).unwrap();
                assert_eq!(flat[..len], by_definition(leaves)[..]);
            }
        }
        assert_eq!(sum(vec![1e300, -1e300, 1.0, 2.0, 3.0]), 6.0);
        assert_eq!(sum(vec![]), 0.0);
    }
}
