//! What is not kept in memory: the score matrix of long sequences, and the values inside a recomputed layer.

use unisono_graph::{Array, Feed, Frame, Graph, Program, Run, Tape, Target, Type, Var, interpret};

use super::super::functional::scaled_dot_product_attention;
use super::*;
use crate::TransformerBlock;

type Attention = fn(&Var, &Var, &Var) -> Var;

/// Traces attention over `places` positions of 4 features, with the gradient of each operand.
fn attention(places: usize, attention: Attention) -> Graph {
    let tape = Tape::new();
    let operands = ["q", "k", "v"].map(|name| tape.input(name, Type::sample(&[places, 4])));
    let [q, k, v] = &operands;
    let y = attention(q, k, v);
    tape.output("y", &y);
    let total = y.square().sum_all().sum_shards();
    for (name, gradient) in ["dq", "dk", "dv"].iter().zip(tape.gradients(&total, &operands)) {
        tape.output(name, &gradient);
    }
    tape.finish().unwrap()
}

/// Causal attention with its whole score matrix.
fn whole(q: &Var, k: &Var, v: &Var) -> Var {
    let places = q.dims()[0];
    let place = |axis| q.tape().apply(unisono_graph::ops::Iota { dims: vec![places, places], axis }, &[]);
    let scores = (q * 0.5).matmul_t(k);
    place(1).greater(&place(0)).select(&q.tape().constant(-1e30), &scores).softmax().matmul(v)
}

#[test]
fn attention_in_blocks_is_attention() {
    let places = 300;
    let input = |shift: f64| Array::generate(&[1, places, 4], |at| wave(at, shift));
    let run = |graph: &Graph| {
        let inputs = vec![input(0.1), input(0.5), input(0.9)];
        interpret(graph, &Feed { frame: Frame { shards: vec![1] }, inputs, states: vec![] }).outputs
    };
    let blocks = run(&attention(places, |q, k, v| scaled_dot_product_attention(q, k, v, true)));
    let expected = run(&attention(places, whole));
    for (name, array) in &expected {
        let off = array.data.iter().zip(&blocks[name].data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-9, "{name} is off by {off}");
    }
}

#[test]
fn long_sequences_hold_no_score_matrix() {
    let scratch = |places: usize| {
        let graph = attention(places, |q, k, v| scaled_dot_product_attention(q, k, v, true));
        let plan = Program::compile(&graph).unwrap().plan(&Run::whole(&[1]), &Target::default()).unwrap();
        plan.scratch_bytes()
    };
    let (short, long) = (scratch(2048), scratch(4096));
    let scores = 4 * 4096 * 4096;
    assert!(long < scores / 2, "{long} bytes, one score matrix is {scores}");
    assert!(long < 3 * short, "{short} bytes for 2048 places, {long} for 4096");
}

#[test]
fn a_recomputed_layer_is_the_same_and_holds_less() {
    let model = |recomputed: bool| {
        let block = || TransformerBlock::new(2).causal().dropout(0.1);
        let tower =
            |m: Sequential, _| if recomputed { m.add(Recompute::new(block())) } else { m.add(block()) };
        trace(&(0..4).fold(Sequential::new(), tower), Type::sample(&[16, 8]), Mode::Evaluate)
    };
    let (kept, again) = (model(false), model(true));
    assert_eq!(kept.names, again.names);
    let x = Array::generate(&[3, 16, 8], |at| wave(at, 0.2));
    assert_eq!(kept.run(&[2, 1], &x).outputs, again.run(&[2, 1], &x).outputs);
    let scratch = |traced: &Traced| {
        let program = Program::compile(&traced.graph).unwrap();
        program.plan(&Run::whole(&[64, 64]), &Target::default()).unwrap().scratch_bytes()
    };
    let (kept, again) = (scratch(&kept), scratch(&again));
    assert!(3 * again < 2 * kept, "{again} bytes instead of {kept}");
}
