//! Layers in the f64 interpreter: names and shapes of their tensors, and gradients against central
//! differences.

mod by_hand;
mod contributing;
mod memory;
mod more;
mod settings;
mod volumes;

use unisono_graph::{Array, DType, Feed, Frame, Graph, Outcome, Tape, Type, interpret};

use super::*;
use crate::model::context::Mode;
use crate::{Context, Initializer, Layer, Sequential, Var};

/// A traced model with the gradients of sum(y gy) by its parameters and, if it is f32, its input.
struct Traced {
    graph: Graph,
    states: Vec<Array>,
    names: Vec<String>,
}

fn trace(layer: &dyn Layer, input: Type, mode: Mode) -> Traced {
    let tape = Tape::new();
    let mut cx = Context::new(&tape, mode);
    let x = tape.input("x", input);
    let y = layer.forward(&mut cx, &x);
    tape.finish().unwrap();
    tape.output("y", &y);
    let total = (&y * &tape.input("gy", y.ty().clone())).sum_all().sum_shards();
    tape.output("total", &total);
    let asked = [cx.parameters(), cx.statistics()].concat();
    let mut vars: Vec<Var> = cx.parameters().iter().map(|p| p.var.clone()).collect();
    if x.ty().dtype == DType::F32 {
        vars.push(x);
    }
    for (var, gradient) in vars.iter().zip(tape.gradients(&total, &vars)) {
        tape.output(&format!("d{}", tape.state_name(var).unwrap_or("x".into())), &gradient);
    }
    let graph = tape.finish().unwrap();
    let start = |s: &unisono_graph::StateDecl| {
        let own = asked.iter().find(|p| p.name == s.name).unwrap();
        let values = own.initializer.values(5, &s.name, &s.ty.dims).unwrap();
        Array::new(&s.ty.dims, values.iter().map(|&v| f64::from(v)).collect())
    };
    let states = graph.states.iter().map(start).collect();
    let names = graph.states.iter().map(|s| format!("{} {:?}", s.name, s.ty.dims)).collect();
    Traced { graph, states, names }
}

impl Traced {
    fn run(&self, shards: &[usize], x: &Array) -> Outcome {
        let frame = Frame { shards: shards.to_vec() };
        let gy = Array::generate(&frame.dims(&self.graph.inputs[1].ty), |at| wave(at, 0.7));
        let feed = Feed { frame, inputs: vec![x.clone(), gy], states: self.states.clone() };
        interpret(&self.graph, &feed)
    }

    /// Compares some elements of every gradient with central differences.
    fn check_gradients(&mut self, shards: &[usize], x: &Array) {
        let outcome = self.run(shards, x);
        let step = 1e-5;
        let compare = |name: &str, i: usize, high: f64, low: f64| {
            let (found, expected) = (outcome.outputs[name].data[i], (high - low) / (2.0 * step));
            assert!(
                (found - expected).abs() < 1e-6 + 1e-5 * expected.abs(),
                "{name}[{i}]: {found} is not {expected}"
            );
        };
        let total = |t: &Self, x: &Array| t.run(shards, x).outputs["total"].data[0];
        for state in 0..self.states.len() {
            let name = format!("d{}", self.graph.states[state].name);
            for i in (0..self.states[state].data.len()).step_by(1 + self.states[state].data.len() / 9) {
                if outcome.outputs.contains_key(&name) {
                    let moved = [step, -2.0 * step, step].map(|by| {
                        self.states[state].data[i] += by;
                        total(self, x)
                    });
                    compare(&name, i, moved[0], moved[1]);
                }
            }
        }
        if outcome.outputs.contains_key("dx") {
            for i in (0..x.data.len()).step_by(1 + x.data.len() / 9) {
                let moved = [step, -step].map(|by| {
                    let mut x = x.clone();
                    x.data[i] += by;
                    total(self, &x)
                });
                compare("dx", i, moved[0], moved[1]);
            }
        }
    }
}

/// Returns numbers without symmetry.
fn wave(at: &[usize], phase: f64) -> f64 {
    at.iter().fold(phase, |sum, &i| sum * 1.7 + i as f64 * 0.9 + 0.3).sin()
}

