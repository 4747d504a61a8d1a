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

/// The sizes of a product `[m, k] x [k, n]` of a sample: none divides, chunks of 1,024 steps, and tiles of
/// all sides.
const SIZES: [[usize; 3]; 5] = [[1, 1, 1], [5, 7, 3], [33, 1030, 41], [70, 100, 130], [16, 16, 16]];

/// Returns products of halves whose results are f32: rows of all samples with a weight, products of a sample
/// with itself, an image's windows, and the gradients of weights and samples.
fn halves([m, k, n]: [usize; 3]) -> unisono_graph::Graph {
    let tape = Tape::new();
    let half = |name: &str, ty| tape.input(name, ty).round_half();
    let (x, w) = (half("x", Type::sample(&[m, k])), half("w", Type::global(&[n, k])));
    let (image, filters) =
        (half("image", Type::sample(&[3, 7, 6])), half("filters", Type::global(&[5, 3, 3, 3])));
    let weights = half("weights", Type::sample(&[m, n]));
    let y = x.matmul_t(&w);
    let window = unisono_graph::ops::Window { padding: [1, 1], ..unisono_graph::ops::Window::new([3, 3]) };
    let seen = image.conv2d(&filters, &window, 1);
    let pairs = x.matmul_t(&x);
    for (name, value) in [("y", &y), ("seen", &seen), ("pairs", &pairs)] {
        tape.output(name, value);
    }
    let loss = (&y * &weights).sum(&[1, 2]).sum_shards();
    for (name, gradient) in ["dx", "dw"].iter().zip(tape.gradients(&loss, &[x.clone(), w.clone()])) {
        tape.output(name, &gradient);
    }
    tape.finish().unwrap()
}

/// Returns values of very different sizes, so that every order of a sum has bits of its own.
fn feed_of(program: &Program, shards: &[usize]) -> Feed {
    feed_with(program, shards, |i| [1.0, 0.01, 100.0, 1e-5][i.iter().sum::<usize>() % 4])
}

fn feed_with(program: &Program, shards: &[usize], size: impl Fn(&[usize]) -> f64) -> Feed {
    let rows = shards.iter().sum();
    let mut draws = Draws::of(3, "half", "units", 0, 0);
    let inputs = program.inputs().iter().map(|input| {
        let lead = (input.ty.lead == Lead::Sample).then_some(rows);
        let dims: Vec<usize> = lead.into_iter().chain(input.ty.dims.iter().copied()).collect();
        Array::generate(&dims, |i| f64::from(draws.range(-1.0, 1.0)) * size(i))
    });
    Feed { frame: Frame { shards: shards.to_vec() }, inputs: inputs.collect(), states: vec![] }
}

/// Every adapter with a matrix unit, real ones and the CPU: products are within the bound of sums in f32, and
/// lavapipe's are those of the CPU to the byte. The sizes of tiles, which the CPU and lavapipe share, are
/// those of the emitted plan; other tests vary them.
#[test]
fn products_by_matrix_units_are_near_the_reference_and_lavapipes_are_the_cpus() {
    let of = |adapter: &Adapter| adapter.with_matrix_units().ok();
    let units: Vec<Adapter> = adapters().iter().filter_map(of).collect();
    for sizes in SIZES {
        let program = Program::compile(&halves(sizes)).unwrap();
        let feed = feed_of(&program, &[2, 1, 3]);
        let magnitudes = Feed {
            inputs: feed
                .inputs
                .iter()
                .map(|a| Array::new(&a.dims, a.data.iter().map(|x| x.abs()).collect()))
                .collect(),
            ..feed.clone()
        };
        let [exact, most] = [&feed, &magnitudes].map(|feed| interpret(program.graph(), feed).outputs);
        let mut found = Vec::new();
        for adapter in &units {
            let mut device = opened(adapter);
            let plan = unisono_testkit::plan_for(&device.target(), &program, &feed).unwrap();
            let by_unit = plan.kernels.iter().filter(|kernel| kernel.name.contains("_unit")).count();
            assert!(by_unit >= 4, "{:?}", plan.kernels.iter().map(|kernel| &kernel.name).collect::<Vec<_>>());
            let outputs = run(&mut device, &program, &feed).unwrap().outputs;
            for (name, values) in &outputs {
                let (exact, most) = (&exact[name].data, &most[name].data);
                for (i, (&x, (&exact, &most))) in values.iter().zip(exact.iter().zip(most)).enumerate() {
                    // A sum of n numbers is off by at most n units of the sum of their magnitudes; sums have
                    // up to 1,500 steps, and are mostly far nearer.
                    let off = (f64::from(x) - exact).abs();
                    let bound = most * 64.0 * f64::from(f32::EPSILON) + 1e-37;
                    assert!(off <= bound, "{name}[{i}] of {sizes:?} on {}: {x} {exact}", adapter.label());
                }
            }
            found.push((adapter, outputs));
        }
        let is_lavapipe = |adapter: &Adapter| adapter.name.contains("llvmpipe");
        let cpu = found.iter().find(|(adapter, _)| adapter.arithmetic.is_some());
        for (adapter, outputs) in found.iter().filter(|(adapter, _)| is_lavapipe(adapter)) {
            let Some((_, cpu)) = cpu else { continue };
            let bits = |tensors: &unisono_testkit::Tensors, name: &str| -> Vec<u32> {
                tensors[name].iter().map(|x| x.to_bits()).collect()
            };
            for name in outputs.keys() {
                let [a, b] = [bits(outputs, name), bits(cpu, name)];
                let other = a.iter().zip(&b).filter(|(a, b)| a != b).count();
                assert_eq!(other, 0, "{name} of {sizes:?} on {}: of {}", adapter.label(), a.len());
            }
        }
    }
}

