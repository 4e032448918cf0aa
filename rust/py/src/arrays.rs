//! Arrays across the boundary.
//!
//! | Python | Rust | memory |
//! |---|---|---|
//! | `ndarray`, of the wanted type, native byte order, C order, aligned | `&[T]`, flat in C order | borrowed from Python |
//! | other objects that NumPy can view without a copy (`DLPack`, buffers) | `&[T]` | borrowed from their owner |
//! | `out=` and arrays changed in place | `&mut [T]` | borrowed, and no overlap with an input |
//! | an array changed in place, or left alone for `out=` | `Target` | both borrowed, as the lines above |
//! | a result | `Vec<T>` | moved into NumPy, never copied |
//!
//! Everything else is an `ArrayError` that names the argument, what came, and the one call that mends it. So is a masked
//! array, whose masked values would otherwise be taken for values.

use std::ops::Range;

use numpy::{
    Element, IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};
use tritter_core::base::error::Error;
use tritter_core::base::memory::try_vec;
use tritter_core::numeric::Target;

use crate::errors::raise;

/// An element type that arrays are borrowed as, with the name NumPy gives it.
pub trait Scalar: Element + Copy + Default {
    /// The NumPy name, as in `np.float32`.
    const NAME: &'static str;

    /// What to do with an array of another type.
    fn mend(name: &str) -> String {
        format!("call {name}.astype(np.{})", Self::NAME)
    }
}

impl Scalar for f32 {
    const NAME: &'static str = "float32";
}
/// The bits of bfloat16: casting numbers to them would be wrong.
impl Scalar for u16 {
    const NAME: &'static str = "uint16";

    fn mend(_name: &str) -> String {
        "convert_to_bf16 makes them from float32".into()
    }
}
impl Scalar for u8 {
    const NAME: &'static str = "uint8";
}
impl Scalar for i8 {
    const NAME: &'static str = "int8";
}
impl Scalar for i64 {
    const NAME: &'static str = "int64";
}

fn array_error(name: &str, message: String) -> PyErr {
    raise(Error::Array { argument: name.into(), message })
}

/// An array borrowed for reading.
pub struct Input<'py, T: Scalar> {
    array: PyReadonlyArrayDyn<'py, T>,
}

impl<T: Scalar> Input<'_, T> {
    /// All elements, flat in C order.
    pub fn slice(&self) -> &[T] {
        // `read` took contiguous arrays only.
        self.array.as_slice().unwrap_or_default()
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    fn memory(&self) -> Range<usize> {
        memory(self.slice())
    }
}

impl<'py, T: Scalar> Input<'py, T> {
    /// The array itself, no longer borrowed.
    pub fn into_array(self) -> Bound<'py, PyAny> {
        self.array.as_any().clone()
    }
}

fn memory<T>(values: &[T]) -> Range<usize> {
    let range = values.as_ptr_range();
    range.start as usize..range.end as usize
}

/// Borrows `value` for reading, without a copy.
pub fn read<'py, T: Scalar>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Input<'py, T>> {
    let array = typed::<T>(name, &as_ndarray::<T>(name, value)?)?;
    let array =
        array.try_readonly().map_err(|_| array_error(name, "is being written by another call".into()))?;
    Ok(Input { array })
}

/// As [`read`], for the bits of bfloat16: uint16, or the type of that name of `ml_dtypes`.
pub fn read_bf16<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Input<'py, u16>> {
    let py = value.py();
    if let Ok(array) = value.cast::<PyUntypedArray>()
        && array.dtype().getattr(intern!(py, "name"))?.eq("bfloat16")?
    {
        return read(name, &array.call_method1(intern!(py, "view"), ("uint16",))?);
    }
    read(name, value)
}

