//! Allocation that fails with an error instead of ending the process.

use super::error::{Error, Result};

/// A vector of `len` default values, or [`Error::Memory`] when it cannot be had.
pub fn try_vec<T: Default + Clone>(len: usize) -> Result<Vec<T>> {
    // Asked for first, since only asking can be refused; then taken as zeroed pages, which cost nothing until they are
    // touched.
    let mut asked = Vec::<T>::new();
    let refused = asked.try_reserve_exact(len).is_err();
    drop(asked);
    if refused {
        return Err(Error::Memory { bytes: len.saturating_mul(size_of::<T>()) });
    }
    Ok(vec![T::default(); len])
}

#[cfg(test)]
mod tests {
    use super::{Error, try_vec};

    #[test]
    fn a_size_beyond_memory_is_an_error() {
        assert_eq!(try_vec::<f32>(3).unwrap(), vec![0.0; 3]);
        assert!(matches!(try_vec::<f32>(usize::MAX / 2), Err(Error::Memory { .. })));
    }
}
