mod epilogues;
mod limits;
mod pack_launches;
mod packed;
mod transformer;

use super::*;
use crate::fuse::MAX_BINDINGS;
use crate::plan::target::Machine;
use crate::plan::{Command, Plan, Role, Segment, Slice, Transfer};
use crate::program::{Conditions, Layout};
use crate::trace::{StateKind, Tape, Window};
use crate::values::Precision;

/// Returns a step with every kind of value that has samples: an input, dropout, a product, its gradient and a
/// loss of each sample.
fn step() -> Program {
    let tape = Tape::new();
    let (x, rate) = (tape.input("x", Type::sample(&[4])), tape.input("rate", Type::global(&[])));
    let w = tape.state("w", &[3, 4], StateKind::Parameter);
    let losses = x.dropout(0.5, "drop").matmul_t(&w).tanh().sum(&[-1]);
    let loss = losses.sum_shards();
    let gradient = &tape.gradients(&loss, std::slice::from_ref(&w))[0];
    tape.update(&w, &(&w - &(gradient * &rate)));
    tape.output("losses", &losses);
    tape.output("loss", &loss);
    tape.output("twice", &(&loss + &loss));
    Program::compile(&tape.finish().unwrap()).unwrap()
}

fn slots(transfers: &[Transfer]) -> Vec<Slot> {
    transfers.iter().map(|t| Slot::decode(t.slot)).collect()
}

/// What is read at the end of a segment is not overwritten before, however many buckets there are.
#[test]
fn downloads_keep_their_memory_until_the_end_of_the_segment() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    let mut y = x;
    let states: Vec<_> = (0..6).map(|i| tape.state(&format!("b{i}"), &[4], StateKind::Parameter)).collect();
    for state in &states {
        y = (&y + state).tanh();
    }
    let loss = y.sum(&[-1]).sum_shards();
    for (state, gradient) in states.iter().zip(tape.gradients(&loss, &states)) {
        tape.update(state, &(state - &gradient));
    }
    let program =
        Program::compile_with(&tape.finish().unwrap(), Layout { bucket_bytes: 16, ..Layout::default() })
            .unwrap();
    assert!(program.buckets().len() >= 6);
    let plan = program.plan(&Run { first: 1, sizes: vec![2, 2], shards: 4 }, &Target::default()).unwrap();
    for segment in &plan.segments {
        let ranges = segment
            .downloads
            .iter()
            .map(|t| (t.slice.buffer, t.slice.offset, t.slice.offset + t.slice.bytes));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        let apart = |pair: &[(usize, u64, u64)]| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
        assert!(ranges.windows(2).all(apart), "{ranges:?}");
    }
}

#[test]
fn an_idle_replica_takes_the_sums_and_commits_and_does_nothing_else() {
    let program = step();
    let idle = Run { first: 0, sizes: vec![], shards: 3 };
    let Plan { segments, buffers, .. } = program.plan(&idle, &Target::default()).unwrap();
    assert_eq!(segments.len(), 2);
    assert_eq!((segments[0].commands.len(), segments[0].downloads.len()), (0, 0));
    assert!(!slots(&segments[0].uploads).contains(&Slot::Input(0)), "{:?}", slots(&segments[0].uploads));
    assert_eq!(slots(&segments[1].uploads), [Slot::Sums(0)]);
    assert_eq!(slots(&segments[1].downloads), [Slot::StateFlag, Slot::Output(2)]);
    let busy = program.plan(&Run { first: 0, sizes: vec![2], shards: 3 }, &Target::default()).unwrap();
    assert_eq!(segments[1].commands.len(), busy.segments[1].commands.len());
    assert!(buffers.iter().any(|b| b.role == Role::State(0)));
}

/// Returns the plan of a program that puts a row of each sample into resident memory and sums over all rows.
fn resident(target: &Target) -> Plan {
    let tape = Tape::new();
    let (x, at) = (tape.input("x", Type::sample(&[1, 4])), tape.input("at", Type::sample(&[6, 1])));
    let old = tape.resident(7, Type::sample(&[6, 4]));
    let new = at.select(&x, &old);
    tape.keep_resident(7, &new);
    tape.output("sums", &new.sum(&[-2]));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    assert!(program.is_resident());
    program.plan(&Run { first: 0, sizes: vec![2, 3], shards: 4 }, target).unwrap()
}

