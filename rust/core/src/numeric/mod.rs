//! Numbers over slices, the same to the bit at every level and thread count.

pub mod clip;
pub mod elementary;
pub mod reduce;