fn operand(rows: usize, ty: &Type) -> Array {
    Array::generate(&Frame { shards: vec![rows] }.dims(ty), |at| wave(at, 0.1))
}

fn close(a: &[f64], b: &[f64]) {
    assert!(
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs().max(1.0)),
        "{a:?} is not {b:?}"
    );
}

/// Checks a layer's tensors in both modes, the shape of its output, and its gradients.
fn check(layer: impl Layer, input: &[usize], output: &[usize], tensors: &[&str]) {
    let ty = Type::sample(input);
    let mut traced = trace(&layer, ty.clone(), Mode::Train);
    assert_eq!(traced.names, tensors, "{}", layer.name());
    let x = operand(5, &ty);
    assert_eq!(traced.run(&[3, 2], &x).outputs["y"].dims[1..], *output, "{}", layer.name());
    traced.check_gradients(&[3, 2], &x);
    assert_eq!(trace(&layer, ty, Mode::Evaluate).names, tensors, "{} in use", layer.name());
}

#[test]
fn layers_of_images() {
    check(Conv2d::new(4, 3), &[2, 6, 5], &[4, 4, 3], &["weight [4, 2, 3, 3]", "bias [4]"]);
    let wide = Conv2d::new(4, (1, 3)).groups(2).stride([2, 1]).padding([0, 2]).dilation([1, 2]).no_bias();
    check(wide, &[2, 5, 4], &[4, 3, 4], &["weight [4, 1, 1, 3]"]);
    let back = ConvTranspose2d::new(6, 3).stride(2).padding(1).output_padding(1).groups(2);
    check(back, &[4, 2, 3], &[6, 4, 6], &["weight [4, 3, 3, 3]", "bias [6]"]);
    check(MaxPool2d::new(2), &[2, 5, 4], &[2, 2, 2], &[]);
    check(AvgPool2d::new(3).stride(2).padding(1), &[2, 5, 4], &[2, 3, 2], &[]);
    check(AvgPool2d::new(2).count_include_pad(), &[2, 4, 4], &[2, 2, 2], &[]);
    check(GlobalAvgPool2d, &[3, 2, 2], &[3], &[]);
    check(GlobalMaxPool2d, &[3, 2, 2], &[3], &[]);
    let deep = DepthwiseConv2d::new((1, 3)).multiplier(2).stride([2, 1]).padding([0, 1]);
    check(deep, &[3, 5, 4], &[6, 3, 4], &["weight [6, 1, 1, 3]", "bias [6]"]);
    let separable = ["depthwise.weight [4, 1, 3, 3]", "pointwise.weight [5, 4, 1, 1]", "pointwise.bias [5]"];
    check(SeparableConv2d::new(5, 3).multiplier(2).padding(1), &[2, 3, 4], &[5, 3, 4], &separable);
    check(SeparableConv2d::new(5, 3).multiplier(2).no_bias(), &[2, 3, 4], &[5, 1, 2], &separable[..2]);
    check(Upsample2d::new([2, 3]), &[2, 3, 2], &[2, 6, 6], &[]);
    check(Upsample2d::new([2, 3]).bilinear(), &[2, 3, 2], &[2, 6, 6], &[]);
    check(Upsample2d::new(4).bilinear(), &[1, 1, 1], &[1, 4, 4], &[]);
    check(AdaptiveAvgPool2d::new([3, 2]), &[2, 6, 4], &[2, 3, 2], &[]);
    check(AdaptiveAvgPool2d::new([3, 5]), &[2, 7, 4], &[2, 3, 5], &[]);
    check(ZeroPad2d::sides([1, 0], [2, 3]), &[2, 3, 2], &[2, 4, 7], &[]);
    check(Cropping2d::sides([1, 0], [2, 1]), &[2, 3, 4], &[2, 2, 1], &[]);
    check(Cropping2d::new([1, 0]), &[2, 3, 4], &[2, 1, 4], &[]);
}

