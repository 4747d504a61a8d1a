//! Every assembled module is valid WGSL in which no product reaches an addition, and, for compilers that may
//! change the order of additions, no sum does. It can be written as HLSL. This holds for generated modules
//! too, for GPUs and for the CPU.

use std::collections::BTreeSet;

use serde::Serialize;
use unisono::data::{FieldSpec, Loader, Memory};
use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, Dense, Dropout, FromFn, Gelu, Lstm, MaxPool2d, MeanSquaredError,
    MultiHeadAttention, Precision, Relu, Sequential, Sgd, Sigmoid, Tanh, Trainer,
};
use unisono_graph::ops::REGISTRY;
use unisono_graph::target::Machine;
use unisono_graph::{Io, Pointwise, Product, Program, Run, Tape, Target, Type, Var};
use unisono_testkit::{prepare, products, zeros};

/// The machines for which kernels are chosen, with the most invocations of a workgroup.
const MACHINES: [(Machine, u32); 3] = [(Machine::Cpu, 256), (Machine::Gpu, 256), (Machine::Gpu, 64)];

/// Returns all modules of a program's plans on all machines, for short shards and for long ones, with masks.
fn modules(program: &Program) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (machine, max_invocations) in MACHINES {
        for sizes in [vec![3, 2], vec![700, 600, 1]] {
            let target = Target {
                machine,
                max_invocations,
                max_binding_bytes: u64::MAX,
                max_buffer_bytes: u64::MAX,
                max_workgroup_bytes: 1 << 20,
                f16: true,
                masks: true,
                ..Target::default()
            };
            let plan = program.plan(&Run::whole(&sizes), &target).unwrap();
            found.extend(plan.kernels.into_iter().map(|k| k.wgsl));
        }
    }
    found
}

fn check(name: &str, program: &Program) {
    for module in modules(program) {
        for found in [products::check(&module), products::check_sums(&module), zeros::check(&module)] {
            found.unwrap_or_else(|problems| panic!("{name}: {}\n{module}", problems.join("\n")));
        }
    }
}

#[test]
fn no_product_and_no_sum_reaches_an_addition_in_any_op() {
    for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
        for case in (entry.cases)() {
            let prepared = prepare(&case, &[3, 2]).unwrap();
            check(entry.name, &Program::compile(&prepared.graph).unwrap());
        }
    }
}

fn fields() -> Vec<FieldSpec> {
    let data = Memory::labelled(vec![0.0; 24], [12], vec![0; 2]).unwrap();
    Loader::new(data).fields().unwrap()
}

#[test]
fn no_product_and_no_sum_reaches_an_addition_in_whole_models() {
    let model =
        || Sequential::new().add(Dense::new(8)).add(Gelu).add(Dropout::new(0.1)).add(Dense::new(5)).add(Tanh);
    let trainer =
        Trainer::builder(model()).optimizer(AdamW::new(0.01)).metric(Accuracy).build(&fields()).unwrap();
    trainer.programs().for_each(|(_, p)| check("gelu and adamw", p));
    let sgd = Sgd::new(0.1).momentum(0.9).weight_decay(0.01);
    let trainer = Trainer::builder(model().add(Sigmoid)).optimizer(sgd).build(&fields()).unwrap();
    trainer.programs().for_each(|(_, p)| check("sigmoid and sgd", p));
    let targets = Memory::new("x", [12], unisono::data::Values::F32(vec![0.0; 24])).unwrap();
    let targets = targets.with("y", [5], unisono::data::Values::F32(vec![0.0; 10])).unwrap();
    let fields = Loader::new(targets).fields().unwrap();
    let trainer = Trainer::builder(model()).loss(MeanSquaredError).build(&fields).unwrap();
    trainer.programs().for_each(|(_, p)| check("mean squared error", p));
}

