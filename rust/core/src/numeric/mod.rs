//! Numbers over slices, the same to the bit at every level and thread count.

pub mod accumulator;
pub mod bf16;
pub mod clip;
pub mod elementary;
pub(crate) mod elementwise;
pub mod finite;
pub mod loss_scaler;
pub mod reduce;

pub use elementwise::Target;
