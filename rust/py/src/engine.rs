//! Tape, network, entry and run, as Python records and runs them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyTuple};
use tritter_core::base::error::{Error, Result};
use tritter_core::engine::entry::{Entry as CoreEntry, Packed, Workspace};
use tritter_core::engine::network::{FeedKind, FeedValue, Network as CoreNetwork, NodeId};
use tritter_core::engine::operation::Operation;
use tritter_core::engine::shape::{Dim, Shape};
use tritter_core::engine::tape::Tape as CoreTape;
use tritter_core::train::data::Column;

use crate::arguments::{f32_argument, usize_argument};
use crate::arrays::{read, read_integers, to_array};
use crate::errors::raise;
use crate::init::Initializer;
use crate::parameters::{Parameters, describe};
use crate::run::enter;

/// What a tape is: under recording, or sealed.
enum Recording {
    Open(CoreTape),
    Sealed(Arc<CoreNetwork>),
}

/// One tape, shared by its values, its network and their entries.
pub struct Shared {
    /// Tells tapes apart, across processes too.
    id: u64,
    recording: Mutex<Recording>,
}

impl Shared {
    fn new(id: u64, recording: Recording) -> Arc<Self> {
        Arc::new(Self { id, recording: Mutex::new(recording) })
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records on the tape, if it is open.
    fn record<R>(&self, body: impl FnOnce(&mut CoreTape) -> Result<R>) -> PyResult<R> {
        match &mut *self.lock() {
            Recording::Open(tape) => body(tape).map_err(raise),
            Recording::Sealed(_) => {
                Err(raise(Error::Tape("the tape is sealed; record before tape.seal()".into())))
            }
        }
    }

    fn describe(&self, node: NodeId) -> String {
        match &*self.lock() {
            Recording::Open(tape) => tape.describe(node),
            Recording::Sealed(network) => network.describe(node),
        }
    }

    fn shape(&self, node: NodeId) -> Shape {
        match &*self.lock() {
            Recording::Open(tape) => tape.shape(node).clone(),
            Recording::Sealed(network) => network.nodes()[node].shape.clone(),
        }
    }
}

fn fresh_id() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((COUNT.fetch_add(1, Ordering::Relaxed), std::process::id()))
}

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
fn dims_argument(value: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Dim>>> {
    let items = items(value);
    match items.as_slice() {
        [one] if is_sequence(one) => self::items(one).iter().map(dim_argument).collect(),
        _ => items.iter().map(dim_argument).collect(),
    }
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyTuple>() || value.is_instance_of::<pyo3::types::PyList>()
}

fn items<'py>(value: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    if is_sequence(value)
        && let Ok(items) = value.try_iter()
        && let Ok(items) = items.collect::<PyResult<Vec<_>>>()
    {
        return items;
    }
    vec![value.clone()]
}

fn shape_argument(value: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let dims = dims_argument(value)?.into_iter().collect::<Option<Vec<_>>>();
    let dims = dims.ok_or_else(|| {
        raise(Error::argument("shape", "got -1, wanted lengths or BATCH; -1 goes with reshape alone"))
    })?;
    Shape::new(dims).map_err(raise)
}

fn axis_argument(name: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract::<i64>().map_err(|_| {
        let message = format!("got {value}, wanted an axis (int)");
        raise(Error::ArgumentType { argument: name.into(), message })
    })
}

/// Axes as NumPy takes them: none, one, or several.
fn axes_argument(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<i64>>> {
    value.map(|value| items(value).iter().map(|axis| axis_argument("axis", axis)).collect()).transpose()
}

fn shape_tuple<'py>(py: Python<'py>, shape: &Shape) -> PyResult<Bound<'py, PyTuple>> {
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

/// A recording of a network: shapes and operations, checked as they come.
///
/// A refused operation raises at its line and leaves the tape as it was. ``len(tape)`` is the number of nodes.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Tape {
    shared: Arc<Shared>,
}

#[pymethods]
impl Tape {
    #[new]
    fn new() -> Self {
        Self { shared: Shared::new(fresh_id(), Recording::Open(CoreTape::default())) }
    }

