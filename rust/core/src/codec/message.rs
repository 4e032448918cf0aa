//! The bytes of a compressed gradient: `docs/wire_format.md`.
//!
//! A [`Header`] decides the length of its message and where everything stands in it. [`Message::parse`] believes nothing: it
//! checks every field against the bytes that are there before anything is made of them.

use crate::base::error::{Error, Result};
use crate::base::simd::SimdLevel;
use crate::codec::compressor::Origin;
use crate::codec::config::{Projection, Quantize, QuantizerScale, Ratio, Scaling};
use crate::codec::quantizer::{Quantizer, SCALE_BLOCK_UNIT};
use crate::codec::topk;

const MAGIC: [u8; 4] = *b"TRIT";
const VERSION: u8 = 1;
/// Bytes before the payload.
const HEADER: usize = 64;
/// Bytes behind it.
const CHECKSUM: usize = 4;

/// What a message says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Header {
    /// What the decoder must know of how the gradient was compressed.
    pub origin: Origin,
    /// Values that are sent.
    pub compressed_dim: usize,
    /// The ratio that was asked for; none if the compressed gradient was made without.
    pub ratio: Option<Ratio>,
    /// What became of the values.
    pub quantizer: Quantizer,
}

/// The parts of a message's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    indices: usize,
    scales: usize,
    values: usize,
}

impl Header {
    /// The header of the gradient itself, value by value.
    pub(crate) fn raw(origin: Origin) -> Self {
        let origin = Origin { projection: Projection::None, scaling: Scaling::Reference, ..origin };
        let ratio = Ratio::new(1.0).ok();
        Self { origin, compressed_dim: origin.original_dim, ratio, quantizer: Quantizer::default() }
    }

    /// The lengths of the payload's parts; none if their sum is beyond the machine.
    fn layout(&self) -> Option<Layout> {
        let k = self.compressed_dim;
        let indices = if self.origin.projection == Projection::TopK { topk::index_bytes(k)? } else { 0 };
        let (scales, values) = (self.quantizer.scale_bytes(k), self.quantizer.value_bytes(k)?);
        indices.checked_add(scales)?.checked_add(values)?.checked_add(HEADER + CHECKSUM)?;
        Some(Layout { indices, scales, values })
    }

    /// Bytes between header and checksum.
    pub fn payload_len(&self) -> Option<usize> {
        self.layout().map(|layout| layout.indices + layout.scales + layout.values)
    }

    /// Bytes of the message.
    pub fn message_len(&self) -> Result<usize> {
        let len = self.payload_len().map(|payload| payload + HEADER + CHECKSUM);
        len.ok_or(Error::Memory { bytes: usize::MAX })
    }

    /// [`Error::Wire`] unless the fields go together. Both ends check it: what is not valid is not sent.
    pub fn check(&self) -> Result<()> {
        check_scaling(self.origin.projection, self.origin.scaling)?;
        check_ratio(self.origin.projection, self.quantizer.quantize, self.ratio)?;
        self.check_block()?;
        self.check_dims()
    }

    fn check_block(&self) -> Result<()> {
        match (self.ratio, self.quantizer.block()) {
            (None, Some(block)) => {
                let message = format!("got {block}, wanted 0 where the ratio is not recorded");
                Err(Error::wire("quantizer_block", message))
            }
            _ => Ok(()),
        }
    }

    fn check_dims(&self) -> Result<()> {
        let Origin { projection, original_dim: n, .. } = self.origin;
        let k = self.compressed_dim;
        let Some(ratio) = self.ratio else {
            if projection == Projection::Hadamard && k > n {
                let message = format!("got {k}, wanted at most original_dim, {n}");
                return Err(Error::wire("compressed_dim", message));
            }
            return Ok(());
        };
        let wanted = projection.compressed_dim(n, ratio);
        // A product beyond the machine is its largest number, which then is no count of values.
        if k != wanted || (projection == Projection::Dense && k == usize::MAX) {
            let message = format!("got {k}, wanted {wanted} for original_dim {n} and ratio {}", ratio.get());
            return Err(Error::wire("compressed_dim", message));
        }
        Ok(())
    }

