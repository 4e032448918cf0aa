//! The dense projection against the plain loop over `rand_chacha`, at every level of this CPU, one thread.
//!
//! Throughput is in entries of the matrix. The work is 2^24 entries whatever k is: the time an entry takes does not
//! depend on n, which is what makes 10^8 entries and more predictable from it.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tritter_core::base::chacha::{Key, Stream};
use tritter_core::base::exec::Exec;
use tritter_core::base::simd::SimdLevel;
use tritter_core::codec::dense;

const ENTRIES: usize = 1 << 24;
const SEED: u64 = 42;

/// The uniform float32 of `rand` 0.8.
fn uniform(rng: &mut ChaCha8Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
}

fn plain_compress(gradients: &[f32], scale: f32, out: &mut [f32]) {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    out.fill(0.0);
    for &gradient in gradients {
        for sum in &mut *out {
            let r = uniform(&mut rng);
            if r < 0.16 {
                *sum += gradient * scale;
            } else if r < 0.32 {
                *sum -= gradient * scale;
            }
        }
    }
}

fn plain_decompress(data: &[f32], scale: f32, out: &mut [f32]) {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    for out in out {
        let mut sum = 0.0;
        for &value in data {
            let r = uniform(&mut rng);
            if r < 0.16 {
                sum += value * scale;
            } else if r < 0.32 {
                sum -= value * scale;
            }
        }
        *out = sum;
    }
}

fn dense_projection(criterion: &mut Criterion) {
    let stream = Stream::of_step(Key::from_seed(SEED), 0, 0);
    for k in [64, 100, 257, 999, 1000, 1024] {
        let n = ENTRIES / k;
        let scale = 1.0 / (n as f32).sqrt();
        let gradients: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
        let (mut compressed, mut restored) = (vec![0.0; k], vec![0.0; n]);

        let mut group = criterion.benchmark_group("dense compress");
        group.throughput(Throughput::Elements((n * k) as u64)).sample_size(10);
        group.bench_function(BenchmarkId::new("plain loop", k), |bencher| {
            bencher.iter(|| plain_compress(black_box(&gradients), scale, &mut compressed));
        });
        for level in SimdLevel::available() {
            let exec = Exec::serial(level);
            group.bench_function(BenchmarkId::new(level.name(), k), |bencher| {
                bencher
                    .iter(|| dense::compress(&exec, &stream, black_box(&gradients), scale, &mut compressed));
            });
        }
        group.finish();

        let mut group = criterion.benchmark_group("dense decompress");
        group.throughput(Throughput::Elements((n * k) as u64)).sample_size(10);
        group.bench_function(BenchmarkId::new("plain loop", k), |bencher| {
            bencher.iter(|| plain_decompress(black_box(&compressed), scale, &mut restored));
        });
        for level in SimdLevel::available() {
            let exec = Exec::serial(level);
            group.bench_function(BenchmarkId::new(level.name(), k), |bencher| {
                bencher
                    .iter(|| dense::decompress(&exec, &stream, black_box(&compressed), scale, &mut restored));
            });
        }
        group.finish();
    }
}

/// Eight gradients under one matrix, to be compared with eight times the projection of one.
fn eight_gradients(criterion: &mut Criterion) {
    const EIGHT: usize = 8;
    let stream = Stream::of_step(Key::from_seed(SEED), 0, 0);
    for k in [100, 1000] {
        let n = ENTRIES / k;
        let scale = 1.0 / (n as f32).sqrt();
        let gradients: Vec<f32> = (0..EIGHT * n).map(|i| (i as f32 * 0.7).sin()).collect();
        let (mut compressed, mut restored) = (vec![0.0; EIGHT * k], vec![0.0; EIGHT * n]);
        let mut group = criterion.benchmark_group("dense, eight gradients");
        group.throughput(Throughput::Elements((EIGHT * n * k) as u64)).sample_size(10);
        for level in SimdLevel::available() {
            let exec = Exec::serial(level);
            group.bench_function(BenchmarkId::new(format!("compress {}", level.name()), k), |bencher| {
                bencher.iter(|| {
                    let gradients = black_box(&gradients);
                    dense::compress_many(&exec, &stream, EIGHT, gradients, scale, &mut compressed)
                });
            });
            let data: Vec<&[f32]> = compressed.chunks_exact(k).collect();
            group.bench_function(BenchmarkId::new(format!("decompress {}", level.name()), k), |bencher| {
                bencher
                    .iter(|| dense::decompress_many(&exec, &stream, black_box(&data), scale, &mut restored));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, dense_projection, eight_gradients);
criterion_main!(benches);
