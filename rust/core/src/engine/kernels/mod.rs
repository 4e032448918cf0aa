//! The loops behind the operations. Each is one safe body, compiled for every instruction set by
//! [`crate::base::simd::SimdLevel::run`], whose order of additions is written down and never depends on the level.

pub mod axes;
pub mod elementwise;
pub mod matmul;
pub mod rows;
