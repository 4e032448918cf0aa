//! Gradients made small: projected by a matrix that both ends regenerate from a seed, then quantised.

pub mod compressor;
pub mod config;
pub mod dense;
pub mod many;
pub mod plan;
pub mod ternary;
