//! Quotients and square roots round correctly on every adapter: ours, and a device's own where it is trusted.

use unisono_gpu::Device;
use unisono_graph::tree::canonical;
use unisono_graph::{Array, Feed, Frame, Program, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, run_for};

const COUNT: usize = 200_000;

/// Returns pairs of numbers: of all sizes, and close to quotients that lie halfway between two numbers.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let mut draws = Draws::of(1, "test", "quotients", 0, 0);
    let mut any = move || loop {
        let x = f32::from_bits(draws.next_u32());
        if x.is_finite() && canonical(x) != 0.0 {
            return x;
        }
    };
    let mut halfway = Draws::of(2, "test", "quotients", 0, 0);
    let pair = |index: usize| {
        if index.is_multiple_of(3) {
            return (any(), any());
        }
        // The exact product of an odd quotient of 25 bits, which is a tie, and a divisor, rounded either way.
        let divisor = (0x0080_0000 | halfway.next_u32() >> 9) as f32;
        let tie = f64::from(halfway.next_u32() >> 8 | 0x0100_0001);
        let product = (tie * f64::from(divisor)) as f32;
        let step = [0, 1, u32::MAX][index / 3 % 3];
        (f32::from_bits(product.to_bits().wrapping_add(step)), divisor)
    };
    (0..COUNT).map(pair).unzip()
}

#[test]
fn quotients_and_roots_are_those_of_the_host_on_every_adapter() {
    let (a, b) = pairs();
    let tape = Tape::new();
    let [x, y] = ["x", "y"].map(|name| tape.input(name, Type::global(&[COUNT])));
    tape.output("quotient", &(&x / &y));
    tape.output("root", &x.abs().sqrt());
    // Compilers make x * (1 / 72) and inverseSqrt of these.
    tape.output("by_constant", &(&x / 72.0));
    tape.output("inverse_root", &(1.0 / x.abs().sqrt()));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let array = |values: &[f32]| Array::new(&[COUNT], values.iter().map(|&x| f64::from(x)).collect());
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![array(&a), array(&b)], states: vec![] };
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        for own_quotients in [false, device.target().own_quotients] {
            let target = Target { own_quotients, ..device.target() };
            let outputs = run_for(&mut device, &target, &program, &feed).unwrap().outputs;
            for i in 0..COUNT {
                let quotient = canonical(a[i] / b[i]);
                let root = a[i].abs().sqrt();
                let expected = [quotient, root, canonical(a[i] / 72.0), canonical(1.0 / root)];
                let names = ["quotient", "root", "by_constant", "inverse_root"];
                let found = names.map(|name| outputs[name][i]);
                assert_eq!(
                    found.map(f32::to_bits),
                    expected.map(f32::to_bits),
                    "{adapter}, own {own_quotients}: {:e} / {:e}: {found:?} and not {expected:?}",
                    a[i],
                    b[i]
                );
            }
        }
    }
}

#[test]
fn results_of_ops_are_canonical_on_every_adapter() {
    // Zeros of either sign, subnormal numbers, and numbers whose products and differences are.
    let values = [0.0, -0.0, 1e-40, -1e-40, f32::MIN_POSITIVE, 1.5e-38, 1.6e-38, 1e-30, -1e-30, 3.0];
    let count = values.len() * values.len();
    let tape = Tape::new();
    let [x, y] = ["x", "y"].map(|name| tape.input(name, Type::global(&[count])));
    for (name, value) in [
        ("plus", &x + &y),
        ("minus", &x - &y),
        ("times", &x * &y),
        ("fma", &x * &y + &x),
        ("quotient", &x / &(y.abs() + 1.0)),
        ("negative", -&x),
        ("relu", x.relu()),
        ("abs", x.abs()),
        ("larger", x.maximum(&y)),
        ("selected", x.greater(&y).select(&x, &y)),
        ("round", x.round()),
        ("tanh", x.tanh()),
        ("erf", x.erf()),
        ("half", x.round_half()),
    ] {
        tape.output(name, &value);
    }
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let at = |index: fn(usize) -> usize| {
        Array::new(&[count], (0..count).map(|i| f64::from(values[index(i)])).collect())
    };
    let inputs = vec![at(|i| i / 10), at(|i| i % 10)];
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs, states: vec![] };
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let target = device.target();
        for (name, found) in run_for(&mut device, &target, &program, &feed).unwrap().outputs {
            for (i, x) in found.iter().enumerate() {
                let operands = (values[i / 10], values[i % 10]);
                assert_eq!(
                    x.to_bits(),
                    canonical(*x).to_bits(),
                    "{adapter}: {name} of {operands:?} is {x:e}"
                );
            }
        }
    }
}
