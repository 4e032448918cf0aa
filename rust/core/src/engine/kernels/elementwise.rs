//! Elementwise loops over one output and any number of inputs of its length.

use crate::base::simd::{Kernel, SimdLevel};

struct Update<'a, const N: usize, F> {
    out: &'a mut [f32],
    inputs: [&'a [f32]; N],
    body: F,
}

impl<const N: usize, F: Fn(f32, [f32; N]) -> f32> Kernel for Update<'_, N, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let len = self.out.len();
        let inputs = self.inputs.map(|input| &input[..len]);
        for (i, out) in self.out.iter_mut().enumerate() {
            let mut values = [0.0; N];
            for n in 0..N {
                values[n] = inputs[n][i];
            }
            *out = (self.body)(*out, values);
        }
    }
}

/// `out[i] = body(out[i], [inputs[0][i], inputs[1][i], ...])`.
pub fn update<const N: usize>(
    level: SimdLevel,
    out: &mut [f32],
    inputs: [&[f32]; N],
    body: impl Fn(f32, [f32; N]) -> f32,
) {
    level.run(Update { out, inputs, body });
}

/// `out[i] = body([inputs[0][i], inputs[1][i], ...])`.
pub fn map<const N: usize>(
    level: SimdLevel,
    out: &mut [f32],
    inputs: [&[f32]; N],
    body: impl Fn([f32; N]) -> f32,
) {
    level.run(Update { out, inputs, body: |_, values| body(values) });
}
