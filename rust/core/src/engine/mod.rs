//! The training engine: a tape records a network once, an entry runs the part of it that a loss needs.
//!
//! | file | what it holds |
//! |---|---|
//! | [`tape`], [`operation`], [`shape`] | recording, with every shape checked as it comes |
//! | [`init`] | initial values from seeded streams |
//! | [`network`], [`parameters`] | the sealed network, and where its parameters lie in the flat state |
//! | [`entry`] | which nodes a loss needs, and where their values and gradients go |
//! | [`forward`], [`backward`] | the two passes |
//! | [`kernels`] | the loops |

pub mod backward;
pub mod entry;
pub mod forward;
pub mod init;
pub mod kernels;
pub mod network;
pub mod operation;
pub mod parameters;
pub mod shape;
pub mod tape;
