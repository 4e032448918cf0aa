//! The core of `tritter_accel`: seeded gradient compression and a reproducible training engine, free of Python.
//!
//! Five floors, and arrows run downward only:
//!
//! | floor | promise |
//! |---|---|
//! | [`train`] | shards of a batch side by side over one parameter state, one fixed tree, one step |
//! | [`exchange`] | gradients reach other workers as messages; what a message cannot say is owed to the next |
//! | [`codec`], [`engine`] | projection and quantisation of gradients; tape, network, run and gradients |
//! | [`numeric`] | elementary functions, fixed-order reductions, bfloat16, clipping, loss scaling, accumulation |
//! | [`base`] | errors, instruction-set levels, random streams, threads |
//!
//! Every result is the same to the bit for every [`base::simd::SimdLevel`] and every number of threads.

pub mod base;
pub mod codec;
pub mod engine;
pub mod exchange;
pub mod numeric;
pub mod train;