/// Borrows the bytes of any object with a buffer, whatever the type of its elements.
pub fn read_bytes<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Input<'py, u8>> {
    let py = value.py();
    let Ok(view) = PyMemoryView::from(value) else {
        return read(name, value);
    };
    let numpy = py.import(intern!(py, "numpy"))?;
    let options = PyDict::new(py);
    options.set_item("dtype", "uint8")?;
    let array = if view.getattr(intern!(py, "nbytes"))?.eq(0)? {
        numpy.call_method(intern!(py, "empty"), (0,), Some(&options))?
    } else {
        numpy.call_method(intern!(py, "frombuffer"), (view,), Some(&options)).map_err(|cause| {
            array_error(name, format!("is not contiguous ({}); call bytes({name})", cause.value(py)))
        })?
    };
    read(name, &array)
}

/// An array borrowed to be written.
pub struct InPlace<'py, T: Scalar> {
    array: PyReadwriteArrayDyn<'py, T>,
}

impl<T: Scalar> InPlace<'_, T> {
    /// All elements, flat in C order.
    pub fn slice_mut(&mut self) -> &mut [T] {
        // `read_write` took contiguous arrays only.
        self.array.as_slice_mut().unwrap_or_default()
    }
}

/// Borrows `value` to change it in place.
pub fn read_write<'py, T: Scalar>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<InPlace<'py, T>> {
    let array = typed::<T>(name, &as_ndarray::<T>(name, value)?)?;
    borrow_to_write(name, &array)
}

fn borrow_to_write<'py, T: Scalar>(
    name: &str,
    array: &Bound<'py, PyArrayDyn<T>>,
) -> PyResult<InPlace<'py, T>> {
    if !flag(array, "writeable")? {
        return Err(array_error(name, format!("is read-only, and would be written; pass {name}.copy()")));
    }
    let array = array.try_readwrite().map_err(|_| array_error(name, "is in use by another call".into()))?;
    Ok(InPlace { array })
}

fn borrow_out<'py, T: Scalar>(
    out: &Bound<'py, PyAny>,
    len: usize,
    inputs: &[Range<usize>],
) -> PyResult<InPlace<'py, T>> {
    let array = typed::<T>("out", &as_ndarray::<T>("out", out)?)?;
    // Looked at before it is borrowed for writing, since an overlap is also a conflict of borrows.
    let own = array.data() as usize..array.data() as usize + array.len() * size_of::<T>();
    if inputs.iter().any(|input| own.start < input.end && input.start < own.end) {
        return Err(array_error("out", "overlaps an input; pass an array of its own".into()));
    }
    if array.len() != len {
        return Err(raise(Error::DimensionMismatch { expected: len, actual: array.len() }));
    }
    borrow_to_write("out", &array)
}

/// Where a result goes: the caller's `out`, or new memory that NumPy will own.
pub enum Output<'py, T: Scalar> {
    /// The caller's object, and its memory.
    Given(Bound<'py, PyAny>, InPlace<'py, T>),
    /// New memory.
    New(Vec<T>),
}

impl<'py, T: Scalar> Output<'py, T> {
    /// Room for `len` values: `out` if given (of that many elements, sharing no memory with the inputs), else new.
    pub fn new(out: Option<&Bound<'py, PyAny>>, len: usize, inputs: &[Range<usize>]) -> PyResult<Self> {
        let Some(out) = out else {
            return Ok(Self::New(try_vec(len).map_err(raise)?));
        };
        Ok(Self::Given(out.clone(), borrow_out(out, len, inputs)?))
    }

    /// The memory to write.
    pub fn slice_mut(&mut self) -> &mut [T] {
        match self {
            Self::Given(_, array) => array.slice_mut(),
            Self::New(values) => values,
        }
    }

    /// The object that holds the result: `out` itself, or a new array of that shape.
    pub fn into_array(self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Given(out, _) => Ok(out),
            Self::New(values) => to_array(py, values, shape),
        }
    }
}

