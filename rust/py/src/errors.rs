//! From the core's error to the class of `tritter_accel.exceptions` that mirrors it.

use pyo3::PyErr;
use pyo3::exceptions::PyKeyboardInterrupt;
use tritter_core::base::error::Error;

mod classes {
    use pyo3::import_exception;

    import_exception!(tritter_accel.exceptions, AllocationError);
    import_exception!(tritter_accel.exceptions, ArgumentError);
    import_exception!(tritter_accel.exceptions, ArgumentTypeError);
    import_exception!(tritter_accel.exceptions, ArrayError);
    import_exception!(tritter_accel.exceptions, DimensionMismatchError);
    import_exception!(tritter_accel.exceptions, InternalError);
    import_exception!(tritter_accel.exceptions, InvalidRatioError);
    import_exception!(tritter_accel.exceptions, NonFiniteError);
    import_exception!(tritter_accel.exceptions, SeedMismatchError);
    import_exception!(tritter_accel.exceptions, ShapeError);
    import_exception!(tritter_accel.exceptions, TapeError);
    import_exception!(tritter_accel.exceptions, WireError);
}

/// The Python exception of an error of the core: its message, then the values the class holds.
pub fn raise(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::InvalidRatio(ratio) => classes::InvalidRatioError::new_err((message, ratio)),
        Error::DimensionMismatch { expected, actual } => {
            classes::DimensionMismatchError::new_err((message, expected, actual))
        }
        Error::SeedMismatch { compress, decompress } => {
            classes::SeedMismatchError::new_err((message, compress, decompress))
        }
        Error::Argument { argument, .. } => classes::ArgumentError::new_err((message, argument)),
        Error::ArgumentType { argument, .. } => classes::ArgumentTypeError::new_err((message, argument)),
        Error::Array { argument, .. } => classes::ArrayError::new_err((message, argument)),
        Error::NonFinite { argument, index, value } => {
            classes::NonFiniteError::new_err((message, argument, index, value))
        }
        Error::Wire { field, .. } => classes::WireError::new_err((message, field)),
        Error::Tape(_) => classes::TapeError::new_err((message,)),
        Error::Shape(_) => classes::ShapeError::new_err((message,)),
        Error::Memory { bytes } => classes::AllocationError::new_err((message, bytes)),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::Internal(_) => classes::InternalError::new_err((message,)),
    }
}