    /// Record a parameter.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     Its name in `Parameters`, once a tape.
    /// init : Initializer
    ///     Where its initial values come from, see `tritter_accel.init`.
    /// shape : tuple of int
    #[pyo3(signature = (name, init, shape))]
    fn parameter(
        &self,
        name: &str,
        init: &Bound<'_, Initializer>,
        shape: &Bound<'_, PyAny>,
    ) -> PyResult<Value> {
        let shape = shape_argument(shape)?;
        let mut stream = init.get().stream();
        self.value(|tape| tape.parameter(name, &mut stream, shape))
    }

    /// Record floats that every run feeds under `name`; one axis of `shape` may be `BATCH`.
    #[pyo3(signature = (name, shape))]
    fn input(&self, name: &str, shape: &Bound<'_, PyAny>) -> PyResult<Value> {
        let shape = shape_argument(shape)?;
        self.value(|tape| tape.input(name, shape))
    }

    /// Record whole numbers of 0 to `vocabulary` - 1 that every run feeds under `name`.
    #[pyo3(signature = (name, vocabulary, shape))]
    fn selection(
        &self,
        name: &str,
        vocabulary: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
    ) -> PyResult<Value> {
        let vocabulary = usize_argument("vocabulary", vocabulary)?;
        let shape = shape_argument(shape)?;
        self.value(|tape| tape.selection(name, vocabulary, shape))
    }

    /// Record fixed values: a float32 array, copied.
    fn constant(&self, array: &Bound<'_, PyAny>) -> PyResult<Value> {
        let array = read::<f32>("array", array)?;
        self.value(|tape| tape.constant(array.slice(), array.shape()))
    }

    /// End the recording and give the immutable network.
    fn seal(&self) -> PyResult<Network> {
        let mut recording = self.shared.lock();
        let network = match std::mem::replace(&mut *recording, Recording::Open(CoreTape::default())) {
            Recording::Open(tape) => Arc::new(tape.seal()),
            Recording::Sealed(network) => {
                *recording = Recording::Sealed(network);
                return Err(raise(Error::Tape("the tape is sealed already".into())));
            }
        };
        *recording = Recording::Sealed(Arc::clone(&network));
        Ok(Network { shared: Arc::clone(&self.shared), network })
    }

    fn __len__(&self) -> usize {
        match &*self.shared.lock() {
            Recording::Open(tape) => tape.len(),
            Recording::Sealed(network) => network.nodes().len(),
        }
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        let state = match &*self.shared.lock() {
            Recording::Open(_) => "open",
            Recording::Sealed(_) => "sealed",
        };
        format!("Tape({} nodes, {state})", self.__len__())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(raise(Error::Tape("a tape does not pickle; pickle the network that tape.seal() gives".into())))
    }
}

impl Tape {
    fn value(&self, body: impl FnOnce(&mut CoreTape) -> Result<NodeId>) -> PyResult<Value> {
        Ok(Value { shared: Arc::clone(&self.shared), node: self.shared.record(body)? })
    }
}

/// A recorded value. Operators and methods record further ones.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Value {
    shared: Arc<Shared>,
    node: NodeId,
}

impl Value {
    fn record(&self, body: impl FnOnce(&mut CoreTape, NodeId) -> Result<NodeId>) -> PyResult<Self> {
        let node = self.shared.record(|tape| body(tape, self.node))?;
        Ok(Self { shared: Arc::clone(&self.shared), node })
    }

    /// The node of another value of this tape.
    fn node_of(&self, other: &Self) -> PyResult<NodeId> {
        if self.shared.id == other.shared.id {
            return Ok(other.node);
        }
        Err(raise(Error::Tape(format!(
            "{} and {} are of different tapes",
            self.shared.describe(self.node),
            other.shared.describe(other.node)
        ))))
    }

    fn binary(&self, operation: Operation, other: &Bound<'_, PyAny>, other_first: bool) -> PyResult<Self> {
        if let Ok(other) = other.cast::<Self>() {
            let other = self.node_of(other.get())?;
            return self.record(|tape, node| {
                let (a, b) = if other_first { (other, node) } else { (node, other) };
                tape.binary(operation, a, b)
            });
        }
        if other.is_instance_of::<PyFloat>() || other.is_instance_of::<PyInt>() || is_numpy_number(other) {
            let number = f32_argument("other", other)?;
            return self.record(|tape, node| tape.binary_with_number(operation, node, number, other_first));
        }
        let kind = other.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string());
        Err(raise(Error::ArgumentType {
            argument: "other".into(),
            message: format!(
                "got {kind}, wanted a value of the tape or a number; record arrays with tape.constant"
            ),
        }))
    }
}

