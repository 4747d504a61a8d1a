//! Small cases with results that are computed by hand.

use unisono_graph::ops::Iota;
use unisono_graph::{Array, Lead, Tape, Type};

use super::{close, operand, trace};
use crate::functional::*;
use crate::model::context::Mode;
use crate::{
    BatchNorm, Context, Conv2d, Dense, Embedding, FromFn, GroupNorm, Gru, Initializer, Layer, Lstm,
    MaxPool2d, MultiHeadAttention, Residual, TransformerBlock, Var,
};

/// The batch has mean 1000 and deviation 1, however it is cut into shards.
#[test]
fn batch_norm_has_the_whole_batch_in_mind() {
    let layer = BatchNorm::new().epsilon(0.0);
    let train = trace(&layer, Type::sample(&[1]), Mode::Train);
    let x = Array::new(&[4, 1], vec![999.0, 1001.0, 999.0, 1001.0]);
    for shards in [&[4usize][..], &[3, 1], &[1, 2, 1], &[4, 0]] {
        let outcome = train.run(shards, &x);
        close(&outcome.outputs["y"].data, &[-1.0, 1.0, -1.0, 1.0]);
        close(&outcome.updates[&2].data, &[100.0]);
        close(&outcome.updates[&3].data, &[0.9 + 0.1 * 4.0 / 3.0]);
    }
    let one =
        trace(&BatchNorm::new(), Type::sample(&[1]), Mode::Train).run(&[1], &Array::new(&[1, 1], vec![7.0]));
    close(&one.outputs["y"].data, &[0.0]);
    close(&one.updates[&2].data, &[0.7]);
    close(&one.updates[&3].data, &[1.0]);
    let mut used = trace(&layer, Type::sample(&[1]), Mode::Evaluate);
    (used.states[2].data, used.states[3].data) = (vec![1000.0], vec![4.0]);
    let outcome = used.run(&[1, 3], &x);
    close(&outcome.outputs["y"].data, &[-0.5, 0.5, -0.5, 0.5]);
    assert!(outcome.updates.is_empty());
}

/// One unit, one feature and two steps.
#[test]
fn recurrent_cells_follow_their_formulas() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let weights: Vec<f32> = vec![0.5, -0.3, 0.8, 0.2];
    let value = |tape: &Tape, values: &[f32], dims: &[usize]| {
        let all: Vec<Var> = values.iter().map(|&v| tape.constant(v).reshape(&[1])).collect();
        let all = all.into_iter().reduce(|a, b| a.concat(&[&b], 0)).unwrap();
        all.reshape(dims)
    };
    let lstm_model = FromFn::new("lstm", |cx, x| {
        let w = |scale: f32, dims: &[usize]| {
            value(cx.tape(), &weights.iter().map(|w| w * scale).collect::<Vec<_>>(), dims)
        };
        let weights = LstmWeights {
            weight_ih: w(1.0, &[4, 1]),
            weight_hh: w(2.0, &[4, 1]),
            bias_ih: Some(w(0.5, &[4])),
            bias_hh: None,
        };
        let (h0, c0) = (x.slice(1, 0..1).reshape(&[1]), x.slice(1, 1..2).reshape(&[1]));
        let (all, h, c) = lstm(x, &weights, &h0, &c0);
        all.reshape(&[2]).concat(&[&h, &c], -1)
    });
    let x = [0.4, -0.6];
    let outcome =
        trace(&lstm_model, Type::sample(&[2, 1]), Mode::Train).run(&[1], &Array::new(&[1, 2, 1], x.to_vec()));
    let (mut h, mut c, mut expected) = (x[0], x[1], vec![]);
    for x in x {
        let z: Vec<f64> = weights.iter().map(|&w| f64::from(w) * (x + 2.0 * h + 0.5)).collect();
        c = sigmoid(z[1]) * c + sigmoid(z[0]) * z[2].tanh();
        h = sigmoid(z[3]) * c.tanh();
        expected.push(h);
    }
    close(&outcome.outputs["y"].data, &[expected[0], expected[1], h, c]);
    let gru_model = FromFn::new("gru", |cx, x| {
        let w = |scale: f32, dims: &[usize]| {
            value(cx.tape(), &weights[..3].iter().map(|w| w * scale).collect::<Vec<_>>(), dims)
        };
        let bias_hh = Some(w(0.5, &[3]));
        let weights =
            GruWeights { weight_ih: w(1.0, &[3, 1]), weight_hh: w(2.0, &[3, 1]), bias_ih: None, bias_hh };
        let (all, h) = gru(x, &weights, &x.slice(1, 0..1).reshape(&[1]));
        all.reshape(&[2]).concat(&[&h], -1)
    });
    let outcome =
        trace(&gru_model, Type::sample(&[2, 1]), Mode::Train).run(&[1], &Array::new(&[1, 2, 1], x.to_vec()));
    let (mut h, mut expected) = (x[0], vec![]);
    for x in x {
        let w: Vec<f64> = weights.iter().map(|&w| f64::from(w)).collect();
        let own = |i: usize| w[i] * (2.0 * h + 0.5);
        let (r, z) = (sigmoid(w[0] * x + own(0)), sigmoid(w[1] * x + own(1)));
        h = (1.0 - z) * (w[2] * x + r * own(2)).tanh() + z * h;
        expected.push(h);
    }
    close(&outcome.outputs["y"].data, &[expected[0], expected[1], h]);
}