impl<'py> Output<'py, f32> {
    /// `count` rows of `len` values: views of `out`, or of a new array.
    pub fn into_rows(self, py: Python<'py>, count: usize, len: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let array = match self {
            Self::Given(_, InPlace { array }) => array.as_any().clone(),
            Self::New(values) => values.into_pyarray(py).into_any(),
        };
        let matrix = array.call_method1(intern!(py, "reshape"), ((count, len),))?;
        (0..count).map(|row| matrix.get_item(row)).collect()
    }
}

/// Values that are changed in place, unless the caller gave an `out` for the results.
pub enum Changed<'py> {
    /// No `out`: the array itself.
    InPlace(InPlace<'py, f32>),
    /// The array, which stays; `out`, and its memory.
    Out(Input<'py, f32>, Bound<'py, PyAny>, InPlace<'py, f32>),
}

impl<'py> Changed<'py> {
    /// Borrows `value` to be written, or to be read if `out` is (as many elements, and none of its memory).
    pub fn new(name: &str, value: &Bound<'py, PyAny>, out: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let Some(given) = out else {
            return Ok(Self::InPlace(read_write(name, value)?));
        };
        let values = read(name, value)?;
        let out = borrow_out(given, values.slice().len(), &inputs(&values))?;
        Ok(Self::Out(values, given.clone(), out))
    }

    /// How many values there are.
    pub fn len(&mut self) -> usize {
        match self {
            Self::InPlace(values) => values.slice_mut().len(),
            Self::Out(values, ..) => values.slice().len(),
        }
    }

    /// What a pass of the core takes.
    pub fn target(&mut self) -> Target<'_> {
        match self {
            Self::InPlace(values) => Target::InPlace(values.slice_mut()),
            Self::Out(values, _, out) => Target::Out { values: values.slice(), out: out.slice_mut() },
        }
    }

    /// `out`, if there was one.
    pub fn into_out(self) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::InPlace(_) => None,
            Self::Out(_, out, _) => Some(out),
        }
    }
}

/// Moves values into an array of that shape.
pub fn to_array<'py, T: Scalar>(
    py: Python<'py>,
    values: Vec<T>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let flat = values.into_pyarray(py);
    if shape.len() == 1 { Ok(flat.into_any()) } else { Ok(flat.reshape(shape.to_vec())?.into_any()) }
}

/// The memory of some inputs, for [`Output::new`].
pub fn inputs<T: Scalar>(input: &Input<'_, T>) -> [Range<usize>; 1] {
    [input.memory()]
}

/// Rows of an array, and the values of each, however many axes these have.
pub fn rows<T: Scalar>(name: &str, input: &Input<'_, T>) -> PyResult<(usize, usize)> {
    match input.shape() {
        [rows, axes @ ..] if !axes.is_empty() => {
            Ok((*rows, axes.iter().fold(1, |values: usize, &axis| values.saturating_mul(axis))))
        }
        shape => Err(array_error(
            name,
            format!(
                "got an array of shape {shape:?}, wanted one row a gradient; for a single one call {name}[np.newaxis]"
            ),
        )),
    }
}

/// Whole numbers of any integer type as int64, flat in C order with their shape. Indices are small: they are copied.
pub fn read_integers(name: &str, value: &Bound<'_, PyAny>) -> PyResult<(Vec<i64>, Vec<usize>)> {
    let py = value.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy.call_method1(intern!(py, "asarray"), (value,)).map_err(|cause| {
        array_error(name, format!("got {}, which NumPy cannot read ({cause})", type_name(value)))
    })?;
    let kind: String = array.getattr(intern!(py, "dtype"))?.getattr(intern!(py, "kind"))?.extract()?;
    let empty = array.getattr(intern!(py, "size"))?.extract::<usize>()? == 0;
    if kind != "i" && kind != "u" && !empty {
        let dtype = array.getattr(intern!(py, "dtype"))?;
        return Err(array_error(
            name,
            format!("got an array of {dtype}, wanted whole numbers; call {name}.astype(np.int64)"),
        ));
    }
    let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
    if kind == "u" && !empty {
        let largest: u64 = array.call_method0(intern!(py, "max"))?.extract()?;
        if i64::try_from(largest).is_err() {
            return Err(raise(Error::argument(name, format!("index {largest} is too large"))));
        }
    }
    let options = PyDict::new(py);
    options.set_item("dtype", "int64")?;
    let flat = numpy.call_method(intern!(py, "ascontiguousarray"), (array,), Some(&options))?;
    let flat = flat.call_method1(intern!(py, "reshape"), (-1,))?;
    let values = flat.cast::<PyArray1<i64>>().map_err(PyErr::from)?.to_vec()?;
    Ok((values, shape))
}

