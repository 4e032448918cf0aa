//! The sealed network.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use tritter_core::base::error::Error;
use tritter_core::engine::entry::Entry as CoreEntry;
use tritter_core::engine::network::{Network as CoreNetwork, NodeId};

use crate::arguments::instance_argument;
use crate::entry::Entry;
use crate::errors::raise;
use crate::parameters::{Parameters, describe};
use crate::shape::items;
use crate::tape::{Recording, Shared, Value};

/// A sealed network: immutable, shared by threads, without live weights.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Network {
    /// The tape it was recorded on.
    pub shared: Arc<Shared>,
    /// The core's network.
    pub network: Arc<CoreNetwork>,
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
        let node = |name: &str, value: &Bound<'_, PyAny>| {
            self.node_of(instance_argument::<Value>(name, value)?.get())
        };
        let loss = loss.map(|loss| node("loss", loss)).transpose()?;
        let mut observed = Vec::new();
        for value in observe.map(items).unwrap_or_default() {
            observed.push(node("observe", &value)?);
        }
        if loss.is_none() && observed.is_empty() {
            return Err(raise(Error::Tape("an entry needs a loss, or values to observe".into())));
        }
        let entry = CoreEntry::new(Arc::clone(&self.network), loss, &observed).map_err(raise)?;
        Ok(Entry { shared: Arc::clone(&self.shared), entry: Arc::new(entry) })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let this = slf.get();
        let bytes = postcard::to_allocvec(this.network.as_ref())
            .map_err(|error| raise(Error::Internal(error.to_string())))?;
        let rebuild = py.import("tritter_accel._core")?.getattr("_network")?;
        let checksum = crc32fast::hash(&bytes);
        (rebuild, (this.shared.id, checksum, PyBytes::new(py, &bytes))).into_pyobject(py)
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
fn _network(id: u64, checksum: u32, bytes: &[u8]) -> PyResult<Network> {
    if crc32fast::hash(bytes) != checksum {
        return Err(raise(Error::argument("bytes", "the pickled network is damaged: its checksum differs")));
    }
    let network: CoreNetwork = postcard::from_bytes(bytes)
        .map_err(|error| raise(Error::argument("bytes", format!("not a pickled network ({error})"))))?;
    network.validate().map_err(raise)?;
    let network = Arc::new(network);
    Ok(Network { shared: Shared::new(id, Recording::Sealed(Arc::clone(&network))), network })
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Network>()?;
    module.add_function(wrap_pyfunction!(_network, module)?)?;
    module.add_function(wrap_pyfunction!(_value, module)?)?;
    Ok(())
}
