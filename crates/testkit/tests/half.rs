//! Numbers stored as f16 come back as they were: every number that f16 holds, subnormal ones included, on
//! every adapter with f16.

use unisono_gpu::{Adapter, Device, Options};
use unisono_graph::tree::canonical;
use unisono_graph::{
    Array, Feed, Frame, Layout, Lead, Precision, Program, Run, Tape, Target, Type, interpret,
};
use unisono_random::Draws;
use unisono_testkit::{adapters, relative_error, run};

const STORED: Layout = Layout { bucket_bytes: 1 << 20, f16: true, states_apart: false };

fn opened(adapter: &Adapter) -> Device {
    Device::open_with(adapter, Options::default().with(|options| options.f16 = true)).unwrap()
}

/// Returns an f16's bits as an f32.
fn widened(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 => f32::INFINITY,
        e => (1024.0 + fraction) * 2f32.powi(e - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

#[test]
fn storing_as_f16_changes_no_bit() {
    let numbers: Vec<f32> =
        (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00 || bits & 0x3ff == 0).map(widened).collect();
    // The sizes cover vectors of four and single numbers, which kernels load and store in two ways.
    for count in [numbers.len() - 2, numbers.len() - 3] {
        let tape = Tape::new();
        let [x, one] = ["x", "one"].map(|name| tape.input(name, Type::global(&[count])));
        // A value that two kernels need is stored, unless it is made of a single other one.
        let rounded = (x * one).round_half();
        tape.output("y", &rounded.relu());
        tape.output("z", &rounded.reshape(&[count, 1]).expand(Lead::Global, &[count, 3]));
        let program = Program::compile_with(&tape.finish().unwrap(), STORED).unwrap();
        let plan = program.plan(&Run::whole(&[1]), &Target { f16: true, ..Target::default() }).unwrap();
        assert!(
            plan.kernels.iter().all(|kernel| kernel.wgsl.starts_with("enable f16;")),
            "{}",
            program.describe()
        );
        let x = Array::new(&[count], numbers.iter().take(count).map(|&x| f64::from(x)).collect());
        let one = Array::generate(&[count], |_| 1.0);
        let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![x, one], states: vec![] };
        for adapter in adapters().into_iter().filter(|a| a.features.f16) {
            let mut device = opened(&adapter);
            let outputs = run(&mut device, &program, &feed).unwrap().outputs;
            let same = |(i, y): (usize, &f32)| y.to_bits() == canonical(numbers[i / 3]).to_bits();
            let other = outputs["z"].iter().enumerate().find(|&(i, y)| !same((i, y)));
            assert_eq!(other, None, "{}", adapter.label());
        }
    }
}

/// Returns products of samples' rows, of a weight and of pairs, and their gradients, with sizes that are no
/// multiples of four.
#[test]
fn mixed_precision_equals_its_reference_on_every_adapter_with_f16() {
    for width in [12, 7] {
        let tape = Tape::with_precision(Precision::Mixed);
        let x = tape.input("x", Type::sample(&[6, width]));
        let w = tape.input("w", Type::global(&[width, width]));
        let hidden = x.matmul_t(&w).tanh();
        let scores = hidden.matmul_t(&x);
        let y = scores.matmul(&hidden).relu();
        let loss = y.square().sum(&[1, 2]);
        tape.output("y", &y);
        let gradient = &tape.gradients(&loss.sum_shards(), &[w])[0];
        tape.output("d", gradient);
        let graph = tape.finish().unwrap();
        let mut draws = Draws::of(1, "half", "reference", 0, 0);
        let mut array = |dims: &[usize]| Array::generate(dims, |_| f64::from(draws.range(-0.5, 0.5)));
        let inputs = vec![array(&[5, 6, width]), array(&[width, width])];
        let feed = Feed { frame: Frame { shards: vec![3, 2] }, inputs, states: vec![] };
        for adapter in adapters().into_iter().filter(|a| a.features.f16) {
            let mut device = opened(&adapter);
            let mut step = |layout| {
                let program = Program::compile_with(&graph, layout).unwrap();
                let expected = interpret(program.graph(), &feed).outputs;
                (run(&mut device, &program, &feed).unwrap().outputs, expected)
            };
            let (halves, expected) = step(STORED);
            assert_eq!(halves, step(Layout { f16: false, ..STORED }).0, "{}", adapter.label());
            for name in ["y", "d"] {
                // A sum that f32 rounds the other way may round to the neighbouring f16.
                let error = relative_error(&halves[name], &expected[name]);
                assert!(error < 3e-4, "{name} on {}: {error:e}", adapter.label());
            }
        }
    }
}
