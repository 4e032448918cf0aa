//! The package's own thread pool: how many threads, and what happens to them after `fork`.
//!
//! The number is, in this order: the one set by [`set_num_threads`], `TRITTER_ACCEL_NUM_THREADS`, `RAYON_NUM_THREADS`,
//! `OMP_NUM_THREADS`, the cores of the machine. Values that are not positive whole numbers are passed over, larger ones
//! are clamped to [`MAX_THREADS`].
//!
//! A forked child inherits the pool's memory but none of its threads, so work handed to it would wait for ever. The
//! handlers registered here hold the lock across the fork, and the child forgets the pool and builds another when it
//! needs one.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::error::{Error, Result};

/// The most threads that can be asked for.
pub const MAX_THREADS: usize = 512;

const VARIABLES: [&str; 3] = ["TRITTER_ACCEL_NUM_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

struct State {
    chosen: Option<usize>,
    pool: Option<Arc<ThreadPool>>,
}

static STATE: Mutex<State> = Mutex::new(State { chosen: None, pool: None });

thread_local! {
    static HELD_ACROSS_FORK: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

fn state() -> MutexGuard<'static, State> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register_fork_handlers);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn from_environment(read: impl Fn(&str) -> Option<String>) -> Option<usize> {
    VARIABLES.iter().find_map(|name| {
        let value = read(name)?;
        // OpenMP takes a list, one number a nesting level: the first is ours.
        let first = value.split(',').next()?.trim();
        first.parse::<usize>().ok().filter(|&threads| threads > 0)
    })
}

fn number(state: &mut State) -> usize {
    *state.chosen.get_or_insert_with(|| {
        from_environment(|name| std::env::var(name).ok())
            .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
            .unwrap_or(1)
            .min(MAX_THREADS)
    })
}

/// How many threads the package uses.
pub fn get_num_threads() -> usize {
    number(&mut state())
}

/// Sets how many threads the package uses from now on. Results do not depend on it.
pub fn set_num_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::argument("threads", "got 0, wanted a whole number of at least 1"));
    }
    let old = {
        let mut state = state();
        let threads = threads.min(MAX_THREADS);
        if state.chosen == Some(threads) {
            return Ok(());
        }
        state.chosen = Some(threads);
        state.pool.take()
    };
    // Work in flight holds its own reference; the last one ends the threads.
    drop(old);
    Ok(())
}

/// The pool, built at first use; `None` when the system refuses new threads, and the work runs on the caller's.
pub fn pool() -> Option<Arc<ThreadPool>> {
    let mut state = state();
    if state.pool.is_none() {
        let threads = number(&mut state);
        state.pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("tritter-accel-{index}"))
            .build()
            .ok()
            .map(Arc::new);
    }
    state.pool.clone()
}

extern "C" fn before_fork() {
    let guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = HELD_ACROSS_FORK.try_with(|held| *held.borrow_mut() = Some(guard));
}

extern "C" fn after_fork_in_parent() {
    let _ = HELD_ACROSS_FORK.try_with(|held| drop(held.borrow_mut().take()));
}

extern "C" fn after_fork_in_child() {
    let _ = HELD_ACROSS_FORK.try_with(|held| {
        if let Some(mut state) = held.borrow_mut().take() {
            // Dropping the pool would wait for threads that do not exist here.
            std::mem::forget(state.pool.take());
        }
    });
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn register_fork_handlers() {
    // SAFETY: the handlers are functions of this library, which is never unloaded, and they only touch statics of theirs.
    // A refusal (no memory) leaves a pool that a child must not use; nothing better can be done about it here.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
    }
}

#[cfg(not(unix))]
fn register_fork_handlers() {}

#[cfg(test)]
mod tests {
    use super::{MAX_THREADS, from_environment, get_num_threads, pool, set_num_threads};

    #[test]
    fn the_first_variable_with_a_positive_number_decides() {
        let read = |pairs: &'static [(&str, &str)]| {
            from_environment(move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(read(&[("OMP_NUM_THREADS", "3,2"), ("RAYON_NUM_THREADS", "0")]), Some(3));
        assert_eq!(read(&[("OMP_NUM_THREADS", "3"), ("RAYON_NUM_THREADS", "5")]), Some(5));
        assert_eq!(read(&[("TRITTER_ACCEL_NUM_THREADS", "2"), ("RAYON_NUM_THREADS", "5")]), Some(2));
        assert_eq!(read(&[("TRITTER_ACCEL_NUM_THREADS", "two")]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn the_pool_has_the_threads_that_were_set() {
        for threads in [1, 3, 2] {
            set_num_threads(threads).unwrap();
            assert_eq!(get_num_threads(), threads);
            assert_eq!(pool().unwrap().current_num_threads(), threads);
        }
        assert!(set_num_threads(0).is_err());
        assert_eq!(get_num_threads(), 2);
        set_num_threads(usize::MAX).unwrap();
        assert_eq!(get_num_threads(), MAX_THREADS);
        set_num_threads(2).unwrap();
    }
}