#[test]
fn resident_memory_is_changed_in_place_and_neither_uploaded_nor_downloaded() {
    for machine in [Machine::Cpu, Machine::Gpu] {
        let Plan { segments, buffers, .. } = resident(&Target { machine, ..Target::default() });
        let [Segment { uploads, commands, downloads }] = &segments[..] else { panic!("{segments:?}") };
        let of = |transfers: &[Transfer]| -> u64 { transfers.iter().map(|t| t.slice.bytes).sum() };
        // Five samples: a row and six places up, the sums down.
        assert_eq!((of(uploads), of(downloads)), (5 * 4 * (4 + 6), 5 * 4 * 4));
        assert!(commands.iter().all(|command| matches!(command, Command::Launch(_))), "{commands:?}");
        let own: Vec<u64> = buffers.iter().filter(|b| b.role == Role::Resident(7)).map(|b| b.bytes).collect();
        assert_eq!(own, [5 * 4 * 6 * 4]);
    }
}

/// The differences of all pairs are not in memory. Kernels for GPUs count them in 32 bits.
#[test]
fn reductions_of_more_elements_than_indices_count_are_several_launches_or_an_error() {
    let pairs = |rows: usize| {
        let tape = Tape::new();
        let (x, y) =
            (tape.input("x", Type::sample(&[rows, 128])), tape.input("y", Type::sample(&[rows, 128])));
        let pairs = x.reshape(&[rows, 1, 128]) - y.reshape(&[1, rows, 128]);
        tape.output("distances", &pairs.square().sum(&[-1]));
        Program::compile(&tape.finish().unwrap()).unwrap()
    };
    let target = Target {
        machine: Machine::Gpu,
        max_binding_bytes: u64::from(u32::MAX),
        max_buffer_bytes: 1 << 40,
        ..Target::default()
    };
    let plan = |rows: usize, samples: usize| {
        pairs(rows).plan(&Run { first: 0, sizes: vec![samples], shards: 1 }, &target)
    };
    let launches = |samples: usize| plan(4096, samples).unwrap().segments[0].commands.len();
    // A sample has 2^31 of them, so that a launch has one sample.
    assert_eq!([1, 7, 8, 14, 15].map(|samples| launches(samples) / launches(1)), [1, 7, 8, 14, 15]);
    let error = plan(1 << 14, 1).unwrap_err().to_string();
    assert!(error.contains("sum [B, 16384, 16384] reduces 34359738368 elements at once"), "{error}");
}

/// The sums over pixels and samples of eight channels do not wait for each other on a CPU.
#[test]
fn a_bias_gradient_adds_eight_channels_at_once() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[8, 6, 6]));
    tape.output("sum", &x.sum(&[-2, -1]).sum_shards());
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let run = Run { first: 0, sizes: vec![3, 5], shards: 2 };
    let plan = program.plan(&run, &Target { machine: Machine::Cpu, ..Target::default() }).unwrap();
    let sum = plan.kernels.iter().find(|kernel| kernel.name == "sum").unwrap();
    assert!(sum.wgsl.contains("var acc1 = vec4<f32>(0.0)"), "{}", sum.wgsl);
}

/// The gradient of a norm's scale adds sixteen columns at once on a CPU. What a row's numbers have in common
/// is loaded once for them.
#[test]
fn the_gradient_of_a_scale_adds_sixteen_columns_at_once() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[6, 32]));
    let root = tape.input("root", Type::sample(&[6, 1]));
    tape.output("sum", &(x * root).sum(&[-2]).sum_shards());
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let run = Run { first: 0, sizes: vec![3, 5], shards: 2 };
    let plan = program.plan(&run, &Target { machine: Machine::Cpu, ..Target::default() }).unwrap();
    let sum = plan.kernels.iter().find(|kernel| kernel.name == "sum[mul]").unwrap();
    assert!(sum.wgsl.contains("var acc3 = vec4<f32>(0.0)"), "{}", sum.wgsl);
    let body = sum.wgsl.split_once("@compute").unwrap().1;
    assert_eq!([body.matches("= b1[").count(), body.matches("w0(").count()], [4, 1], "{body}");
}

