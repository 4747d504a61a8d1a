//! What a step of a transformer takes on a GPU, counted: launches, bytes and scratch.

use crate::ops::Attention;
use std::collections::BTreeMap;

use crate::plan::target::Machine;
use crate::plan::{Access, Command, Launch, Plan, Target, WorkKind};
use crate::program::{Layout, Program, Run};
use crate::trace::{StateKind, Tape};
use crate::values::{DType, Type};
use crate::{Precision, StatePlacement, Var};

/// The sizes of a transformer and of its batch.
struct Sizes {
    blocks: usize,
    width: usize,
    heads: usize,
    vocabulary: usize,
    places: usize,
    shards: usize,
}

/// Returns a training step of a causal transformer with layer normalization first, updated by momentum.
fn step(sizes: &Sizes) -> Program {
    step_in(Precision::F32, sizes)
}

fn step_in(precision: Precision, sizes: &Sizes) -> Program {
    let &Sizes { blocks, width, heads, vocabulary, places, .. } = sizes;
    let tape = Tape::with_precision(precision);
    let (ids, labels) = (
        tape.input("x", Type::sample(&[places]).of(DType::I32)),
        tape.input("y", Type::sample(&[places]).of(DType::I32)),
    );
    let mut weights: Vec<Var> = Vec::new();
    let mut weight = |name: String, dims: &[usize]| {
        weights.push(tape.state(&name, dims, StateKind::Parameter));
        weights[weights.len() - 1].clone()
    };
    let mut x = weight("table".into(), &[vocabulary, width]).embed(&ids);
    x = x + weight("places".into(), &[places, width]);
    let norm = |x: &Var, w: &Var, b: &Var| {
        let mean = |x: &Var| x.sum_keep(&[-1]) / width as f32;
        let centred = x - mean(x);
        let variance = mean(&centred.square());
        centred * (variance + 1e-5).rsqrt() * w + b
    };
    for block in 0..blocks {
        let mut own = |name: &str, dims: &[usize]| weight(format!("{block}/{name}"), dims);
        let normed = norm(&x, &own("norm1/w", &[width]), &own("norm1/b", &[width]));
        let all = normed.matmul_t(&own("qkv/w", &[3 * width, width])) + own("qkv/b", &[3 * width]);
        let d = width / heads;
        let [q, k, v] = [0, 1, 2].map(|i| {
            all.slice(-1, i * width..(i + 1) * width).reshape(&[places, heads, d]).permute(&[1, 0, 2])
        });
        let found = tape.apply(Attention { causal: true, scale: 0.125 }, &[&q, &k, &v]);
        let joined = found.permute(&[1, 0, 2]).reshape(&[places, width]);
        x = x + (joined.matmul_t(&own("out/w", &[width, width])) + own("out/b", &[width]));
        let normed = norm(&x, &own("norm2/w", &[width]), &own("norm2/b", &[width]));
        let hidden = normed.matmul_t(&own("1/w", &[4 * width, width])) + own("1/b", &[4 * width]);
        x = x + (hidden.gelu().matmul_t(&own("2/w", &[width, 4 * width])) + own("2/b", &[width]));
    }
    let last = norm(&x, &weight("norm/w".into(), &[width]), &weight("norm/b".into(), &[width]));
    let logits = last.matmul_t(&weight("head/w".into(), &[vocabulary, width]));
    let logits = logits + weight("head/b".into(), &[vocabulary]);
    let losses = -logits.log_softmax().take(&labels);
    let loss = losses.mean(&[-1]);
    tape.output("loss", &loss.sum_shards());
    for (state, gradient) in weights.iter().zip(tape.gradients(&loss.sum_shards(), &weights)) {
        let name = tape.state_name(state).unwrap();
        let moment = tape.state(&format!("{name}/m"), state.dims(), StateKind::Optimizer);
        let new = &moment * 0.9 + &gradient;
        tape.update(&moment, &new);
        tape.update(state, &(state - &(new * tape.constant(0.01))));
    }
    let layout = Layout { f16: precision.is_mixed(), ..Layout::default() };
    Program::compile_placed(&tape.finish().unwrap(), layout, StatePlacement::ByUpdate).unwrap()
}

fn plan(sizes: &Sizes) -> Plan {
    plan_in(Precision::F32, sizes)
}

fn plan_in(precision: Precision, sizes: &Sizes) -> Plan {
    let target = Target {
        max_binding_bytes: (2 << 30) - 4,
        max_buffer_bytes: 4 << 30,
        busy_workgroups: 256,
        binding_alignment: 32,
        storage_buffers: 64,
        f16: true,
        ..Target::default()
    };
    step_in(precision, sizes).plan(&Run::whole(&vec![1; sizes.shards]), &target).unwrap()
}

fn launches(plan: &Plan) -> impl Iterator<Item = &Launch> {
    plan.segments.iter().flat_map(|segment| &segment.commands).filter_map(|command| match command {
        Command::Launch(launch) => Some(launch),
        _ => None,
    })
}

/// Returns how many launches a block adds, and how many bytes.
fn block() -> (usize, u64) {
    let of =
        |blocks| plan(&Sizes { blocks, width: 768, heads: 12, vocabulary: 8192, places: 1024, shards: 8 });
    let bytes = |plan: &Plan| launches(plan).map(|launch| launch.work.bytes).sum::<u64>();
    let (short, long) = (of(2), of(4));
    ((launches(&long).count() - launches(&short).count()) / 2, (bytes(&long) - bytes(&short)) / 2)
}

