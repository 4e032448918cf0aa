//! What every other floor stands on: errors, instruction-set levels, threads, memory and random streams.

pub mod chacha;
pub mod error;
pub mod exec;
pub mod memory;
pub mod simd;
pub mod splitmix;
pub mod threads;