/// A layer that starts from zeros computes what the function computes from given zeros.
#[test]
fn recurrent_layers_start_from_zeros() {
    let ty = Type::sample(&[3, 2]);
    let given = FromFn::new("given", |cx, x| {
        let mut ask =
            |name: &str, dims: &[usize]| cx.parameter(name, dims, Initializer::Uniform(1.0 / 2f32.sqrt()));
        let weights = GruWeights {
            weight_ih: ask("weight_ih_l0", &[6, 2]),
            weight_hh: ask("weight_hh_l0", &[6, 2]),
            bias_ih: Some(ask("bias_ih_l0", &[6])),
            bias_hh: Some(ask("bias_hh_l0", &[6])),
        };
        gru(x, &weights, &(x.slice(1, 0..1).reshape(&[2]) * 0.0)).0
    });
    let run = |layer: &dyn Layer| {
        trace(layer, ty.clone(), Mode::Train).run(&[2], &operand(2, &ty)).outputs["y"].clone()
    };
    assert_eq!(run(&Gru::new(2)).data, run(&given).data);
}

/// Two sequences of three steps are padded to five, one of them with a gap. Their outputs are those without
/// padding.
#[test]
fn recurrent_layers_pass_over_padding() {
    type Masked = fn(&mut Context, &Var, Option<&Var>) -> Var;
    let layers: [(Masked, bool); 4] = [
        (|cx, x, mask| Lstm::new(2).layers(2).bidirectional().masked(cx, x, mask), false),
        (|cx, x, mask| Gru::new(2).layers(2).bidirectional().no_bias().masked(cx, x, mask), false),
        (|cx, x, mask| Lstm::new(2).bidirectional().last().masked(cx, x, mask), true),
        (|cx, x, mask| Gru::new(2).last().masked(cx, x, mask), true),
    ];
    let there = [[1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0, 1.0]];
    let ty = Type::sample(&[5, 3]);
    let mut x = operand(2, &ty);
    // The last feature is the mask. The other features of padded steps are arbitrary.
    there.iter().flatten().enumerate().for_each(|(place, there)| x.data[3 * place + 2] = *there);
    for (layer, last) in layers {
        let model = FromFn::new("masked", move |cx: &mut Context, x: &Var| {
            let mask = x.slice(-1, 2..3).reshape(&[5]).greater(&x.tape().constant(0.5));
            layer(cx, &x.slice(-1, 0..2), Some(&mask))
        });
        let mut masked = trace(&model, ty.clone(), Mode::Train);
        let found = masked.run(&[2], &x).outputs["y"].clone();
        masked.check_gradients(&[1, 1], &x);
        let short = Type::sample(&[3, 2]);
        let packed = FromFn::new("packed", move |cx: &mut Context, x: &Var| layer(cx, x, None));
        let width = found.dims[found.dims.len() - 1];
        for (row, there) in there.iter().enumerate() {
            let places: Vec<usize> = (0..5).filter(|&place| there[place] == 1.0).collect();
            let kept = places.iter().flat_map(|place| x.data[15 * row + 3 * place..][..2].to_vec()).collect();
            let expected =
                trace(&packed, short.clone(), Mode::Train).run(&[1], &Array::new(&[1, 3, 2], kept));
            let expected = &expected.outputs["y"].data;
            if last {
                close(&found.data[row * width..][..width], expected);
                continue;
            }
            let at = |place: usize| &found.data[(5 * row + place) * width..][..width];
            places
                .iter()
                .zip(expected.chunks(width))
                .for_each(|(&place, expected)| close(at(place), expected));
            (0..5)
                .filter(|place| !places.contains(place))
                .for_each(|place| close(at(place), &vec![0.0; width]));
        }
    }
}

