//! Digits of a small base, several to a byte.
//!
//! A chunk of 64 P digits becomes 64 bytes in planes: byte j is the sum of `base^i * digit[64 i + j]`. So packing and
//! unpacking are the same operations on neighbouring bytes, which any vector instruction set has. The last chunk has as many
//! bytes as its digits need, and planes of that length.

use crate::base::simd::{Kernel, SimdLevel};

/// Bytes of a whole chunk.
const CHUNK: usize = 64;

/// A base and how many digits of it go into a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Five of base 3.
    Trits,
    /// Eight of base 2.
    Bits,
    /// Four of base 4.
    Pairs,
    /// Two of base 16.
    Nibbles,
}

impl Packing {
    /// How many digits go into a byte.
    pub fn planes(self) -> usize {
        match self {
            Self::Trits => 5,
            Self::Bits => 8,
            Self::Pairs => 4,
            Self::Nibbles => 2,
        }
    }

    /// Bytes that `digits` take.
    pub fn bytes(self, digits: usize) -> usize {
        let chunk = CHUNK * self.planes();
        digits / chunk * CHUNK + (digits % chunk).div_ceil(self.planes())
    }

    /// Packs digits, each below the base, into `bytes`, as many as they take.
    pub fn pack(self, level: SimdLevel, digits: &[u8], bytes: &mut [u8]) {
        match self {
            Self::Trits => level.run(Pack::<3, 5> { digits, bytes }),
            Self::Bits => level.run(Pack::<2, 8> { digits, bytes }),
            Self::Pairs => level.run(Pack::<4, 4> { digits, bytes }),
            Self::Nibbles => level.run(Pack::<16, 2> { digits, bytes }),
        }
    }

    /// The digits of `bytes`, as many as `digits` holds.
    pub fn unpack(self, level: SimdLevel, bytes: &[u8], digits: &mut [u8]) {
        match self {
            Self::Trits => level.run(Unpack::<3, 5> { bytes, digits }),
            Self::Bits => level.run(Unpack::<2, 8> { bytes, digits }),
            Self::Pairs => level.run(Unpack::<4, 4> { bytes, digits }),
            Self::Nibbles => level.run(Unpack::<16, 2> { bytes, digits }),
        }
    }

    /// The first byte that packing `digits` could not have made: one too large, or with a digit behind the last one.
    pub fn first_invalid(self, level: SimdLevel, bytes: &[u8], digits: usize) -> Option<usize> {
        let planes = self.planes();
        let rest = digits % (CHUNK * planes);
        let whole = digits / (CHUNK * planes) * CHUNK;
        if self == Self::Trits && level.run(AnyAbove(&bytes[..whole])) {
            return bytes.iter().position(|&byte| byte > LARGEST_TRITS);
        }
        let width = rest.div_ceil(planes);
        let base = match self {
            Self::Trits => 3_u32,
            Self::Bits => 2,
            Self::Pairs => 4,
            Self::Nibbles => 16,
        };
        (whole..bytes.len()).find(|&index| {
            // Digit i of byte j has index `width * i + j`: those below `rest` are there.
            let present = (rest - (index - whole)).div_ceil(width);
            u32::from(bytes[index]) >= base.pow(present as u32)
        })
    }
}

/// Five trits of 2.
const LARGEST_TRITS: u8 = 242;

struct AnyAbove<'a>(&'a [u8]);

impl Kernel for AnyAbove<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // Without an early end, so that it is one pass of wide comparisons.
        self.0.iter().copied().fold(0, u8::max) > LARGEST_TRITS
    }
}

struct Pack<'a, const BASE: u8, const PLANES: usize> {
    digits: &'a [u8],
    bytes: &'a mut [u8],
}

impl<const BASE: u8, const PLANES: usize> Kernel for Pack<'_, BASE, PLANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (whole, last) = self.bytes.as_chunks_mut::<CHUNK>();
        let mut digits = self.digits.chunks_exact(CHUNK * PLANES);
        for (bytes, digits) in whole.iter_mut().zip(&mut digits) {
            let (planes, _) = digits.as_chunks::<CHUNK>();
            let mut packed = planes[PLANES - 1];
            for plane in planes[..PLANES - 1].iter().rev() {
                for (byte, &digit) in packed.iter_mut().zip(plane) {
                    *byte = *byte * BASE + digit;
                }
            }
            *bytes = packed;
        }
        // A last chunk of 64 bytes is a whole one only if all of its digits are there.
        let rest = digits.remainder();
        let bytes = if last.is_empty() && !rest.is_empty() {
            &mut whole[self.digits.len() / (CHUNK * PLANES)][..]
        } else {
            last
        };
        bytes.fill(0);
        let width = bytes.len();
        for plane in rest.chunks(width.max(1)).rev() {
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = *byte * BASE + plane.get(at).copied().unwrap_or(0);
            }
        }
    }
}

