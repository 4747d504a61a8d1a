//! What a GPU computes in one launch, such as rows with several sums, sums over samples, chunks of a product
//! one after another, and maps behind products, has the bits of the kernels that compute each unit on its
//! own: random models, on every adapter. Faults that are planted in the kernels are found.

use std::collections::BTreeSet;

use unisono_gpu::{Device, Options};
use unisono_graph::plan::{Access, Kernel};
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, DType, Feed, Frame, Graph, Layout, Plan, Precision, Program, Run, Slot, StateKind, Tape, Target,
    Type, Var,
};
use unisono_random::Draws;
use unisono_testkit::{adapters, cpu_like, run_plan};

/// The samples of each shard.
const SHARDS: [usize; 3] = [3, 2, 1];

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    places: usize,
    width: usize,
    hidden: usize,
}

impl Sizes {
    /// Draws sizes: short rows, rows of one chunk and of several, ragged and not, and products of up to nine
    /// chunks.
    fn draw(draws: &mut Draws) -> Self {
        let mut any = |from: &[usize]| from[draws.range(0.0, from.len() as f32) as usize % from.len()];
        let width = any(&[7, 10, 32, 33, 36, 64, 100, 256, 260, 768, 1028, 2048, 3076, 4100]);
        let places = if width > 1000 { any(&[12, 25]) } else { any(&[1, 5, 40, 300]) };
        Self { places, width, hidden: any(&[16, 64, 68, 130]) }
    }

    /// Returns the training step of a block: layer normalization, two products with GELU between them, and
    /// softmax with cross-entropy.
    fn model(self, precision: Precision) -> Graph {
        let Self { places, width, hidden } = self;
        let tape = Tape::with_precision(precision);
        let x = tape.input("x", Type::sample(&[places, width]));
        let labels = tape.input("labels", Type::sample(&[places]).of(DType::I32));
        let state = |name: &str, dims: &[usize]| tape.state(name, dims, StateKind::Parameter);
        let [scale, shift] = ["scale", "shift"].map(|name| state(name, &[width]));
        let (w1, b1) = (state("w1", &[hidden, width]), state("b1", &[hidden]));
        let (w2, b2) = (state("w2", &[width, hidden]), state("b2", &[width]));
        let mean = |x: &Var| x.sum_keep(&[-1]) / width as f32;
        let centred = &x - mean(&x);
        let normed = &centred * (mean(&centred.square()) + 1e-5).rsqrt() * &scale + &shift;
        let inner = (normed.matmul_t(&w1) + &b1).gelu();
        let logits = &x + (inner.matmul_t(&w2) + &b2);
        let losses = -logits.log_softmax().take(&labels);
        tape.output("rows", &logits.softmax().max(&[-1]));
        let loss = losses.sum(&[-1]).sum_shards();
        let states = [scale, shift, w1, b1, w2, b2];
        for (state, gradient) in states.iter().zip(tape.gradients(&loss, &states)) {
            tape.update(state, &(state - &(gradient * 0.125)));
        }
        tape.output("loss", &loss);
        tape.finish().unwrap()
    }

    /// Returns the training step of a classifier: a softmax and its gradient have the same rows, and biases
    /// have small sums.
    fn classifier(self, precision: Precision) -> Graph {
        let Self { places, width, hidden } = self;
        let tape = Tape::with_precision(precision);
        let mut x = tape.input("x", Type::sample(&[places]));
        let labels = tape.input("labels", Type::sample(&[]).of(DType::I32));
        let mut states = Vec::new();
        for (layer, sizes) in [[places, hidden], [hidden, hidden], [hidden, width]].iter().enumerate() {
            let w = tape.state(&format!("{layer}/w"), &[sizes[1], sizes[0]], StateKind::Parameter);
            let b = tape.state(&format!("{layer}/b"), &sizes[1..], StateKind::Parameter);
            x = x.matmul_t(&w) + &b;
            x = if layer < 2 { x.relu() } else { x };
            states.extend([w, b]);
        }
        let losses = -x.log_softmax().take(&labels);
        let loss = losses.sum_shards();
        for (state, gradient) in states.iter().zip(tape.gradients(&loss, &states)) {
            tape.update(state, &(state - &(gradient * 0.125)));
        }
        tape.output("losses", &losses);
        tape.finish().unwrap()
    }
}

fn feed(graph: &Graph, draws: &mut Draws) -> Feed {
    let samples: usize = SHARDS.iter().sum();
    let mut array = |dims: Vec<usize>, dtype: DType| {
        Array::generate(&dims, |_| match dtype {
            DType::F32 => f64::from(draws.range(-0.5, 0.5)),
            _ => f64::from(draws.below(16)),
        })
    };
    let of = |ty: &Type| [vec![samples], ty.dims.clone()].concat();
    let inputs = graph.inputs.iter().map(|input| array(of(&input.ty), input.ty.dtype)).collect();
    let states = graph.states.iter().map(|state| array(state.ty.dims.clone(), DType::F32)).collect();
    Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states }
}

