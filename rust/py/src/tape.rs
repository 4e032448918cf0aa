//! The tape and its values, as Python records them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyTuple};
use tritter_core::base::error::{Error, Result};
use tritter_core::engine::network::{Network as CoreNetwork, NodeId};
use tritter_core::engine::operation::Operation;
use tritter_core::engine::shape::Shape;
use tritter_core::engine::tape::Tape as CoreTape;

use crate::arguments::{bool_argument, f32_argument, instance_argument, name_argument, usize_argument};
use crate::arrays::read;
use crate::errors::raise;
use crate::init::Initializer;
use crate::network::Network;
use crate::run::enter;
use crate::shape::{
    axes_argument, axis_argument, dims_argument, is_sequence, items, shape_argument, shape_tuple,
};

/// What a tape is: under recording, or sealed.
pub enum Recording {
    /// Values can be recorded.
    Open(CoreTape),
    /// The network is fixed.
    Sealed(Arc<CoreNetwork>),
}

/// One tape, shared by its values, its network and their entries.
pub struct Shared {
    /// Tells tapes apart, across processes too.
    pub id: u64,
    recording: Mutex<Recording>,
}

impl Shared {
    /// A tape of that identity.
    pub fn new(id: u64, recording: Recording) -> Arc<Self> {
        Arc::new(Self { id, recording: Mutex::new(recording) })
    }

    /// What it is now. Never held over anything that may give up the interpreter lock.
    pub fn lock(&self) -> MutexGuard<'_, Recording> {
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

    /// A node as error messages name it.
    pub fn describe(&self, node: NodeId) -> String {
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
        name: &Bound<'_, PyAny>,
        init: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
    ) -> PyResult<Value> {
        let py = init.py();
        let name = name_argument("name", name)?;
        let init = instance_argument::<Initializer>("init", init)?;
        let shape = shape_argument(shape)?;
        let mut stream = init.get().stream(py)?;
        // Drawn from a copy, so that a refusal leaves the stream where it was.
        let mut drawing = stream.clone();
        let sizes = shape.sizes(0);
        let nanoseconds = shape.elements(0) as f64 * 40.0;
        let values = enter(py, nanoseconds, |exec| drawing.fill(exec, &sizes))?;
        let value = self.value(|tape| tape.parameter(&name, shape, &values))?;
        *stream = drawing;
        Ok(value)
    }

    /// Record floats that every run feeds under `name`; one axis of `shape` may be `BATCH`.
    #[pyo3(signature = (name, shape))]
    fn input(&self, name: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Value> {
        let name = name_argument("name", name)?;
        let shape = shape_argument(shape)?;
        self.value(|tape| tape.input(&name, shape))
    }

    /// Record whole numbers of 0 to `vocabulary` - 1 that every run feeds under `name`.
    #[pyo3(signature = (name, vocabulary, shape))]
    fn selection(
        &self,
        name: &Bound<'_, PyAny>,
        vocabulary: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
    ) -> PyResult<Value> {
        let name = name_argument("name", name)?;
        let vocabulary = usize_argument("vocabulary", vocabulary)?;
        let shape = shape_argument(shape)?;
        self.value(|tape| tape.selection(&name, vocabulary, shape))
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
    /// The tape it is recorded on.
    pub shared: Arc<Shared>,
    /// Its place there.
    pub node: NodeId,
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
        self.matmul(other)
    }

    /// The product of two matrices, (m, k) and (k, n); also written ``a @ b``.
    fn matmul(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        let other = self.node_of(instance_argument::<Self>("other", other)?.get())?;
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
    #[pyo3(signature = (axis=None, keepdims=None), text_signature = "($self, axis=None, keepdims=False)")]
    fn sum(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let keepdims = keepdims.map_or(Ok(false), |keepdims| bool_argument("keepdims", keepdims))?;
        let axes = axes_argument(axis)?;
        self.record(|tape, node| tape.sum(node, axes.as_deref(), keepdims))
    }

    /// Mean over `axis` (an int, a tuple, or None for all).
    #[pyo3(signature = (axis=None, keepdims=None), text_signature = "($self, axis=None, keepdims=False)")]
    fn mean(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let keepdims = keepdims.map_or(Ok(false), |keepdims| bool_argument("keepdims", keepdims))?;
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
    fn gather(&self, selection: &Bound<'_, PyAny>) -> PyResult<Self> {
        let selection = self.node_of(instance_argument::<Self>("selection", selection)?.get())?;
        self.record(|tape, node| tape.gather(node, selection))
    }

    /// softmax along `axis`, the last one if none is given.
    #[pyo3(signature = (axis=None))]
    fn softmax(&self, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let axis = axis.map_or(Ok(-1), |axis| axis_argument("axis", axis))?;
        self.record(|tape, node| tape.softmax(node, axis))
    }

    /// The logarithm of softmax along `axis`, the last one if none is given.
    #[pyo3(signature = (axis=None))]
    fn log_softmax(&self, axis: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let axis = axis.map_or(Ok(-1), |axis| axis_argument("axis", axis))?;
        self.record(|tape, node| tape.log_softmax(node, axis))
    }

    /// The logarithm of the sum of exponentials along `axis`, the last one if none is given.
    #[pyo3(signature = (axis=None, keepdims=None), text_signature = "($self, axis=None, keepdims=False)")]
    fn logsumexp(
        &self,
        axis: Option<&Bound<'_, PyAny>>,
        keepdims: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let keepdims = keepdims.map_or(Ok(false), |keepdims| bool_argument("keepdims", keepdims))?;
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
        let network = match &*this.shared.lock() {
            Recording::Sealed(network) => Arc::clone(network),
            Recording::Open(_) => {
                return Err(raise(Error::Tape("a value pickles once its tape is sealed".into())));
            }
        };
        let network = Network { shared: Arc::clone(&this.shared), network };
        let rebuild = py.import("tritter_accel._core")?.getattr("_value")?;
        Ok((rebuild, (network, this.node)))
    }

    fn __repr__(&self) -> String {
        format!("Value({})", self.shared.describe(self.node))
    }
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
    logits: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
    mass: Option<&Bound<'_, PyAny>>,
) -> PyResult<Value> {
    let value = |name, value| instance_argument::<Value>(name, value).map(Bound::get);
    let logits = value("logits", logits)?;
    let targets = logits.node_of(value("targets", targets)?)?;
    let mass = mass.map(|mass| logits.node_of(value("mass", mass)?)).transpose()?;
    logits.record(|tape, node| tape.cross_entropy(node, targets, mass))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tape>()?;
    module.add_class::<Value>()?;
    module.add_function(wrap_pyfunction!(cross_entropy, module)?)?;
    Ok(())
}