struct Unpack<'a, const BASE: u8, const PLANES: usize> {
    bytes: &'a [u8],
    digits: &'a mut [u8],
}

impl<const BASE: u8, const PLANES: usize> Kernel for Unpack<'_, BASE, PLANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut digits = self.digits.chunks_exact_mut(CHUNK * PLANES);
        let mut read = 0;
        for digits in &mut digits {
            let mut rest = [0; CHUNK];
            rest.copy_from_slice(&self.bytes[read..read + CHUNK]);
            for plane in digits.as_chunks_mut::<CHUNK>().0 {
                for (digit, rest) in plane.iter_mut().zip(&mut rest) {
                    let shorter = *rest / BASE;
                    *digit = *rest - shorter * BASE;
                    *rest = shorter;
                }
            }
            read += CHUNK;
        }
        let bytes = &self.bytes[read..];
        let mut power = 1_u8;
        for plane in digits.into_remainder().chunks_mut(bytes.len().max(1)) {
            for (digit, &byte) in plane.iter_mut().zip(bytes) {
                *digit = byte / power % BASE;
            }
            power = power.saturating_mul(BASE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Packing::{self, Bits, Nibbles, Pairs, Trits};
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;

    fn base(packing: Packing) -> usize {
        [3, 2, 4, 16][packing as usize]
    }

    /// The definition, digit by digit.
    fn plain(packing: Packing, digits: &[u8]) -> Vec<u8> {
        let (base, planes) = (base(packing), packing.planes());
        let mut bytes = Vec::new();
        for chunk in digits.chunks(64 * planes) {
            let width = if chunk.len() == 64 * planes { 64 } else { chunk.len().div_ceil(planes) };
            for j in 0..width {
                let byte: usize = (0..planes)
                    .filter_map(|i| {
                        chunk.get(width * i + j).map(|&digit| usize::from(digit) * base.pow(i as u32))
                    })
                    .sum();
                bytes.push(u8::try_from(byte).unwrap());
            }
        }
        bytes
    }

    fn digits(packing: Packing, len: usize) -> Vec<u8> {
        let mut stream = SplitMix64::new(len as u64);
        (0..len).map(|_| stream.below(base(packing)) as u8).collect()
    }

    #[test]
    fn digits_go_into_the_bytes_of_the_definition_and_come_back() {
        for packing in [Trits, Bits, Pairs, Nibbles] {
            let chunk = 64 * packing.planes();
            for len in (0..70).chain([chunk - 1, chunk, chunk + 1, 2 * chunk - 3, 3 * chunk, 3 * chunk + 64])
            {
                let digits = digits(packing, len);
                let want = plain(packing, &digits);
                assert_eq!(packing.bytes(len), want.len());
                for level in SimdLevel::available() {
                    let (mut bytes, mut back) = (vec![255; want.len()], vec![255; len]);
                    packing.pack(level, &digits, &mut bytes);
                    assert_eq!(bytes, want, "{packing:?} {len}");
                    packing.unpack(level, &bytes, &mut back);
                    assert_eq!(back, digits, "{packing:?} {len}");
                    assert_eq!(packing.first_invalid(level, &bytes, len), None, "{packing:?} {len}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_packing_cannot_make_are_found() {
        let level = SimdLevel::detected();
        for packing in [Trits, Bits, Pairs, Nibbles] {
            let chunk = 64 * packing.planes();
            for len in (1..70).chain([chunk - 1, chunk, chunk + 1, 2 * chunk + 5]) {
                let bytes = plain(packing, &digits(packing, len));
                for index in 0..bytes.len() {
                    for value in 0..=255 {
                        let mut changed = bytes.clone();
                        changed[index] = value;
                        let mut digits = vec![0; len];
                        let found = packing.first_invalid(level, &changed, len);
                        packing.unpack(level, &changed, &mut digits);
                        let can_be = plain(packing, &digits) == changed;
                        assert_eq!(
                            found,
                            if can_be { None } else { Some(index) },
                            "{packing:?} {len} {value}"
                        );
                    }
                }
            }
        }
    }
}
