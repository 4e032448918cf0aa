//! Dynamic loss scaling.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use tritter_core::base::error::Error;
use tritter_core::numeric::loss_scaler as core;

use crate::arguments::{bool_argument, f32_argument, u64_argument, wrong_type};
use crate::arrays::{Changed, read};
use crate::errors::raise;
use crate::run::enter;

const NS_PER_VALUE: f64 = 0.4;

/// A loss scale that follows the overflows of training.
///
/// Scale the loss before the backward pass, divide the gradients afterwards, and tell the scaler of each step whether its
/// gradients overflowed. An overflow multiplies the scale by `backoff_factor`; `growth_interval` steps in a row without
/// one multiply it by `growth_factor`. All in float32, and always within the limits. (Micikevicius et al., "Mixed
/// Precision Training", ICLR 2018.)
///
/// Parameters
/// ----------
/// initial_scale : float
///     From `min_scale` to `max_scale`.
/// growth_factor : float
///     Above 1.
/// backoff_factor : float
///     Between 0 and 1.
/// growth_interval : int
///     At least 1.
/// min_scale, max_scale : float
///     0 < min_scale <= max_scale. Without limits a scale can reach 0 or infinity and never return.
///
/// Raises
/// ------
/// ArgumentError, ArgumentTypeError
///     For an argument outside of these ranges; `.argument` names it.
///
/// Examples
/// --------
/// >>> from tritter_accel.mixed_precision import LossScaler
/// >>> scaler = LossScaler(1024.0, growth_interval=2)
/// >>> scaler.scale_loss(0.5)
/// 512.0
/// >>> scaler.update(True)
/// >>> scaler.scale
/// 512.0
#[pyclass(frozen, module = "tritter_accel.mixed_precision")]
pub struct LossScaler {
    // Held for a few instructions at a time, never while the interpreter lock is released.
    inner: Mutex<core::LossScaler>,
}

impl LossScaler {
    fn inner(&self) -> MutexGuard<'_, core::LossScaler> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> core::State {
        self.inner().state()
    }
}

