//! The Hadamard projection: random signs, an orthonormal Walsh-Hadamard transform in blocks, and some of its rows.
//!
//! Linear in the number of values, and nothing is stored: signs and rows come from the stream of the step. Values beyond the
//! last whole block share a second transform with as many values before them as fill a block, so every value is spread
//! over a whole block and the transform stays orthonormal for every length. `docs/numerics.md` has the definition.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::chacha::Stream;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::simd::{Kernel, SimdLevel};
use crate::codec::config::Scaling;
use crate::numeric::reduce::require_finite;

#[cfg(target_arch = "x86_64")]
mod simd;

/// Values of a block at most: their transform stays in the first-level cache.
const BLOCK: usize = 4096;
/// Blocks that are worth a thread.
const PART_BLOCKS: usize = 16;
/// Rows that words are drawn for at a time.
const DRAWS: usize = 128;
/// First words of the stream's uses.
const ORDER_WORDS: u64 = 64;
const TAIL_SIGN_WORDS: u64 = 16384;
const SIGN_WORDS: u64 = 32768;

/// A place of a result: a value, or the bytes of one in a message.
pub trait Place: Send {
    /// Writes `value` to it.
    fn put(&mut self, value: f32);
}

impl Place for f32 {
    #[inline(always)]
    fn put(&mut self, value: f32) {
        *self = value;
    }
}

impl Place for [u8; 4] {
    #[inline(always)]
    fn put(&mut self, value: f32) {
        *self = value.to_le_bytes();
    }
}