/// The squared differences of all pairs are not in memory either, and a scalar's gradient is one sum over
/// those of all samples of a shard.
#[test]
fn a_sum_over_samples_of_more_elements_than_indices_count_is_an_error() {
    let tape = Tape::new();
    let (x, t) = (tape.input("x", Type::sample(&[8192])), tape.state("t", &[], StateKind::Parameter));
    let pairs = x.reshape(&[8192, 1]) - x.reshape(&[1, 8192]);
    let loss = (pairs.square() * &t).sum_all().sum_shards();
    tape.output("gradient", &tape.gradients(&loss, &[t])[0]);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    for machine in [Machine::Gpu, Machine::Cpu] {
        let target = Target { machine, max_buffer_bytes: 1 << 40, ..Target::default() };
        let plan = |samples| program.plan(&Run { first: 0, sizes: vec![samples], shards: 1 }, &target);
        assert!(plan(63).is_ok(), "{machine:?}");
        let error = plan(64).unwrap_err().to_string();
        assert!(error.contains("reduces 4294967296 elements at once"), "{error}");
    }
}

/// The error names what does not fit: a tensor's rows by their workgroups, an input by its name.
#[test]
fn what_does_not_fit_is_named() {
    let target = Target {
        machine: Machine::Gpu,
        max_binding_bytes: (1 << 31) - 4,
        max_buffer_bytes: 1 << 32,
        ..Target::default()
    };
    let plan = |program: &Program, samples: usize| {
        program.plan(&Run { first: 0, sizes: vec![samples], shards: 1 }, &target)
    };
    // The gradient of the weights of four million inputs and 64 units has a side of four million.
    let tape = Tape::new();
    let (x, w) =
        (tape.input("x", Type::sample(&[1 << 22])), tape.state("w", &[1 << 22, 64], StateKind::Parameter));
    let loss = x.matmul(&w).sum_all().sum_shards();
    tape.output("gradient", &tape.gradients(&loss, &[w])[0]);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let error = plan(&program, 8).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("needs 131072 workgroups along an axis; the adapter's limit is 65535"), "{error}");

    let tape = Tape::new();
    let x = tape.input("pictures", Type::sample(&[1 << 20]));
    tape.output("sums", &x.sum(&[-1]));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let error = plan(&program, 1 << 11).unwrap_err().to_string();
    assert!(error.contains("input pictures [B, 1048576] needs 8589934592 bytes"), "{error}");
    assert!(error.contains("the adapter's limit is 4294967296: use fewer samples"), "{error}");
}

/// The chunks of a long inner axis take more memory than the product, and rows are divided by that.
#[test]
fn a_product_whose_chunks_do_not_fit_is_several_launches() {
    for precision in [Precision::F32, Precision::Mixed] {
        let tape = Tape::with_precision(precision);
        let x = tape.input("x", Type::sample(&[512, 16384]));
        let w = tape.state("w", &[16384, 8192], StateKind::Parameter);
        tape.output("y", &x.matmul(&w).sum(&[-1]));
        let program = Program::compile(&tape.finish().unwrap()).unwrap();
        let target = Target {
            machine: Machine::Gpu,
            f16: true,
            max_binding_bytes: (1 << 31) - 4,
            max_buffer_bytes: 1 << 32,
            ..Target::default()
        };
        let run = |samples| Run { first: 0, sizes: vec![samples], shards: 1 };
        let products = |samples| {
            let plan = program.plan(&run(samples), &target).unwrap();
            let names =
                plan.kernels.iter().map(|kernel| kernel.name.starts_with("matmul")).collect::<Vec<_>>();
            let commands = plan.segments.iter().flat_map(|segment| &segment.commands);
            commands.filter(|c| matches!(c, Command::Launch(launch) if names[launch.kernel])).count()
        };
        assert_eq!(products(1), 1, "{precision:?}");
        assert!(products(40) > 1, "{precision:?}");
    }
}

#[test]
fn a_device_with_all_shards_decides_before_it_changes_the_state() {
    let program = step();
    let outputs = program.outputs();
    let early: Vec<usize> = (0..outputs.len()).filter(|&at| outputs[at].segment == 0).collect();
    let late = (0..outputs.len()).find(|&at| outputs[at].segment == 1).unwrap();
    let whole = Run::whole(&[2, 2]);
    let part = Run { first: 0, sizes: vec![2], shards: 2 };
    let names = |plan: &Plan| -> Vec<String> {
        let launches = plan.segments[1].commands.iter().filter_map(|command| match command {
            Command::Launch(launch) => Some(plan.kernels[launch.kernel].name.clone()),
            _ => None,
        });
        launches.collect()
    };
    let decides = |program: &Program, run: &Run| {
        let plan = program.plan(run, &Target::default()).unwrap();
        let skipped = slots(&plan.segments[1].downloads).contains(&Slot::Skipped);
        let chained = slots(&plan.segments[0].uploads).contains(&Slot::Chained);
        let verdicts = names(&plan).iter().filter(|name| *name == "verdict").count();
        let copies = plan.segments[1]
            .commands
            .iter()
            .filter(|command| matches!(command, Command::Copy { .. }))
            .count();
        assert_eq!((skipped, chained, verdicts), if chained { (true, true, 1) } else { (false, false, 0) });
        // Outputs beyond the first one are looked at by launches of their own before.
        let first = names(&plan).into_iter().find(|name| name != "finite").unwrap();
        assert!(!chained || copies == 0 && first == "verdict", "{:?}", names(&plan));
        chained
    };
    assert!(!decides(&program, &whole), "no conditions");
    let with = |conditions| step().with_conditions(conditions);
    let deciding = with(Conditions { finite: early, nonzero: None });
    assert!(decides(&deciding, &whole) && !decides(&deciding, &part));
    // What is known only when the step commits cannot decide about it.
    let too_late = with(Conditions { finite: vec![late], nonzero: None });
    assert!(too_late.conditions().is_none() && !decides(&too_late, &whole));
}