/// A NumPy scalar; arrays are recorded, never taken for numbers.
fn is_numpy_number(value: &Bound<'_, PyAny>) -> bool {
    value.hasattr("dtype").unwrap_or(false)
        && value.extract::<f64>().is_ok()
        && value.getattr("ndim").and_then(|ndim| ndim.extract::<usize>()).is_ok_and(|ndim| ndim == 0)
}

#[pymethods]
impl Value {
    /// Lengths of the axes, one of which may be `BATCH`.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape_tuple(py, &self.shared.shape(self.node))
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Add, other, false)
    }

    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Add, other, true)
    }

    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Subtract, other, false)
    }

    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Subtract, other, true)
    }

    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Multiply, other, false)
    }

    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Multiply, other, true)
    }

    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Divide, other, false)
    }

    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.binary(Operation::Divide, other, true)
    }

    fn __neg__(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Negate, node))
    }

    fn __matmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(other) = other.cast::<Self>() else {
            return Err(PyNotImplementedError::new_err(()));
        };
        self.matmul(other)
    }

    /// The product of two matrices, (m, k) and (k, n); also written ``a @ b``.
    fn matmul(&self, other: &Bound<'_, Self>) -> PyResult<Self> {
        let other = self.node_of(other.get())?;
        self.record(|tape, node| tape.matmul(node, other))
    }

    /// Hyperbolic tangent, elementwise.
    fn tanh(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Tanh, node))
    }

    /// max(x, 0), elementwise; its gradient at 0 is 0.
    fn relu(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Relu, node))
    }

    /// e to the x, elementwise.
    fn exp(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Exp, node))
    }

    /// Natural logarithm, elementwise.
    fn log(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Log, node))
    }

    /// Square root, elementwise.
    fn sqrt(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.unary(Operation::Sqrt, node))
    }

    /// Sum over `axis` (an int, a tuple, or None for all).
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn sum(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Self> {
        let axes = axes_argument(axis)?;
        self.record(|tape, node| tape.sum(node, axes.as_deref(), keepdims))
    }

    /// Mean over `axis` (an int, a tuple, or None for all).
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn mean(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Self> {
        let axes = axes_argument(axis)?;
        self.record(|tape, node| tape.mean(node, axes.as_deref(), keepdims))
    }

    /// The same elements in C order under another shape; one axis may be -1.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let dims = dims_argument(shape)?;
        self.record(|tape, node| tape.reshape(node, &dims))
    }

    /// Axes permuted, axis i of the result being axis ``axes[i]``; reversed when none are given.
    #[pyo3(signature = (*axes))]
    fn transpose(&self, axes: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let given = items(axes);
        let given = match given.as_slice() {
            [one] if is_sequence(one) => items(one),
            _ => given,
        };
        let axes = given.iter().map(|axis| axis_argument("axes", axis)).collect::<PyResult<Vec<_>>>()?;
        let axes = (!axes.is_empty()).then_some(axes);
        self.record(|tape, node| tape.transpose(node, axes.as_deref()))
    }

    /// The transpose.
    #[getter(T)]
    fn transposed(&self) -> PyResult<Self> {
        self.record(|tape, node| tape.transpose(node, None))
    }

    /// Repeated to `shape` by NumPy's rules of broadcasting.
    #[pyo3(signature = (*shape))]
    fn broadcast_to(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let shape = shape_argument(shape)?;
        self.record(|tape, node| tape.broadcast_to(node, shape))
    }

    /// The rows of this table that a selection picks: its shape with the columns behind.
    fn gather(&self, selection: &Bound<'_, Self>) -> PyResult<Self> {
        let selection = self.node_of(selection.get())?;
        self.record(|tape, node| tape.gather(node, selection))
    }

    /// softmax along `axis`.
    #[pyo3(signature = (axis=None))]
    fn softmax(&self, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let axis = axis.map_or(Ok(-1), |axis| axis_argument("axis", axis))?;
        self.record(|tape, node| tape.softmax(node, axis))
    }

    /// The logarithm of softmax along `axis`.
    #[pyo3(signature = (axis=None))]
    fn log_softmax(&self, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let axis = axis.map_or(Ok(-1), |axis| axis_argument("axis", axis))?;
        self.record(|tape, node| tape.log_softmax(node, axis))
    }

    /// The logarithm of the sum of exponentials along `axis`.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn logsumexp(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Self> {
        let axis = axis.map_or(Ok(-1), |axis| axis_argument("axis", axis))?;
        self.record(|tape, node| tape.logsumexp(node, axis, keepdims))
    }

    /// NumPy scalars leave arithmetic with a value to the value.
    #[classattr]
    fn __array_ufunc__(py: Python<'_>) -> Py<PyAny> {
        py.None()
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Network, NodeId))> {
        let this = slf.get();
        let Recording::Sealed(network) = &*this.shared.lock() else {
            return Err(raise(Error::Tape("a value pickles once its tape is sealed".into())));
        };
        let network = Network { shared: Arc::clone(&this.shared), network: Arc::clone(network) };
        let rebuild = py.import("tritter_accel._core")?.getattr("_value")?;
        Ok((rebuild, (network, this.node)))
    }

    fn __repr__(&self) -> String {
        format!("Value({})", self.shared.describe(self.node))
    }
}