#[pymethods]
impl LossScaler {
    #[new]
    #[pyo3(signature = (
        initial_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, *,
        min_scale=1.0, max_scale=16777216.0
    ))]
    fn new(
        #[pyo3(from_py_with = initial_scale)] initial_scale: f32,
        #[pyo3(from_py_with = growth_factor)] growth_factor: f32,
        #[pyo3(from_py_with = backoff_factor)] backoff_factor: f32,
        #[pyo3(from_py_with = growth_interval)] growth_interval: u64,
        #[pyo3(from_py_with = min_scale)] min_scale: f32,
        #[pyo3(from_py_with = max_scale)] max_scale: f32,
    ) -> PyResult<Self> {
        let state = core::State {
            scale: initial_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            min_scale,
            max_scale,
            growth_tracker: 0,
        };
        let inner = Mutex::new(core::LossScaler::new(state).map_err(raise)?);
        Ok(Self { inner })
    }

    /// What the loss is multiplied by.
    #[getter]
    fn scale(&self) -> f32 {
        self.state().scale
    }

    /// What the scale is multiplied by after `growth_interval` clean steps in a row.
    #[getter]
    fn growth_factor(&self) -> f32 {
        self.state().growth_factor
    }

    /// What the scale is multiplied by after an overflow.
    #[getter]
    fn backoff_factor(&self) -> f32 {
        self.state().backoff_factor
    }

    /// Clean steps in a row before the scale grows.
    #[getter]
    fn growth_interval(&self) -> u64 {
        self.state().growth_interval
    }

    /// The scale never falls below it.
    #[getter]
    fn min_scale(&self) -> f32 {
        self.state().min_scale
    }

    /// The scale never rises above it.
    #[getter]
    fn max_scale(&self) -> f32 {
        self.state().max_scale
    }

    /// Multiply a loss by the scale, in float32.
    ///
    /// Parameters
    /// ----------
    /// loss : float
    ///     Rounded to float32 first.
    ///
    /// Returns
    /// -------
    /// float
    ///     `loss * scale`.
    fn scale_loss(&self, loss: &Bound<'_, PyAny>) -> PyResult<f32> {
        Ok(self.inner().scale_loss(f32_argument("loss", loss)?))
    }

    /// Divide gradients by the scale, in place or into `out`.
    ///
    /// In place, Ctrl-C takes effect after the pass, so that gradients are never half divided.
    ///
    /// Parameters
    /// ----------
    /// gradients : array of float32, any shape
    ///     Changed in place, unless `out` is given.
    /// out : array of float32, optional
    ///     Where the quotients go instead: as many elements as `gradients`, none of its memory.
    ///
    /// Returns
    /// -------
    /// None or array of float32
    ///     `out`, if it was given.
    ///
    /// Raises
    /// ------
    /// ArrayError
    ///     For another type or layout, for an array that cannot be written, and for an `out` that overlaps `gradients`.
    /// DimensionMismatchError
    ///     For an `out` of another length.
    #[pyo3(signature = (gradients, *, out=None))]
    fn unscale_gradients<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut gradients = Changed::new("gradients", gradients, out)?;
        let scale = self.state().scale;
        let cost = gradients.len() as f64 * NS_PER_VALUE;
        let target = gradients.target();
        enter(py, cost, |exec| core::unscale_gradients(exec, target, scale))?;
        Ok(gradients.into_out())
    }

    /// Divide gradients by the scale, in place or into `out`, and tell whether they overflowed, in one pass over memory.
    ///
    /// The gradients are divided in either case: skip the step if the answer is True, and tell `update`. In place, Ctrl-C
    /// takes effect after the pass.
    ///
    /// Parameters
    /// ----------
    /// gradients : array of float32, any shape
    ///     Changed in place, unless `out` is given.
    /// out : array of float32, optional
    ///     Where the quotients go instead: as many elements as `gradients`, none of its memory.
    ///
    /// Returns
    /// -------
    /// bool
    ///     Whether any quotient is a NaN or an infinity; False for an empty array.
    ///
    /// Raises
    /// ------
    /// ArrayError
    ///     For another type or layout, for an array that cannot be written, and for an `out` that overlaps `gradients`.
    /// DimensionMismatchError
    ///     For an `out` of another length.
    ///
    /// Examples
    /// --------
    /// >>> import numpy as np
    /// >>> from tritter_accel import mixed_precision
    /// >>> scaler = mixed_precision.LossScaler(1024.0)
    /// >>> gradients = np.array([1024.0, np.inf], dtype=np.float32)
    /// >>> scaler.unscale_and_check(gradients), gradients
    /// (True, array([ 1., inf], dtype=float32))
    #[pyo3(signature = (gradients, *, out=None))]
    fn unscale_and_check<'py>(
        &self,
        py: Python<'py>,
        gradients: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        let mut gradients = Changed::new("gradients", gradients, out)?;
        let scale = self.state().scale;
        let cost = gradients.len() as f64 * NS_PER_VALUE;
        let target = gradients.target();
        enter(py, cost, |exec| core::unscale_and_check(exec, target, scale))
    }

    /// Take note of a step.
    ///
    /// Parameters
    /// ----------
    /// overflow : bool
    ///     Whether its gradients held a NaN or an infinity, as `check_overflow` tells. Skip the step if so.
    fn update(&self, overflow: &Bound<'_, PyAny>) -> PyResult<()> {
        let overflow = bool_argument("overflow", overflow)?;
        self.inner().update(overflow);
        Ok(())
    }

    /// Whether gradients hold a NaN or an infinity. Changes nothing; tell `update`.
    ///
    /// Parameters
    /// ----------
    /// gradients : array of float32, any shape
    ///     Borrowed, not copied.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False for an empty array.
    ///
    /// Raises
    /// ------
    /// ArrayError
    ///     For another type or layout.
    #[allow(clippy::unused_self)] // A method where users of other scalers look for it.
    fn check_overflow(&self, py: Python<'_>, gradients: &Bound<'_, PyAny>) -> PyResult<bool> {
        let gradients = read::<f32>("gradients", gradients)?;
        let gradients = gradients.slice();
        enter(py, gradients.len() as f64 * NS_PER_VALUE, |exec| core::check_overflow(exec, gradients))
    }

    /// The scale, the settings and the count of clean steps, for a checkpoint.
    ///
    /// Returns
    /// -------
    /// dict
    ///     Plain numbers by name, a copy.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state();
        let dict = PyDict::new(py);
        dict.set_item("scale", state.scale)?;
        dict.set_item("growth_factor", state.growth_factor)?;
        dict.set_item("backoff_factor", state.backoff_factor)?;
        dict.set_item("growth_interval", state.growth_interval)?;
        dict.set_item("min_scale", state.min_scale)?;
        dict.set_item("max_scale", state.max_scale)?;
        dict.set_item("growth_tracker", state.growth_tracker)?;
        Ok(dict)
    }

    /// Go on from a state.
    ///
    /// Parameters
    /// ----------
    /// state_dict : dict
    ///     What `state_dict()` returned.
    ///
    /// Raises
    /// ------
    /// ArgumentError, ArgumentTypeError
    ///     For a state that has no meaning; nothing is changed.
    fn load_state_dict(&self, state_dict: &Bound<'_, PyAny>) -> PyResult<()> {
        let saved = state_dict
            .cast::<PyMapping>()
            .map_err(|_| wrong_type("state_dict", state_dict, "what state_dict() returned (dict)"))?;
        let state = core::State {
            scale: saved_value(saved, "scale", f32_argument)?,
            growth_factor: saved_value(saved, "growth_factor", f32_argument)?,
            backoff_factor: saved_value(saved, "backoff_factor", f32_argument)?,
            growth_interval: saved_value(saved, "growth_interval", u64_argument)?,
            min_scale: saved_value(saved, "min_scale", f32_argument)?,
            max_scale: saved_value(saved, "max_scale", f32_argument)?,
            growth_tracker: saved_value(saved, "growth_tracker", u64_argument)?,
        };
        self.inner().restore(state).map_err(raise)
    }

    fn __setstate__(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        self.load_state_dict(state)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (), Bound<'py, PyDict>)> {
        Ok((py.get_type::<Self>().into_any(), (), self.state_dict(py)?))
    }

    fn __repr__(&self) -> String {
        let state = self.state();
        format!(
            "LossScaler(scale={:?}, growth_factor={:?}, backoff_factor={:?}, growth_interval={}, min_scale={:?}, \
             max_scale={:?})",
            state.scale,
            state.growth_factor,
            state.backoff_factor,
            state.growth_interval,
            state.min_scale,
            state.max_scale
        )
    }
}

fn saved_value<T>(
    saved: &Bound<'_, PyMapping>,
    key: &str,
    read: impl Fn(&str, &Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<T> {
    match saved.get_item(key) {
        Ok(value) => read(key, &value),
        Err(cause) if cause.is_instance_of::<PyKeyError>(saved.py()) => Err(raise(Error::argument(
            "state_dict",
            format!("has no '{key}', wanted what state_dict() returned"),
        ))),
        Err(cause) => Err(cause),
    }
}

fn initial_scale(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f32_argument("initial_scale", value)
}

fn growth_factor(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f32_argument("growth_factor", value)
}

fn backoff_factor(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f32_argument("backoff_factor", value)
}

fn growth_interval(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    u64_argument("growth_interval", value)
}

fn min_scale(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f32_argument("min_scale", value)
}

fn max_scale(value: &Bound<'_, PyAny>) -> PyResult<f32> {
    f32_argument("max_scale", value)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LossScaler>()
}