/// Writes the projection of `gradients` to `out`, whose k values are at most as many.
///
/// A value that is not finite shows in every value of its block; if none of those is sent, it is refused.
pub fn compress<P: Place>(
    exec: &Exec<'_>,
    stream: &Stream,
    gradients: &[f32],
    scaling: Scaling,
    out: &mut [P],
) -> Result<()> {
    let layout = Layout::new(exec, stream, gradients.len(), out.len(), scaling)?;
    let lost = AtomicBool::new(false);
    let mut rest = out;
    let mut parts = Vec::new();
    for part in layout.parts() {
        let (now, later) = rest.split_at_mut(layout.kept(part.start, part.end));
        parts.push((part, now));
        rest = later;
    }
    exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
        for (part, out) in parts {
            if layout.compress(exec.level(), gradients, part.clone(), out) {
                lost.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    if lost.into_inner() {
        require_finite(exec, "gradients", gradients)?;
        // Finite values whose sums are not.
        let argument = "projection of gradients".into();
        return Err(Error::NonFinite { argument, index: 0, value: f32::INFINITY });
    }
    Ok(())
}

/// Writes the gradient that `data` is the projection of, as far as it can be had, to `out`.
pub fn decompress(
    exec: &Exec<'_>,
    stream: &Stream,
    data: &[f32],
    scaling: Scaling,
    out: &mut [f32],
) -> Result<()> {
    let layout = Layout::new(exec, stream, out.len(), data.len(), scaling)?;
    let (mut rest, mut data) = (out, data);
    let mut parts = Vec::new();
    for part in layout.parts() {
        let (now, later) = rest.split_at_mut(part.len());
        let (data_now, data_later) = data.split_at(layout.kept(part.start, part.end));
        parts.push((part, data_now, now));
        (rest, data) = (later, data_later);
    }
    exec.for_each_chunk_mut(&mut parts, 1, |_, parts| {
        for (part, data, out) in parts {
            layout.decompress(exec.level(), data, part.start, out);
        }
        Ok(())
    })
}

/// Which rows of which blocks are kept.
struct Layout<'a> {
    stream: &'a Stream,
    n: usize,
    k: usize,
    /// Values of a block.
    block: usize,
    /// Whole blocks.
    blocks: usize,
    /// Values behind the last whole block, which share the tail's transform.
    rest: usize,
    /// Random shift of the places that are counted as kept.
    shift: u64,
    /// Rows of a segment of a whole block: as many as every one keeps, and one more.
    rows: [Vec<u16>; 2],
    /// Rows of the part of the last block that is in no tail.
    head_rows: Vec<u16>,
    factor: f32,
    unit: f32,
}

impl<'a> Layout<'a> {
    fn new(exec: &Exec<'_>, stream: &'a Stream, n: usize, k: usize, scaling: Scaling) -> Result<Self> {
        if k > n {
            let message = format!("got {k} values of a gradient of {n}, wanted at most as many");
            return Err(Error::argument("data", message));
        }
        let block = if n == 0 { 1 } else { BLOCK.min(1 << n.ilog2()) };
        let mut words = [0; 2];
        stream.words(exec.level(), 0, &mut words);
        let random = u64::from(words[0]) | u64::from(words[1]) << 32;
        let root = (block as f64).sqrt();
        let scale = match scaling {
            Scaling::Unbiased => (n as f64 / k as f64).sqrt(),
            Scaling::Reference | Scaling::Contractive => 1.0,
        };
        let mut layout = Self {
            stream,
            n,
            k,
            block,
            blocks: n / block,
            rest: n % block,
            shift: ((u128::from(random) * n as u128) >> 64) as u64,
            rows: [Vec::new(), Vec::new()],
            head_rows: Vec::new(),
            factor: (scale / root) as f32,
            unit: (1.0 / root) as f32,
        };
        if k > 0 {
            let mut order = RowOrder::new(exec.level(), stream, block);
            let least = layout.least();
            layout.rows = [order.first(least, block), order.first((least + 1).min(block), block)];
            if layout.rest > 0 {
                let start = (layout.blocks - 1) * block;
                layout.head_rows = order.first(layout.kept(start, start + layout.rest), layout.rest);
            }
        }
        Ok(layout)
    }

    /// Rows that every segment of a whole block keeps.
    fn least(&self) -> usize {
        (self.k as u128 * self.block as u128 / self.n.max(1) as u128) as usize
    }

    /// How many of the places from `start` to `end` are kept.
    fn kept(&self, start: usize, end: usize) -> usize {
        let before = |place: usize| {
            let shifted = self.k as u128 * place as u128 + u128::from(self.shift);
            (shifted / self.n.max(1) as u128) as usize
        };
        before(end) - before(start)
    }

    /// The places that one thread works on. The last block and the tail are in one part.
    fn parts(&self) -> Vec<Range<usize>> {
        let parts = self.blocks.div_ceil(PART_BLOCKS);
        let start = |part: usize| part * PART_BLOCKS * self.block;
        (0..parts).map(|part| start(part)..if part + 1 == parts { self.n } else { start(part + 1) }).collect()
    }

    fn rows(&self, count: usize) -> &[u16] {
        &self.rows[usize::from(count > self.rows[0].len())]
    }

    /// The projection of a part. Whether a value that is not finite was lost in it.
    fn compress<P: Place>(
        &self,
        level: SimdLevel,
        gradients: &[f32],
        part: Range<usize>,
        mut out: &mut [P],
    ) -> bool {
        let mut buffer = [0.0; BLOCK];
        let x = &mut buffer[..self.block];
        let mut lost = false;
        let mut start = part.start;
        let mut take = |x: &[f32], rows: &[u16]| {
            lost |= rows.is_empty() && !x[0].is_finite();
            let (now, later) = std::mem::take(&mut out).split_at_mut(rows.len());
            gather(x, rows, self.factor, now);
            out = later;
        };
        // Whole blocks, but for one that shares its values with a tail.
        let end =
            if part.end == self.n && self.rest > 0 { self.n - self.rest - self.block } else { part.end };
        while start < end {
            self.forward(level, &gradients[start..start + self.block], SIGN_WORDS + start as u64 / 32, x);
            take(x, self.rows(self.kept(start, start + self.block)));
            start += self.block;
        }
        if start < part.end {
            self.forward(level, &gradients[start..start + self.block], SIGN_WORDS + start as u64 / 32, x);
            let mut tail = [0.0; BLOCK];
            let tail = &mut tail[..self.block];
            let (shared, own) = tail.split_at_mut(self.block - self.rest);
            for (value, &x) in shared.iter_mut().zip(&x[self.rest..]) {
                *value = x * self.unit;
            }
            own.copy_from_slice(&gradients[self.n - self.rest..]);
            if !self.head_rows.is_empty() {
                take(x, &self.head_rows);
            }
            self.forward(level, tail, TAIL_SIGN_WORDS, x);
            take(x, self.rows(self.kept(self.n - self.block, self.n)));
        }
        lost
    }

    fn decompress(&self, level: SimdLevel, data: &[f32], start: usize, out: &mut [f32]) {
        let mut buffer = [0.0; BLOCK];
        let x = &mut buffer[..self.block];
        let mut data = data;
        let mut put = |x: &mut [f32], rows: &[u16]| {
            let (now, later) = data.split_at(rows.len());
            scatter(now, rows, self.factor, x);
            data = later;
        };
        let with_tail = start + out.len() == self.n && self.rest > 0;
        let end = if with_tail { out.len() - self.rest - self.block } else { out.len() };
        let (whole, last) = out.split_at_mut(end);
        for (index, out) in whole.chunks_exact_mut(self.block).enumerate() {
            let start = start + index * self.block;
            put(x, self.rows(self.kept(start, start + self.block)));
            self.back(level, x, SIGN_WORDS + start as u64 / 32, out);
        }
        if with_tail {
            let start = start + end;
            let mut head = [0.0; BLOCK];
            let head = &mut head[..self.block];
            put(head, &self.head_rows);
            put(x, self.rows(self.kept(self.n - self.block, self.n)));
            let (block, own) = last.split_at_mut(self.block);
            let mut tail = [0.0; BLOCK];
            let tail = &mut tail[..self.block];
            self.back(level, x, TAIL_SIGN_WORDS, tail);
            let shared = self.block - self.rest;
            for (value, &tail) in head[self.rest..].iter_mut().zip(&tail[..shared]) {
                *value = tail * self.unit;
            }
            own.copy_from_slice(&tail[shared..]);
            self.back(level, head, SIGN_WORDS + start as u64 / 32, block);
        }
    }

    /// The transform of `values` with the signs from word `first` on.
    fn forward(&self, level: SimdLevel, values: &[f32], first: u64, x: &mut [f32]) {
        self.sign(level, values, first, x);
        transform(level, x);
    }

    /// The transform of `x`, then the signs.
    fn back(&self, level: SimdLevel, x: &mut [f32], first: u64, out: &mut [f32]) {
        transform(level, x);
        self.sign(level, x, first, out);
    }

    fn sign(&self, level: SimdLevel, values: &[f32], first: u64, x: &mut [f32]) {
        let mut signs = [0; BLOCK / 32];
        let signs = &mut signs[..sign_words(self.block)];
        self.stream.words(level, first, signs);
        level.run(Signed { values, signs, x });
    }
}

/// Words that hold the signs of a block.
fn sign_words(block: usize) -> usize {
    (block / 32).max(1)
}

/// The random order of rows, drawn as far as it is asked for.
struct RowOrder<'a> {
    level: SimdLevel,
    stream: &'a Stream,
    order: Vec<u16>,
    words: [u32; DRAWS],
    drawn: usize,
}

