//! Loading and storing two f32 as a u64 changes no bit, on any adapter that can.

use unisono_gpu::{Adapter, Backend, Device, Kind};
use unisono_graph::{Array, Feed, Frame, Program, StateKind, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{Ran, adapters, install, left_out, run_for};

/// The number of elements from which pairs are used.
const COUNT: usize = 1 << 16;
/// The number of elements of a sample.
const WIDE: usize = 1 << 10;

/// Returns a step of momentum over all samples' mean, and a map of each sample.
fn program() -> Program {
    let tape = Tape::new();
    let (x, rate) = (tape.input("x", Type::sample(&[WIDE])), tape.input("rate", Type::global(&[])));
    let [weight, momentum] =
        ["weight", "momentum"].map(|name| tape.state(name, &[COUNT], StateKind::Parameter));
    let step = &(&momentum * 0.9) + &weight.sqrt();
    tape.update(&momentum, &step);
    tape.update(&weight, &(&weight - &(&step * &rate)));
    tape.output("y", &((&x * &rate).relu() - &(&x * &x)));
    Program::compile(&tape.finish().unwrap()).unwrap()
}

#[test]
fn pairs_change_no_bit() {
    let program = program();
    let numbers = |name: &str, dims: &[usize]| {
        let mut draws = Draws::of(3, "pairs", name, 0, 0);
        let mut number = |i: usize| match i % 97 {
            0 => -0.0,
            1 => f64::from(f32::MAX),
            2 => f64::from(f32::MIN_POSITIVE),
            _ => f64::from(draws.range(-4.0, 4.0)),
        };
        Array::new(dims, (0..dims.iter().product()).map(&mut number).collect())
    };
    let feed = Feed {
        frame: Frame { shards: vec![2, 1] },
        inputs: vec![numbers("x", &[3, WIDE]), Array::new(&[], vec![0.3])],
        states: vec![numbers("weight", &[COUNT]), numbers("momentum", &[COUNT])],
    };
    let mut tried = 0;
    for adapter in adapters() {
        let own = adapter.target();
        let mut device = Device::open(&adapter).unwrap();
        let [without, with] = [false, own.pairs].map(|pairs| {
            let target = Target { pairs, ..own.clone() };
            let plan = program.plan(&unisono_graph::Run::whole(&[2, 1]), &target).unwrap();
            let count = plan.kernels.iter().filter(|kernel| kernel.wgsl.contains("vec4<u64>")).count();
            assert_eq!(count, if pairs { 2 } else { 0 }, "{}", program.describe());
            let Ran { outputs, states, .. } = run_for(&mut device, &target, &program, &feed).unwrap();
            let bits = |values: &Vec<f32>| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            outputs.values().chain(states.values()).map(bits).collect::<Vec<_>>()
        });
        assert!(with == without, "{}", adapter.label());
        tried += usize::from(own.pairs);
    }
    let software = |adapter: &Adapter| adapter.kind == Kind::Cpu && adapter.backend == Backend::Vulkan;
    match adapters().iter().any(software) {
        true => assert!(tried > 0, "a software adapter with Vulkan loads pairs"),
        false => left_out(&format!(
            "no pairs are loaded: this machine has no software adapter with Vulkan{}",
            install("mesa-vulkan-drivers")
        )),
    }
}
