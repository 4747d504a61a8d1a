//! Reverse-mode differentiation: gradients are nodes of the same tape.

use std::collections::BTreeMap;

use super::arrived::Arrived;
use super::recompute::SecondTime;
use crate::ops::{Mul, Saved};
use crate::trace::{Io, NodeId, Tape, Var};
use crate::values::Lead;

impl Tape {
    /// Returns the gradients of the scalar `y` with respect to `x`. They are zeros where `y` does not depend
    /// on one.
    ///
    /// `y` is global: the sum of something over all samples ([`Var::sum_shards`]), or a function of global
    /// values. Gradients of global values are global: their parts are summed within each shard, then over the
    /// shards.
    ///
    /// The gradients that several users of a value send are added in the order of the users, the last one
    /// first. Slices along one axis that do not overlap are put side by side, and the products of a weight in
    /// an [unrolled loop](Tape::unrolled) are one product.
    pub fn gradients(&self, y: &Var, x: &[Var]) -> Vec<Var> {
        let zeros = |v: &Var| self.constant(0.0).expand(v.ty().lead, v.dims());
        let all = self.gradients_if_any(y, x).into_iter().zip(x);
        all.map(|(gradient, v)| gradient.unwrap_or_else(|| zeros(v))).collect()
    }

    /// As [`Tape::gradients`], but answers `None` where `y` does not depend on a value, or not in a way that
    /// has a gradient (the `None` of PyTorch's `grad`).
    pub fn gradients_if_any(&self, y: &Var, x: &[Var]) -> Vec<Option<Var>> {
        if y.ty().lead != Lead::Global || !y.dims().is_empty() {
            self.fail_here("gradients", format!("{} is not one number for the whole batch", y.ty()));
            return vec![None; x.len()];
        }
        if !self.owns("gradients", &std::iter::once(y).chain(x).collect::<Vec<_>>()) {
            return vec![None; x.len()];
        }
        let on_the_way = self.depends(x, y.id());
        let mut arrived: BTreeMap<NodeId, Arrived> = BTreeMap::new();
        arrived.entry(y.id()).or_default().add_up(self.constant(1.0));
        let mut totals: BTreeMap<NodeId, Var> = BTreeMap::new();
        let mut again = SecondTime::default();
        while let Some((id, parts)) = arrived.pop_last() {
            let node = self.node(id);
            let Some(dy) = self.in_scope_of(&node.scope, || parts.total(node.ty.lead)) else { continue };
            if let Some(region) = self.region(id) {
                self.record_checkpointed(region, &dy, &mut again);
            }
            totals.insert(id, dy.clone());
            let y = self.var(again.copy_of(id));
            let node = self.node(y.id());
            let inputs: Vec<Var> = node.inputs.iter().map(|&i| self.var(i)).collect();
            let sources: Vec<NodeId> = node.inputs.iter().map(|&i| again.original_of(i)).collect();
            if !sources.iter().any(|&source| on_the_way[source]) {
                continue;
            }
            let (x, y): (Vec<Var>, Var) = (inputs.iter().map(|v| self.saved(v)).collect(), self.saved(&y));
            let gradients = || node.op.gradient(&Io { x: &x, y: &y, dy: &dy });
            let gradients = self.in_scope_of(&node.scope, || {
                if self.is_in_f32(id) { self.in_f32(gradients) } else { gradients() }
            });
            self.in_scope_of(&node.scope, || self.check_gradients(node.op.name(), &inputs, &gradients));
            let unrolled = self.unrolled_at(id);
            for (source, gradient) in sources.into_iter().zip(gradients) {
                if let (true, Some(mut gradient)) = (on_the_way[source], gradient) {
                    let of_samples = self.node(source).ty.lead == Lead::Global;
                    if of_samples && gradient.ty().lead == Lead::Sample {
                        gradient = self.in_scope_of(&node.scope, || gradient.reduce_sum(vec![], true));
                    }
                    arrived.entry(source).or_default().add(gradient, unrolled);
                }
            }
        }
        x.iter().map(|v| totals.get(&v.id()).cloned()).collect()
    }