/// Kernels of attention that store results as f16 themselves have the bits of those that leave it to others,
/// and of the CPU.
#[test]
fn attention_that_stores_halves_is_one_function() {
    let machine = unisono_graph::target::Machine::Gpu;
    for (places, heads, d) in [(9, 2, 8), (70, 3, 5), (40, 1, 36)] {
        let graph = crate::heads::model_in(Precision::Mixed, places, heads, d);
        let feed = feed_with(&Program::compile_with(&graph, STORED).unwrap(), &[2, 1], |_| 1.0);
        let mut known = None;
        for adapter in adapters().into_iter().filter(|a| a.features.f16) {
            let mut device = opened(&adapter);
            let own = device.target();
            for (f16, target) in
                [(true, Target { machine, ..own.clone() }), (true, own.clone()), (false, own)]
            {
                let program = Program::compile_with(&graph, Layout { f16, ..STORED }).unwrap();
                let plan = unisono_testkit::plan_for(&target, &program, &feed).unwrap();
                let kernels = plan.kernels.iter().filter(|kernel| kernel.name.contains("attention"));
                let rounding = kernels
                    .filter(|kernel| kernel.wgsl.contains("canonical(vec4<f32>(round_half(x.x)"))
                    .count();
                let is_gpu = target.machine == machine;
                assert_eq!(rounding, if f16 && is_gpu { 2 } else { 0 }, "{f16} on {}", adapter.label());
                let run = unisono_testkit::run_for(&mut device, &target, &program, &feed);
                let bits: Vec<(String, Vec<u32>)> = run
                    .unwrap()
                    .outputs
                    .into_iter()
                    .map(|(name, values)| (name, values.iter().map(|x| x.to_bits()).collect()))
                    .collect();
                let known = known.get_or_insert_with(|| bits.clone());
                assert!(bits == *known, "{places} x {d}, f16 {f16}, GPU {is_gpu}, on {}", adapter.label());
            }
        }
    }
}

/// Attention of heads that fill blocks and that do not, one head or several, causal or not: near its
/// reference within f16's tolerance, and the same bytes on the CPU and lavapipe, whatever the launches are.
#[test]
fn attention_by_matrix_units_is_near_the_reference_and_one_function() {
    let units: Vec<Adapter> = adapters().iter().filter_map(|own| own.with_matrix_units().ok()).collect();
    for (queries, keys, d, e, causal) in [(33, 40, 20, 36, false), (70, 70, 16, 16, true)] {
        let tape = Tape::with_precision(Precision::Mixed);
        let input = |name: &str, rows: usize, width: usize| tape.input(name, Type::sample(&[2, rows, width]));
        let (q, k, v) = (input("q", queries, d), input("k", keys, d), input("v", keys, e));
        let weights = input("weights", queries, e);
        let scale = 1.0 / (d as f32).sqrt();
        let y = tape.apply(unisono_graph::ops::Attention { causal, scale }, &[&q, &k, &v]);
        tape.output("y", &y);
        let loss = (&y * &weights).sum(&[1, 2, 3]).sum_shards();
        let by = [q, k, v];
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(tape.gradients(&loss, &by)) {
            tape.output(name, &gradient);
        }
        let program = Program::compile_with(&tape.finish().unwrap(), STORED).unwrap();
        let feed = feed_with(&program, &[2, 1], |_| 1.0);
        let expected = interpret(program.graph(), &feed).outputs;
        let mut known = None;
        for adapter in &units {
            let mut device = opened(adapter);
            let own = device.target();
            let gpu = Target { machine: unisono_graph::target::Machine::Gpu, ..own.clone() };
            let targets = if causal { vec![own] } else { vec![own, gpu] };
            let mut first = None;
            for target in targets {
                let what = format!("{queries} x {keys}, {d} and {e}, causal {causal} on {}", adapter.label());
                let plan = unisono_testkit::plan_for(&target, &program, &feed).unwrap();
                let by_unit = plan
                    .kernels
                    .iter()
                    .filter(|kernel| kernel.name.contains("attention"))
                    .all(|kernel| kernel.name.contains("_unit"));
                assert!(by_unit, "{what}");
                let outputs =
                    unisono_testkit::run_for(&mut device, &target, &program, &feed).unwrap().outputs;
                for (name, values) in &outputs {
                    let error = relative_error(values, &expected[name]);
                    assert!(error < 2e-3, "{name} of {what}: {error:e}");
                }
                let bits: Vec<(String, Vec<u32>)> = outputs
                    .iter()
                    .map(|(name, values)| (name.clone(), values.iter().map(|x| x.to_bits()).collect()))
                    .collect();
                let same = first.get_or_insert_with(|| bits.clone()) == &bits;
                assert!(same, "{what}: another launch gives other bytes");
                // The other arithmetic of the CPU has another e^x.
                if adapter.arithmetic.is_some_and(|own| !own.fused) || adapter.name.contains("llvmpipe") {
                    let same = known.get_or_insert_with(|| bits.clone()) == &bits;
                    assert!(same, "{what}: not the bytes of the CPU and lavapipe");
                }
            }
        }
    }
}
