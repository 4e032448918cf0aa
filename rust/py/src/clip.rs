//! The norm of a gradient, and clipping by it.

use pyo3::prelude::*;
use tritter_core::codec::config::norm_limit;
use tritter_core::numeric::{clip, reduce};

use crate::arguments::f32_argument;
use crate::arrays::{Output, inputs, read};
use crate::errors::raise;
use crate::run::enter;

/// Euclidean norm of a gradient, summed in float64 in one fixed order.
///
/// Parameters
/// ----------
/// gradients : ndarray of float32
///     Of any shape.
///
/// Returns
/// -------
/// float
///     The same bits at every number of threads; NaN or inf where a value is not finite.
#[pyfunction]
pub fn gradient_norm(py: Python<'_>, gradients: &Bound<'_, PyAny>) -> PyResult<f64> {
    let input = read::<f32>("gradients", gradients)?;
    let values = input.slice();
    enter(py, values.len() as f64 * 0.3, |exec| reduce::norm(exec, values))
}

/// Scale a gradient down to a norm, if it is longer.
///
/// Parameters
/// ----------
/// gradients : ndarray of float32
///     Of any shape; finite. It stays as it is.
/// max_norm : float
///     The largest norm, 0 or more.
/// out : ndarray of float32, optional
///     Where to write the result.
///
/// Returns
/// -------
/// ndarray of float32
///     Of the same shape; `out` where it is given.
///
/// Raises
/// ------
/// NonFiniteError
///     If a value is not finite: its norm says nothing.
#[pyfunction]
#[pyo3(signature = (gradients, max_norm, *, out=None))]
pub fn clip_gradients<'py>(
    py: Python<'py>,
    gradients: &Bound<'py, PyAny>,
    max_norm: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let limit = norm_limit("max_norm", f32_argument("max_norm", max_norm)?).map_err(raise)?;
    let input = read::<f32>("gradients", gradients)?;
    let values = input.slice();
    let mut output = Output::<f32>::new(out, values.len(), &inputs(&input))?;
    let clipped = output.slice_mut();
    enter(py, values.len() as f64, |exec| clip::clip_to_norm(exec, "gradients", values, limit, clipped))?;
    output.into_array(py, input.shape())
}