#[test]
fn layers_of_sequences_with_channels() {
    check(Conv1d::new(4, 3).padding(1), &[2, 6], &[4, 6], &["weight [4, 2, 3]", "bias [4]"]);
    let wide = Conv1d::new(4, 2).groups(2).stride(2).dilation(3).no_bias();
    check(wide, &[2, 9], &[4, 3], &["weight [4, 1, 2]"]);
    check(Conv1d::new(3, 3).dilation(2).causal(), &[2, 5], &[3, 5], &["weight [3, 2, 3]", "bias [3]"]);
    check(MaxPool1d::new(2), &[2, 5], &[2, 2], &[]);
    check(AvgPool1d::new(3).stride(2).padding(1), &[2, 5], &[2, 3], &[]);
    check(AvgPool1d::new(3).stride(2).padding(1).count_include_pad(), &[2, 5], &[2, 3], &[]);
    check(GlobalAvgPool1d, &[3, 4], &[3], &[]);
    check(GlobalMaxPool1d, &[3, 4], &[3], &[]);
}

/// No output of a causal convolution depends on a later step.
#[test]
fn a_causal_convolution_does_not_look_ahead() {
    let traced = trace(&Conv1d::new(3, 3).dilation(2).causal(), Type::sample(&[2, 6]), Mode::Train);
    let x = operand(2, &Type::sample(&[2, 6]));
    let mut other = x.clone();
    (0..x.data.len()).filter(|i| i % 6 >= 4).for_each(|i| other.data[i] += 1.0);
    let [a, b] = [x, other].map(|x| traced.run(&[1, 1], &x).outputs["y"].data.clone());
    assert!((0..a.len()).filter(|i| i % 6 < 4).all(|i| a[i] == b[i]), "{a:?} {b:?}");
    assert!((0..a.len()).filter(|i| i % 6 >= 4).all(|i| a[i] != b[i]), "{a:?} {b:?}");
}

/// Noise is drawn for each sample, whatever shard it is in, and only in training.
#[test]
fn noise_has_its_deviation_and_does_not_depend_on_shards() {
    let ty = Type::sample(&[500]);
    let noise = GaussianNoise::new(2.0);
    let run = |mode: Mode, shards: &[usize], deviation: f32| {
        let tape = Tape::new();
        let mut cx = Context::new(&tape, mode);
        let x = tape.input("x", ty.clone());
        let y = cx.apply("0", &GaussianNoise::new(deviation), &x);
        tape.output("y", &y);
        let graph = tape.finish().unwrap();
        let key = unisono_graph::RandomKey { seed: 7, epoch: 1, position: 3 };
        let words = Array::new(&[8], key.words().iter().map(|&w| f64::from(w)).collect());
        let zeros = Array::new(&[4, 500], vec![0.0; 2000]);
        let inputs = if graph.inputs.len() == 2 { vec![zeros, words] } else { vec![zeros] };
        let feed = Feed { frame: Frame { shards: shards.to_vec() }, inputs, states: vec![] };
        interpret(&graph, &feed).outputs["y"].data.clone()
    };
    let drawn = run(Mode::Train, &[3, 1], 2.0);
    assert_eq!(drawn, run(Mode::Train, &[1, 1, 2], 2.0));
    let mean = drawn.iter().sum::<f64>() / 2000.0;
    let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2000.0;
    assert!(mean.abs() < 0.15 && (variance.sqrt() - 2.0).abs() < 0.1, "{mean} {variance}");
    assert!(drawn[..500].iter().zip(&drawn[500..]).all(|(a, b)| a != b), "samples share draws");
    assert_eq!(run(Mode::Evaluate, &[4], 2.0), vec![0.0; 2000]);
    assert_eq!(run(Mode::Train, &[4], 0.0), vec![0.0; 2000]);
    assert_eq!(noise.name(), "gaussian_noise");
}

#[test]
fn norms() {
    let tensors = ["weight [3]", "bias [3]", "running_mean [3]", "running_var [3]"];
    check(BatchNorm::new(), &[3], &[3], &tensors);
    check(BatchNorm::new(), &[3, 2, 2], &[3, 2, 2], &tensors);
    check(LayerNorm::new(), &[2, 5], &[2, 5], &["weight [5]", "bias [5]"]);
    check(LayerNorm::new().axes(2), &[2, 5], &[2, 5], &["weight [2, 5]", "bias [2, 5]"]);
    check(RmsNorm::new(), &[2, 5], &[2, 5], &["weight [5]"]);
    check(GroupNorm::new(2), &[4, 3, 2], &[4, 3, 2], &["weight [4]", "bias [4]"]);
    check(InstanceNorm::new(), &[2, 3, 2], &[2, 3, 2], &[]);
    check(InstanceNorm::new().affine(), &[2, 5], &[2, 5], &["weight [2]", "bias [2]"]);
}