    /// Writes header and checksum around the payload that `fill` writes to its indices, scales and values. `message` has
    /// [`Self::message_len`] bytes.
    pub(crate) fn write(
        &self,
        message: &mut [u8],
        fill: impl FnOnce(&mut [u8], &mut [u8], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let layout = self.layout().ok_or(Error::Memory { bytes: usize::MAX })?;
        let Some((header, rest)) = message.split_first_chunk_mut::<HEADER>() else {
            return Err(Error::Internal("a message shorter than its header".into()));
        };
        let (payload, checksum) = rest.split_at_mut(rest.len() - CHECKSUM);
        let length = payload.len();
        let (indices, values) = payload.split_at_mut(layout.indices);
        let (scales, values) = values.split_at_mut(layout.scales);
        fill(indices, scales, values)?;
        *header = self.header_bytes(length);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(header);
        hasher.update(payload);
        checksum.copy_from_slice(&hasher.finalize().to_le_bytes());
        Ok(())
    }

    fn header_bytes(&self, payload: usize) -> [u8; HEADER] {
        let Origin { original_dim, seed, step, slot, projection, scaling } = self.origin;
        let quantizer = self.quantizer.on_the_wire();
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(4, &[VERSION, projection as u8, quantizer.quantize as u8, scaling as u8, quantizer.scale as u8]);
        put(12, &self.ratio.map_or(0.0, Ratio::get).to_le_bytes());
        put(16, &(original_dim as u64).to_le_bytes());
        put(24, &(self.compressed_dim as u64).to_le_bytes());
        put(32, &seed.to_le_bytes());
        put(40, &step.to_le_bytes());
        put(44, &slot.to_le_bytes());
        put(48, &quantizer.block().unwrap_or(0).to_le_bytes());
        put(56, &(payload as u64).to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HEADER]) -> Result<Self> {
        if bytes[..4] != MAGIC {
            let message = format!("got {:?}, wanted {:?}", bytes[..4].escape_ascii().to_string(), "TRIT");
            return Err(Error::wire("magic", message));
        }
        if bytes[4] != VERSION {
            let message = format!("got {}, and this package reads version {VERSION}", bytes[4]);
            return Err(Error::wire("version", message));
        }
        let projection = kind("projection", bytes[5], &Projection::ALL)?;
        let quantize = kind("quantize", bytes[6], &Quantize::ALL)?;
        let scaling = kind("scaling", bytes[7], &Scaling::ALL)?;
        check_scaling(projection, scaling)?;
        let form = kind("quantizer_scale", bytes[8], &QuantizerScale::ALL)?;
        let block = u32_at(bytes, 48);
        let quantised = Quantizer::new(quantize, form, None)?.is_quantised();
        if !quantised && form != QuantizerScale::default() {
            let message = format!("got {}, wanted 0 where quantize is {}", bytes[8], quantize.name());
            return Err(Error::wire("quantizer_scale", message));
        }
        if bytes[9..12] != [0; 3] || bytes[52..56] != [0; 4] {
            return Err(Error::wire("reserved", "bytes 9 to 11 and 52 to 55 must be 0"));
        }
        let ratio = match u32_at(bytes, 12) {
            0 => None,
            bits => Some(Ratio::new(f32::from_bits(bits)).map_err(|_| {
                let message = format!("got {:?}, wanted above 0 and at most 1", f32::from_bits(bits));
                Error::wire("ratio", message)
            })?),
        };
        check_ratio(projection, quantize, ratio)?;
        if !quantised && block != 0 {
            let message = format!("got {block}, wanted 0 where quantize is {}", quantize.name());
            return Err(Error::wire("quantizer_block", message));
        }
        let quantizer = Quantizer::new(quantize, form, (block != 0).then_some(block)).map_err(|_| {
            Error::wire(
                "quantizer_block",
                format!("got {block}, wanted a multiple of {SCALE_BLOCK_UNIT} or 0"),
            )
        })?;
        let size = |field: &'static str, at: usize| {
            let value = u64_at(bytes, at);
            usize::try_from(value)
                .map_err(|_| Error::wire(field, format!("got {value}, too large for this machine")))
        };
        let origin = Origin {
            original_dim: size("original_dim", 16)?,
            seed: u64_at(bytes, 32),
            step: u32_at(bytes, 40),
            slot: u32_at(bytes, 44),
            projection,
            scaling,
        };
        let header = Self { origin, compressed_dim: size("compressed_dim", 24)?, ratio, quantizer };
        header.check_block()?;
        header.check_dims()?;
        Ok(header)
    }
}