/// A block forward: two launches of rows, four products, one of which has GELU as its epilogue and one of
/// which computes its chunks in turn, and attention. Backward: four products for activations and four for
/// weights, sums of biases, two launches of rows, and four of attention. Behind these come trees over shards
/// and updates.
#[test]
fn a_block_takes_few_launches() {
    let (launches, bytes) = block();
    assert!(launches <= 32, "{launches} launches a block");
    assert!(bytes <= 3_200_000_000, "{bytes} bytes a block");
}

/// Maps and reductions have no launches of their own in a block.
#[test]
fn blocks_have_no_maps() {
    let sizes = Sizes { blocks: 2, width: 768, heads: 12, vocabulary: 8192, places: 1024, shards: 8 };
    let plan = plan(&sizes);
    let maps = launches(&plan).filter(|launch| launch.work.kind == WorkKind::Map).count();
    assert!(maps <= 4, "{maps} maps");
}

/// Returns the launches that need a barrier: they read a buffer that was written last, or write one that was
/// used.
fn barriers(plan: &Plan) -> usize {
    let mut used: BTreeMap<usize, bool> = BTreeMap::new();
    let mut count = 0;
    for launch in launches(plan) {
        let mut own: BTreeMap<usize, bool> = BTreeMap::new();
        for (slice, access) in launch.bindings.iter().zip(&plan.kernels[launch.kernel].bindings) {
            *own.entry(slice.buffer).or_default() |= *access == Access::ReadWrite;
        }
        let waits =
            |(buffer, writes): (&usize, &bool)| used.get(buffer).is_some_and(|before| *before || *writes);
        count += usize::from(own.iter().any(waits));
        used.extend(own);
    }
    count
}

/// Returns a step of 12 blocks of width 768, as `isa --model gpt100m` counts it.
fn large() -> Plan {
    plan(&Sizes { blocks: 12, width: 768, heads: 12, vocabulary: 8192, places: 1024, shards: 8 })
}

/// Sums of biases stand behind the products that read the same, and one launch has all trees of a bucket.
#[test]
fn a_step_has_fewer_barriers_than_launches() {
    let plan = large();
    let launches = launches(&plan).count();
    assert!(launches <= 360, "{launches} launches");
    assert!(barriers(&plan) <= 280, "{} barriers of {launches} launches", barriers(&plan));
}

/// What GELU makes is computed a second time for the gradient of the weight behind it.
#[test]
fn what_is_cheap_is_computed_again_instead_of_kept() {
    let plan = large();
    let bytes: u64 = launches(&plan).map(|launch| launch.work.bytes).sum();
    assert!(plan.scratch_bytes() <= 4_500_000_000, "{} bytes of scratch", plan.scratch_bytes());
    assert!(bytes <= 40_000_000_000, "{bytes} bytes");
}

/// Kernels are written when they are first needed, and for one machine. So what was planned before, for other
/// machines and other runs, is in no plan.
#[test]
fn a_plan_does_not_depend_on_those_before() {
    let sizes = Sizes { blocks: 1, width: 64, heads: 2, vocabulary: 96, places: 32, shards: 4 };
    let machines = [Machine::Gpu, Machine::Cpu];
    let targets = machines.into_iter().flat_map(|machine| {
        let max_workgroup_bytes = 1 << 20;
        let all = Target { machine, max_workgroup_bytes, ..Target::default() };
        [false, true].map(|own_quotients| Target { own_quotients, ..all.clone() })
    });
    let targets: Vec<Target> = targets.collect();
    let runs = [Run::whole(&[300; 4]), Run { first: 1, sizes: vec![2, 1], shards: 4 }];
    let every = |program: &dyn Fn() -> Program| -> Vec<Plan> {
        let plans = targets.iter().flat_map(|target| runs.iter().map(move |run| (run, target)));
        plans.map(|(run, target)| program().plan(run, target).unwrap()).collect()
    };
    let (fresh, used) = (every(&|| step(&sizes)), step(&sizes));
    assert!(every(&|| used.clone()) == fresh && every(&|| step(&sizes)) == fresh);
    for target in targets.iter().rev() {
        runs.iter().for_each(|run| drop(used.plan(run, target).unwrap()));
    }
    assert!(every(&|| used.clone()) == fresh);
}

/// Attention stores what products read as f16 itself: its result and its three gradients.
#[test]
fn results_of_attention_are_rounded_in_its_kernels() {
    let sizes = Sizes { blocks: 12, width: 768, heads: 12, vocabulary: 8192, places: 1024, shards: 8 };
    let plan = plan_in(Precision::Mixed, &sizes);
    let of_attention = launches(&plan).filter(|launch| launch.work.kind == WorkKind::Attention);
    let halves = of_attention
        .filter(|launch| plan.kernels[launch.kernel].wgsl.contains("canonical(vec4<f32>(round_half(x.x)"));
    assert_eq!(halves.count(), 24);
    assert!(launches(&plan).count() <= 425, "{} launches", launches(&plan).count());
    let bytes: u64 = launches(&plan).map(|launch| launch.work.bytes).sum();
    assert!(bytes <= 32_000_000_000, "{bytes} bytes");
}