/// The value of a pickled node.
#[pyfunction]
fn _value(network: &Bound<'_, Network>, node: usize) -> PyResult<Value> {
    let network = network.get();
    if node >= network.network.nodes().len() {
        return Err(raise(Error::argument("node", format!("got {node}, outside the network"))));
    }
    Ok(Value { shared: Arc::clone(&network.shared), node })
}

/// Mean cross entropy of logits against targets, from logits shifted by their row's maximum.
///
/// (sum over rows of mass * logsumexp - sum of target * logit) / total mass.
///
/// Parameters
/// ----------
/// logits : Value
///     Shape (rows, classes).
/// targets : Value
///     A selection of shape (rows,) among as many classes, or weights of the logits' shape.
/// mass : Value, optional
///     A weight a row, shape (rows,).
#[pyfunction]
#[pyo3(signature = (logits, targets, mass=None))]
fn cross_entropy(
    logits: &Bound<'_, Value>,
    targets: &Bound<'_, Value>,
    mass: Option<&Bound<'_, Value>>,
) -> PyResult<Value> {
    let logits = logits.get();
    let targets = logits.node_of(targets.get())?;
    let mass = mass.map(|mass| logits.node_of(mass.get())).transpose()?;
    logits.record(|tape, node| tape.cross_entropy(node, targets, mass))
}

/// A sealed network: immutable, shared by threads, without live weights.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Network {
    shared: Arc<Shared>,
    network: Arc<CoreNetwork>,
}

impl Network {
    fn node_of(&self, value: &Value) -> PyResult<NodeId> {
        if value.shared.id == self.shared.id {
            return Ok(value.node);
        }
        let message = format!("{} is of another tape", value.shared.describe(value.node));
        Err(raise(Error::Tape(message)))
    }
}

#[pymethods]
impl Network {
    /// A table of the initial values of all parameters, in slot order.
    fn parameters(&self, py: Python<'_>) -> PyResult<Parameters> {
        Parameters::new(py, Arc::clone(self.network.layout()), self.network.initial().to_vec())
    }

    /// Names of the parameters, in slot order.
    #[getter]
    fn parameter_names(&self) -> Vec<&str> {
        let layout = self.network.layout();
        (0..layout.len()).map(|slot| layout.name(slot)).collect()
    }

    /// Names of the feeds, in the order they were recorded.
    #[getter]
    fn feed_names(&self) -> Vec<&str> {
        self.network.feeds().iter().map(|feed| feed.name.as_str()).collect()
    }

    /// How many nodes were recorded.
    #[getter]
    fn nodes(&self) -> usize {
        self.network.nodes().len()
    }