/// Returns a layer and its gradient in mixed precision, with rows of an odd number of elements.
fn mixed(layout: Layout) -> Program {
    let tape = Tape::with_precision(Precision::Mixed);
    let x = tape.input("x", Type::sample(&[7]));
    let w = tape.state("w", &[9, 7], StateKind::Parameter);
    let y = x.matmul_t(&w).tanh().matmul(&w).relu();
    let gradient = &tape.gradients(&y.sum(&[-1]).sum_shards(), std::slice::from_ref(&w))[0];
    tape.update(&w, &(&w - gradient));
    Program::compile_with(&tape.finish().unwrap(), layout).unwrap()
}

#[test]
fn f16_halves_memory_where_the_device_has_it_and_is_refused_elsewhere() {
    let run = Run::whole(&[101, 100]);
    let [halves, words] = [true, false].map(|f16| mixed(Layout { f16, ..Layout::default() }));
    let with = Target { f16: true, ..Target::default() };
    let refused = halves.plan(&run, &Target::default()).unwrap_err();
    assert!(matches!(&refused, GraphError::NoF16 { what } if what.contains("round_half")), "{refused}");
    let (halves, words) = (halves.plan(&run, &with).unwrap(), words.plan(&run, &Target::default()).unwrap());
    assert!(
        10 * halves.scratch_bytes() < 7 * words.scratch_bytes(),
        "{} and {}",
        halves.scratch_bytes(),
        words.scratch_bytes()
    );
    assert!(halves.buffers.iter().all(|buffer| buffer.bytes.is_multiple_of(4)));
    assert!(words.kernels.iter().all(|kernel| !kernel.wgsl.contains("f16;")));
}

/// Ranges of rows of f16 start at offsets that a device can bind.
#[test]
fn ranges_of_f16_are_aligned() {
    let target = Target { f16: true, max_binding_bytes: 20_000, ..Target::default() };
    let program = mixed(Layout { f16: true, ..Layout::default() });
    let plan = program.plan(&Run::whole(&[1000]), &target).unwrap();
    let launches = plan.segments.iter().flat_map(|s| &s.commands).filter_map(|command| match command {
        Command::Launch(launch) => Some(launch),
        _ => None,
    });
    let slices: Vec<Slice> = launches.flat_map(|launch| launch.bindings.clone()).collect();
    assert!(
        slices.iter().all(|s| s.offset.is_multiple_of(256) && s.bytes.is_multiple_of(4) && s.bytes <= 20_000)
    );
    assert!(slices.iter().any(|s| s.offset > 0));
}

/// More steps of a loop over parts of the input, and more states that are updated alike, make more launches
/// of the same kernels.
#[test]
fn a_kernel_serves_all_steps_of_a_loop_and_all_states() {
    let sizes = |steps: usize| {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[steps, 4]));
        let w = tape.state("w", &[4, 4], StateKind::Parameter);
        let states: Vec<_> =
            (0..steps).map(|i| tape.state(&format!("b{i}"), &[4], StateKind::Parameter)).collect();
        let mut y = x.slice(1, 0..1).reshape(&[4]).tanh();
        for (step, state) in states.iter().enumerate() {
            let part = x.slice(1, step..step + 1).reshape(&[4]);
            y = (&y.matmul_t(&w) + &(&part * state)).tanh();
        }
        let loss = y.sum(&[-1]).sum_shards();
        for (state, gradient) in states.iter().zip(tape.gradients(&loss, &states)) {
            tape.update(state, &(state - &gradient));
        }
        let program = Program::compile(&tape.finish().unwrap()).unwrap();
        let plan = program.plan(&Run::whole(&[2, 2]), &Target::default()).unwrap();
        (plan.kernels.len(), plan.launches())
    };
    let ((few, short), (many, long)) = (sizes(7), sizes(20));
    assert!(long > 2 * short);
    // Those that are left over stand beside each other in other numbers.
    assert!(many <= few, "{few} kernels of 7 steps, {many} of 20");
}

