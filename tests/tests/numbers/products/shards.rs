//! Products that are summed over shards, side by side in a bucket: a GPU stores some apart and adds up others
//! as it computes them. The sums of a device that has all shards are those of two that have half of them.

use unisono_gpu::Device;
use unisono_graph::ops::Contract;
use unisono_graph::plan::Transfer;
use unisono_graph::{Program, Run, Slot, Tape, Target, Type, tree};
use unisono_random::Draws;
use unisono_testkit::adapters;

use super::targets;

/// The columns of the operands of each product. The second one is too small for tiles.
const PRODUCTS: [[usize; 2]; 4] = [[64, 96], [10, 12], [68, 36], [40, 64]];
/// The samples of each shard.
const SHARDS: [usize; 8] = [3, 5, 1, 4, 2, 7, 3, 6];
/// The rows of a sample: the longest shards are long enough to be stored apart.
const ROWS: usize = 76;

fn program() -> Program {
    let tape = Tape::new();
    for (at, [m, n]) in PRODUCTS.into_iter().enumerate() {
        let a = tape.input(&format!("a{at}"), Type::sample(&[ROWS, m]));
        let b = tape.input(&format!("b{at}"), Type::sample(&[ROWS, n]));
        tape.output(&format!("y{at}"), &tape.apply(Contract, &[&a, &b]).sum_shards());
    }
    Program::compile(&tape.finish().unwrap()).unwrap()
}

/// Returns the rows of an input that belong to these samples.
fn rows(columns: usize, input: usize, samples: std::ops::Range<usize>) -> Vec<f32> {
    let mut draws = Draws::of(17, "products", "shards", input as u32, 0);
    let all: Vec<f32> =
        (0..SHARDS.iter().sum::<usize>() * ROWS * columns).map(|_| draws.range(-1.0, 1.0)).collect();
    all[samples.start * ROWS * columns..samples.end * ROWS * columns].to_vec()
}

/// Runs the first segment of a run of shards, and returns its sums: those of all shards, or those of the
/// run's only block.
fn sums(device: &mut Device, target: &Target, program: &Program, shards: std::ops::Range<usize>) -> Vec<f32> {
    let run = Run { first: shards.start, sizes: SHARDS[shards.clone()].to_vec(), shards: SHARDS.len() };
    let first: usize = SHARDS[..shards.start].iter().sum();
    let samples = first..first + run.rows();
    let plan = program.plan(&run, target).unwrap();
    let mut executable = device.load(&plan).unwrap();
    let mut outputs = vec![Vec::new(); PRODUCTS.len()];
    let mut blocks = Vec::new();
    let upload = &mut |transfer: &Transfer, to: &mut unisono_gpu::Writer<'_>| {
        if let Slot::Input(input) = Slot::decode(transfer.slot) {
            let columns = program.inputs()[input].ty.dims[1];
            rows(columns, input, samples.clone()).iter().for_each(|x| to.write(&x.to_le_bytes()));
        }
    };
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let download = &mut |transfer: &Transfer, bytes: &[u8]| match Slot::decode(transfer.slot) {
        Slot::Output(output) => outputs[output] = numbers(bytes),
        Slot::Blocks(_) => blocks = numbers(bytes),
        _ => {}
    };
    let segments = if run.is_whole() { plan.segments.len() } else { 1 };
    for segment in 0..segments {
        device.run(&mut executable, segment, upload, download).unwrap();
    }
    if run.is_whole() {
        return outputs.concat();
    }
    let values = program.outputs().iter().zip(PRODUCTS).map(|(output, [m, n])| {
        let (_, first) = output.sum.unwrap();
        blocks[first..first + m * n].to_vec()
    });
    values.flatten().collect()
}

#[test]
fn two_halves_of_the_shards_sum_up_to_the_bytes_of_all() {
    let program = program();
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let own = sums(&mut device, &adapter.target(), &program, 0..8);
        for target in targets(&adapter) {
            let whole = sums(&mut device, &target, &program, 0..8);
            let halves = [0..4, 4..8].map(|half| sums(&mut device, &target, &program, half));
            let added: Vec<u32> =
                halves[0].iter().zip(&halves[1]).map(|(&a, &b)| tree::add(a, b).to_bits()).collect();
            let bits = |sums: &[f32]| sums.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert!(own.iter().any(|x| *x != 0.0));
            assert_eq!(bits(&whole), bits(&own), "all shards on {} with {target:?}", adapter.label());
            assert_eq!(added, bits(&own), "two halves on {} with {target:?}", adapter.label());
        }
    }
}
