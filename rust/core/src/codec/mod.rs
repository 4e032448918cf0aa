//! Gradients made small: projected or picked, then quantised, then packed into bytes that can be sent.

pub mod compressor;
pub mod config;
pub mod dense;
pub mod hadamard;
pub mod many;
pub mod message;
pub mod pack;
pub mod plan;
pub mod quantizer;
pub mod ternary;
pub mod topk;