impl<'a> RowOrder<'a> {
    fn new(level: SimdLevel, stream: &'a Stream, block: usize) -> Self {
        Self { level, stream, order: (0..block as u16).collect(), words: [0; DRAWS], drawn: 0 }
    }

    /// The first `count` rows that are below `below`, ascending.
    fn first(&mut self, count: usize, below: usize) -> Vec<u16> {
        if count >= below {
            return (0..below as u16).collect();
        }
        let mut kept = [0_u64; BLOCK / 64];
        let (mut at, mut left) = (0, count);
        while left > 0 {
            if at == self.drawn {
                self.draw();
            }
            let row = usize::from(self.order[at]);
            if row < below {
                kept[row / 64] |= 1 << (row % 64);
                left -= 1;
            }
            at += 1;
        }
        let mut rows = Vec::with_capacity(count);
        for (word, mut bits) in kept.into_iter().enumerate() {
            while bits != 0 {
                rows.push((64 * word) as u16 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
        rows
    }

    fn draw(&mut self) {
        let at = self.drawn;
        if at.is_multiple_of(DRAWS) {
            self.stream.words(self.level, ORDER_WORDS + at as u64, &mut self.words);
        }
        let left = self.order.len() - at;
        let other = at + ((u64::from(self.words[at % DRAWS]) * left as u64) >> 32) as usize;
        self.order.swap(at, other);
        self.drawn += 1;
    }
}

/// The rows of `x`, times `factor`.
fn gather<P: Place>(x: &[f32], rows: &[u16], factor: f32, out: &mut [P]) {
    if rows.len() == x.len() {
        for (place, &x) in out.iter_mut().zip(x) {
            place.put(x * factor);
        }
        return;
    }
    for (place, &row) in out.iter_mut().zip(rows) {
        place.put(x[usize::from(row)] * factor);
    }
}

/// The values times `factor` in their rows of `x`, and zeros in the others.
fn scatter(values: &[f32], rows: &[u16], factor: f32, x: &mut [f32]) {
    if rows.len() == x.len() {
        for (x, &value) in x.iter_mut().zip(values) {
            *x = value * factor;
        }
        return;
    }
    x.fill(0.0);
    for (&value, &row) in values.iter().zip(rows) {
        x[usize::from(row)] = value * factor;
    }
}

/// Writes `values` to `x`, negated where their bit is set: bit `i / words` of word `i % words` for value i, so that neighbours
/// have the same bit of neighbouring words.
struct Signed<'a> {
    values: &'a [f32],
    signs: &'a [u32],
    x: &'a mut [f32],
}

impl Kernel for Signed<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { values, signs, x } = self;
        let rows = x.chunks_mut(signs.len()).zip(values.chunks(signs.len()));
        for (bit, (x, values)) in rows.enumerate() {
            let up = 31 - bit as u32;
            for ((x, value), &signs) in x.iter_mut().zip(values).zip(signs) {
                *x = f32::from_bits(value.to_bits() ^ ((signs << up) & 0x8000_0000));
            }
        }
    }
}