#[test]
fn attention_sees_what_it_may() {
    let ty = Type::sample(&[3, 2]);
    let x = operand(1, &ty);
    let run = |f: fn(&Var) -> Var| {
        let model = FromFn::new("attention", move |_, x| f(x));
        trace(&model, ty.clone(), Mode::Train).run(&[1], &x).outputs["y"].data.clone()
    };
    let causal = run(|x| scaled_dot_product_attention(x, x, x, true));
    close(&causal[..2], &x.data[..2]);
    let full = run(|x| scaled_dot_product_attention(x, x, x, false));
    close(&causal[4..], &full[4..]);
    // The last position is hidden once by a mask and once by a slice.
    let masked = run(|x| {
        let places = x.tape().apply(Iota { dims: vec![1, 3], axis: 1 }, &[]);
        let mask = x.tape().constant(2.0).greater(&places.to_f32());
        scaled_dot_product_attention_masked(x, x, x, false, Some(&mask))
    });
    let sliced = run(|x| scaled_dot_product_attention(x, &x.slice(1, 0..2), &x.slice(1, 0..2), false));
    close(&masked, &sliced);
}

#[test]
fn padding_is_found_by_none() {
    let attention = MultiHeadAttention::new(2);
    let masked = |keep: usize| {
        let model = FromFn::new("masked", move |cx: &mut Context, x: &Var| {
            let places = x.tape().apply(Iota { dims: vec![3], axis: 0 }, &[]).to_f32();
            let mask = x.tape().constant(keep as f32 - 0.5).greater(&places).expand(Lead::Sample, &[3]);
            attention.attend(cx, x, x, Some(&mask))
        });
        let ty = Type::sample(&[3, 4]);
        trace(&model, ty.clone(), Mode::Evaluate).run(&[1], &operand(1, &ty)).outputs["y"].data.clone()
    };
    assert_ne!(masked(2), masked(3));
    let ty = Type::sample(&[3, 4]);
    let plain =
        trace(&attention, ty.clone(), Mode::Evaluate).run(&[1], &operand(1, &ty)).outputs["y"].data.clone();
    close(&masked(3), &plain);
}

#[test]
fn errors_name_the_layer() {
    let message = |layer: &dyn Layer, dims: &[usize]| {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(dims));
        Context::new(&tape, Mode::Train).apply("0", layer, &x);
        tape.finish().unwrap_err().to_string()
    };
    for (text, expected) in [
        (
            message(&Conv2d::new(4, 3), &[5]),
            "0.conv2d: conv2d: needs images [B, channels, height, width], got [B, 5]",
        ),
        (
            message(&MaxPool2d::new(9), &[1, 5, 5]),
            "no place for windows of 9 x 9, stride 9 x 9 in the height of 5 and the width of 5",
        ),
        (message(&Conv2d::new(4, 3).groups(3), &[4, 5, 5]), "groups"),
        (message(&GroupNorm::new(3), &[4, 5, 5]), "3 groups"),
        (message(&Embedding::new(3, 3), &[4]), "needs ids of i32, got [B, 4]"),
        (message(&Lstm::new(3), &[4]), "needs sequences [B, steps, features] of f32, got [B, 4]"),
        (
            message(&FromFn::new("masked", |cx, x| Lstm::new(3).masked(cx, x, Some(x))), &[4, 5]),
            "a mask [B, 4, 5] does not fit sequences [B, 4, 5]",
        ),
        (message(&MultiHeadAttention::new(3), &[4, 5]), "a width of 5 does not divide among 3 heads"),
        (
            message(&Residual::new(Dense::new(3)), &[4]),
            "the inner layer gives [B, 3], what goes around it is [B, 4]",
        ),
        (message(&TransformerBlock::new(2), &[4]), "transformer_block"),
    ] {
        assert!(text.contains(expected), "{text:?} does not say {expected:?}");
    }
}
