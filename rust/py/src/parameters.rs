//! The table of parameters: one flat float32 array that NumPy owns and nobody can write, cut into named views.

use std::sync::Arc;

use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyUntypedArray};
use pyo3::basic::CompareOp;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple};
use tritter_core::base::error::Error;
use tritter_core::engine::kernels::elementwise::map;
use tritter_core::engine::parameters::Layout;
use tritter_core::numeric::reduce;

use crate::arguments::{f32_argument, instance_argument, mapping_argument, name_argument, wrong_type};
use crate::arrays::read;
use crate::errors::raise;
use crate::run::enter;

/// Immutable table of named float32 arrays in slot order, with algebra.
///
/// Parameters
/// ----------
/// arrays : dict of str to ndarray of float32
///     The arrays, copied.
#[pyclass(frozen, mapping, module = "tritter_accel.engine")]
pub struct Parameters {
    layout: Arc<Layout>,
    flat: Py<PyArray1<f32>>,
}

impl Parameters {
    /// A table over `flat`, which becomes read-only.
    pub fn new(py: Python<'_>, layout: Arc<Layout>, flat: Vec<f32>) -> PyResult<Self> {
        let flat = flat.into_pyarray(py);
        flat.getattr(intern!(py, "flags"))?.setattr(intern!(py, "writeable"), false)?;
        Ok(Self { layout, flat: flat.unbind() })
    }

    /// Names, shapes and offsets.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Calls `body` with the flat values.
    pub fn with_values<R>(&self, py: Python<'_>, body: impl FnOnce(&[f32]) -> PyResult<R>) -> PyResult<R> {
        let flat = self.flat.bind(py).readonly();
        let values = flat.as_slice().map_err(|_| internal("parameters are not contiguous"))?;
        body(values)
    }

    fn view<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyAny>> {
        let range = self.layout.range(slot);
        let part = PySlice::new(py, range.start as isize, range.end as isize, 1);
        let shape = PyTuple::new(py, self.layout.sizes(slot))?;
        self.flat.bind(py).get_item(part)?.call_method1(intern!(py, "reshape"), (shape,))
    }

    fn check_alike(&self, other: &Self) -> PyResult<()> {
        if self.layout == other.layout {
            return Ok(());
        }
        Err(raise(Error::Shape(format!(
            "parameters differ: {} and {}",
            describe(&self.layout),
            describe(&other.layout)
        ))))
    }

    /// A table of the same names and shapes from what `value(slot)` gives.
    fn collect<'py>(
        &self,
        py: Python<'py>,
        mut value: impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let mut flat = Vec::with_capacity(self.layout.elements());
        for slot in 0..self.layout.len() {
            let name = self.layout.name(slot);
            let array = value(slot)?;
            let array = read::<f32>(name, &array)?;
            if array.shape() != self.layout.sizes(slot) {
                return Err(raise(Error::Shape(format!(
                    "parameter '{name}': got an array of shape {:?}, wanted {:?}",
                    array.shape(),
                    self.layout.sizes(slot)
                ))));
            }
            flat.extend_from_slice(array.slice());
        }
        Self::new(py, Arc::clone(&self.layout), flat)
    }

    fn combine(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        body: impl Fn(f32, f32) -> f32 + Send + Sync,
    ) -> PyResult<Self> {
        let nanoseconds = self.layout.elements() as f64 * 0.5;
        let flat = if let Ok(other) = other.cast::<Self>() {
            let other = other.get();
            self.check_alike(other)?;
            self.with_values(py, |a| {
                other.with_values(py, |b| {
                    enter(py, nanoseconds, |exec| {
                        let mut out = vec![0.0; a.len()];
                        map(exec.level(), &mut out, [a, b], |[a, b]| body(a, b));
                        Ok(out)
                    })
                })
            })?
        } else {
            if other.is_instance_of::<PyUntypedArray>() {
                return Err(wrong_type("other", other, "parameters or a number; use .map for arrays"));
            }
            let number = f32_argument("other", other)?;
            self.with_values(py, |a| {
                enter(py, nanoseconds, |exec| {
                    let mut out = vec![0.0; a.len()];
                    map(exec.level(), &mut out, [a], |[a]| body(a, number));
                    Ok(out)
                })
            })?
        };
        Self::new(py, Arc::clone(&self.layout), flat)
    }

    fn slot(&self, name: &str) -> PyResult<usize> {
        self.layout.slot(name).ok_or_else(|| {
            let names: Vec<&str> = (0..self.layout.len()).map(|slot| self.layout.name(slot)).collect();
            raise(Error::argument("name", format!("no parameter '{name}' among {}", names.join(", "))))
        })
    }
}

fn internal(message: &str) -> PyErr {
    raise(Error::Internal(message.into()))
}

/// Names and shapes in one line.
pub fn describe(layout: &Layout) -> String {
    let slots: Vec<String> =
        (0..layout.len()).map(|slot| format!("{} {:?}", layout.name(slot), layout.sizes(slot))).collect();
    slots.join(", ")
}