/// Policy for one array: its type, its layout, and what is said of another.
fn typed<'py, T: Scalar>(
    name: &str,
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    // What is done to an input would be lost on an output.
    let mend = |input: String| {
        if name == "out" { format!("pass np.empty(size, dtype=np.{})", T::NAME) } else { input }
    };
    if is_masked(array)? {
        let message = format!("got a masked array; call {name}.filled(0) or take its values another way");
        return Err(array_error(name, message));
    }
    let Ok(typed) = array.cast::<PyArrayDyn<T>>() else {
        let dtype = array.dtype();
        let came = dtype.str().map_or_else(|_| "another type".into(), |text| text.to_string());
        let mend = mend(T::mend(name));
        return Err(array_error(name, format!("got an array of {came}, wanted {}; {mend}", T::NAME)));
    };
    if !array.is_c_contiguous() {
        let mend = mend(format!("call np.ascontiguousarray({name})"));
        return Err(array_error(
            name,
            format!("is not C-contiguous (shape {:?}, strides {:?}); {mend}", array.shape(), array.strides()),
        ));
    }
    if !flag(array, "aligned")? {
        let mend = mend(format!("call {name}.copy()"));
        return Err(array_error(name, format!("is not aligned in memory; {mend}")));
    }
    Ok(typed.clone())
}

fn is_masked(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    let py = array.py();
    if array.get_type().is(PyUntypedArray::type_object(py)) {
        return Ok(false);
    }
    let masked = py.import(intern!(py, "numpy.ma"))?.getattr(intern!(py, "MaskedArray"))?;
    array.is_instance(&masked)
}

fn flag(array: &Bound<'_, PyAny>, which: &str) -> PyResult<bool> {
    array.getattr(intern!(array.py(), "flags"))?.getattr(which)?.extract()
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string())
}

fn as_ndarray<'py, T: Scalar>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let wanted = T::NAME;
    let kind = type_name(value);
    match view(value) {
        Ok(Some(array)) => Ok(array),
        Ok(None) => Err(array_error(
            name,
            format!("got {kind}, wanted an array of {wanted}; call np.asarray({name}, dtype=np.{wanted})"),
        )),
        // Ctrl-C and the like are not about the array.
        Err(cause) if !cause.is_instance_of::<PyException>(value.py()) => Err(cause),
        Err(cause) => Err(array_error(
            name,
            format!(
                "got {kind}, which NumPy cannot view without a copy ({}); \
                 call np.asarray({name}, dtype=np.{wanted}), for a tensor after .detach().cpu()",
                cause.value(value.py())
            ),
        )),
    }
}

/// The memory of a tensor of another framework or of a buffer as an array; `None` for what has no memory to show.
fn view<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    let py = value.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let viewed = if value.hasattr(intern!(py, "__dlpack__"))? {
        numpy.call_method1(intern!(py, "from_dlpack"), (value,))?
    } else if value.hasattr(intern!(py, "__array_interface__"))? || PyMemoryView::from(value).is_ok() {
        numpy.call_method1(intern!(py, "asarray"), (value,))?
    } else if value.hasattr(intern!(py, "__array__"))? {
        let options = PyDict::new(py);
        options.set_item("copy", false)?;
        numpy.call_method(intern!(py, "asarray"), (value,), Some(&options))?
    } else {
        return Ok(None);
    };
    Ok(Some(viewed.cast_into::<PyUntypedArray>()?))
}
