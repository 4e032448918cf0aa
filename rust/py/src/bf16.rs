//! Conversions to and from bfloat16.

use pyo3::prelude::*;
use tritter_core::base::chacha::{Key, Stream};
use tritter_core::base::error::Error;
use tritter_core::numeric::bf16;

use crate::arguments::{choice_argument, f32_argument, u32_argument, u64_argument};
use crate::arrays::{Output, inputs, read, read_bf16};
use crate::errors::raise;
use crate::run::enter;

const NS_PER_VALUE: f64 = 0.5;
const NS_PER_STOCHASTIC_VALUE: f64 = 4.5;

/// The bits of a number as bfloat16: its float32 form, truncated.
///
/// Parameters
/// ----------
/// x : float
///     The number. It is rounded to float32 first.
///
/// Returns
/// -------
/// int
///     The upper 16 bits of the float32, 0 to 65535.
///
/// Raises
/// ------
/// ArgumentTypeError
///     For what is no number.
///
/// Examples
/// --------
/// >>> from tritter_accel import mixed_precision
/// >>> hex(mixed_precision.f32_to_bf16(3.14159))
/// '0x4049'
#[pyfunction]
fn f32_to_bf16(x: &Bound<'_, PyAny>) -> PyResult<u16> {
    Ok(bf16::truncate(f32_argument("x", x)?))
}

/// The number that bfloat16 bits stand for. Exact.
///
/// Parameters
/// ----------
/// bits : int
///     0 to 65535.
///
/// Returns
/// -------
/// float
///     The float32 whose upper 16 bits are `bits` and whose lower ones are zero.
///
/// Raises
/// ------
/// ArgumentError, ArgumentTypeError
///     For what is no whole number of 16 bits.
///
/// Examples
/// --------
/// >>> from tritter_accel import mixed_precision
/// >>> mixed_precision.bf16_to_f32(0x4049)
/// 3.140625
#[pyfunction]
fn bf16_to_f32(bits: &Bound<'_, PyAny>) -> PyResult<f32> {
    let number = u64_argument("bits", bits)?;
    let bits = u16::try_from(number).map_err(|_| {
        raise(Error::argument("bits", format!("got {number}, wanted a whole number of 0 to 65535")))
    })?;
    Ok(bf16::to_f32(bits))
}

/// Convert an array to bfloat16, held as uint16.
///
/// Parameters
/// ----------
/// values : array of float32, any shape
///     Borrowed, not copied.
/// rounding : {'truncate', 'nearest_even', 'stochastic'}
///     `truncate` takes the upper 16 bits as they are: values shrink by 0.28 % on average, and a NaN whose payload is in
///     its lower bits turns into an infinity. `nearest_even` rounds to the nearest bfloat16, ties to the even one, as
///     ml_dtypes does for every float32; use it for what is kept. `stochastic` adds the lower half of word i of a ChaCha8
///     stream to the bits of element i and truncates: the mean is the value itself, so use it for what is summed over
///     many steps. A NaN stays a NaN and an infinity an infinity with both.
/// seed : int
///     For `stochastic`: the key of the stream, 0 to 2**64 - 1.
/// step : int
///     For `stochastic`: the stream of that key, 0 to 2**32 - 1. Give each step of training its own.
/// out : array of uint16, optional
///     Where the result goes: as many elements as `values`, none of its memory.
///
/// Returns
/// -------
/// array of uint16
///     The bits, in the shape of `values`, or `out`. `as_bfloat16` shows them as numbers.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout of `values` or `out`, and when they overlap.
/// DimensionMismatchError
///     For an `out` of another length.
/// ArgumentError, ArgumentTypeError
///     For another `rounding`, `seed` or `step`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel import mixed_precision
/// >>> values = np.array([1.0, 1.01, -2.0], dtype=np.float32)
/// >>> mixed_precision.convert_to_bf16(values, rounding="nearest_even")
/// array([16256, 16257, 49152], dtype=uint16)
#[pyfunction]
#[pyo3(
    signature = (values, *, rounding=bf16::Rounding::Truncate, seed=0, step=0, out=None),
    text_signature = "(values, *, rounding='truncate', seed=0, step=0, out=None)"
)]
fn convert_to_bf16<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = rounding_argument)] rounding: bf16::Rounding,
    #[pyo3(from_py_with = seed_argument)] seed: u64,
    #[pyo3(from_py_with = step_argument)] step: u32,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let values = read::<f32>("values", values)?;
    let mut out = Output::<u16>::new(out, values.slice().len(), &inputs(&values))?;
    let cost = match rounding {
        bf16::Rounding::Stochastic => NS_PER_STOCHASTIC_VALUE,
        _ => NS_PER_VALUE,
    };
    let dither = Stream::of_step(Key::from_seed(seed), step, 0);
    let (from, to) = (values.slice(), out.slice_mut());
    enter(py, from.len() as f64 * cost, |exec| bf16::convert_to(exec, from, rounding, &dither, to))?;
    out.into_array(py, values.shape())
}

