//! Ops of a user's own on every adapter: what a device computes is known by an op's type and fields, whatever
//! its name is.

use serde::Serialize;
use unisono_gpu::Device;
use unisono_graph::{
    Array, Expression, Feed, Frame, Halves, Io, Lowering, Op, Pointwise, Product, Program, Tape, Type, Var,
};
use unisono_testkit::{adapters, run};

/// y = N x. All of these have one name.
#[derive(Debug, Serialize)]
struct Times<const N: u32>;

impl<const N: u32> Pointwise for Times<N> {
    const NAME: &str = "times";
    const ARITY: usize = 1;
    const WGSL: &str = if N == 2 { "2.0 * $0" } else { "3.0 * $0" };
    const CASES: &[&[f64]] = &[&[1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        if N == 2 { 2.0 * x[0] } else { 3.0 * x[0] }
    }

    /// dx = N dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Times::<N>))]
    }
}

/// y = x + by. A printed graph does not show its field.
#[derive(Debug, Serialize)]
struct Shift {
    by: f32,
}

impl Op for Shift {
    fn name(&self) -> &'static str {
        "shift"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        Ok(inputs[0].clone())
    }

    /// dx = dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone())]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        Array::new(&inputs[0].dims, inputs[0].data.iter().map(|x| x + f64::from(self.by)).collect())
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pointwise(Expression {
            wgsl: format!("$0 + {:?}", self.by),
            snippets: &[],
            whole: &[],
            product: Product::Never,
            adds: true,
            halves: Halves::Never,
        })
    }
}

/// y = a b / 2, under the name of an op of the registry.
#[derive(Debug, Serialize)]
struct HalfProduct;

impl Pointwise for HalfProduct {
    const NAME: &str = "mul";
    const ARITY: usize = 2;
    const WGSL: &str = "$0 * $1 * 0.5";
    const CASES: &[&[f64]] = &[&[1.0, 1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] * x[1] / 2.0
    }

    /// da = b dy / 2, db = a dy / 2.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let half = |other: &Var| Some(other.zip(HalfProduct, &[dy]));
        vec![half(&x[1]), half(&x[0])]
    }
}

#[test]
fn a_device_computes_each_op_as_its_own() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[1]));
    tape.output("types", &(x.apply(Times::<2>) + x.apply(Times::<3>) * 10.0));
    tape.output("fields", &(x.apply(Shift { by: 2.0 }) + x.apply(Shift { by: 1.0 }) * 10.0));
    tape.output("alone", &x.zip(HalfProduct, &[&tape.constant(1.0)]));
    tape.output("before a sum", &(x.zip(HalfProduct, &[&x]) + 1.0));
    let slope = tape.gradients(&x.apply(Times::<3>).zip(HalfProduct, &[&x]).sum_all().sum_shards(), &[x]);
    tape.output("gradient", &slope[0]);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let feed = Feed {
        frame: Frame { shards: vec![1] },
        inputs: vec![Array::new(&[1, 1], vec![1.0])],
        states: vec![],
    };
    let adapters = adapters();
    assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
    for adapter in adapters {
        let mut device = Device::open(&adapter).unwrap();
        let outputs = run(&mut device, &program, &feed).unwrap().outputs;
        let found = ["types", "fields", "alone", "before a sum", "gradient"].map(|name| outputs[name][0]);
        assert_eq!(found, [32.0, 23.0, 0.5, 1.5, 3.0], "on {}", adapter.label());
    }
}