/// The Walsh-Hadamard transform of a power of two of values, not normalised: strides in ascending order.
fn transform(level: SimdLevel, x: &mut [f32]) {
    if x.len() >= 8 {
        small_strides(level, x);
    }
    level.run(LargeStrides(x));
}

/// Strides 1, 2 and 4, which stay inside eight values.
fn small_strides(level: SimdLevel, x: &mut [f32]) {
    match level.min(SimdLevel::detected()) {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx512 => simd::small_strides(x),
        _ => small_strides_scalar(x),
    }
}

fn small_strides_scalar(x: &mut [f32]) {
    for x in x.as_chunks_mut::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *x;
        let [a, b, c, d, e, f, g, h] = [a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h];
        let [a, b, c, d, e, f, g, h] = [a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h];
        *x = [a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h];
    }
}

/// The other strides; all of them for fewer than eight values.
struct LargeStrides<'a>(&'a mut [f32]);

impl Kernel for LargeStrides<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let x = self.0;
        let len = x.len();
        let mut stride = if len >= 8 { 8 } else { 1 };
        // Strides that the compiler knows: a loop over an unknown one of 8 would not be taken to registers.
        if len >= 64 {
            three_strides::<8>(x);
            stride = 64;
        }
        if len >= 512 {
            three_strides::<64>(x);
            stride = 512;
        }
        if len >= 4096 {
            three_strides::<512>(x);
            stride = 4096;
        }
        while 2 * stride <= len {
            for x in x.chunks_exact_mut(2 * stride) {
                let (a, b) = x.split_at_mut(stride);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            stride *= 2;
        }
    }
}

