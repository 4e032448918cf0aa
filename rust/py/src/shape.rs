//! Shapes and axes as Python gives them: lengths, ``BATCH``, tuples, lists, or several arguments.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tritter_core::base::error::Error;
use tritter_core::engine::shape::{Dim, Shape};

use crate::arguments::{usize_argument, wrong_type};
use crate::errors::raise;

/// The symbolic length of the batch axis; use the constant ``BATCH``.
#[pyclass(frozen, eq, hash, module = "tritter_accel.engine", name = "BatchAxis")]
#[derive(PartialEq, Eq, Hash)]
pub struct BatchAxis;

#[pymethods]
impl BatchAxis {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyAny>, ()) {
        (slf.get_type().into_any(), ())
    }

    #[allow(clippy::unused_self)]
    fn __repr__(&self) -> &'static str {
        "BATCH"
    }
}

/// One axis of a shape: a length, `BATCH`, or `None` for -1.
fn dim_argument(value: &Bound<'_, PyAny>) -> PyResult<Option<Dim>> {
    if value.is_instance_of::<BatchAxis>() {
        return Ok(Some(Dim::Batch));
    }
    if value.extract::<i64>().is_ok_and(|size| size == -1) {
        return Ok(None);
    }
    usize_argument("shape", value).map(|size| Some(Dim::Size(size)))
}

/// The axes of a shape given as one tuple or list, as one length, or as several arguments.
pub fn dims_argument(value: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Dim>>> {
    let items = items(value);
    match items.as_slice() {
        [one] if is_sequence(one) => self::items(one).iter().map(dim_argument).collect(),
        _ => items.iter().map(dim_argument).collect(),
    }
}

pub fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyTuple>() || value.is_instance_of::<pyo3::types::PyList>()
}

pub fn items<'py>(value: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    if is_sequence(value)
        && let Ok(items) = value.try_iter()
        && let Ok(items) = items.collect::<PyResult<Vec<_>>>()
    {
        return items;
    }
    vec![value.clone()]
}

pub fn shape_argument(value: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let dims = dims_argument(value)?.into_iter().collect::<Option<Vec<_>>>();
    let dims = dims.ok_or_else(|| {
        raise(Error::argument("shape", "got -1, wanted lengths or BATCH; -1 goes with reshape alone"))
    })?;
    Shape::new(dims).map_err(raise)
}

pub fn axis_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract::<i64>().map_err(|_| wrong_type(name, value, "an axis (int)"))
}

/// Axes as NumPy takes them: none, one, or several.
pub fn axes_argument(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<i64>>> {
    value.map(|value| items(value).iter().map(|axis| axis_argument("axis", axis)).collect()).transpose()
}

pub fn shape_tuple<'py>(py: Python<'py>, shape: &Shape) -> PyResult<Bound<'py, PyTuple>> {
    let dims = shape
        .dims()
        .iter()
        .map(|dim| match dim {
            Dim::Batch => Ok(Bound::new(py, BatchAxis)?.into_any()),
            Dim::Size(size) => Ok(size.into_pyobject(py)?.into_any()),
        })
        .collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, dims)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BatchAxis>()?;
    module.add("BATCH", BatchAxis)?;
    Ok(())
}
