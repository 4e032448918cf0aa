//! The norm of a gradient, and clipping by it.

use pyo3::prelude::*;
use tritter_core::codec::config::norm_limit;
use tritter_core::numeric::{clip, reduce};

use crate::arguments::f32_argument;
use crate::arrays::{Output, inputs, read, read_write};
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

/// Scale a gradient down to a norm, if it is longer. `clip_gradients_` does it in place.
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

/// Scale a gradient down to a norm in place, if it is longer, and tell the norm that it had.
///
/// One read of the gradient; a second pass, which writes it, only if it is longer. Ctrl-C takes effect before or after
/// that pass, so that a gradient is never half scaled.
///
/// Parameters
/// ----------
/// gradients : ndarray of float32
///     Of any shape; finite. Changed in place.
/// max_norm : float
///     The largest norm, 0 or more.
///
/// Returns
/// -------
/// float
///     The norm before clipping, as `gradient_norm` gives it.
///
/// Raises
/// ------
/// NonFiniteError
///     If a value is not finite: its norm says nothing. Nothing is changed.
/// ArrayError
///     For another type or layout, and for an array that cannot be written.
/// ArgumentError, ArgumentTypeError
///     For another `max_norm`; nothing is changed.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel.compression import clip_gradients_
/// >>> gradients = np.array([3.0, -4.0], dtype=np.float32)
/// >>> clip_gradients_(gradients, 2.5)
/// 5.0
/// >>> gradients
/// array([ 1.5, -2. ], dtype=float32)
#[pyfunction]
pub fn clip_gradients_(
    py: Python<'_>,
    gradients: &Bound<'_, PyAny>,
    max_norm: &Bound<'_, PyAny>,
) -> PyResult<f64> {
    let limit = norm_limit("max_norm", f32_argument("max_norm", max_norm)?).map_err(raise)?;
    let mut gradients = read_write::<f32>("gradients", gradients)?;
    let values = gradients.slice_mut();
    enter(py, values.len() as f64, |exec| clip::clip_to_norm_in_place(exec, "gradients", values, limit))
}