    /// The part of the network that `loss` and the observed values need.
    ///
    /// Parameters
    /// ----------
    /// loss : Value or None
    ///     A value of shape (), from which a run goes back.
    /// observe : sequence of Value
    ///     Further values that a run keeps.
    #[pyo3(signature = (loss=None, observe=None))]
    fn entry(&self, loss: Option<&Bound<'_, Value>>, observe: Option<&Bound<'_, PyAny>>) -> PyResult<Entry> {
        let loss = loss.map(|loss| self.node_of(loss.get())).transpose()?;
        let mut observed = Vec::new();
        for value in observe.map(items).unwrap_or_default() {
            let value = value.cast::<Value>().map_err(|_| {
                let message = format!("got {}, wanted values of the tape", value.get_type());
                raise(Error::ArgumentType { argument: "observe".into(), message })
            })?;
            observed.push(self.node_of(value.get())?);
        }
        if loss.is_none() && observed.is_empty() {
            return Err(raise(Error::Tape("an entry needs a loss, or values to observe".into())));
        }
        let entry = self.network.entry(loss, &observed).map_err(raise)?;
        Ok(Entry { shared: Arc::clone(&self.shared), entry: Arc::new(entry) })
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (u64, Bound<'py, PyBytes>))> {
        let this = slf.get();
        let bytes = postcard::to_allocvec(this.network.as_ref())
            .map_err(|error| raise(Error::Internal(error.to_string())))?;
        let rebuild = py.import("tritter_accel._core")?.getattr("_network")?;
        Ok((rebuild, (this.shared.id, PyBytes::new(py, &bytes))))
    }

    fn __repr__(&self) -> String {
        let layout = self.network.layout();
        format!(
            "Network({} nodes, {} parameters: {})",
            self.network.nodes().len(),
            layout.elements(),
            describe(layout)
        )
    }
}

/// A pickled network.
#[pyfunction]
fn _network(id: u64, bytes: &[u8]) -> PyResult<Network> {
    let network: CoreNetwork = postcard::from_bytes(bytes)
        .map_err(|error| raise(Error::argument("bytes", format!("not a pickled network ({error})"))))?;
    let network = Arc::new(network);
    Ok(Network { shared: Shared::new(id, Recording::Sealed(Arc::clone(&network))), network })
}

/// The nodes that a loss and observed values need; made by `Network.entry`.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Entry {
    shared: Arc<Shared>,
    entry: Arc<CoreEntry>,
}

impl Entry {
    /// The core's entry.
    pub fn core(&self) -> &CoreEntry {
        &self.entry
    }

    fn value(&self, node: NodeId) -> Value {
        Value { shared: Arc::clone(&self.shared), node }
    }
}

/// Columns for the network's feeds with their shapes, from a mapping of names to arrays.
pub fn columns(
    argument: &str,
    network: &CoreNetwork,
    feeds: &Bound<'_, PyAny>,
) -> PyResult<Vec<Option<(Column, Vec<usize>)>>> {
    let feeds = feeds.cast::<PyDict>().map_err(|_| {
        let message = format!("got {}, wanted a dict of names and arrays", feeds.get_type());
        raise(Error::ArgumentType { argument: argument.into(), message })
    })?;
    let mut columns: Vec<Option<(Column, Vec<usize>)>> = vec![None; network.feeds().len()];
    for (name, array) in feeds {
        let name = name.extract::<String>().unwrap_or_else(|_| name.to_string());
        let Some(index) = network.feeds().iter().position(|feed| feed.name == name) else {
            let names: Vec<&str> = network.feeds().iter().map(|feed| feed.name.as_str()).collect();
            let message = format!("no feed '{name}' among {}", names.join(", "));
            return Err(raise(Error::argument(argument, message)));
        };
        let column = match network.feeds()[index].kind {
            FeedKind::Float => {
                let array = read::<f32>(&name, &array)?;
                (Column::Float(array.slice().to_vec()), array.shape().to_vec())
            }
            FeedKind::Index { .. } => {
                let (values, shape) = read_integers(&name, &array)?;
                (Column::Index(network.feed_indices(index, &values).map_err(raise)?), shape)
            }
        };
        network.feed_batch(index, &column.1).map_err(raise)?;
        columns[index] = Some(column);
    }
    Ok(columns)
}

/// The feeds of a run, all there and of one batch.
fn check_feeds(entry: &CoreEntry, columns: &[Option<(Column, Vec<usize>)>]) -> Result<usize> {
    let network = entry.network();
    let mut batch: Option<(usize, &str)> = None;
    for &index in entry.feeds() {
        let name = network.feeds()[index].name.as_str();
        let Some((_, shape)) = &columns[index] else {
            return Err(Error::argument("feeds", format!("feed '{name}' is missing")));
        };
        if let Some(rows) = network.feed_batch(index, shape)? {
            match batch {
                Some((before, other)) if before != rows => {
                    return Err(Error::Shape(format!(
                        "feeds '{other}' and '{name}' bring batches of {before} and {rows}"
                    )));
                }
                _ => batch = Some((rows, name)),
            }
        }
    }
    Ok(batch.map_or(1, |batch| batch.0))
}

