//! Random bytes as messages: `Message::parse` refuses them with an error or finds a message that holds together.
//!
//! A message that is found must say the same of itself at every instruction-set level, decode to the same bits at each,
//! and give its own bytes again wherever the way back is exact. Every input is tried as it came and under a checksum that
//! fits, behind which nearly all of the parser lies.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tritter_core::base::error::Error;
use tritter_core::base::exec::Exec;
use tritter_core::base::simd::SimdLevel;
use tritter_core::codec::compressor::GradientCompressor;
use tritter_core::codec::config::{Projection, Quantize, TrainingConfig};
use tritter_core::codec::message::{Header, Message};

/// Bytes before the payload.
const HEADER: usize = 64;
/// Bytes behind it.
const CHECKSUM: usize = 4;
/// No longer gradient is decoded: a short message may stand for any length.
const LARGEST_GRADIENT: usize = 1 << 16;
/// No larger matrix is drawn: a few thousand inputs a second are worth more than a few large ones.
const LARGEST_MATRIX: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if let Some(sealed) = sealed(bytes) {
        read(&sealed);
    }
});

/// The same bytes under the checksum that they should have, unless they have it.
fn sealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (body, came) = bytes.split_last_chunk::<CHECKSUM>()?;
    let checksum = crc32fast::hash(body).to_le_bytes();
    (*came != checksum).then(|| [body, &checksum].concat())
}

fn read(bytes: &[u8]) {
    let parsed = Message::parse(SimdLevel::detected(), bytes);
    for level in SimdLevel::available() {
        assert_eq!(Message::parse(level, bytes), parsed, "parsed at another level");
    }
    let message = match parsed {
        Ok(message) => message,
        Err(Error::Wire { .. }) => return,
        Err(error) => panic!("refused by an error of another kind: {error:?}"),
    };
    let header = message.header;
    assert_eq!(header.check(), Ok(()));
    assert_eq!(header.message_len(), Ok(bytes.len()));

    let compressor = GradientCompressor::new(TrainingConfig::default().with_seed(header.origin.seed));
    let n = header.origin.original_dim;
    if n > 0 {
        let refused = compressor.decode(&Exec::serial(SimdLevel::detected()), &message, &mut []);
        assert_eq!(refused, Err(Error::DimensionMismatch { expected: n, actual: 0 }));
    }
    let matrix = if header.origin.projection == Projection::Dense {
        n.saturating_mul(header.compressed_dim)
    } else {
        0
    };
    if n > LARGEST_GRADIENT || matrix > LARGEST_MATRIX {
        return;
    }
    let gradient = decoded(&compressor, &message);
    written_again(bytes, &message);
    encoded_again(bytes, &compressor, &header, &gradient);
}

/// The gradient, which has the same bits at every level.
fn decoded(compressor: &GradientCompressor, message: &Message<'_>) -> Vec<f32> {
    let at = |level| {
        let mut gradient = vec![0.0; message.header.origin.original_dim];
        compressor
            .decode(&Exec::serial(level), message, &mut gradient)
            .expect("a message that was parsed decodes");
        gradient
    };
    let gradient = at(SimdLevel::detected());
    for level in SimdLevel::available() {
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(at(level).iter().zip(&gradient).all(same), "decoded at another level");
    }
    gradient
}

/// What `to_bytes` of a compressed gradient does gives the message again.
fn written_again(bytes: &[u8], message: &Message<'_>) {
    let (header, exec) = (message.header, Exec::serial(SimdLevel::detected()));
    if header.origin.projection == Projection::TopK {
        return;
    }
    let mut again = vec![0; bytes.len()];
    match header.quantizer.quantize {
        Quantize::None => {
            let mut values = vec![0.0; header.compressed_dim];
            message.values(&exec, &mut values).expect("values that were checked are read");
            header.write_values(&exec, &values, &mut again).expect("and written");
        }
        Quantize::Ternary if header.quantizer.block().is_none() => {
            let mut trits = vec![0; header.compressed_dim];
            let scale = message.trits(&exec, &mut trits).expect("digits that were checked are read");
            header.write_trits(&exec, &trits, scale, &mut again).expect("and written");
        }
        _ => return,
    }
    assert!(again == bytes, "written again as other bytes");
}

/// Encoding under the same header gives the same header, and the same message where nothing was lost.
fn encoded_again(bytes: &[u8], compressor: &GradientCompressor, header: &Header, gradient: &[f32]) {
    let exec = Exec::serial(SimdLevel::detected());
    let mut again = vec![0; bytes.len()];
    compressor.encode(&exec, &vec![0.0; gradient.len()], header, &mut again).expect("zeros can be sent");
    assert!(again[..HEADER] == bytes[..HEADER], "encoded with another header");
    assert_eq!(Message::parse(SimdLevel::detected(), &again).map(|message| message.header), Ok(*header));

    let exact = matches!(header.quantizer.quantize, Quantize::None | Quantize::Bfloat16);
    // A NaN becomes the quiet one of its sign.
    if exact && header.origin.projection == Projection::None && !gradient.iter().any(|value| value.is_nan()) {
        compressor.encode(&exec, gradient, header, &mut again).expect("every value can be sent");
        assert!(again == bytes, "encoded again as other bytes");
    }
}