#[test]
fn layers_of_sequences() {
    let one = ["weight_ih_l0 [8, 3]", "weight_hh_l0 [8, 2]", "bias_ih_l0 [8]", "bias_hh_l0 [8]"];
    check(Lstm::new(2), &[5, 3], &[5, 2], &one);
    check(Gru::new(2).no_bias().last(), &[1, 3], &[2], &["weight_ih_l0 [6, 3]", "weight_hh_l0 [6, 2]"]);
    let names = |prefix: &str, rows: usize, input: usize, end: &str| {
        let dims =
            [format!("[{rows}, {input}]"), format!("[{rows}, 2]"), format!("[{rows}]"), format!("[{rows}]")];
        let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
        names.iter().zip(dims).map(|(n, d)| format!("{prefix}{n}_{end} {d}")).collect::<Vec<_>>()
    };
    let both: Vec<String> = [(3, "l0"), (3, "l0_reverse"), (4, "l1"), (4, "l1_reverse")]
        .iter()
        .flat_map(|(n, e)| names("", 6, *n, e))
        .collect();
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    check(Gru::new(2).layers(2).bidirectional(), &[4, 3], &[4, 4], &both);
    check(Gru::new(2).layers(2).bidirectional().last(), &[4, 3], &[4], &both);
    let simple = ["weight_ih_l0 [2, 3]", "weight_hh_l0 [2, 2]", "bias_ih_l0 [2]", "bias_hh_l0 [2]"];
    check(SimpleRnn::new(2), &[4, 3], &[4, 2], &simple);
    check(SimpleRnn::new(2).no_bias().last(), &[4, 3], &[2], &simple[..2]);
    let shared =
        ["in_proj_weight [16, 8]", "in_proj_bias [16]", "out_proj.weight [8, 8]", "out_proj.bias [8]"];
    check(MultiHeadAttention::new(4).kv_heads(2).rotary().causal(), &[3, 8], &[3, 8], &shared);
    let attention =
        ["in_proj_weight [12, 4]", "in_proj_bias [12]", "out_proj.weight [4, 4]", "out_proj.bias [4]"];
    check(MultiHeadAttention::new(2).causal(), &[3, 4], &[3, 4], &attention);
    let block = [
        &["norm1.weight [4]", "norm1.bias [4]"].map(String::from)[..],
        &attention.map(|name| format!("self_attn.{name}")),
        &["norm2.weight [4]", "norm2.bias [4]"].map(String::from),
        &["linear1.weight [16, 4]", "linear1.bias [16]", "linear2.weight [4, 16]", "linear2.bias [4]"]
            .map(String::from),
    ]
    .concat();
    let block: Vec<&str> = block.iter().map(String::as_str).collect();
    check(TransformerBlock::new(2), &[3, 4], &[3, 4], &block);
    let sized = ["in_proj_weight [18, 4]", "relative_attention_bias.weight [8, 2]", "out_proj.weight [4, 6]"];
    let layer = MultiHeadAttention::new(2).head_size(3).relative_positions(8, 20).no_bias();
    check(layer, &[3, 4], &[3, 4], &sized);
    let gated = [
        "norm1.weight [4]",
        "self_attn.in_proj_weight [12, 4]",
        "self_attn.out_proj.weight [4, 4]",
        "norm2.weight [4]",
        "gate.weight [5, 4]",
        "linear1.weight [5, 4]",
        "linear2.weight [4, 5]",
    ];
    let llama = TransformerBlock::new(2).rms_norm().gated().no_bias().activation(Activation::Silu).rotary();
    check(llama.hidden(5), &[3, 4], &[3, 4], &gated);
    let context = [
        "multihead_attn.in_proj_weight [12, 4]",
        "multihead_attn.in_proj_bias [12]",
        "multihead_attn.out_proj.weight [4, 4]",
        "multihead_attn.out_proj.bias [4]",
        "norm3.weight [4]",
        "norm3.bias [4]",
    ];
    let decoder = [&block[..8], &context, &block[8..]].concat();
    let layer = TransformerBlock::new(2).causal().cross_attention();
    let layer = crate::FromFn::new("decoder", move |cx, x| layer.decode(cx, x, &x.slice(1, 0..2), None));
    check(layer, &[3, 4], &[3, 4], &decoder);
}

