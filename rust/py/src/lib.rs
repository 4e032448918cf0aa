//! `tritter_accel._core`: the binding of `tritter-core`.
//!
//! Policy lives in four files, and every other one is thin: extract, run, return.
//!
//! | file | decides |
//! |---|---|
//! | `arguments` | which Python scalars are taken, and what is said of the others |
//! | `arrays` | which arrays are borrowed, and who owns the memory of a result (table at its head) |
//! | `errors` | the Python class of every error of the core |
//! | `run` | when the interpreter lock is released, the threads, Ctrl-C, and that no panic crosses |
#![forbid(unsafe_code)]
// Doc comments of functions and classes are docstrings, in the form Python reads.
#![allow(clippy::doc_markdown)]
// PyO3 hands arguments over by value, and calls methods on an object whether they look at it or not.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]

mod accumulator;
mod arguments;
mod arrays;
mod bf16;
mod clip;
mod compressed;
mod compressor;
mod config;
mod entry;
mod errors;
mod finite;
mod init;
mod loss_scaler;
mod network;
mod parameters;
mod plan;
mod run;
mod shape;
mod splitmix;
mod tape;
mod threads;
mod trainer;
mod wire;

use pyo3::prelude::*;

/// Native part of `tritter_accel`; its names are public through the package's modules.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    threads::register(module)?;
    module.add_class::<splitmix::SplitMix64>()?;
    module.add_class::<init::Initializer>()?;
    module.add_class::<parameters::Parameters>()?;
    shape::register(module)?;
    tape::register(module)?;
    network::register(module)?;
    entry::register(module)?;
    module.add_class::<trainer::Trainer>()?;
    bf16::register(module)?;
    finite::register(module)?;
    loss_scaler::register(module)?;
    accumulator::register(module)?;
    module.add_class::<config::TrainingConfig>()?;
    module.add_class::<compressed::CompressedGradient>()?;
    module.add_class::<compressed::TernaryCompressedGradient>()?;
    module.add_class::<compressor::GradientCompressor>()?;
    module.add_class::<plan::ProjectionPlan>()?;
    wire::register(module)?;
    module.add_function(wrap_pyfunction!(clip::gradient_norm, module)?)?;
    module.add_function(wrap_pyfunction!(clip::clip_gradients, module)?)?;
    module.add_function(wrap_pyfunction!(clip::clip_gradients_, module)?)?;
    Ok(())
}
