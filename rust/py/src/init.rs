//! Initialisers: seeded streams that fill parameters as they are recorded.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tritter_core::engine::init::{Distribution, Initializer as Core};

use crate::arguments::{choice_argument, f64_argument, u64_argument};
use crate::errors::raise;
use crate::run::lock;

const KINDS: [&str; 5] = ["constant", "normal", "uniform", "xavier", "kaiming"];

/// How the values of parameters are drawn; made by the functions of :mod:`tritter_accel.init`.
///
/// One stream runs on through all tensors that one initialiser fills, in the order they are recorded.
#[pyclass(frozen, module = "tritter_accel.init")]
pub struct Initializer {
    kind: &'static str,
    value: f64,
    seed: u64,
    core: Mutex<Core>,
}

impl Initializer {
    /// The stream, to draw from.
    pub fn stream(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Core>> {
        lock(py, &self.core)
    }
}

#[pymethods]
impl Initializer {
    #[new]
    #[pyo3(signature = (kind, value, seed, state=None))]
    fn new(
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kind = choice_argument("kind", kind, &KINDS, |kind| kind)?;
        let argument = match kind {
            "normal" => "std",
            "uniform" => "scale",
            _ => "value",
        };
        let value = f64_argument(argument, value)?;
        let distribution = match kind {
            "constant" => Distribution::Constant(value as f32),
            "normal" => Distribution::Normal(value),
            "uniform" => Distribution::Uniform(value),
            "xavier" => Distribution::Xavier,
            _ => Distribution::Kaiming,
        };
        let seed = u64_argument("seed", seed)?;
        // splitmix64 starts at its seed, so a state is the seed of what is left of a stream.
        let state = state.map_or(Ok(seed), |state| u64_argument("state", state))?;
        let core = Core::new(distribution, state).map_err(raise)?;
        Ok(Self { kind, value, seed, core: Mutex::new(core) })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let this = slf.get();
        let state = this.stream(py)?.state();
        (slf.get_type(), (this.kind, this.value, this.seed, state)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let Self { kind, value, seed, .. } = self;
        match *kind {
            "constant" => format!("constant({value:?})"),
            "normal" => format!("normal(seed={seed}, std={value:?})"),
            "uniform" => format!("uniform(seed={seed}, scale={value:?})"),
            kind => format!("{kind}(seed={seed})"),
        }
    }
}