#[test]
fn the_rest() {
    check(Residual::new(Dense::new(3)), &[3], &[3], &["inner.weight [3, 3]", "inner.bias [3]"]);
    let down = Residual::new(Dense::new(2).no_bias()).shortcut(Dense::new(2).no_bias());
    check(down, &[3], &[2], &["inner.weight [2, 3]", "shortcut.weight [2, 3]"]);
    let all =
        Sequential::new().add(Elu::default()).add(LeakyRelu::new(0.2)).add(Silu).add(Softplus).add(GeluTanh);
    check(all, &[7], &[7], &[]);
    check(PRelu::new(), &[3, 2], &[3, 2], &["weight [1]"]);
    check(PRelu::new(), &[], &[], &["weight [1]"]);
    check(PRelu::new().per_channel(), &[3, 2], &[3, 2], &["weight [3]"]);
    let more = Sequential::new().add(HardSwish).add(Mish).add(Selu).add(HardTanh::new(-0.4, 0.6));
    check(more, &[7], &[7], &[]);
    check(Sequential::new().add(LogSoftmax).add(HardSigmoid).add(Relu6), &[7], &[7], &[]);
    let layers = ["0.weight [2, 3]", "1.weight [4, 3]"];
    let [two, four] = [2, 4].map(|units| Dense::new(units).no_bias());
    check(Branches::concat(-1).add(two.clone()).add(four), &[3], &[6], &layers);
    check(
        Branches::sum().add(two).add(Dense::new(2).no_bias()),
        &[3],
        &[2],
        &["0.weight [2, 3]", "1.weight [2, 3]"],
    );
    let mut traced = trace(&Embedding::new(4, 2), Type::sample(&[3]).of(DType::I32), Mode::Train);
    assert_eq!(traced.names, ["weight [4, 2]"]);
    traced.check_gradients(&[1, 1], &Array::new(&[2, 3], vec![0.0, 3.0, 3.0, 1.0, 3.0, 0.0]));
}

/// The numbers are PyTorch's for `Embedding(4, 2, padding_idx=3)`: the row starts at 0 and has no gradient.
#[test]
fn the_row_of_padding_has_no_gradient() {
    let ids = Array::new(&[2, 3], vec![0.0, 3.0, 3.0, 1.0, 3.0, 0.0]);
    let outcome = |layer: &Embedding, mode| {
        let traced = trace(layer, Type::sample(&[3]).of(DType::I32), mode);
        (traced.states[0].data.clone(), traced.run(&[1, 1], &ids))
    };
    let (start, plain) = outcome(&Embedding::new(4, 2), Mode::Train);
    let (padded_start, padded) = outcome(&Embedding::new(4, 2).padding_idx(3), Mode::Train);
    assert_eq!(padded_start, [&start[..6], &[0.0; 2]].concat());
    let [all, some] = [&plain, &padded].map(|outcome| outcome.outputs["dweight"].data.clone());
    assert!(all[6..].iter().all(|x| *x != 0.0), "{all:?}");
    assert_eq!(some, [&all[..6], &[0.0; 2]].concat());
    // A table that is given stays as it is, and its row is what padding gives.
    let given = Initializer::Values((0..8).map(|x| x as f32).collect());
    let given = Embedding::new(4, 2).initializer(given).padding_idx(3);
    for mode in [Mode::Train, Mode::Evaluate] {
        let (start, outcome) = outcome(&given, mode);
        assert_eq!(start[6..], [6.0, 7.0]);
        assert_eq!(outcome.outputs["y"].data[2..4], [6.0, 7.0]);
    }
}