#[pymethods]
impl Parameters {
    #[new]
    fn from_arrays(py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<Self> {
        let arrays = mapping_argument("arrays", arrays)?;
        let mut layout = Layout::default();
        let mut flat = Vec::new();
        for (name, array) in arrays {
            let name = name_argument("arrays", &name)?;
            let array = read::<f32>(&name, &array)?;
            layout.push(&name, array.shape().to_vec());
            flat.extend_from_slice(array.slice());
        }
        Self::new(py, Arc::new(layout), flat)
    }

    /// Names in slot order.
    #[getter]
    fn names(&self) -> Vec<&str> {
        (0..self.layout.len()).map(|slot| self.layout.name(slot)).collect()
    }

    /// Shapes in slot order.
    #[getter]
    fn shapes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        (0..self.layout.len()).map(|slot| PyTuple::new(py, self.layout.sizes(slot))).collect()
    }

    /// All values in slot order, each in C order: a read-only view, shape (count,).
    fn flat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.flat.bind(py).call_method0(intern!(py, "view"))
    }

    /// Names, as of a mapping.
    fn keys(&self) -> Vec<&str> {
        self.names()
    }

    /// Read-only views, in slot order.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        (0..self.layout.len()).map(|slot| self.view(py, slot)).collect()
    }

    /// Pairs of name and read-only view, in slot order.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&str, Bound<'py, PyAny>)>> {
        (0..self.layout.len()).map(|slot| Ok((self.layout.name(slot), self.view(py, slot)?))).collect()
    }

    /// A table of `function(array)` for every array.
    ///
    /// `function` takes a read-only float32 array and returns a float32 array of the same shape.
    fn map(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.collect(py, |slot| function.call1((self.view(py, slot)?,)))
    }

    /// A table of `function(array, other's array)` for every slot.
    fn zip(&self, py: Python<'_>, other: &Bound<'_, PyAny>, function: &Bound<'_, PyAny>) -> PyResult<Self> {
        let other = instance_argument::<Self>("other", other)?.get();
        self.check_alike(other)?;
        self.collect(py, |slot| function.call1((self.view(py, slot)?, other.view(py, slot)?)))
    }

    /// A table of `function(parameter, gradient)` for every slot: one step of an optimiser.
    fn step(
        &self,
        py: Python<'_>,
        gradients: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        self.zip(py, instance_argument::<Self>("gradients", gradients)?.as_any(), function)
    }

    /// Every value times `factor`.
    fn scale(&self, py: Python<'_>, factor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let number = f32_argument("factor", factor)?;
        let number = number.into_pyobject(py)?;
        self.combine(py, number.as_any(), |a, b| a * b)
    }

    /// The Euclidean norm over all values, in f64 and a fixed order.
    fn norm(&self, py: Python<'_>) -> PyResult<f64> {
        self.with_values(py, |values| enter(py, values.len() as f64 * 0.5, |exec| reduce::norm(exec, values)))
    }

    /// Whether no value is NaN or infinite.
    fn isfinite(&self, py: Python<'_>) -> PyResult<bool> {
        self.with_values(py, |values| {
            enter(py, values.len() as f64 * 0.5, |exec| reduce::first_non_finite(exec, values))
        })
        .map(|found| found.is_none())
    }

    /// A table with some arrays replaced by others of the same shape.
    ///
    /// Parameters
    /// ----------
    /// arrays : dict of str to ndarray of float32
    fn replace(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<Self> {
        let arrays = mapping_argument("arrays", arrays)?;
        for name in arrays.keys() {
            self.slot(&name_argument("name", &name)?)?;
        }
        self.collect(py, |slot| match arrays.get_item(self.layout.name(slot))? {
            Some(array) => Ok(array),
            None => self.view(py, slot),
        })
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let name = name_argument("name", name)?;
        self.view(py, self.slot(&name)?)
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<String>().is_ok_and(|name| self.layout.slot(&name).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyList::new(py, self.names())?.call_method0(intern!(py, "__iter__"))
    }

    fn __len__(&self) -> usize {
        self.layout.len()
    }

    fn __add__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| a + b)
    }

    fn __radd__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| b + a)
    }

    fn __sub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| a - b)
    }

    fn __rsub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| b - a)
    }

    fn __mul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| a * b)
    }

    fn __rmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| b * a)
    }

    fn __truediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| a / b)
    }

    fn __rtruediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.combine(py, other, |a, b| b / a)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Self> {
        let zero = 0.0_f32.into_pyobject(py)?;
        self.combine(py, zero.as_any(), |a, _| -a)
    }

    fn __richcmp__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        operator: CompareOp,
    ) -> PyResult<Py<PyAny>> {
        let alike = match (other.cast::<Self>(), operator) {
            (Ok(other), CompareOp::Eq | CompareOp::Ne) => {
                let other = other.get();
                self.layout == other.layout
                    && self.with_values(py, |a| other.with_values(py, |b| Ok(a == b)))?
            }
            _ => return Ok(py.NotImplemented()),
        };
        let answer = alike == matches!(operator, CompareOp::Eq);
        Ok(answer.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    /// NumPy arrays leave arithmetic with a table to the table.
    #[classattr]
    fn __array_ufunc__(py: Python<'_>) -> Py<PyAny> {
        py.None()
    }

    #[classattr]
    fn __hash__(py: Python<'_>) -> Py<PyAny> {
        py.None()
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let arrays = PyDict::new(py);
        for (name, view) in slf.get().items(py)? {
            arrays.set_item(name, view)?;
        }
        Ok((slf.get_type().into_any(), (arrays,)))
    }

    fn __repr__(&self) -> String {
        format!("Parameters({} values: {})", self.layout.elements(), describe(&self.layout))
    }
}
