//! Ops that a user defines are known by their type and fields, not by their names.

use serde::Serialize;
use unisono_graph::{
    Array, Expression, Feed, Frame, Graph, Halves, Io, Lowering, Op, Pointwise, Product, Program, Tape, Type,
    Var, interpret, simplify,
};

/// y = N x. The ops for all N have the same name.
#[derive(Debug, Serialize)]
struct Times<const N: u32>;

impl<const N: u32> Pointwise for Times<N> {
    const NAME: &str = "times";
    const ARITY: usize = 1;
    const WGSL: &str = match N {
        2 => "2.0 * $0",
        _ => "3.0 * $0",
    };
    const CASES: &[&[f64]] = &[&[1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        f64::from(N) * x[0]
    }

    /// dx = N dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Times::<N>))]
    }
}

/// y = x + by. The printed graph does not show the field.
#[derive(Debug, Clone, Serialize)]
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

/// y = a b / 2. It has the name of an op of the registry.
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

/// Returns the results of a graph for `x` = 1: as traced, simplified and compiled.
fn values(f: impl Fn(&Var) -> Var) -> [f64; 3] {
    let tape = Tape::new();
    tape.output("y", &f(&tape.input("x", Type::sample(&[1]))));
    let graph = tape.finish().unwrap();
    let feed = Feed {
        frame: Frame { shards: vec![1] },
        inputs: vec![Array::new(&[1, 1], vec![1.0])],
        states: vec![],
    };
    let value = |graph: &Graph| interpret(graph, &feed).outputs["y"].data[0];
    [value(&graph), value(&simplify(&graph)), value(Program::compile(&graph).unwrap().graph())]
}

#[test]
fn two_types_of_one_name_stay_apart() {
    assert_eq!(values(|x| x.apply(Times::<2>) + x.apply(Times::<3>) * 10.0), [32.0; 3]);
}

#[test]
fn one_type_with_two_values_of_a_field_stays_apart() {
    assert_eq!(values(|x| x.apply(Shift { by: 2.0 }) + x.apply(Shift { by: 1.0 }) * 10.0), [23.0; 3]);
}

#[test]
fn an_op_called_mul_is_not_our_product() {
    assert_eq!(values(|x| x.zip(HalfProduct, &[&x.tape().constant(1.0)])), [0.5; 3]);
    assert_eq!(values(|x| x.zip(HalfProduct, &[x]) + 1.0), [1.5; 3]);
}
