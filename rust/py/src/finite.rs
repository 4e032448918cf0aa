//! Finding and holding back values that would poison what they touch.

use pyo3::prelude::*;
use tritter_core::numeric::finite;

use crate::arguments::f32_argument;
use crate::arrays::{Changed, read};
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

/// Hold every value of an array in [min, max], in place or into `out`; a NaN becomes 0.
///
/// Parameters
/// ----------
/// values : array of float32, any shape
///     Changed in place, unless `out` is given.
/// min, max : float
///     The limits, rounded to float32; min <= max. A NaN becomes 0 also where that is outside of them.
/// out : array of float32, optional
///     Where the results go instead: as many elements as `values`, none of its memory.
///
/// Returns
/// -------
/// None or array of float32
///     `out`, if it was given.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout, for an array that cannot be written, and for an `out` that overlaps `values`.
/// DimensionMismatchError
///     For an `out` of another length.
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
#[pyo3(signature = (values, min, max, *, out=None))]
fn safe_clip<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    min: &Bound<'py, PyAny>,
    max: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (min, max) = (f32_argument("min", min)?, f32_argument("max", max)?);
    let mut values = Changed::new("values", values, out)?;
    let cost = values.len() as f64 * NS_PER_VALUE;
    let target = values.target();
    enter(py, cost, |exec| finite::safe_clip(exec, target, min, max))?;
    Ok(values.into_out())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(has_nan_or_inf, module)?)?;
    module.add_function(wrap_pyfunction!(safe_clip, module)?)?;
    Ok(())
}