#[test]
fn no_product_and_no_sum_reaches_an_addition_in_mixed_precision() {
    let data = Memory::labelled(vec![0.0; 72], [1, 6, 6], vec![0; 2]).unwrap();
    let fields = Loader::new(data).fields().unwrap();
    for stored in [true, false] {
        let model = Sequential::new()
            .add(Conv2d::new(8, 3).padding(1))
            .add(BatchNorm::new())
            .add(Relu)
            .add(MaxPool2d::new(2))
            .add(FromFn::new("tokens", |_, x| x.reshape(&[8, 9])))
            .add(MultiHeadAttention::new(3))
            .add(Lstm::new(5).last())
            .add(Dense::new(1200))
            .add(Gelu)
            .add(Dense::new(5));
        let builder = Trainer::builder(model).optimizer(AdamW::new(0.01)).precision(Precision::Mixed);
        let trainer = builder.f16_storage(stored).replicas(1).build(&fields).unwrap();
        trainer.programs().for_each(|(_, p)| check("mixed precision", p));
        let all: BTreeSet<String> = trainer.programs().flat_map(|(_, p)| modules(p)).collect();
        let with_f16 = all.iter().filter(|m| m.starts_with("enable f16;")).count();
        assert_eq!(with_f16 > 0, stored);
        for family in ["var<workgroup> slab", "// matmul:", "// matmul_panels:", "// attention, alone:"] {
            assert!(all.iter().any(|m| m.contains(family)), "no product kernel has {family}");
        }
        assert!(
            all.iter().any(|m| m.contains("round_half(v.x)")),
            "some products are rounded in their kernels"
        );
    }
}

/// An op that declares that its result is canonical and no product, although its kernel multiplies.
#[derive(Debug, Serialize)]
struct Liar;

impl Pointwise for Liar {
    const NAME: &'static str = "liar";
    const ARITY: usize = 1;
    const WGSL: &'static str = "$0 * 3.0";
    const PRODUCT: Product = Product::Never;
    const CANONICAL: bool = true;
    const CASES: &'static [&'static [f64]] = &[&[1.0]];
    fn reference(&self, x: &[f64]) -> f64 {
        x[0] * 3.0
    }
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }
}

#[test]
fn the_check_catches_a_product_that_slips_through_fusion() {
    let tape = Tape::new();
    let (x, y) = (tape.input("x", Type::sample(&[4])), tape.input("y", Type::sample(&[4])));
    tape.output("z", &(x.apply(Liar) + y));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    assert!(modules(&program).iter().any(|m| products::check(m).is_err()));
}

/// Two additions in one op: of which the first is kept, or not.
#[derive(Debug, Serialize)]
struct Twice<const KEPT: bool>;

impl<const KEPT: bool> Pointwise for Twice<KEPT> {
    const NAME: &'static str = "twice";
    const ARITY: usize = 1;
    const WGSL: &'static str = if KEPT { "flush($0 + 1.0) + 2.0" } else { "$0 + 1.0 + 2.0" };
    const SNIPPETS: &'static [unisono_shaders::Snippet] = &[unisono_shaders::snippets::FLUSH];
    const CASES: &'static [&'static [f64]] = &[&[1.0]];
    fn reference(&self, x: &[f64]) -> f64 {
        x[0] + 3.0
    }
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }
}

#[test]
fn an_own_op_can_keep_its_sums() {
    let program = |twice: fn(&Var) -> Var| {
        let tape = Tape::new();
        tape.output("y", &twice(&tape.input("x", Type::sample(&[4]))));
        Program::compile(&tape.finish().unwrap()).unwrap()
    };
    check("kept", &program(|x| x.apply(Twice::<true>)));
    let loose = modules(&program(|x| x.apply(Twice::<false>)));
    assert!(loose.iter().all(|module| products::check_sums(module).is_err()));
}

/// Without masks sums stand as they are, in the kernels of lookups' gradients, attention, and products of
/// shards.
#[test]
fn the_check_catches_sums_that_are_not_kept() {
    let unmasked = |module: &String| {
        unisono_shaders::MASKS.iter().fold(module.clone(), |text, [select, mask]| text.replace(mask, select))
    };
    let mut found = BTreeSet::new();
    for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
        for case in (entry.cases)() {
            let program = Program::compile(&prepare(&case, &[3, 2]).unwrap().graph).unwrap();
            let caught = modules(&program).iter().any(|m| products::check_sums(&unmasked(m)).is_err());
            found.extend(caught.then_some(entry.name));
        }
    }
    for name in ["attention", "embed", "matmul"] {
        assert!(found.iter().any(|op| op.contains(name)), "{name} is not in {found:?}");
    }
}
