//! The one error type of the core. Python mirrors it class by class, so a new kind is a new class there.

use thiserror::Error;

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong, with what a caller needs to mend it.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A compression ratio outside (0, 1].
    #[error("invalid compression ratio {0}: must be in (0, 1]")]
    InvalidRatio(f32),
    /// Two lengths that had to be equal.
    #[error("dimension mismatch: expected {expected}, got {actual}")]
    DimensionMismatch {
        /// The length that was wanted.
        expected: usize,
        /// The length that came.
        actual: usize,
    },
    /// A gradient compressed under one seed met a compressor with another.
    #[error("seed mismatch: compression used {compress}, decompression used {decompress}")]
    SeedMismatch {
        /// Seed carried by the compressed gradient.
        compress: u64,
        /// Seed of the compressor that was asked to decompress.
        decompress: u64,
    },
    /// An argument of the right type with a value that has no meaning.
    #[error("argument {argument}: {message}")]
    Argument {
        /// Name of the argument.
        argument: String,
        /// What came, what was wanted, and the mend.
        message: String,
    },
    /// An argument of a type that cannot be taken.
    #[error("argument {argument}: {message}")]
    ArgumentType {
        /// Name of the argument.
        argument: String,
        /// What came, what was wanted, and the mend.
        message: String,
    },
    /// An array of another type, byte order or layout than the call takes.
    #[error("argument {argument}: {message}")]
    Array {
        /// Name of the argument.
        argument: String,
        /// What came, what was wanted, and the mend.
        message: String,
    },
    /// A NaN or an infinity where it would poison the result.
    #[error("argument {argument}: value {value} at index {index} is not finite")]
    NonFinite {
        /// Name of the argument.
        argument: String,
        /// Flat index of the first such value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Bytes that are no message.
    #[error("message field {field}: {message}")]
    Wire {
        /// The field that cannot be right.
        field: &'static str,
        /// What came, and what was wanted.
        message: String,
    },
    /// A step of recording or running a network that has no meaning.
    #[error("{0}")]
    Tape(String),
    /// Shapes that do not fit together.
    #[error("{0}")]
    Shape(String),
    /// The result would not fit in memory.
    #[error("cannot allocate {bytes} bytes for the result")]
    Memory {
        /// Size that was refused.
        bytes: usize,
    },
    /// The caller asked a long computation to stop.
    #[error("interrupted")]
    Interrupted,
    /// A fault of this package, never of its user.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// A value of `argument` that has no meaning; `message` says what came and what was wanted.
    pub fn argument(argument: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Argument { argument: argument.into(), message: message.into() }
    }

    /// A field of a message that cannot be right.
    pub fn wire(field: &'static str, message: impl Into<String>) -> Self {
        Self::Wire { field, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn ratios_print_as_the_reference_prints_them() {
        for (ratio, text) in [
            (0.0_f32, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (1.000_000_1, "1.0000001"),
            (f32::INFINITY, "inf"),
            (f32::NEG_INFINITY, "-inf"),
            (1e30, "1000000000000000000000000000000"),
        ] {
            assert_eq!(
                Error::InvalidRatio(ratio).to_string(),
                format!("invalid compression ratio {text}: must be in (0, 1]")
            );
        }
    }
}
