//! Our exp, log, tanh, erf, sigmoid and rounding to f16 give the same bytes on a device as their host twin,
//! between operands and results that are canonical as those of every op.

use unisono_gpu::Device;
use unisono_graph::elementary::Elementary;
use unisono_graph::half::round_half;
use unisono_graph::tree::canonical;
use unisono_graph::{Array, Feed, Frame, Program, StateKind, Tape, Type, Var};
use unisono_random::Draws;
use unisono_testkit::{adapters, run};

const INPUTS: usize = 100_000;

/// Returns bit patterns of all kinds: every exponent, both signs. NaN and infinity are left out, since WGSL
/// need not keep them.
fn inputs() -> Vec<f32> {
    let mut draws = Draws::of(1, "test", "elementary", 0, 0);
    let mut any = || loop {
        let x = f32::from_bits(draws.next_u32());
        if x.is_finite() {
            return x;
        }
    };
    let wide: Vec<f32> = (0..INPUTS / 2).map(|_| any()).collect();
    let near = (0..INPUTS / 2).map(|i| (i as f32 - INPUTS as f32 / 4.0) * 0.004);
    wide.into_iter().chain(near).collect()
}

type Pair = (&'static str, fn(&Var) -> Var, fn(Elementary, f32) -> f32);

#[test]
fn devices_give_the_host_twins_bytes() {
    let functions: [Pair; 6] = [
        ("exp", Var::exp, Elementary::exp),
        ("log", Var::log, Elementary::log),
        ("tanh", Var::tanh, Elementary::tanh),
        ("erf", Var::erf, Elementary::erf),
        ("sigmoid", Var::sigmoid, Elementary::sigmoid),
        ("round_half", Var::round_half, |_, x| round_half(x)),
    ];
    let inputs = inputs();
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let mut kinds = [true, true];
        for (name, function, twin) in functions {
            let tape = Tape::new();
            tape.output("y", &function(&tape.input("x", Type::global(&[INPUTS]))));
            let program = Program::compile(&tape.finish().unwrap()).unwrap();
            let x = Array::new(&[INPUTS], inputs.iter().map(|&x| f64::from(x)).collect());
            let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![x], states: vec![] };
            let outputs = run(&mut device, &program, &feed).unwrap().outputs;
            for (kind, fused) in [false, true].into_iter().enumerate() {
                let own = |x: f32| canonical(twin(Elementary { fused }, canonical(x)));
                let same = |(&x, y): (&f32, &f32)| own(x).to_bits() == y.to_bits();
                let equal = inputs.iter().zip(&outputs["y"]).filter(|p| same((p.0, p.1))).count();
                println!("{name} on {}: fused {fused}: {equal} of {INPUTS} equal", adapter.label());
                kinds[kind] &= equal == INPUTS;
            }
        }
        assert!(kinds[0] || kinds[1], "{}: neither kind of fma explains its bytes", adapter.label());
    }
}

/// 1 + e^x is 1 for all x below -16.7.
#[test]
fn softplus_is_exact_where_it_is_small() {
    let places = [-86.0, -40.0, -20.0, -17.0, -16.6, -15.0, -12.0, -5.0, -0.5, 0.0, 0.5, 12.0, 20.0];
    let tape = Tape::new();
    let x = tape.state("x", &[places.len()], StateKind::Parameter);
    let y = x.softplus();
    tape.output("dx", &tape.gradients(&y.sum(&[0]), &[x])[0]);
    tape.output("y", &y);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let states = vec![Array::new(&[places.len()], places.to_vec())];
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![], states };
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let outputs = run(&mut device, &program, &feed).unwrap().outputs;
        for (at, &x) in places.iter().enumerate() {
            let expected = [("y", x.exp().ln_1p()), ("dx", 1.0 / (1.0 + (-x).exp()))];
            for (name, expected) in expected {
                let found = f64::from(outputs[name][at]);
                let is_near = (found - expected).abs() <= 1e-6 * expected;
                assert!(is_near, "{name} at {x} on {}: {found}, not {expected}", adapter.label());
            }
        }
    }
}