/// Three strides in one pass over memory: `STRIDE`, twice and four times as much.
#[inline(always)]
fn three_strides<const STRIDE: usize>(x: &mut [f32]) {
    for x in x.chunks_exact_mut(8 * STRIDE) {
        let (a, x) = x.split_at_mut(STRIDE);
        let (b, x) = x.split_at_mut(STRIDE);
        let (c, x) = x.split_at_mut(STRIDE);
        let (d, x) = x.split_at_mut(STRIDE);
        let (e, x) = x.split_at_mut(STRIDE);
        let (f, x) = x.split_at_mut(STRIDE);
        let (g, h) = x.split_at_mut(STRIDE);
        butterflies(a, b, c, d, e, f, g, h);
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn butterflies(
    a: &mut [f32],
    b: &mut [f32],
    c: &mut [f32],
    d: &mut [f32],
    e: &mut [f32],
    f: &mut [f32],
    g: &mut [f32],
    h: &mut [f32],
) {
    let (ab, cd, ef, gh) =
        (a.iter_mut().zip(b), c.iter_mut().zip(d), e.iter_mut().zip(f), g.iter_mut().zip(h));
    for ((((a, b), (c, d)), (e, f)), (g, h)) in ab.zip(cd).zip(ef).zip(gh) {
        let (a1, b1, c1, d1) = (*a + *b, *a - *b, *c + *d, *c - *d);
        let (e1, f1, g1, h1) = (*e + *f, *e - *f, *g + *h, *g - *h);
        let (a2, b2, c2, d2) = (a1 + c1, b1 + d1, a1 - c1, b1 - d1);
        let (e2, f2, g2, h2) = (e1 + g1, f1 + h1, e1 - g1, f1 - h1);
        (*a, *b, *c, *d) = (a2 + e2, b2 + f2, c2 + g2, d2 + h2);
        (*e, *f, *g, *h) = (a2 - e2, b2 - f2, c2 - g2, d2 - h2);
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, compress, decompress};
    use crate::base::chacha::{Key, Stream};
    use crate::base::error::Error;
    use crate::base::exec::Exec;
    use crate::base::exec::tests::everywhere;
    use crate::base::simd::SimdLevel;
    use crate::base::splitmix::SplitMix64;
    use crate::codec::config::Scaling::{self, Contractive, Unbiased};
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    /// The written definition, one value after the other, with another crate's generator.
    struct Plain {
        n: usize,
        k: usize,
        block: usize,
        rng: ChaCha8Rng,
        order: Vec<usize>,
        shift: u128,
    }

    impl Plain {
        fn new(seed: u64, id: u64, n: usize, k: usize) -> Self {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(id);
            let block =
                if n >= 4096 { 4096 } else { n.next_power_of_two() >> usize::from(!n.is_power_of_two()) };
            let mut new = Self { n, k, block, rng, order: (0..block).collect(), shift: 0 };
            let random = u128::from(new.word(0)) + (u128::from(new.word(1)) << 32);
            new.shift = (random * n as u128) >> 64;
            for i in 0..block {
                let j = i + ((u64::from(new.word(64 + i)) * (block - i) as u64) >> 32) as usize;
                new.order.swap(i, j);
            }
            new
        }

        fn word(&mut self, index: usize) -> u32 {
            self.rng.set_word_pos(index as u128);
            self.rng.next_u32()
        }

        fn transform(&self, mut x: Vec<f32>) -> Vec<f32> {
            let mut h = 1;
            while h < self.block {
                for i in (0..self.block).filter(|i| i & h == 0) {
                    (x[i], x[i + h]) = (x[i] + x[i + h], x[i] - x[i + h]);
                }
                h *= 2;
            }
            x
        }

        fn negate(&mut self, first: usize, start: usize, x: &mut [f32]) {
            let words = if self.block < 32 { 1 } else { self.block / 32 };
            for (i, x) in x.iter_mut().enumerate() {
                if self.word(first + start / 32 + i % words) >> (i / words) & 1 == 1 {
                    *x = -*x;
                }
            }
        }

        /// The kept places of all values, in the order they are sent.
        fn places(&self) -> Vec<usize> {
            let (n, b) = (self.n, self.block);
            let (blocks, rest) = (n / b, n % b);
            let mut segments: Vec<_> = (0..blocks).map(|a| (a * b, (a + 1) * b)).collect();
            if rest > 0 {
                segments.pop();
                segments.extend([(n - rest - b, n - b), (n - b, n)]);
            }
            let before = |place: usize| (self.k as u128 * place as u128 + self.shift) / n as u128;
            let mut places = Vec::new();
            for (start, end) in segments {
                let count = (before(end) - before(start)) as usize;
                let mut rows: Vec<_> =
                    self.order.iter().filter(|&&row| row < end - start).take(count).collect();
                rows.sort();
                places.extend(rows.into_iter().map(|row| start + row));
            }
            places
        }

        fn factors(&self, scaling: Scaling) -> (f32, f32) {
            let root = (self.block as f64).sqrt();
            let scale = if scaling == Unbiased { (self.n as f64 / self.k as f64).sqrt() } else { 1.0 };
            ((scale / root) as f32, (1.0 / root) as f32)
        }

        fn compress(&mut self, g: &[f32], scaling: Scaling) -> Vec<f32> {
            let (n, b) = (self.n, self.block);
            let (factor, unit) = self.factors(scaling);
            let mut y = g.to_vec();
            for start in (0..n / b).map(|a| a * b) {
                let mut x = g[start..start + b].to_vec();
                self.negate(32768, start, &mut x);
                y[start..start + b].copy_from_slice(&self.transform(x));
            }
            if !n.is_multiple_of(b) {
                let mut x = y[n - b..].to_vec();
                x[..b - n % b].iter_mut().for_each(|x| *x *= unit);
                self.negate(16384, 0, &mut x);
                y[n - b..].copy_from_slice(&self.transform(x));
            }
            self.places().into_iter().map(|place| y[place] * factor).collect()
        }

        fn decompress(&mut self, data: &[f32], scaling: Scaling) -> Vec<f32> {
            let (n, b) = (self.n, self.block);
            let (factor, unit) = self.factors(scaling);
            let mut y = vec![0.0; n];
            for (place, value) in self.places().into_iter().zip(data) {
                y[place] = value * factor;
            }
            if !n.is_multiple_of(b) {
                let mut x = self.transform(y[n - b..].to_vec());
                self.negate(16384, 0, &mut x);
                x[..b - n % b].iter_mut().for_each(|x| *x *= unit);
                y[n - b..].copy_from_slice(&x);
            }
            for start in (0..n / b).map(|a| a * b) {
                let mut x = self.transform(y[start..start + b].to_vec());
                self.negate(32768, start, &mut x);
                y[start..start + b].copy_from_slice(&x);
            }
            y
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
    }

    fn gaussian(n: usize, seed: u64) -> Vec<f32> {
        let mut stream = SplitMix64::new(seed);
        let mut one = || {
            let radius = (-2.0 * libm::log(1.0 - stream.unit())).sqrt();
            (radius * libm::cos(std::f64::consts::TAU * stream.unit())) as f32
        };
        (0..n).map(|_| one()).collect()
    }

    const SIZES: [usize; 22] = [
        1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 63, 100, 1000, 4095, 4096, 4097, 8191, 8192, 10_007, 65_536, 65_537,
        140_001,
    ];

    #[test]
    fn every_size_has_the_bits_of_the_definition() {
        for n in SIZES {
            for k in [1, n.div_ceil(10), n / 2 + 1, n] {
                for scaling in [Contractive, Unbiased] {
                    let g = gaussian(n, n as u64);
                    let mut plain = Plain::new(5, 1 << 32 | 7, n, k);
                    let want = plain.compress(&g, scaling);
                    let want_back = plain.decompress(&want, scaling);
                    let stream = Stream::of_step(Key::from_seed(5), 7, 1);
                    everywhere(|exec| {
                        let (mut data, mut back) = (vec![9.0; k], vec![9.0; n]);
                        compress(exec, &stream, &g, scaling, &mut data).unwrap();
                        assert_eq!(bits(&data), bits(&want), "{n} {k}");
                        decompress(exec, &stream, &data, scaling, &mut back).unwrap();
                        assert_eq!(bits(&back), bits(&want_back), "{n} {k}");
                    });
                }
            }
        }
    }

    #[test]
    fn small_strides_have_the_bits_of_the_scalar_body() {
        let special = [0.0, -0.0, f32::INFINITY, f32::MAX, 1e-45, -1e-40, 3.0, f32::NAN];
        for start in 0..9 {
            let mut values = gaussian(64 + start, 1);
            for (at, &value) in special.iter().enumerate() {
                values[start + 8 * (at % 3) + at] = value;
            }
            let mut want = values.clone();
            super::small_strides_scalar(&mut want[start..]);
            for level in SimdLevel::available() {
                let mut found = values.clone();
                super::small_strides(level, &mut found[start..]);
                assert_eq!(bits(&found), bits(&want));
            }
        }
    }

    #[test]
    fn with_every_row_the_gradient_comes_back_and_norms_are_kept() {
        let exec = Exec::serial(SimdLevel::detected());
        for n in SIZES {
            let g = gaussian(n, 3);
            for step in 0..3 {
                let stream = Stream::of_step(Key::from_seed(42), step, 0);
                let (mut data, mut back) = (vec![0.0; n], vec![0.0; n]);
                compress(&exec, &stream, &g, Unbiased, &mut data).unwrap();
                decompress(&exec, &stream, &data, Unbiased, &mut back).unwrap();
                let energy = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
                assert!((energy(&data) / energy(&g) - 1.0).abs() < 1e-6, "{n}");
                for (back, g) in back.iter().zip(&g) {
                    assert!((back - g).abs() <= 2e-6 * (1.0 + g.abs()), "{n} {back} {g}");
                }
            }
        }
    }

    #[test]
    fn poison_shows_or_is_refused_and_never_vanishes() {
        for n in [3, 100, 5000, 20_000] {
            for k in [1, n / 3 + 1] {
                for place in [0, n / 2, n - 1] {
                    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        for step in 0..20 {
                            let mut g = gaussian(n, 1);
                            g[place] = poison;
                            let stream = Stream::of_step(Key::from_seed(1), step, 0);
                            let mut data = vec![0.0; k];
                            let exec = Exec::serial(SimdLevel::detected());
                            match compress(&exec, &stream, &g, Contractive, &mut data) {
                                Ok(()) => assert!(data.iter().any(|value| !value.is_finite())),
                                Err(Error::NonFinite { index, .. }) => assert_eq!(index, place),
                                Err(other) => panic!("{other}"),
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_next_to_each_other_in_memory_may_start_anywhere() {
        let g = gaussian(2 * BLOCK + 50, 2);
        let stream = Stream::new(Key::from_seed(1), 3);
        let exec = Exec::serial(SimdLevel::detected());
        for start in 1..9 {
            let (mut moved, mut fresh) = (vec![0.0; 500], vec![0.0; 500]);
            compress(&exec, &stream, &g[start..], Contractive, &mut moved).unwrap();
            let aligned = g[start..].to_vec();
            compress(&exec, &stream, &aligned, Contractive, &mut fresh).unwrap();
            assert_eq!(moved, fresh);
        }
    }

    #[test]
    fn more_rows_than_values_are_refused_and_nothing_is_nothing() {
        let stream = Stream::new(Key::from_seed(1), 0);
        let exec = Exec::serial(SimdLevel::detected());
        assert_eq!(compress::<f32>(&exec, &stream, &[], Contractive, &mut []), Ok(()));
        assert_eq!(decompress(&exec, &stream, &[], Contractive, &mut []), Ok(()));
        let mut back = [7.0; 3];
        assert_eq!(decompress(&exec, &stream, &[], Contractive, &mut back), Ok(()));
        assert_eq!(back, [0.0; 3]);
        assert!(compress(&exec, &stream, &[1.0; 3], Contractive, &mut [0.0; 4]).is_err());
    }
}
