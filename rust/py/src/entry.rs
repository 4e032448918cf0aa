//! Entries into a network, their runs, and what runs are fed.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tritter_core::base::error::{Error, Result};
use tritter_core::engine::entry::{Entry as CoreEntry, Packed, Workspace};
use tritter_core::engine::network::{FeedKind, FeedValue, Network as CoreNetwork, NodeId};
use tritter_core::train::data::{Column, Columns};

use crate::arguments::{instance_argument, mapping_argument, name_argument};
use crate::arrays::{read, read_integers, to_array};
use crate::errors::raise;
use crate::network::Network;
use crate::parameters::{Parameters, describe};
use crate::run::{enter, lock};
use crate::tape::{Shared, Value};

/// The nodes that a loss and observed values need; made by `Network.entry`.
#[pyclass(frozen, module = "tritter_accel.engine")]
pub struct Entry {
    /// The tape of its network.
    pub shared: Arc<Shared>,
    /// The core's entry.
    pub entry: Arc<CoreEntry>,
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
pub fn columns(argument: &str, network: &CoreNetwork, feeds: &Bound<'_, PyAny>) -> PyResult<Columns> {
    let feeds = mapping_argument(argument, feeds)?;
    let mut columns: Columns = vec![None; network.feeds().len()];
    for (name, array) in feeds {
        let name = name_argument(argument, &name)?;
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
                let nanoseconds = values.len() as f64;
                let indices = enter(array.py(), nanoseconds, |_| network.feed_indices(index, &values))?;
                (Column::Index(indices), shape)
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
        parameters: &Bound<'_, PyAny>,
        feeds: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Run> {
        let py = slf.py();
        let entry = &slf.get().entry;
        let network = entry.network();
        let parameters = instance_argument::<Parameters>("parameters", parameters)?;
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
    let entry = CoreEntry::new(Arc::clone(&network.network), loss, &observed).map_err(raise)?;
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
    columns: Columns,
    state: Mutex<State>,
}

impl Run {
    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        lock(py, &self.state)
    }

    fn array<'py>(&self, py: Python<'py>, node: NodeId) -> PyResult<Bound<'py, PyAny>> {
        let entry = &self.entry.get().entry;
        let state = self.state(py)?;
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
    fn __getitem__<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let entry = self.entry.get();
        let value = instance_argument::<Value>("value", value)?.get();
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
    fn backward(&self, py: Python<'_>, loss: Option<&Bound<'_, PyAny>>) -> PyResult<Parameters> {
        let entry = self.entry.get();
        let loss = loss.map(|loss| instance_argument::<Value>("loss", loss)).transpose()?;
        if let Some(value) = loss.map(Bound::get)
            && (value.shared.id != entry.shared.id || entry.entry.loss() != Some(value.node))
        {
            return Err(raise(Error::Tape(format!(
                "{} is not the loss of this entry; name it in network.entry(loss)",
                value.shared.describe(value.node)
            ))));
        }
        let mut state = self.state(py)?;
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
        let batch = self.state(py)?.workspace.batch();
        let loss = match self.entry.get().entry.loss() {
            Some(_) => self.loss(py)?.to_string(),
            None => "none".into(),
        };
        Ok(format!("Run(batch {batch}, loss {loss})"))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Entry>()?;
    module.add_class::<Run>()?;
    module.add_function(wrap_pyfunction!(_entry, module)?)?;
    Ok(())
}