/// Convert an array to bfloat16, look whether it is finite, and measure it: one read of memory for all three.
///
/// Parameters
/// ----------
/// values : array of float32, any shape
///     Borrowed, not copied.
/// rounding : {'truncate', 'nearest_even'}
///     As in `convert_to_bf16`.
/// out : array of uint16, optional
///     Where the bits go: as many elements as `values`, none of its memory.
///
/// Returns
/// -------
/// bits : array of uint16
///     Those of `convert_to_bf16`, in the shape of `values`, or `out`.
/// norm : float
///     That of `gradient_norm`, of the values before they are rounded. It is finite if and only if every value is: squares of
///     finite float32 cannot overflow float64.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout of `values` or `out`, and when they overlap.
/// DimensionMismatchError
///     For an `out` of another length.
/// ArgumentError, ArgumentTypeError
///     For another `rounding`, 'stochastic' included.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel import mixed_precision
/// >>> bits, norm = mixed_precision.convert_to_bf16_with_norm(np.array([3.0, -4.0], dtype=np.float32))
/// >>> bits, norm
/// (array([16448, 49280], dtype=uint16), 5.0)
#[pyfunction]
#[pyo3(
    signature = (values, *, rounding=bf16::Rounding::Truncate, out=None),
    text_signature = "(values, *, rounding='truncate', out=None)"
)]
fn convert_to_bf16_with_norm<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = rounding_argument)] rounding: bf16::Rounding,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, f64)> {
    let values = read::<f32>("values", values)?;
    let mut out = Output::<u16>::new(out, values.slice().len(), &inputs(&values))?;
    let (from, to) = (values.slice(), out.slice_mut());
    let cost = from.len() as f64 * NS_PER_VALUE;
    let norm = enter(py, cost, |exec| bf16::convert_with_norm(exec, from, rounding, to))?;
    Ok((out.into_array(py, values.shape())?, norm))
}

/// Convert an array from bfloat16 to float32. Exact.
///
/// Parameters
/// ----------
/// bits : array of uint16 or ml_dtypes.bfloat16, any shape
///     Borrowed, not copied.
/// out : array of float32, optional
///     Where the result goes: as many elements as `bits`, none of its memory.
///
/// Returns
/// -------
/// array of float32
///     The numbers, in the shape of `bits`, or `out`.
///
/// Raises
/// ------
/// ArrayError
///     For another type or layout of `bits` or `out`, and when they overlap.
/// DimensionMismatchError
///     For an `out` of another length.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from tritter_accel import mixed_precision
/// >>> mixed_precision.convert_from_bf16(np.array([0x3F80, 0xC000], dtype=np.uint16))
/// array([ 1., -2.], dtype=float32)
#[pyfunction]
#[pyo3(signature = (bits, *, out=None))]
fn convert_from_bf16<'py>(
    py: Python<'py>,
    bits: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let bits = read_bf16("bits", bits)?;
    let mut out = Output::<f32>::new(out, bits.slice().len(), &inputs(&bits))?;
    let (from, to) = (bits.slice(), out.slice_mut());
    enter(py, from.len() as f64 * NS_PER_VALUE, |exec| bf16::convert_from(exec, from, to))?;
    out.into_array(py, bits.shape())
}

fn rounding_argument(value: &Bound<'_, PyAny>) -> PyResult<bf16::Rounding> {
    choice_argument("rounding", value, &bf16::Rounding::ALL, bf16::Rounding::name)
}

fn seed_argument(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    u64_argument("seed", value)
}

fn step_argument(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    u32_argument("step", value)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(f32_to_bf16, module)?)?;
    module.add_function(wrap_pyfunction!(bf16_to_f32, module)?)?;
    module.add_function(wrap_pyfunction!(convert_to_bf16, module)?)?;
    module.add_function(wrap_pyfunction!(convert_to_bf16_with_norm, module)?)?;
    module.add_function(wrap_pyfunction!(convert_from_bf16, module)?)?;
    Ok(())
}
