//! How a computation may run: its instruction-set level, its threads, and whether it should stop.
//!
//! Every kernel takes an [`Exec`]. It decides how fast the work goes and never what comes out: a kernel splits its work
//! by sizes alone, and combines parts in index order.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::error::{Error, Result};
use super::simd::SimdLevel;

static NEVER: AtomicBool = AtomicBool::new(false);

/// The level, threads and stop flag of one call.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    level: SimdLevel,
    pool: Option<&'a ThreadPool>,
    cancel: &'a AtomicBool,
}

impl<'a> Exec<'a> {
    /// On the caller's thread, without a way to stop it.
    pub fn serial(level: SimdLevel) -> Exec<'static> {
        Exec { level, pool: None, cancel: &NEVER }
    }

    /// On a pool, until `cancel` is set.
    pub fn new(level: SimdLevel, pool: Option<&'a ThreadPool>, cancel: &'a AtomicBool) -> Self {
        Self { level, pool, cancel }
    }

    /// This computation's instruction-set level.
    pub fn level(&self) -> SimdLevel {
        self.level
    }

    /// How many threads the loops below use.
    pub fn threads(&self) -> usize {
        self.pool.map_or(1, ThreadPool::current_num_threads)
    }

    /// The same level and stop flag, on the caller's thread alone.
    #[must_use]
    pub fn on_one_thread(&self) -> Self {
        Self { pool: None, ..*self }
    }

    /// The same level and threads, for work that must not stop halfway: in-place passes as long as memory takes.
    #[must_use]
    pub fn to_the_end(&self) -> Self {
        Self { cancel: &NEVER, ..*self }
    }

    /// [`Error::Interrupted`] once the caller asked to stop. Kernels call it every few milliseconds of work.
    pub fn check(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Calls `body(index, chunk)` for consecutive chunks of `chunk_len` values, the last one shorter.
    pub fn for_each_chunk_mut<T: Send>(
        &self,
        values: &mut [T],
        chunk_len: usize,
        body: impl Fn(usize, &mut [T]) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        self.map_chunks_mut(values, chunk_len, body).map(drop)
    }

    /// The results of `body(index, chunk)` for consecutive chunks of `chunk_len` values, the last one shorter, in order.
    pub fn map_chunks_mut<T: Send, R: Send>(
        &self,
        values: &mut [T],
        chunk_len: usize,
        body: impl Fn(usize, &mut [T]) -> Result<R> + Send + Sync,
    ) -> Result<Vec<R>> {
        let chunk_len = chunk_len.max(1);
        let checked = |(index, chunk): (usize, &mut [T])| {
            self.check()?;
            body(index, chunk)
        };
        match self.pool {
            Some(pool) if pool.current_num_threads() > 1 && values.len() > chunk_len => {
                pool.install(|| values.par_chunks_mut(chunk_len).enumerate().map(checked).collect())
            }
            _ => values.chunks_mut(chunk_len).enumerate().map(checked).collect(),
        }
    }

    /// The results of `body(index)` for `0..count`, in order.
    pub fn map_parts<R: Send>(
        &self,
        count: usize,
        body: impl Fn(usize) -> Result<R> + Send + Sync,
    ) -> Result<Vec<R>> {
        let checked = |index: usize| {
            self.check()?;
            body(index)
        };
        match self.pool {
            Some(pool) if pool.current_num_threads() > 1 && count > 1 => {
                pool.install(|| (0..count).into_par_iter().map(checked).collect())
            }
            _ => (0..count).map(checked).collect(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Error, Exec, SimdLevel};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs `check` at every level of this CPU, on one thread and on a pool.
    pub(crate) fn everywhere(check: impl Fn(&Exec<'_>)) {
        let never = AtomicBool::new(false);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for level in SimdLevel::available() {
            check(&Exec::serial(level));
            check(&Exec::new(level, Some(&pool), &never));
        }
    }

    #[test]
    fn parts_come_in_order_whatever_the_threads() {
        let want: Vec<usize> = (0..100).map(|i| i * i).collect();
        let cancel = AtomicBool::new(false);
        for threads in 1..4 {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let exec = Exec::new(SimdLevel::Scalar, Some(&pool), &cancel);
            assert_eq!(exec.threads(), threads);
            assert_eq!(exec.map_parts(100, |i| Ok(i * i)).unwrap(), want);
            let mut out = vec![0; 100];
            exec.for_each_chunk_mut(&mut out, 7, |chunk, values| {
                for (offset, value) in values.iter_mut().enumerate() {
                    let i = chunk * 7 + offset;
                    *value = i * i;
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(out, want);
            let starts = exec.map_chunks_mut(&mut out, 7, |chunk, values| Ok((chunk, values[0]))).unwrap();
            assert_eq!(starts, (0..15).map(|chunk| (chunk, want[chunk * 7])).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_cancelled_computation_stops_at_the_next_part() {
        let cancel = AtomicBool::new(false);
        let exec = Exec::new(SimdLevel::Scalar, None, &cancel);
        let parts = exec.map_parts(10, |i| {
            assert!(i < 4);
            cancel.store(i == 3, Ordering::Relaxed);
            Ok(i)
        });
        assert_eq!(parts, Err(Error::Interrupted));
    }
}
