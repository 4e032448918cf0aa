//! Instruction-set levels, and the one place where safe code is compiled for each of them.
//!
//! A kernel is written once, as safe code over fixed-size lane arrays, and handed to [`SimdLevel::run`], which holds a
//! copy of it compiled for every level and picks one at run time. The body only uses operations that round the same
//! way everywhere (`mul_add` is fused at every level, in software where the CPU lacks it), so the level never shows in
//! a result. Kernels that need instructions by name live in `simd.rs` files of their own.

use std::sync::OnceLock;

/// The widest instruction set a computation may use. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// What every CPU of the architecture has (SSE2 on `x86_64`, NEON on aarch64).
    Scalar,
    /// AVX2 with fused multiply-add: eight floats at a time.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: sixteen floats at a time.
    Avx512,
}

/// A computation that is compiled once for every level.
///
/// `run` must be `#[inline(always)]`, and so must what it calls in its loops: only inlined code is compiled with the
/// caller's instruction set.
pub trait Kernel {
    /// What the computation returns.
    type Output;
    /// The body, the same for every level.
    fn run(self) -> Self::Output;
}

impl SimdLevel {
    /// All levels, narrowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The widest level of this CPU.
    pub fn detected() -> Self {
        static DETECTED: OnceLock<SimdLevel> = OnceLock::new();
        *DETECTED.get_or_init(detect)
    }

    /// The levels this CPU can run, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|&level| level <= Self::detected())
    }

    /// The name used in `TRITTER_ACCEL_SIMD` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Runs the kernel with the instructions of this level, or of the widest one the CPU has below it.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.min(Self::detected()) {
            Self::Scalar => kernel.run(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `detected` found the features that the shell is compiled for.
            Self::Avx2 => unsafe { shells::avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512 => unsafe { shells::avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => kernel.run(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => SimdLevel::Avx512,
        (true, false) => SimdLevel::Avx2,
        (false, _) => SimdLevel::Scalar,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> SimdLevel {
    SimdLevel::Scalar
}

#[cfg(target_arch = "x86_64")]
mod shells {
    use super::Kernel;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run()
    }
}

#[cfg(test)]
mod tests {
    use super::{Kernel, SimdLevel};

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl Kernel for Dot<'_> {
        type Output = f32;
        #[inline(always)]
        fn run(self) -> f32 {
            self.0.iter().zip(self.1).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
        }
    }

    #[test]
    fn names_come_back() {
        for level in SimdLevel::ALL {
            assert_eq!(SimdLevel::from_name(level.name()), Some(level));
        }
        assert_eq!(SimdLevel::from_name("sse9"), None);
    }

    #[test]
    fn fused_multiply_add_has_the_same_bits_at_every_level() {
        let a: Vec<f32> = (0..103).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..103).map(|i| (i as f32 * 0.11).cos()).collect();
        let want = a.iter().zip(&b).fold(0.0_f32, |sum, (x, y)| x.mul_add(*y, sum));
        for level in SimdLevel::ALL {
            assert_eq!(level.run(Dot(&a, &b)).to_bits(), want.to_bits());
        }
    }
}