/// Updates many states of one shape as Adam does: each kernel has room for the flag that it sets, and no
/// kernel reads the new states again.
#[test]
fn kernels_check_the_states_that_they_store_with_no_more_buffers_than_every_adapter_has() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    let rate = tape.input("rate", Type::global(&[]));
    let weights: Vec<_> = (0..7).map(|i| tape.state(&format!("w{i}"), &[4], StateKind::Parameter)).collect();
    let y = weights.iter().fold(x, |y, weight| (&y * weight).tanh());
    let gradients = tape.gradients(&y.sum(&[-1]).sum_shards(), &weights);
    for (weight, gradient) in weights.iter().zip(&gradients) {
        let name = tape.state_name(weight).unwrap();
        let moment = tape.state(&format!("{name}/m"), &[4], StateKind::Optimizer);
        let new = &moment * 0.9 + gradient * 0.1;
        tape.update(&moment, &new);
        tape.update(weight, &(weight - &(&new * &rate)));
    }
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let run = Run { first: 0, sizes: vec![2], shards: 2 };
    let plan = program.plan(&run, &Target::default()).unwrap();
    assert!(plan.kernels.iter().all(|kernel| kernel.bindings.len() <= MAX_BINDINGS));
    let [.., last] = &plan.segments[..] else { panic!("no segments") };
    let flag = last.downloads.iter().find(|t| Slot::decode(t.slot) == Slot::StateFlag).unwrap().slice;
    let launches = last.commands.iter().filter_map(|command| match command {
        Command::Launch(launch) => Some(launch),
        _ => None,
    });
    let launches: Vec<_> = launches.collect();
    assert!(launches.len() < 14, "maps share kernels: {}", launches.len());
    for launch in launches {
        let kernel = &plan.kernels[launch.kernel];
        assert_ne!(kernel.name, "finite");
        let sets = launch.bindings.iter().any(|slice| slice.buffer == flag.buffer);
        assert!(sets && kernel.wgsl.contains("atomicStore"), "{}", kernel.wgsl);
    }
}

/// What pads a bucket on a GPU is 0, so that no old number there stops the step.
#[test]
fn the_end_of_a_bucket_of_one_product_is_cleared() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[2]));
    let w = tape.state("w", &[2, 2], StateKind::Parameter);
    let gradient = &tape.gradients(&x.matmul(&w).sum(&[-1]).sum_shards(), std::slice::from_ref(&w))[0];
    tape.update(&w, &(&w - gradient));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let bucket = &program.buckets()[0];
    assert_eq!((bucket.joined, bucket.used, bucket.len), (4, 4, 8));
    for run in [Run::whole(&[2, 2]), Run { first: 0, sizes: vec![2, 2, 2], shards: 4 }] {
        let plan = program.plan(&run, &Target::default()).unwrap();
        let is_padding = |command: &&Command| matches!(command, Command::Clear(slice) if slice.bytes == 16);
        let cleared = plan.segments[0].commands.iter().filter(is_padding).count();
        assert_eq!(cleared, run.blocks().len());
    }
}

/// Windows two pixels apart hold every second pixel at each of their places. Which pixels these are is known
/// along rows, since four neighbouring results begin at a multiple of four. Only those are loaded.
#[test]
fn a_fold_with_a_stride_loads_the_places_that_hold_a_pixel() {
    let tape = Tape::new();
    let window = Window { stride: [1, 2], padding: [1, 1], ..Window::new([3, 3]) };
    let y = tape.input("x", Type::sample(&[3, 8, 4, 3, 3])).fold(&window, [8, 8]);
    tape.output("y", &y);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let target = Target { machine: Machine::Cpu, ..Target::default() };
    let plan = program.plan(&Run::whole(&[2]), &target).unwrap();
    let wgsl = &plan.kernels[0].wgsl;
    let (_, main) = wgsl.split_once("fn main").unwrap();
    // Of three places in a row, two hold each second pixel and one holds the others: 18 of 36.
    assert_eq!((main.matches("select(").count(), main.matches("% 2u == 0u").count()), (18, 0), "{wgsl}");
}
