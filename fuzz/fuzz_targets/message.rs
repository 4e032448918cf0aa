//! Bytes from anywhere, as they are and with a checksum that fits, since a fuzzer does not guess one: parsing must refuse
//! them or give a message that decodes to as many values as it says.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tritter_core::base::exec::Exec;
use tritter_core::base::simd::SimdLevel;
use tritter_core::codec::compressor::GradientCompressor;
use tritter_core::codec::config::TrainingConfig;
use tritter_core::codec::message::Message;

/// A message may stand for a gradient of any length; longer ones are parsed and not decoded.
const MOST_VALUES: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if let Some(body) = bytes.len().checked_sub(4) {
        let mut mended = bytes.to_vec();
        let checksum = crc32fast::hash(&bytes[..body]);
        mended[body..].copy_from_slice(&checksum.to_le_bytes());
        read(&mended);
    }
});

fn read(bytes: &[u8]) {
    let mut decoded: Option<Vec<u32>> = None;
    for level in SimdLevel::available() {
        let Ok(message) = Message::parse(level, bytes) else {
            assert!(decoded.is_none(), "levels disagree");
            return;
        };
        let n = message.header.origin.original_dim;
        assert_eq!(message.header.message_len(), Ok(bytes.len()));
        assert_eq!(message.header.check(), Ok(()));
        // The dense projection costs n times k.
        if n.saturating_mul(message.header.compressed_dim) > MOST_VALUES * 64 || n > MOST_VALUES {
            return;
        }
        let config = TrainingConfig::default().with_seed(message.header.origin.seed);
        let mut values = vec![0.0; n];
        let exec = Exec::serial(level);
        GradientCompressor::new(config).decode(&exec, &message, &mut values).expect("a checked message decodes");
        let bits: Vec<u32> =
            values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect();
        assert!(decoded.as_ref().is_none_or(|found| *found == bits), "levels disagree");
        decoded = Some(bits);
    }
}