    /// Returns a value as gradients read it: marked if it is saved together with others
    /// ([`Tape::save_together`]).
    fn saved(&self, value: &Var) -> Var {
        match self.saved_with(value.id()) {
            Some([group, place]) if !self.node(value.id()).op.is::<Mul>() => {
                self.apply(Saved { group, place }, &[value])
            }
            _ => value.clone(),
        }
    }

    /// Reports an op whose gradients are not those of its operands. Elsewhere the error would name an op that
    /// is not to blame.
    fn check_gradients(&self, op: &str, inputs: &[Var], gradients: &[Option<Var>]) {
        if gradients.len() != inputs.len() {
            let problem = format!("it has {} gradients for {} operands", gradients.len(), inputs.len());
            self.fail_here(op, problem);
        }
        for (at, (input, gradient)) in inputs.iter().zip(gradients).enumerate() {
            if let Some(gradient) = gradient.as_ref().filter(|gradient| gradient.dims() != input.dims()) {
                let (operand, own) = (input.ty(), gradient.ty());
                self.fail_here(op, format!("operand {at} is {operand}, and its gradient {own}"));
            }
        }
    }

    /// Returns for each node up to `last` whether it depends on one of `x`.
    fn depends(&self, x: &[Var], last: NodeId) -> Vec<bool> {
        let mut depends = vec![false; last + 1];
        x.iter().filter(|v| v.id() <= last).for_each(|v| depends[v.id()] = true);
        for id in 0..=last {
            depends[id] = depends[id] || self.node(id).inputs.iter().any(|&i| depends[i]);
        }
        depends
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::passes::share_memory;
    use crate::reference::interpret;
    use crate::trace::{Expression, Halves, Lowering, Op, Product};
    use crate::{Array, Feed, Frame, Graph, StateKind, Type, simplify};

    fn count(graph: &Graph, op: &str) -> usize {
        graph.nodes.iter().filter(|node| node.op.name() == op).count()
    }

    /// The gradient of a weight that each of four steps multiplies by.
    fn recurrent(is_loop: bool) -> Graph {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[4, 3]));
        let w = tape.state("w", &[3, 3], StateKind::Parameter);
        let step = |i: usize| x.slice(1, i..i + 1).reshape(&[3]);
        let steps = || (1..4).fold(step(0), |h, i| (h.matmul(&w) + step(i)).tanh());
        let h = if is_loop { tape.unrolled(steps) } else { steps() };
        tape.output("dw", &tape.gradients(&h.sum_all().sum_shards(), std::slice::from_ref(&w))[0]);
        simplify(&tape.finish().unwrap())
    }

    /// Gradients read what is saved together from one memory, and are the same.
    #[test]
    fn values_that_are_saved_together_are_slices_of_one() {
        let cell = |saves: bool, recomputes: bool| {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[2, 3]));
            let w = tape.state("w", &[3, 3], StateKind::Parameter);
            let both = || {
                let y = x.matmul_t(&w);
                let (a, b) = (y.sigmoid(), y.tanh());
                if saves {
                    tape.save_together(&[a.clone(), b.clone()]);
                    // Other shapes, a product, and an empty list: nothing is saved.
                    tape.save_together(&[a.clone(), x.sum(&[-1])]);
                    tape.save_together(&[&x * &x, b.clone()]);
                    tape.save_together(&[]);
                }
                &a * &b
            };
            let y = if recomputes { tape.recompute(both) } else { both() };
            let gradient = &tape.gradients(&y.sum_all().sum_shards(), std::slice::from_ref(&w))[0];
            tape.output("dw", gradient);
            let second = tape.gradients(&gradient.square().sum(&[-1, -2]), std::slice::from_ref(&w));
            tape.output("ddw", &second[0]);
            tape.output("y", &y);
            simplify(&tape.finish().unwrap())
        };
        let data = |count: usize| (0..count).map(|i| (i as f64 * 0.7).sin()).collect::<Vec<_>>();
        let feed = Feed {
            frame: Frame { shards: vec![2, 1] },
            inputs: vec![Array { dims: vec![3, 2, 3], data: data(18) }],
            states: vec![Array { dims: vec![3, 3], data: data(9) }],
        };
        for recomputes in [false, true] {
            let [apart, together] = [false, true].map(|saves| cell(saves, recomputes));
            let shared = share_memory(&together);
            assert_eq!([count(&apart, "saved"), count(&shared, "saved")], [0, 0]);
            assert_eq!([count(&together, "saved"), count(&together, "concat")], [2, 0]);
            assert_eq!([count(&shared, "concat"), count(&shared, "slice")], [1, 2]);
            let expected = interpret(&apart, &feed).outputs;
            for graph in [&together, &shared] {
                assert_eq!(interpret(graph, &feed).outputs, expected);
            }
        }
    }

    /// Each region that is computed twice saves what it saved once more, and no more than that.
    #[test]
    fn many_regions_may_save_values_together() {
        let tape = Tape::new();
        let w = tape.state("w", &[3], StateKind::Parameter);
        let x = tape.input("x", Type::sample(&[3]));
        let y = (0..70).fold(&x + &w, |y, _| {
            tape.recompute(|| {
                let (a, b) = (y.sigmoid(), y.tanh());
                tape.save_together(&[a.clone(), b.clone()]);
                a * b
            })
        });
        tape.output("dw", &tape.gradients(&y.sum_all().sum_shards(), std::slice::from_ref(&w))[0]);
        let graph = share_memory(&simplify(&tape.finish().unwrap()));
        assert_eq!([count(&graph, "saved"), count(&graph, "concat")], [0, 70]);
    }

    #[test]
    fn a_loop_has_one_product_for_a_weight() {
        let graphs = [recurrent(true), recurrent(false)];
        assert_eq!(graphs.each_ref().map(|graph| count(graph, "contract")), [1, 3], "{}", graphs[0]);
        let numbers = |count: usize| (0..count).map(|n| (n % 7) as f64 / 5.0 - 0.6).collect();
        let [joined, apart] = graphs.map(|graph| {
            let feed = Feed {
                frame: Frame { shards: vec![3, 2] },
                inputs: vec![Array::new(&[5, 4, 3], numbers(60))],
                states: vec![Array::new(&[3, 3], numbers(9))],
            };
            interpret(&graph, &feed).outputs["dw"].data.clone()
        });
        let far = joined.iter().zip(&apart).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-12 && joined.iter().any(|d| d.abs() > 0.1), "{joined:?} and {apart:?}");
    }

    #[test]
    fn a_product_in_f32_has_gradients_in_f32() {
        let rounds = |in_f32: bool, is_loop: bool| {
            let tape = Tape::with_precision(crate::Precision::Mixed);
            let x = tape.input("x", Type::sample(&[3]));
            let w = tape.state("w", &[3, 3], StateKind::Parameter);
            let steps = || (0..2).fold(x.clone(), |x, _| x.matmul_t(&w).exp());
            let product = || if is_loop { tape.unrolled(steps) } else { steps() };
            let y = tape.recompute(|| if in_f32 { tape.in_f32(product) } else { product() });
            let dw = tape.gradients(&y.sum_all().sum_shards(), std::slice::from_ref(&w)).remove(0);
            // The gradient of a gradient goes through what was recorded a second time.
            let penalty = dw.square().sum_all();
            tape.output("dw", &dw);
            tape.output("ddw", &tape.gradients(&penalty, std::slice::from_ref(&w))[0]);
            count(&simplify(&tape.finish().unwrap()), "round_half")
        };
        for is_loop in [false, true] {
            assert!(rounds(false, is_loop) > 2);
            assert_eq!(rounds(true, is_loop), 0);
        }
        // Also where the operands are results of products that are rounded.
        let tape = Tape::with_precision(crate::Precision::Mixed);
        let x = tape.input("x", Type::sample(&[3, 3]));
        let w = tape.state("w", &[3, 3], StateKind::Parameter);
        let (a, b) = (x.matmul(&w), x.matmul_t(&w));
        let y = tape.in_f32(|| a.matmul_t(&b)).exp();
        let [da, db] = tape.gradients(&y.sum_all().sum_shards(), &[a, b]).try_into().unwrap();
        [("da", da), ("db", db)].into_iter().for_each(|(name, d)| tape.output(name, &d));
        // Those of the two products themselves, and their results.
        assert_eq!(count(&simplify(&tape.finish().unwrap()), "round_half"), 4);
    }

    #[test]
    fn slices_meet_side_by_side_where_they_do_not_overlap() {
        let pads_and_concats = |ranges: [Range<usize>; 3]| {
            let tape = Tape::new();
            let x = tape.state("x", &[6], StateKind::Parameter);
            let y = ranges.map(|range| x.slice(0, range).exp().sum(&[0]));
            let [a, b, c] = &y;
            tape.output("dx", &tape.gradients(&(a + b + c), std::slice::from_ref(&x))[0]);
            let graph = simplify(&tape.finish().unwrap());
            [count(&graph, "pad"), count(&graph, "concat")]
        };
        assert_eq!(pads_and_concats([0..2, 2..3, 4..5]), [0, 1]);
        assert_eq!(pads_and_concats([0..2, 1..3, 3..6]), [1, 1]);
    }

    /// An op of someyour own, whose gradients are not those of its operand.
    #[derive(Debug, serde::Serialize)]
    struct Careless {
        gradients: usize,
    }

    impl crate::Pointwise for Careless {
        const NAME: &str = "careless";
        const ARITY: usize = 1;
        const WGSL: &str = "$0";
        const CASES: &[&[f64]] = &[];

        fn reference(&self, x: &[f64]) -> f64 {
            x[0]
        }

        fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
            vec![Some((*dy).sum(&[-1])); self.gradients]
        }
    }

    /// y = x w, whose gradient by w is one for each sample.
    #[derive(Debug, serde::Serialize)]
    struct Scale;

    impl Op for Scale {
        fn name(&self) -> &'static str {
            "scale"
        }

        fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
            Ok(inputs[0].clone())
        }

        fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
            vec![Some(*dy * &x[1]), Some(*dy * &x[0])]
        }

        fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
            let (x, w) = (inputs[0], inputs[1]);
            let data = x.data.iter().enumerate().map(|(i, x)| x * w.data[i % w.data.len()]);
            Array::new(&x.dims, data.collect())
        }

        fn lowering(&self) -> Lowering {
            Lowering::Pointwise(Expression {
                wgsl: "$0 * $1".into(),
                snippets: &[],
                whole: &[],
                product: Product::Makes,
                adds: true,
                halves: Halves::Never,
                canonical: false,
            })
        }
    }

    #[test]
    fn gradients_of_samples_are_summed_for_a_global_operand() {
        let gradient = |scale: &dyn Fn(&Var, &Var) -> Var| {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[4]));
            let w = tape.state("w", &[4], StateKind::Parameter);
            let y = scale(&x, &w).square() + &w;
            tape.output("dw", &tape.gradients(&y.sum_all().sum_shards(), std::slice::from_ref(&w))[0]);
            let feed = Feed {
                frame: Frame { shards: vec![2, 1] },
                inputs: vec![Array::new(&[3, 4], (0..12).map(f64::from).collect())],
                states: vec![Array::new(&[4], vec![0.5, -1.0, 2.0, 0.25])],
            };
            interpret(&tape.finish().unwrap(), &feed).outputs["dw"].clone()
        };
        let expected = gradient(&|x, w| x * w);
        assert_eq!(gradient(&|x, w| x.tape().apply(Scale, &[x, w])), expected);
    }

    #[test]
    fn an_op_with_wrong_gradients_is_named() {
        let error = |gradients: usize| {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[4]));
            let w = tape.state("w", &[4], StateKind::Parameter);
            let y = tape.scope("own", || (&x * &w).apply(Careless { gradients })).exp();
            tape.gradients(&y.sum_all().sum_shards(), std::slice::from_ref(&w));
            tape.finish().unwrap_err().to_string()
        };
        assert_eq!(error(1), "own: careless: operand 0 is [B, 4], and its gradient [B]");
        assert_eq!(error(2), "own: careless: it has 2 gradients for 1 operands");
        assert_eq!(error(0), "own: careless: it has 0 gradients for 1 operands");
    }
}
