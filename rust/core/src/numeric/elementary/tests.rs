//! The promises of the module: error bounds, special values, and the same bits at every level, length and place.

use super::{exp, exp_slice, ln, ln_slice, tanh, tanh_slice};
use crate::base::simd::SimdLevel;
use std::thread;

/// One function, what it is measured against, and what it promises.
struct Case {
    name: &'static str,
    slice: fn(SimdLevel, &[f32], &mut [f32]),
    exact: fn(f64) -> f64,
    bound_in_ulp: f64,
    /// The input with the largest error of all, as the exhaustive test prints it.
    worst: f32,
}

const CASES: [Case; 3] = [
    Case { name: "exp", slice: exp_slice, exact: f64::exp, bound_in_ulp: 0.90, worst: -5.848_642 },
    Case { name: "ln", slice: ln_slice, exact: f64::ln, bound_in_ulp: 1.0, worst: 0.640_592_9 },
    Case { name: "tanh", slice: tanh_slice, exact: f64::tanh, bound_in_ulp: 1.49, worst: 0.468_724_88 },
];

/// Where something changes: zeros, subnormals, the ends of the ranges of each body, infinities, NaNs of both signs.
const EDGES: [f32; 30] = [
    0.0,
    -0.0,
    f32::from_bits(1),
    f32::from_bits(0x8000_0001),
    f32::from_bits(0x007f_ffff),
    f32::from_bits(0x807f_ffff),
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    0.173_286_8,
    0.346_573_6,
    -0.346_573_6,
    0.666_666_6,
    0.666_666_7,
    1.333_333_3,
    1.333_333_4,
    1.0,
    -1.0,
    9.010_9,
    -9.011,
    10.0,
    88.722_84,
    88.722_85,
    -87.336_55,
    -103.972_08,
    -103.972_09,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// Every `step`-th bit pattern from `from`, below `to`.
fn patterns(from: u64, to: u64, step: usize) -> Vec<f32> {
    (from..to).step_by(step).map(|bits| f32::from_bits(bits as u32)).collect()
}

/// The distance of `got` from `want` in units of the spacing of `f32` at `want`. An infinite `got` stands for 2¹²⁸, the
/// value that overflow rounds from.
fn error_in_ulp(got: f32, want: f64) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == want as f32 && (got.is_infinite() || got == 0.0) {
        return 0.0;
    }
    let got = if got.is_infinite() { 2.0_f64.powi(128).copysign(got.into()) } else { got.into() };
    let exponent = ((want.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    (got - want).abs() / 2.0_f64.powi(exponent - 23)
}

/// The largest error over the inputs, and the input that has it.
fn worst(case: &Case, inputs: &[f32]) -> (f64, f32) {
    let mut out = vec![0.0; inputs.len()];
    (case.slice)(SimdLevel::detected(), inputs, &mut out);
    let mut worst = (0.0, 0.0);
    for (&x, &got) in inputs.iter().zip(&out) {
        let error = error_in_ulp(got, (case.exact)(x.into()));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

fn assert_within_bound(case: &Case, inputs: &[f32]) {
    let (error, x) = worst(case, inputs);
    assert!(error <= case.bound_in_ulp, "{}({x:e}) is {error} ulp off", case.name);
}

#[test]
fn a_stride_through_all_inputs_stays_within_the_bound() {
    for case in &CASES {
        assert_within_bound(case, &patterns(0, 1 << 32, 509));
    }
}

#[test]
fn inputs_around_every_edge_stay_within_the_bound() {
    for case in &CASES {
        for edge in EDGES {
            let bits = u64::from(edge.to_bits());
            let inputs = patterns(bits.saturating_sub(2_000), (bits + 2_000).min(1 << 32), 1);
            assert_within_bound(case, &inputs);
        }
    }
}

/// The numbers in the documentation are reached, so they are not merely safe.
#[test]
fn the_worst_inputs_have_the_documented_error() {
    for case in &CASES {
        let (error, _) = worst(case, &[case.worst]);
        assert!(error > case.bound_in_ulp - 0.01, "{}({:e}) is {error} ulp off", case.name, case.worst);
        assert_within_bound(case, &[case.worst]);
    }
}

#[test]
#[ignore = "all 2^32 inputs of three functions: some minutes"]
fn every_input_stays_within_its_bound() {
    const CHUNK: u64 = 1 << 16;
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    for case in &CASES {
        let share = |first: u64| {
            let mut most = (0.0, 0.0);
            for chunk in (first..(1 << 32) / CHUNK).step_by(threads as usize) {
                let found = worst(case, &patterns(chunk * CHUNK, (chunk + 1) * CHUNK, 1));
                if found.0 > most.0 {
                    most = found;
                }
            }
            most
        };
        let (error, x) = thread::scope(|scope| {
            let share = &share;
            let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("a share of the inputs panicked"))
                .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
        });
        println!("{}: {error:.4} ulp at {x:?}", case.name);
        assert!(error <= case.bound_in_ulp, "{}({x:e}) is {error} ulp off", case.name);
    }
}

#[test]
fn special_values_are_those_of_c99() {
    let signalling = f32::from_bits(0xff80_0001);
    let smallest = f32::from_bits(1);
    for level in SimdLevel::available() {
        let check = |case: &Case, x: f32, want: f32| {
            // Nine copies: eight lanes of a vector and one of the remainder.
            let mut out = [1.0; 9];
            (case.slice)(level, &[x; 9], &mut out);
            for got in out {
                assert_eq!(got.to_bits(), want.to_bits(), "{}({x:e}) is {got:e} at {level:?}", case.name);
            }
        };
        let [exp, ln, tanh] = &CASES;
        for case in &CASES {
            check(case, f32::NAN, f32::NAN);
            check(case, -f32::NAN, f32::NAN);
            check(case, signalling, f32::NAN);
        }
        check(exp, f32::NEG_INFINITY, 0.0);
        check(exp, f32::INFINITY, f32::INFINITY);
        check(exp, f32::MAX, f32::INFINITY);
        check(exp, f32::MIN, 0.0);
        check(exp, 88.722_85, f32::INFINITY);
        check(exp, -103.972_07, smallest);
        check(exp, -103.972_09, 0.0);
        check(exp, 0.0, 1.0);
        check(exp, -0.0, 1.0);
        check(exp, smallest, 1.0);

        check(ln, 0.0, f32::NEG_INFINITY);
        check(ln, -0.0, f32::NEG_INFINITY);
        check(ln, f32::INFINITY, f32::INFINITY);
        check(ln, f32::NEG_INFINITY, f32::NAN);
        check(ln, -1.0, f32::NAN);
        check(ln, -smallest, f32::NAN);
        check(ln, 1.0, 0.0);
        check(ln, smallest, -103.278_93);

        check(tanh, 0.0, 0.0);
        check(tanh, -0.0, -0.0);
        check(tanh, f32::INFINITY, 1.0);
        check(tanh, f32::NEG_INFINITY, -1.0);
        check(tanh, f32::MAX, 1.0);
        check(tanh, smallest, smallest);
        check(tanh, -smallest, -smallest);
    }
}

#[test]
fn tanh_is_odd_and_never_leaves_its_range() {
    let x = patterns(0, 1 << 31, 509);
    let negated: Vec<f32> = x.iter().map(|x| -x).collect();
    let (mut y, mut z) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    tanh_slice(SimdLevel::detected(), &x, &mut y);
    tanh_slice(SimdLevel::detected(), &negated, &mut z);
    for ((x, y), z) in x.iter().zip(&y).zip(&z).filter(|((x, _), _)| !x.is_nan()) {
        assert_eq!((-y).to_bits(), z.to_bits(), "tanh(±{x:e})");
        assert!((0.0..=1.0).contains(y), "tanh({x:e}) is {y:e}");
    }
}

#[test]
fn all_levels_give_the_same_bits() {
    let mut inputs = patterns(0, 1 << 32, 65_537);
    inputs.extend(EDGES);
    for case in &CASES {
        let mut want = vec![0.0; inputs.len()];
        (case.slice)(SimdLevel::Scalar, &inputs, &mut want);
        for level in SimdLevel::available() {
            let mut got = vec![0.0; inputs.len()];
            (case.slice)(level, &inputs, &mut got);
            for ((x, got), want) in inputs.iter().zip(&got).zip(&want) {
                assert_eq!(got.to_bits(), want.to_bits(), "{}({x:e}) at {level:?}", case.name);
            }
        }
    }
}

#[test]
fn length_and_start_do_not_matter() {
    const LONGEST: usize = 2 * 16 + 1;
    let mut inputs: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 0.37).collect();
    inputs.extend(EDGES);
    for case in &CASES {
        let want: Vec<u32> = inputs
            .iter()
            .map(|&x| {
                let mut one = [0.0];
                (case.slice)(SimdLevel::Scalar, &[x], &mut one);
                one[0].to_bits()
            })
            .collect();
        for level in SimdLevel::available() {
            for start in 0..inputs.len() - LONGEST {
                for length in 0..=LONGEST {
                    let range = start..start + length;
                    // Output and input start at different places, and the element after the end must survive.
                    let mut out = vec![7.0; length + 1];
                    (case.slice)(level, &inputs[range.clone()], &mut out[..length]);
                    let got: Vec<u32> = out[..length].iter().map(|y| y.to_bits()).collect();
                    assert_eq!(got, want[range], "{} at {level:?}", case.name);
                    assert_eq!(out[length], 7.0);
                }
            }
        }
    }
}

#[test]
fn lane_arrays_and_slices_give_the_same_bits() {
    fn check<const N: usize>() {
        for inputs in EDGES.windows(N) {
            let x: [f32; N] = inputs.try_into().expect("a window of N elements");
            for (case, got) in CASES.iter().zip([exp(x), ln(x), tanh(x)]) {
                let mut want = [0.0; N];
                (case.slice)(SimdLevel::detected(), &x, &mut want);
                assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits));
            }
        }
    }
    check::<1>();
    check::<8>();
    check::<16>();
}

/// The bits themselves, as a hash (FNV-1a over the result words). They are part of every trained result: when these
/// numbers change, training gives other numbers, and the change log has to say so.
#[test]
fn the_bits_are_pinned() {
    let mut inputs = patterns(0, 1 << 32, 65_537);
    inputs.extend(EDGES);
    let want = [0xec13_04b2_f69a_e7ab, 0x0c5b_ddcb_5e7b_3c80, 0x59f3_77ed_7350_28c1];
    let got = CASES.each_ref().map(|case| {
        let mut out = vec![0.0; inputs.len()];
        (case.slice)(SimdLevel::detected(), &inputs, &mut out);
        out.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, y| {
            (hash ^ u64::from(y.to_bits())).wrapping_mul(0x0100_0000_01b3)
        })
    });
    assert_eq!(got, want, "{got:#018x?}");
}

#[test]
#[should_panic(expected = "an output as long as its input")]
fn lengths_that_differ_are_refused() {
    exp_slice(SimdLevel::Scalar, &[0.0; 3], &mut [0.0; 2]);
}