/// Runs a plan, and returns the bits of its outputs and of the new states.
fn bits(device: &mut Device, program: &Program, plan: &Plan, feed: &Feed) -> Vec<Vec<u32>> {
    let mut found = vec![vec![]; program.outputs().len()];
    run_plan(device, program, plan, feed, &mut |transfer, data| {
        if let Slot::Output(index) = Slot::decode(transfer.slot) {
            found[index] = bytemuck::pod_collect_to_vec(data);
        }
    })
    .unwrap();
    let states = 0..program.states().len();
    found.extend(states.map(|index| bytemuck::pod_collect_to_vec(&device.read_state(index).unwrap())));
    found
}

/// Returns the plans for GPUs that are kept busy by few and by many workgroups.
fn plans(device: &Device, program: &Program) -> [Plan; 2] {
    let own = device.target();
    [1, 64].map(|busy_workgroups| {
        let target = Target { machine: Machine::Gpu, busy_workgroups, ..own.clone() };
        program.plan(&Run::whole(&SHARDS), &target).unwrap()
    })
}

/// Runs a step on the CPU, whose launches each compute one unit. Returns their number and the bits of the
/// results.
fn alone(device: &mut Device, program: &Program, feed: &Feed, options: &Options) -> (usize, Vec<Vec<u32>>) {
    let mut cpu = Device::open_with(&cpu_like(device), options.clone()).unwrap();
    let plan = program.plan(&Run::whole(&SHARDS), &cpu.target()).unwrap();
    (plan.launches(), bits(&mut cpu, program, &plan, feed))
}

/// What kernels are called that compute several units, or several chunks.
const TOGETHER: [&str; 9] = [
    "rows[",
    "columns[",
    "_chunks",
    "erf, fma, mul]",
    "trees",
    "beside[",
    "neg], sum[iota, eq, mul, neg]",
    "_half[add, relu, round_half]",
    "_half[add, mul, erf, fma, mul, round_half",
];

#[test]
fn what_one_launch_computes_has_the_bits_of_many() {
    let cases = if std::env::var_os("UNISONO_LONG").is_some() { 450 } else { 12 };
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for case in 0..cases {
        let mut draws = Draws::of(11, "together", "model", case, 0);
        let sizes = Sizes::draw(&mut draws);
        let is_mixed = case / 2 % 3 == 2;
        let precision = if is_mixed { Precision::Mixed } else { Precision::F32 };
        let graph = if case % 2 == 0 { sizes.model(precision) } else { sizes.classifier(precision) };
        let feed = feed(&graph, &mut draws);
        let layout = Layout { f16: is_mixed, ..Layout::default() };
        let program = Program::compile_with(&graph, layout).unwrap();
        let options = Options::default().with(|options| options.f16 = is_mixed);
        for adapter in adapters().into_iter().filter(|adapter| adapter.features.f16 || !is_mixed) {
            let open = || Device::open_with(&adapter, options.clone()).unwrap();
            let mut device = open();
            let (launches, expected) = alone(&mut device, &program, &feed, &options);
            for plan in plans(&device, &program) {
                assert!(plan.launches() < launches);
                let named = |name: &&&str| plan.kernels.iter().any(|kernel| kernel.name.contains(**name));
                seen.extend(TOGETHER.iter().filter(named));
                let found = bits(&mut open(), &program, &plan, &feed);
                assert!(found == expected, "case {case}, {sizes:?}, {precision}, on {}", adapter.label());
            }
        }
    }
    assert_eq!(seen.len(), TOGETHER.len(), "not all kernels were met: {seen:?}");
}

/// A large value of which both a product and a gradient have need is computed a second time for the gradient.
#[test]
fn what_is_computed_again_has_the_same_bits() {
    let tape = Tape::new();
    let mut x = tape.input("x", Type::sample(&[64, 16]));
    let mut weights: Vec<Var> = Vec::new();
    for block in 0..3 {
        let mut own = |name: &str, dims: &[usize]| {
            weights.push(tape.state(&format!("{block}/{name}"), dims, StateKind::Parameter));
            weights[weights.len() - 1].clone()
        };
        let hidden = (x.matmul_t(&own("1/w", &[1024, 16])) + own("1/b", &[1024])).gelu();
        x = x + hidden.matmul_t(&own("2/w", &[16, 1024]));
    }
    let loss = x.square().sum(&[-2, -1]).sum_shards();
    for (state, gradient) in weights.iter().zip(tape.gradients(&loss, &weights)) {
        tape.update(state, &(state - &(gradient * 0.125)));
    }
    tape.output("loss", &loss);
    let graph = tape.finish().unwrap();
    let feed = feed(&graph, &mut Draws::of(11, "together", "again", 0, 0));
    let program = Program::compile(&graph).unwrap();
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let [few, _] = plans(&device, &program);
        let writes = |kernel: &&Kernel| kernel.bindings.iter().filter(|a| **a == Access::ReadWrite).count();
        let is_both = |kernel: &&Kernel| kernel.name.starts_with("matmul_nn") && writes(kernel) == 2;
        assert!(few.kernels.iter().any(|kernel| is_both(&kernel)), "the gradient's product stores GELU too");
        let (_, expected) = alone(&mut device, &program, &feed, &Options::default());
        let found = bits(&mut device, &program, &few, &feed);
        assert!(found == expected, "on {}", adapter.label());
    }
}