#[pymethods]
impl Entry {
    /// Run the entry forward.
    ///
    /// Parameters
    /// ----------
    /// parameters : Parameters
    ///     Of this network's names and shapes.
    /// feeds : dict of str to ndarray
    ///     An array for each feed the entry needs: float32 for inputs, any integers for selections.
    ///
    /// Returns
    /// -------
    /// Run
    #[pyo3(signature = (parameters, feeds=None))]
    fn run(
        slf: &Bound<'_, Self>,
        parameters: &Bound<'_, Parameters>,
        feeds: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Run> {
        let py = slf.py();
        let entry = &slf.get().entry;
        let network = entry.network();
        let table = parameters.get();
        check_layout(network, table)?;
        let columns = match feeds {
            Some(feeds) => columns("feeds", network, feeds)?,
            None => vec![None; network.feeds().len()],
        };
        let batch = check_feeds(entry, &columns).map_err(raise)?;
        let state = table.with_values(py, |values| {
            enter(py, entry.estimate(batch), |exec| {
                let mut workspace = entry.workspace(batch)?;
                let mut packed = Packed::default();
                entry.pack(exec, values, &mut packed)?;
                entry.forward(exec, &mut workspace, values, &packed, &feed_values(&columns))?;
                Ok(State { workspace, packed })
            })
        })?;
        Ok(Run {
            entry: slf.clone().unbind(),
            parameters: parameters.clone().unbind(),
            columns,
            state: Mutex::new(state),
        })
    }

    /// The loss, or None.
    #[getter]
    fn loss(&self) -> Option<Value> {
        self.entry.loss().map(|node| self.value(node))
    }

    /// The observed values.
    #[getter]
    fn observed(&self) -> Vec<Value> {
        self.entry.observed().iter().map(|&node| self.value(node)).collect()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let this = slf.get();
        let network = Network { shared: Arc::clone(&this.shared), network: Arc::clone(this.entry.network()) };
        let rebuild = py.import("tritter_accel._core")?.getattr("_entry")?;
        let arguments = (network, this.entry.loss(), this.entry.observed().to_vec()).into_pyobject(py)?;
        (rebuild, arguments).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let name = |node| self.entry.network().describe(node);
        let observed: Vec<String> = self.entry.observed().iter().map(|&node| name(node)).collect();
        let loss = self.entry.loss().map_or_else(|| "none".into(), name);
        format!("Entry(loss: {loss}, observes: [{}])", observed.join(", "))
    }
}

/// A pickled entry.
#[pyfunction]
fn _entry(network: &Bound<'_, Network>, loss: Option<usize>, observed: Vec<usize>) -> PyResult<Entry> {
    let network = network.get();
    if loss.iter().chain(&observed).any(|&node| node >= network.network.nodes().len()) {
        return Err(raise(Error::argument("loss", "a node outside the network")));
    }
    let entry = network.network.entry(loss, &observed).map_err(raise)?;
    Ok(Entry { shared: Arc::clone(&network.shared), entry: Arc::new(entry) })
}

/// Refuses parameters of another network.
pub fn check_layout(network: &CoreNetwork, parameters: &Parameters) -> PyResult<()> {
    if **network.layout() == **parameters.layout() {
        return Ok(());
    }
    Err(raise(Error::Shape(format!(
        "parameters ({}) do not fit the network's ({})",
        describe(parameters.layout()),
        describe(network.layout())
    ))))
}

fn feed_values(columns: &[Option<(Column, Vec<usize>)>]) -> Vec<FeedValue<'_>> {
    columns
        .iter()
        .map(|column| match column {
            None => FeedValue::Missing,
            Some((Column::Float(values), _)) => FeedValue::Float(values),
            Some((Column::Index(values), _)) => FeedValue::Index(values),
        })
        .collect()
}

/// What a run computed.
struct State {
    workspace: Workspace,
    packed: Packed,
}

