//! Messages: their bytes, and what they say of themselves.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tritter_core::base::error::{Error, Result};
use tritter_core::base::exec::Exec;
use tritter_core::base::memory::try_vec;
use tritter_core::codec::config::{Quantize, Ratio};
use tritter_core::codec::message::{Header, Message};

use crate::arrays::{read_bytes, to_array};
use crate::compressed::{CompressedGradient, TernaryCompressedGradient};
use crate::errors::raise;
use crate::run::enter;

/// Checking and copying a byte take about this long.
const NANOSECONDS_PER_BYTE: f64 = 0.3;

/// What a message says of itself, for the attributes of `Message`.
#[pyclass(frozen, module = "tritter_accel._core")]
pub struct MessageHeader {
    core: Header,
}

#[pymethods]
impl MessageHeader {
    /// How the gradient was brought down to fewer values.
    #[getter]
    fn projection(&self) -> &'static str {
        self.core.origin.projection.name()
    }

    /// Factor of both directions.
    #[getter]
    fn scaling(&self) -> &'static str {
        self.core.origin.scaling.name()
    }

    /// What became of the values.
    #[getter]
    fn quantize(&self) -> &'static str {
        self.core.quantizer.quantize.name()
    }

    /// How scales were chosen.
    #[getter]
    fn quantizer_scale(&self) -> &'static str {
        self.core.quantizer.scale.name()
    }

    /// Values that share a scale, or None for all of them.
    #[getter]
    fn quantizer_block(&self) -> Option<u32> {
        self.core.quantizer.block()
    }

    /// The ratio that was asked for, or None where that is not known.
    #[getter]
    fn ratio(&self) -> Option<f32> {
        self.core.ratio.map(Ratio::get)
    }

    /// Values of the gradient.
    #[getter]
    fn original_dim(&self) -> usize {
        self.core.origin.original_dim
    }

    /// Values that were sent.
    #[getter]
    fn compressed_dim(&self) -> usize {
        self.core.compressed_dim
    }

    /// Seed of the compressor.
    #[getter]
    fn seed(&self) -> u64 {
        self.core.origin.seed
    }

    /// Training step.
    #[getter]
    fn step(&self) -> u32 {
        self.core.origin.step
    }

    /// Which of several gradients of the step.
    #[getter]
    fn slot(&self) -> u32 {
        self.core.origin.slot
    }
}

/// The message in `bytes`, checked without the interpreter lock.
pub fn checked<'a>(py: Python<'_>, bytes: &'a [u8]) -> PyResult<Message<'a>> {
    enter(py, bytes.len() as f64 * NANOSECONDS_PER_BYTE, |exec| Message::parse(exec.level(), bytes))
}

/// Python bytes of the length that `header` decides, filled by `write`.
fn filled<'py>(
    py: Python<'py>,
    header: &Header,
    work: f64,
    write: impl FnOnce(&Exec<'_>, &mut [u8]) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let len = header.message_len().map_err(raise)?;
    PyBytes::new_with(py, len, |message| enter(py, work, |exec| write(exec, message)))
}

/// The bytes of a compressed object, whose header must be valid.
pub fn written<'py>(
    py: Python<'py>,
    header: &Header,
    write: impl FnOnce(&Exec<'_>, &mut [u8]) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    header.check().map_err(raise)?;
    let work = header.compressed_dim as f64 * 4.0 * NANOSECONDS_PER_BYTE;
    filled(py, header, work, write)
}

/// A new `Message` that takes about `work` nanoseconds to write.
pub fn new_message<'py>(
    py: Python<'py>,
    header: &Header,
    work: f64,
    write: impl FnOnce(&Exec<'_>, &mut [u8]) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = filled(py, header, work, write)?;
    as_message(py, bytes, *header)
}

fn as_message<'py>(
    py: Python<'py>,
    bytes: Bound<'py, PyBytes>,
    header: Header,
) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import(intern!(py, "tritter_accel.wire"))?.getattr(intern!(py, "Message"))?;
    class.call_method1(intern!(py, "_checked"), (bytes, MessageHeader { core: header }))
}

/// The `CompressedGradient` that a message stands for, if it is of that kind.
pub fn projection(py: Python<'_>, message: &Message<'_>) -> PyResult<Option<CompressedGradient>> {
    let Header { origin, compressed_dim: k, ratio, quantizer } = message.header;
    let (Some(ratio), true, Quantize::None) = (ratio, origin.projection.mixes(), quantizer.quantize) else {
        return Ok(None);
    };
    let mut data = try_vec::<f32>(k).map_err(raise)?;
    enter(py, k as f64, |exec| message.values(exec, &mut data))?;
    let data = to_array(py, data, &[k])?.unbind();
    Ok(Some(CompressedGradient::made(data, k, ratio, origin)))
}

/// The `TernaryCompressedGradient` that a message stands for, if it is of that kind.
pub fn ternary(py: Python<'_>, message: &Message<'_>) -> PyResult<Option<TernaryCompressedGradient>> {
    let Header { origin, compressed_dim: k, ratio, quantizer } = message.header;
    let one_scale = quantizer.quantize == Quantize::Ternary && quantizer.block().is_none();
    if !one_scale || !origin.projection.mixes() {
        return Ok(None);
    }
    let mut trits = try_vec::<i8>(k).map_err(raise)?;
    let scale = enter(py, k as f64, |exec| message.trits(exec, &mut trits))?;
    let data = to_array(py, trits, &[k])?.unbind();
    Ok(Some(TernaryCompressedGradient::made(data, k, scale, quantizer.scale, ratio, origin)))
}

/// What is said of a message that is none of the wanted class.
pub fn other_kind(wanted: &str) -> PyErr {
    raise(Error::wire("quantize", format!("the message is no {wanted}; call tritter_accel.wire.parse")))
}

/// The header of a message, checked field by field.
#[pyfunction]
fn read_header(message: &Bound<'_, PyAny>) -> PyResult<MessageHeader> {
    let input = read_bytes("message", message)?;
    Ok(MessageHeader { core: checked(message.py(), input.slice())?.header })
}

/// What a message stands for: a compressed gradient of either class, or a Message.
#[pyfunction]
fn parse<'py>(message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = message.py();
    let input = read_bytes("message", message)?;
    let bytes = input.slice();
    let message = checked(py, bytes)?;
    if let Some(compressed) = projection(py, &message)? {
        return Ok(Bound::new(py, compressed)?.into_any());
    }
    if let Some(compressed) = ternary(py, &message)? {
        return Ok(Bound::new(py, compressed)?.into_any());
    }
    // Another thread may have written to it since: what counts is what was copied.
    let copied = PyBytes::new(py, bytes);
    let header = checked(py, copied.as_bytes())?.header;
    as_message(py, copied, header)
}

/// Adds the functions and the class of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MessageHeader>()?;
    module.add_function(wrap_pyfunction!(read_header, module)?)?;
    module.add_function(wrap_pyfunction!(parse, module)?)
}
