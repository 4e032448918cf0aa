//! Threads and instruction-set level, as Python sets and reads them.

use pyo3::prelude::*;
use tritter_core::base::threads;

use crate::arguments::usize_argument;
use crate::errors::raise;
use crate::run::simd_level as level_in_use;

/// How many threads the package uses: the number set, or `TRITTER_ACCEL_NUM_THREADS`, `RAYON_NUM_THREADS`,
/// `OMP_NUM_THREADS`, or the cores, whichever is given first.
#[pyfunction]
fn get_num_threads() -> usize {
    threads::get_num_threads()
}

/// Set how many threads the package uses from now on.
///
/// Results do not depend on it. `threads` is a whole number of at least 1; more than 512 count as 512.
#[pyfunction]
fn set_num_threads(threads: &Bound<'_, PyAny>) -> PyResult<()> {
    let threads = usize_argument("threads", threads)?;
    threads::set_num_threads(threads).map_err(raise)
}

/// The instruction set in use, "scalar", "avx2" or "avx512": what the CPU has, capped by `TRITTER_ACCEL_SIMD`.
#[pyfunction]
fn simd_level() -> PyResult<&'static str> {
    Ok(level_in_use().map_err(raise)?.name())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // A misspelt level is told at import, where it was set, and not at the first computation.
    level_in_use().map_err(raise)?;
    module.add_function(wrap_pyfunction!(get_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(simd_level, module)?)?;
    Ok(())
}