/// Compares the bits of a graph's outputs for a GPU, in which a kernel of this name must be, with those of
/// the CPU.
fn has_the_bits_of_many(tape: Tape, name: &str) {
    let graph = tape.finish().unwrap();
    let feed = feed(&graph, &mut Draws::of(11, "together", name, 0, 0));
    let program = Program::compile(&graph).unwrap();
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let (_, expected) = alone(&mut device, &program, &feed, &Options::default());
        for plan in plans(&device, &program) {
            let names: Vec<_> = plan.kernels.iter().map(|kernel| &kernel.name).collect();
            assert!(names.iter().any(|own| own.contains(name)), "{names:#?}");
            let found = bits(&mut Device::open(&adapter).unwrap(), &program, &plan, &feed);
            assert!(found == expected, "on {}", adapter.label());
        }
    }
}

/// A product's turn comes before that of a group of rows whose first value the map behind the product needs.
#[test]
fn a_map_is_not_computed_before_what_it_reads() {
    let tape = Tape::new();
    let (x, y) = (tape.input("x", Type::sample(&[48])), tape.input("y", Type::sample(&[16])));
    let w = tape.state("w", &[24, 16], StateKind::Parameter);
    let squares = x.square().sum_keep(&[-1]);
    let product = y.matmul_t(&w);
    tape.output("product", &product);
    tape.output("sums", &(&x * &squares).sum(&[-1]));
    tape.output("scaled", &(&product * &squares));
    has_the_bits_of_many(tape, "rows[sum[mul]");
}

/// A concat is made by the kernels of its parts, which may come after the product whose map reads it.
#[test]
fn a_map_is_not_computed_before_the_parts_of_what_it_reads() {
    let tape = Tape::new();
    let [a, b] = ["a", "b"].map(|name| tape.input(name, Type::sample(&[12])));
    let y = tape.input("y", Type::sample(&[16]));
    let w = tape.state("w", &[24, 16], StateKind::Parameter);
    let product = y.matmul_t(&w);
    let both = a.tanh().concat(&[&b.exp()], -1);
    tape.output("product", &product);
    tape.output("scaled", &(&product * &both));
    has_the_bits_of_many(tape, "fused[mul]");
}

/// Each phase of a kernel of rows loads what is the same for all invocations, but not a constant's.
#[test]
fn phases_of_rows_may_need_the_same_slice() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[64]));
    let w = tape.state("w", &[3], StateKind::Parameter);
    tape.output("softmax", &(x * w.slice(0, 1..2)).softmax());
    has_the_bits_of_many(tape, "rows[");
}

/// A fault in a kernel: its name, a part of its text, and what stands there instead.
const FAULTS: [[&str; 3]; 9] = [
    ["trees", "+ j * trees[tree + 3u]", "+ min(j, 1u) * trees[tree + 3u]"],
    ["rows[", "(parts[at], parts[at + apart])", "(parts[at], parts[lane * 4u])"],
    ["rows[", "chunk * 64u;", "chunk * 60u;"],
    ["columns[", "for (var bits = c; bits % 2u == 1u;", "for (var bits = c; bits % 2u == 3u;"],
    ["columns[", "lane / 64u * params.chunks + c", "lane / 64u + 4u * c"],
    ["_chunks", "(q >> level) % 2u == 1u", "(q >> level) % 2u == 3u"],
    ["_chunks", "canonical(b + rows[1])", "canonical(b + rows[1] * 1.0000001)"],
    ["beside[", "(group.x - params.end0)", "(group.x + params.end0)"],
    ["beside[", "params.part1.", "params.part0."],
];

#[test]
fn planted_faults_show_in_bits() {
    let sizes = Sizes { places: 700, width: 1028, hidden: 64 };
    let graph = sizes.model(Precision::F32);
    let feed = feed(&graph, &mut Draws::of(11, "together", "fault", 0, 0));
    let program = Program::compile(&graph).unwrap();
    let adapter = adapters().remove(0);
    let [sound, _] = plans(&Device::open(&adapter).unwrap(), &program);
    let run = |plan: &Plan| bits(&mut Device::open(&adapter).unwrap(), &program, plan, &feed);
    let expected = run(&sound);
    for [name, from, to] in FAULTS {
        let mut plan = sound.clone();
        let mut planted = false;
        for kernel in plan.kernels.iter_mut().filter(|kernel| kernel.name.contains(name)) {
            let faulty = kernel.wgsl.replace(from, to);
            planted |= faulty != kernel.wgsl;
            kernel.wgsl = faulty;
        }
        assert!(planted, "no kernel {name} has {from}");
        assert!(run(&plan) != expected, "{name}: {from} became {to} and no bit changed");
    }
}
