//! Finding and holding back values that would poison what they touch.

use pyo3::prelude::*;
use tritter_core::numeric::finite;

use crate::arguments::f32_argument;
use crate::arrays::{read, read_write};
use crate::run::enter;

const NS_PER_VALUE: f64 = 0.4;

/// Whether an array holds a NaN or an infinity.
///
/// Parameters
/// ----------
/// values : array of float32, any shape
///     Borrowed, not copied. Each value is looked at, none is summed, so large values are no overflow.
///
/// Returns
/// -------
/// bool
///     False for an empty array.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel import mixed_precision
/// >>> mixed_precision.has_nan_or_inf(np.array([1.0, np.inf], dtype=np.float32))
/// True
#[pyfunction]
fn has_nan_or_inf(py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<bool> {
    let values = read::<f32>("values", values)?;
    let values = values.slice();
    enter(py, values.len() as f64 * NS_PER_VALUE, |exec| finite::has_nan_or_inf(exec, values))
}

/// Hold every value of an array in [min, max], in place; a NaN becomes 0.
///
/// Parameters
/// ----------
/// values : array of float32, any shape
///     Changed in place.
/// min, max : float
///     The limits, rounded to float32; min <= max. A NaN becomes 0 also where that is outside of them.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout, and for an array that cannot be written.
/// ArgumentError
///     When the limits cross or are NaN; nothing is changed.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel import mixed_precision
/// >>> values = np.array([np.nan, np.inf, -3.0, 0.5], dtype=np.float32)
/// >>> mixed_precision.safe_clip(values, -1.0, 1.0)
/// >>> values
/// array([ 0. ,  1. , -1. ,  0.5], dtype=float32)
#[pyfunction]
fn safe_clip(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    min: &Bound<'_, PyAny>,
    max: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (min, max) = (f32_argument("min", min)?, f32_argument("max", max)?);
    let mut values = read_write::<f32>("values", values)?;
    let values = values.slice_mut();
    enter(py, values.len() as f64 * NS_PER_VALUE, |exec| finite::safe_clip(exec, values, min, max))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(has_nan_or_inf, module)?)?;
    module.add_function(wrap_pyfunction!(safe_clip, module)?)?;
    Ok(())
}
