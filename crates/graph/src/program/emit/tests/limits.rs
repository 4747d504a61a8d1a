//! Launches that an adapter's limits divide or refuse.

use super::*;

/// Returns the launches of a convolution by kernels of 3 x 3 in the plan for a run of one shard.
fn convolution(image: [usize; 3], outputs: usize, samples: usize, target: &Target) -> usize {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&image));
    let w = tape.state("w", &[outputs, image[0], 3, 3], StateKind::Parameter);
    tape.output("y", &x.conv2d(&w, &Window { padding: [1, 1], ..Window::new([3, 3]) }, 1));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let plan = program.plan(&Run { first: 0, sizes: vec![samples], shards: 1 }, target);
    plan.map_or_else(
        |error| panic!("{image:?}, {samples} samples: {error}"),
        |plan| plan.segments[0].commands.len(),
    )
}

/// Samples of these images are not aligned in memory, and some batches have more tiles than a grid.
#[test]
fn convolutions_of_large_images_have_a_plan() {
    let memory =
        Target { max_binding_bytes: u64::from(u32::MAX), max_buffer_bytes: 1 << 40, ..Target::default() };
    let cpu = Target {
        machine: Machine::Cpu,
        binding_alignment: 64,
        max_workgroups: 1 << 24,
        max_workgroup_bytes: 1 << 20,
        ..memory.clone()
    };
    let gpu = Target { machine: Machine::Gpu, ..memory };
    for (side, samples) in [(182, 16), (370, 16), (500, 3), (768, 1), (900, 3), (1024, 1), (1600, 1)] {
        for outputs in [8, 64] {
            for target in [&cpu, &gpu] {
                let launches = convolution([3, side, side], outputs, samples, target);
                assert!((1..=4).contains(&launches), "{side} x {side}, {samples} samples: {launches}");
            }
        }
    }
}

/// Eight buffers are what every adapter has. A sum over samples reads where shards start, too.
#[test]
fn a_sum_over_samples_of_seven_values_has_a_plan() {
    for values in 1..12 {
        let tape = Tape::new();
        let x: Vec<_> = (0..values).map(|i| tape.input(&format!("x{i}"), Type::sample(&[]))).collect();
        let sum = x.iter().skip(1).fold(x[0].clone(), |sum, x| sum * 0.5 + x * x);
        tape.output("sum", &sum.sum_samples().sum_shards());
        let program = Program::compile(&tape.finish().unwrap()).unwrap();
        let target = Target { machine: Machine::Gpu, storage_buffers: 8, ..Target::default() };
        let plan = program.plan(&Run { first: 0, sizes: vec![2, 3], shards: 2 }, &target);
        assert!(plan.is_ok(), "{values} values: {:?}", plan.err());
    }
}

/// The weights' index counts elements one by one, in 32 bits, though four are read at a time.
#[test]
fn a_sum_of_more_than_2_to_the_32_elements_takes_several_launches() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[1024, 1, 12, 3]));
    let y = tape.input("y", Type::sample(&[1, 1024, 12, 3]));
    let w = tape.input("w", Type::global(&[3]));
    tape.output("sum", &((&x - &y).square() * w).sum(&[-2, -1]));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let target = Target { max_binding_bytes: 2 << 30, max_buffer_bytes: 1 << 40, ..Target::default() };
    for (samples, launches) in [(100, 1), (128, 2), (300, 3)] {
        let plan = program.plan(&Run { first: 0, sizes: vec![samples], shards: 1 }, &target).unwrap();
        assert_eq!(plan.segments[0].commands.len(), launches, "{samples} samples");
    }
}

/// The result is larger than a binding, and its chunks are in memory of their own.
#[test]
fn a_large_result_of_several_chunks_has_a_plan() {
    let target = Target { machine: Machine::Gpu, ..Target::default() };
    for channels in [112, 128] {
        let launches = convolution([channels, 28, 28], 128, 336, &target);
        assert!((2..=8).contains(&launches), "{channels} channels: {launches}");
    }
}
