//! Training: the leaves of a batch side by side over one state of the parameters, one fixed tree, one step.

pub mod data;
pub mod trainer;
pub mod tree;