/// A message whose every field and byte has been checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Message<'a> {
    /// What it says of itself.
    pub header: Header,
    /// Packed places of the values of top-k.
    pub(crate) indices: &'a [u8],
    /// Scales of quantised values.
    pub(crate) scales: &'a [u8],
    /// Values, as they are sent.
    pub(crate) values: &'a [u8],
}

impl<'a> Message<'a> {
    /// [`Error::Wire`] with the field that is wrong, for bytes that are no message. Takes no memory.
    pub fn parse(level: SimdLevel, bytes: &'a [u8]) -> Result<Self> {
        let too_short = || {
            let message = format!("got {} bytes, wanted at least {}", bytes.len(), HEADER + CHECKSUM);
            Error::wire("length", message)
        };
        let (head, rest) = bytes.split_first_chunk::<HEADER>().ok_or_else(too_short)?;
        let (payload, checksum) = rest.split_last_chunk::<CHECKSUM>().ok_or_else(too_short)?;
        let header = Header::parse(head)?;
        let claimed = u64_at(head, 56);
        let wanted = header.payload_len();
        if wanted.is_none_or(|wanted| wanted as u64 != claimed) {
            let wanted =
                wanted.map_or_else(|| "more than this machine has".into(), |wanted| wanted.to_string());
            let message = format!("got {claimed}, wanted {wanted} for the fields before it");
            return Err(Error::wire("payload length", message));
        }
        if payload.len() as u64 != claimed {
            let message = format!(
                "got {} bytes, wanted {} with a payload of {claimed}",
                bytes.len(),
                u128::from(claimed) + (HEADER + CHECKSUM) as u128
            );
            return Err(Error::wire("length", message));
        }
        let (came, made) = (u32::from_le_bytes(*checksum), crc32fast::hash(&bytes[..bytes.len() - CHECKSUM]));
        if came != made {
            let message =
                format!("got {came:#010x}, and the bytes have {made:#010x}: they changed on the way");
            return Err(Error::wire("checksum", message));
        }
        let layout = header.layout().unwrap_or(Layout { indices: 0, scales: 0, values: 0 });
        let (indices, values) = payload.split_at(layout.indices);
        let (scales, values) = values.split_at(layout.scales);
        if let (Projection::TopK, Some(ratio)) = (header.origin.projection, header.ratio) {
            topk::check(indices, header.origin.original_dim, ratio)?;
        }
        header.quantizer.check(level, header.compressed_dim, scales, values)?;
        Ok(Self { header, indices, scales, values })
    }
}

fn check_scaling(projection: Projection, scaling: Scaling) -> Result<()> {
    let wrong = |_| Error::wire("scaling", "got unbiased, which projection topk has not");
    projection.check_scaling(scaling).map_err(wrong)
}

fn check_ratio(projection: Projection, quantize: Quantize, ratio: Option<Ratio>) -> Result<()> {
    let message = match ratio {
        None if !projection.mixes() || quantize != Quantize::Ternary => {
            "is not recorded, which is for ternary values of dense and hadamard".into()
        }
        Some(ratio) if projection == Projection::None && ratio.get() != 1.0 => {
            format!("got {}, wanted 1 where every value is sent", ratio.get())
        }
        _ => return Ok(()),
    };
    Err(Error::wire("ratio", message))
}

fn kind<T: Copy>(field: &'static str, number: u8, all: &[T]) -> Result<T> {
    all.get(usize::from(number)).copied().ok_or_else(|| {
        Error::wire(field, format!("got kind {number}, and this version knows 0 to {}", all.len() - 1))
    })
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