/// The values of one run, and the way back from its loss.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Run {
    entry: Py<Entry>,
    parameters: Py<Parameters>,
    columns: Vec<Option<(Column, Vec<usize>)>>,
    state: Mutex<State>,
}

impl Run {
    fn state(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        // Another thread may hold it in `backward`, and need the interpreter lock to finish.
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    fn array<'py>(&self, py: Python<'py>, node: NodeId) -> PyResult<Bound<'py, PyAny>> {
        let entry = &self.entry.get().entry;
        let state = self.state(py);
        let values = self.parameters.get().with_values(py, |parameters| {
            entry
                .value(&state.workspace, parameters, &feed_values(&self.columns), node)
                .map(<[f32]>::to_vec)
                .map_err(raise)
        })?;
        to_array(py, values, state.workspace.sizes(node))
    }
}

#[pymethods]
impl Run {
    /// The value of the loss, or of an observed value: a float32 array.
    fn __getitem__<'py>(&self, py: Python<'py>, value: &Bound<'py, Value>) -> PyResult<Bound<'py, PyAny>> {
        let entry = self.entry.get();
        let value = value.get();
        let core = &entry.entry;
        let known = core.loss().iter().chain(core.observed()).any(|&node| node == value.node);
        if value.shared.id != entry.shared.id || !known {
            return Err(raise(Error::Tape(format!(
                "{} is not observed by this entry; name it in network.entry(loss, observe=[...])",
                value.shared.describe(value.node)
            ))));
        }
        self.array(py, value.node)
    }

    /// The loss of the run.
    #[getter]
    fn loss(&self, py: Python<'_>) -> PyResult<f64> {
        let node = self.entry.get().entry.loss();
        let node = node.ok_or_else(|| raise(Error::Tape("the entry has no loss".into())))?;
        self.array(py, node)?.call_method0("item")?.extract()
    }

    /// The gradient of the loss with respect to every parameter.
    ///
    /// Parameters
    /// ----------
    /// loss : Value, optional
    ///     The entry's loss; any other value raises `TapeError`.
    ///
    /// Returns
    /// -------
    /// Parameters
    ///     Zeros where the loss does not depend on a parameter.
    #[pyo3(signature = (loss=None))]
    fn backward(&self, py: Python<'_>, loss: Option<&Bound<'_, Value>>) -> PyResult<Parameters> {
        let entry = self.entry.get();
        if let Some(value) = loss.map(Bound::get)
            && (value.shared.id != entry.shared.id || entry.entry.loss() != Some(value.node))
        {
            return Err(raise(Error::Tape(format!(
                "{} is not the loss of this entry; name it in network.entry(loss)",
                value.shared.describe(value.node)
            ))));
        }
        let mut state = self.state(py);
        let State { workspace, packed } = &mut *state;
        let feeds = feed_values(&self.columns);
        let table = self.parameters.get();
        let gradient = table.with_values(py, |parameters| {
            enter(py, 2.0 * entry.entry.estimate(workspace.batch()), |exec| {
                let mut gradient = tritter_core::base::memory::try_vec(parameters.len())?;
                entry.entry.backward(exec, workspace, parameters, packed, &feeds, 1.0, &mut gradient)?;
                Ok(gradient)
            })
        })?;
        Parameters::new(py, Arc::clone(table.layout()), gradient)
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.loss(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(raise(Error::Tape("a run does not pickle; run the entry again where it is needed".into())))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let batch = self.state(py).workspace.batch();
        let loss = match self.entry.get().entry.loss() {
            Some(_) => self.loss(py)?.to_string(),
            None => "none".into(),
        };
        Ok(format!("Run(batch {batch}, loss {loss})"))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BatchAxis>()?;
    module.add("BATCH", BatchAxis)?;
    module.add_class::<Initializer>()?;
    module.add_class::<Parameters>()?;
    module.add_class::<Tape>()?;
    module.add_class::<Value>()?;
    module.add_class::<Network>()?;
    module.add_class::<Entry>()?;
    module.add_class::<Run>()?;
    module.add_function(wrap_pyfunction!(cross_entropy, module)?)?;
    module.add_function(wrap_pyfunction!(_value, module)?)?;
    module.add_function(wrap_pyfunction!(_network, module)?)?;
    module.add_function(wrap_pyfunction!(_entry, module)?)?;
    Ok(())
}
