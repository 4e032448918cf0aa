//! The strides of the transform that stay inside a register of eight values, with AVX2.

use std::arch::x86_64::{
    _mm_add_ps, _mm_sub_ps, _mm256_add_ps, _mm256_castps128_ps256, _mm256_castps256_ps128,
    _mm256_extractf128_ps, _mm256_insertf128_ps, _mm256_loadu_ps, _mm256_permute_ps, _mm256_setr_ps,
    _mm256_storeu_ps, _mm256_xor_ps,
};

use crate::base::simd::SimdLevel;

/// Strides 1, 2 and 4 of every eight values; those behind the last eight stay.
///
/// # Panics
/// On a CPU without AVX2.
pub(super) fn small_strides(x: &mut [f32]) {
    assert!(SimdLevel::detected() >= SimdLevel::Avx2);
    // SAFETY: AVX2 is there.
    unsafe { avx2(x) }
}

#[target_feature(enable = "avx2")]
fn avx2(x: &mut [f32]) {
    // The second of each pair is negated: what comes from the first is added to it.
    let pairs = _mm256_setr_ps(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0);
    let quads = _mm256_setr_ps(0.0, 0.0, -0.0, -0.0, 0.0, 0.0, -0.0, -0.0);
    for x in x.as_chunks_mut::<8>().0 {
        // SAFETY: the array holds eight values, and needs no alignment.
        let v = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        let v = _mm256_add_ps(_mm256_xor_ps(v, pairs), _mm256_permute_ps::<0b10_11_00_01>(v));
        let v = _mm256_add_ps(_mm256_xor_ps(v, quads), _mm256_permute_ps::<0b01_00_11_10>(v));
        let (low, high) = (_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let sums = _mm256_castps128_ps256(_mm_add_ps(low, high));
        let v = _mm256_insertf128_ps::<1>(sums, _mm_sub_ps(low, high));
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) };
    }
}
