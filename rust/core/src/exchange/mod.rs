//! How workers' gradients reach each other: as the bytes of messages, and nothing else.

pub mod local;
