//! Gradients made small: projected by a matrix that both ends regenerate from a seed, then quantised.

pub mod dense;
