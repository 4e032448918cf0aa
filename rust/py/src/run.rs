//! The one way from Python into the core's computations.
//!
//! | estimated work | lock | threads | Ctrl-C |
//! |---|---|---|---|
//! | up to a microsecond | kept | the caller's | after the call |
//! | up to 200 microseconds | released | the caller's | after the call |
//! | above | released | the pool's | seen every 20 ms |
//!
//! Two threads only pay above about 200 microseconds of work. A panic of the core becomes `InternalError`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::Duration;

use pyo3::prelude::*;
use tritter_core::base::error::{Error, Result};
use tritter_core::base::exec::Exec;
use tritter_core::base::simd::SimdLevel;
use tritter_core::base::threads;

use crate::errors::raise;

const KEEP_LOCK_BELOW_NS: f64 = 1_000.0;
const ONE_THREAD_BELOW_NS: f64 = 200_000.0;
const SIGNAL_POLL: Duration = Duration::from_millis(20);
const LOCK_POLL: Duration = Duration::from_micros(500);

const SIMD_VARIABLE: &str = "TRITTER_ACCEL_SIMD";

/// The level in use: what the CPU has, capped by `TRITTER_ACCEL_SIMD`, which is read once.
pub fn simd_level() -> Result<SimdLevel> {
    static LEVEL: OnceLock<Result<SimdLevel>> = OnceLock::new();
    LEVEL
        .get_or_init(|| match std::env::var(SIMD_VARIABLE) {
            Ok(name) if !name.is_empty() => match SimdLevel::from_name(&name) {
                Some(cap) => Ok(cap.min(SimdLevel::detected())),
                None => Err(Error::argument(
                    SIMD_VARIABLE,
                    format!("got {name:?}, wanted scalar, avx2 or avx512; unset it for the widest level"),
                )),
            },
            _ => Ok(SimdLevel::detected()),
        })
        .clone()
}

/// Runs `work`, which should take about `nanoseconds` on one thread, as the table above says.
pub fn enter<R: Send>(
    py: Python<'_>,
    nanoseconds: f64,
    work: impl FnOnce(&Exec<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    let level = simd_level().map_err(raise)?;
    if nanoseconds < KEEP_LOCK_BELOW_NS {
        return guarded(|| work(&Exec::serial(level))).map_err(raise);
    }
    if nanoseconds < ONE_THREAD_BELOW_NS {
        return py.detach(|| guarded(|| work(&Exec::serial(level)))).map_err(raise);
    }
    py.detach(|| match threads::pool() {
        Some(pool) => on_pool(level, &pool, work),
        None => guarded(|| work(&Exec::serial(level))).map_err(raise),
    })
}

/// Waits for `shared`, which another thread may hold through a long call. Waits without the interpreter lock, which that
/// call may need to end, and is stopped by Ctrl-C.
pub fn lock<'a, T>(py: Python<'_>, shared: &'a Mutex<T>) -> PyResult<MutexGuard<'a, T>> {
    loop {
        match shared.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => py.detach(|| sleep(LOCK_POLL)),
        }
        py.check_signals()?;
    }
}

fn on_pool<R: Send>(
    level: SimdLevel,
    pool: &rayon::ThreadPool,
    work: impl FnOnce(&Exec<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    let cancel = AtomicBool::new(false);
    let finished: Mutex<Option<Result<R>>> = Mutex::new(None);
    let woken = Condvar::new();
    let interrupt = pool.in_place_scope(|scope| {
        scope.spawn(|_| {
            let result = guarded(|| work(&Exec::new(level, Some(pool), &cancel)));
            *finished.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            woken.notify_one();
        });
        let mut interrupt = None;
        let mut slot = finished.lock().unwrap_or_else(PoisonError::into_inner);
        while slot.is_none() {
            slot = woken.wait_timeout(slot, SIGNAL_POLL).unwrap_or_else(PoisonError::into_inner).0;
            if slot.is_none() && interrupt.is_none() {
                drop(slot);
                #[allow(clippy::redundant_closure_for_method_calls)]
                // The method is not general enough in its lifetime.
                let signals = Python::attach(|py| py.check_signals());
                interrupt = signals.err();
                cancel.store(interrupt.is_some(), Ordering::Relaxed);
                slot = finished.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        interrupt
    });
    let result = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (interrupt, result) {
        (Some(interrupt), _) => Err(interrupt),
        (None, Some(result)) => result.map_err(raise),
        (None, None) => Err(raise(Error::Internal("a computation left no result".into()))),
    }
}

fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::Internal(reason(panic.as_ref()))))
}

fn reason(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".into())
}
