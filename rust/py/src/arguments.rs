//! Scalars from Python: what is taken, and an error of the package's own that names the argument for everything else.

use pyo3::PyTypeInfo;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};
use tritter_core::base::error::Error;

use crate::errors::raise;

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string())
}

/// What is said of an argument of a type that is not taken.
pub fn wrong_type(name: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    raise(Error::ArgumentType {
        argument: name.into(),
        message: format!("got {}, wanted {wanted}", type_name(value)),
    })
}

fn text(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| type_name(value), |text| text.to_string())
}

/// A whole number of 0 to 2^64 - 1.
pub fn u64_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            let message = format!("got {}, wanted a whole number of 0 to 2**64 - 1", text(value));
            raise(Error::argument(name, message))
        } else {
            wrong_type(name, value, "a whole number (int)")
        }
    })
}

/// A whole number of 0 to 2^32 - 1.
pub fn u32_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let number = u64_argument(name, value)?;
    u32::try_from(number).map_err(|_| {
        raise(Error::argument(name, format!("got {number}, wanted a whole number of 0 to 2**32 - 1")))
    })
}

/// A count or length.
pub fn usize_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number = u64_argument(name, value)?;
    usize::try_from(number)
        .map_err(|_| raise(Error::argument(name, format!("got {number}, too large for this machine"))))
}

/// A number, as Python's float.
pub fn f64_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract::<f64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            raise(Error::argument(name, format!("got {}, too large for a float", text(value))))
        } else {
            wrong_type(name, value, "a number (float)")
        }
    })
}

/// A number, rounded to float32.
pub fn f32_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f64_argument(name, value).map(|number| number as f32)
}

/// True or False.
pub fn bool_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract::<bool>().map_err(|_| wrong_type(name, value, "True or False"))
}

/// An object of one of the package's classes.
pub fn instance_argument<'a, 'py, T: PyTypeInfo>(
    name: &str,
    value: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, T>> {
    value.cast::<T>().map_err(|_| {
        let class =
            T::type_object(value.py()).name().map_or_else(|_| "another".into(), |name| name.to_string());
        wrong_type(name, value, &format!("a {class}"))
    })
}

/// A name: text that can be written as UTF-8.
pub fn name_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let given = value.cast::<PyString>().map_err(|_| wrong_type(name, value, "a name (str)"))?;
    let given = given.extract::<String>();
    given.map_err(|_| raise(Error::argument(name, format!("got {}, which is not valid text", text(value)))))
}

/// Names and values: a dict, or any mapping that can be copied to one.
pub fn mapping_argument<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    if let Ok(dict) = value.cast::<PyDict>() {
        return Ok(dict.clone());
    }
    let mapping = value
        .cast::<PyMapping>()
        .map_err(|_| wrong_type(name, value, "a mapping of names to arrays (dict)"))?;
    let dict = PyDict::new(value.py());
    dict.update(mapping)?;
    Ok(dict)
}

/// One of a set of words.
pub fn choice_argument<T: Copy>(
    name: &str,
    value: &Bound<'_, PyAny>,
    choices: &[T],
    word: impl Fn(T) -> &'static str,
) -> PyResult<T> {
    let list = || choices.iter().map(|&choice| format!("'{}'", word(choice))).collect::<Vec<_>>().join(", ");
    let given =
        value.cast::<PyString>().map_err(|_| wrong_type(name, value, &format!("one of {}", list())))?;
    let given = given.to_string_lossy();
    choices
        .iter()
        .copied()
        .find(|&choice| word(choice) == given)
        .ok_or_else(|| raise(Error::argument(name, format!("got '{given}', wanted one of {}", list()))))
}

/// An argument that may be left out, where None is a value like any other (and seldom a right one).
pub enum Argument<'py> {
    /// It was left out.
    Default,
    /// What came.
    Given(Bound<'py, PyAny>),
}

impl<'py> Argument<'py> {
    /// `read` of what came, or `default`.
    pub fn or<T>(self, default: T, read: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>) -> PyResult<T> {
        match self {
            Self::Default => Ok(default),
            Self::Given(value) => read(&value),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Argument<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(value.to_owned()))
    }
}
