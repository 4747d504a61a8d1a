//! Recipes that trace the public layers themselves, with the weights of a case in place of their parameters.

use std::sync::Arc;

use unisono::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AvgPool1d, AvgPool3d,
    Context, Conv1d, Conv2d, Conv3d, ConvLstm2d, ConvTranspose1d, ConvTranspose3d, Cropping2d, Dense,
    DepthwiseConv2d, Description, GlobalAvgPool1d, GlobalAvgPool3d, GlobalMaxPool1d, GlobalMaxPool2d,
    GlobalMaxPool3d, HardTanh, InstanceNorm, Layer, LayerScale, LocalResponseNorm, MaxPool1d, MaxPool3d,
    MixtureOfExperts, Mode, MultiHeadAttention, PRelu, Resize2d, SeparableConv2d, SpectralNorm,
    SqueezeExcite, TransformerBlock, Upsample2d, WeightNorm, ZeroPad2d,
};
use unisono_graph::Tape;

use super::{Case, Recipe, Vars};

/// Returns the recipe of a case that a layer computes, or `None` if the op has no layer here.
pub fn layer(case: &Case) -> Option<Recipe> {
    if case.op == "layer" {
        return described(case);
    }
    let layer: Arc<dyn Layer> = built(case)?.into();
    let parameters: &[(&str, &str)] = match case.op.as_str() {
        "separable_conv2d" => {
            &[("depthwise", "depthwise.weight"), ("pointwise", "pointwise.weight"), ("b", "pointwise.bias")]
        }
        "multi_head_attention" => &[
            ("w", "in_proj_weight"),
            ("b", "in_proj_bias"),
            ("out_w", "out_proj.weight"),
            ("out_b", "out_proj.bias"),
        ],
        "transformer_block" => &BLOCK,
        "layer_scale" => &[("w", "gamma")],
        "weight_norm" => &[("w", "weight"), ("g", "weight_g"), ("b", "bias")],
        "spectral_norm" => &[("w", "weight"), ("u", "weight_u"), ("b", "bias")],
        "conv_lstm2d" => &[("w_ih", "weight_ih"), ("w_hh", "weight_hh"), ("b", "bias")],
        "mixture_of_experts" => &EXPERTS,
        "squeeze_excite" => {
            &[("w1", "fc1.weight"), ("b1", "fc1.bias"), ("w2", "fc2.weight"), ("b2", "fc2.bias")]
        }
        _ => &[("w", "weight"), ("b", "bias")],
    };
    let mode = if case.attrs.get("training") == Some(&false.into()) { Mode::Evaluate } else { Mode::Train };
    let build = move |tape: &Tape, x: &Vars| {
        let mut cx = Context::new(tape, mode);
        let mut vars = Vars::from([("y".into(), layer.forward(&mut cx, &x["x"]))]);
        vars.extend(cx.parameters().iter().map(|p| (p.name.clone(), p.var.clone())));
        vars
    };
    let parameters = parameters.iter().map(|(role, own)| ((*role).to_owned(), (*own).to_owned())).collect();
    Some(Recipe { batched: &["x"], parameters, build: Box::new(build) })
}

/// Returns the recipe of a case whose attribute `layer` is a layer's description, with its tensors by name.
/// The inputs `mask` and `context` are for layers that take them.
fn described(case: &Case) -> Option<Recipe> {
    let description: Description = serde_json::from_value(case.attrs.get("layer")?.clone()).ok()?;
    let mode = if case.flag("training") { Mode::Train } else { Mode::Evaluate };
    let build = move |tape: &Tape, x: &Vars| {
        let (mut cx, input) = (Context::new(tape, mode), &x["x"]);
        let y = match (&description, x.get("mask")) {
            (Description::TransformerBlock(layer), mask) if x.contains_key("context") => {
                layer.decode(&mut cx, input, &x["context"], mask)
            }
            (_, None) => description.clone().layer().forward(&mut cx, input),
            (Description::Lstm(layer), mask) => layer.masked(&mut cx, input, mask),
            (Description::Gru(layer), mask) => layer.masked(&mut cx, input, mask),
            (Description::SimpleRnn(layer), mask) => layer.masked(&mut cx, input, mask),
            (Description::TransformerBlock(layer), mask) => layer.masked(&mut cx, input, mask),
            (Description::MultiHeadAttention(layer), mask) => layer.attend(&mut cx, input, input, mask),
            (_, Some(_)) => {
                cx.fail("mask", "this layer takes none".into());
                input.clone()
            }
        };
        let mut vars = Vars::from([("y".into(), y)]);
        vars.extend(cx.parameters().iter().map(|p| (p.name.clone(), p.var.clone())));
        vars
    };
    let tensors = case.inputs.keys().filter(|role| !["x", "gy", "mask", "context"].contains(&role.as_str()));
    let parameters = tensors.map(|name| (name.clone(), name.clone())).collect();
    Some(Recipe { batched: &["x", "mask", "context"], parameters, build: Box::new(build) })
}

/// The roles of the parameters of a mixture of four experts.
const EXPERTS: [(&str, &str); 9] = [
    ("router", "router.weight"),
    ("w0", "experts.0.weight"),
    ("b0", "experts.0.bias"),
    ("w1", "experts.1.weight"),
    ("b1", "experts.1.bias"),
    ("w2", "experts.2.weight"),
    ("b2", "experts.2.bias"),
    ("w3", "experts.3.weight"),
    ("b3", "experts.3.bias"),
];

/// The roles of a transformer block's parameters.
const BLOCK: [(&str, &str); 12] = [
    ("norm1_w", "norm1.weight"),
    ("norm1_b", "norm1.bias"),
    ("w", "self_attn.in_proj_weight"),
    ("b", "self_attn.in_proj_bias"),
    ("out_w", "self_attn.out_proj.weight"),
    ("out_b", "self_attn.out_proj.bias"),
    ("norm2_w", "norm2.weight"),
    ("norm2_b", "norm2.bias"),
    ("inner_w", "linear1.weight"),
    ("inner_b", "linear1.bias"),
    ("outer_w", "linear2.weight"),
    ("outer_b", "linear2.bias"),
];

fn built(case: &Case) -> Option<Box<dyn Layer>> {
    let number = |name: &str| case.number(name).map(|n| n as usize);
    Some(match case.op.as_str() {
        "conv1d" => {
            let layer = Conv1d::new(case.dims("w")[0], case.dims("w")[2]).stride(number("stride")?);
            let layer = layer.padding(number("padding")?).dilation(number("dilation")?);
            Box::new(layer.groups(number("groups")?))
        }
        "causal_conv1d" => {
            let layer = Conv1d::new(case.dims("w")[0], case.dims("w")[2]).stride(number("stride")?);
            Box::new(layer.dilation(number("dilation")?).causal())
        }
        "depthwise_conv2d" => {
            let kernel: [usize; 2] = case.dims("w").get(2..)?.try_into().ok()?;
            let layer = DepthwiseConv2d::new(kernel).multiplier(case.dims("w")[0] / case.dims("x")[1]);
            let layer = layer.stride(case.pair("stride")?).padding(case.pair("padding")?);
            Box::new(layer.dilation(case.pair("dilation")?))
        }
        "hard_tanh" => Box::new(HardTanh::new(case.number("low")? as f32, case.number("high")? as f32)),
        "multi_head_attention" => {
            let layer = MultiHeadAttention::new(number("heads")?);
            Box::new(if case.flag("causal") { layer.causal() } else { layer })
        }
        "transformer_block" => {
            Box::new(TransformerBlock::new(number("heads")?).hidden(case.dims("inner_b")[0]))
        }
        "separable_conv2d" => {
            let kernel: [usize; 2] = case.dims("depthwise").get(2..)?.try_into().ok()?;
            let multiplier = case.dims("depthwise")[0] / case.dims("x")[1];
            let layer = SeparableConv2d::new(case.dims("pointwise")[0], kernel).multiplier(multiplier);
            Box::new(layer.stride(case.pair("stride")?).padding(case.pair("padding")?))
        }
        "max_pool1d" => {
            let layer = MaxPool1d::new(number("kernel")?).stride(number("stride")?);
            Box::new(layer.padding(number("padding")?))
        }
        "avg_pool1d" => {
            let layer = AvgPool1d::new(number("kernel")?).stride(number("stride")?);
            let layer = layer.padding(number("padding")?);
            Box::new(if case.flag("count_include_pad") { layer.count_include_pad() } else { layer })
        }
        "global_max_pool2d" => Box::new(GlobalMaxPool2d),
        "global_avg_pool1d" => Box::new(GlobalAvgPool1d),
        "global_max_pool1d" => Box::new(GlobalMaxPool1d),
        "adaptive_avg_pool1d" => Box::new(AdaptiveAvgPool1d::new(number("size")?)),
        "adaptive_max_pool1d" => Box::new(AdaptiveMaxPool1d::new(number("size")?)),
        "adaptive_max_pool2d" => Box::new(AdaptiveMaxPool2d::new(case.pair("size")?)),
        "adaptive_avg_pool2d" => Box::new(AdaptiveAvgPool2d::new(case.pair("size")?)),
        "upsample" => {
            let layer = Upsample2d::new(case.pair("factor")?);
            Box::new(if case.text("mode") == Some("bilinear") { layer.bilinear() } else { layer })
        }
        "conv_transpose1d" => {
            let kernel = case.dims("w")[2];
            let groups = number("groups")?;
            let layer = ConvTranspose1d::new(case.dims("w")[1] * groups, kernel).groups(groups);
            let layer =
                layer.stride(number("stride")?).padding(number("padding")?).dilation(number("dilation")?);
            Box::new(layer.output_padding(number("output_padding")?))
        }
        "resize2d" => {
            let layer = Resize2d::new(case.pair("size")?);
            let layer = match case.text("mode")? {
                "bilinear" => layer.bilinear(),
                "bicubic" => layer.bicubic(),
                _ => layer,
            };
            Box::new(if case.flag("align_corners") { layer.align_corners() } else { layer })
        }
        "layer_scale" => Box::new(LayerScale::new(1.0)),
        "squeeze_excite" => Box::new(SqueezeExcite::new(case.dims("b1")[0])),
        "border" => border(case)?,
        "prelu" => Box::new(if case.dims("w") == [1] { PRelu::new() } else { PRelu::new().per_channel() }),
        "instance_norm" => {
            let layer = InstanceNorm::new().epsilon(case.number("eps")? as f32);
            Box::new(if case.inputs.contains_key("w") { layer.affine() } else { layer })
        }
        _ => return more(case),
    })
}

/// Returns the layer of a case of volumes, films and weights that are computed.
fn more(case: &Case) -> Option<Box<dyn Layer>> {
    let number = |name: &str| case.number(name);
    let three = |name: &str| -> Option<[usize; 3]> {
        let numbers: [f64; 3] = case.numbers(name)?.try_into().ok()?;
        Some(numbers.map(|n| n as usize))
    };
    let kernel = |role: &str| -> Option<[usize; 3]> { case.dims(role).get(2..)?.try_into().ok() };
    Some(match case.op.as_str() {
        "conv3d" => {
            let layer = Conv3d::new(case.dims("w")[0], kernel("w")?).groups(number("groups")? as usize);
            let layer = layer.stride(three("stride")?).padding(three("padding")?);
            Box::new(layer.dilation(three("dilation")?))
        }
        "conv_transpose3d" => {
            let groups = number("groups")? as usize;
            let layer = ConvTranspose3d::new(case.dims("w")[1] * groups, kernel("w")?).groups(groups);
            let layer = layer.stride(three("stride")?).padding(three("padding")?);
            Box::new(layer.dilation(three("dilation")?).output_padding(three("output_padding")?))
        }
        "max_pool3d" => {
            let layer = MaxPool3d::new(three("kernel")?).stride(three("stride")?);
            Box::new(layer.padding(three("padding")?))
        }
        "avg_pool3d" => {
            let layer = AvgPool3d::new(three("kernel")?).stride(three("stride")?);
            let layer = layer.padding(three("padding")?);
            Box::new(if case.flag("count_include_pad") { layer.count_include_pad() } else { layer })
        }
        "global_avg_pool3d" => Box::new(GlobalAvgPool3d),
        "global_max_pool3d" => Box::new(GlobalMaxPool3d),
        "local_response_norm" => {
            let layer = LocalResponseNorm::new(number("size")? as usize).alpha(number("alpha")? as f32);
            Box::new(layer.beta(number("beta")? as f32).k(number("k")? as f32))
        }
        "weight_norm" => {
            let kernel: [usize; 2] = case.dims("w").get(2..)?.try_into().ok()?;
            Box::new(WeightNorm::new(Conv2d::new(case.dims("w")[0], kernel)))
        }
        "spectral_norm" => Box::new(SpectralNorm::new(Dense::new(case.dims("w")[0]))),
        "conv_lstm2d" => {
            let kernel: [usize; 2] = case.dims("w_hh").get(2..)?.try_into().ok()?;
            Box::new(ConvLstm2d::new(case.dims("w_hh")[1], kernel))
        }
        "mixture_of_experts" => {
            let mut layer = MixtureOfExperts::new(number("k")? as usize);
            for _ in 0..4 {
                layer = layer.add(Dense::new(case.dims("b0")[0]));
            }
            Box::new(if case.flag("keep") { layer.keep_probabilities() } else { layer })
        }
        _ => return None,
    })
}

/// Returns padding, or cropping where the numbers are negative.
fn border(case: &Case) -> Option<Box<dyn Layer>> {
    let pair = |name: &str| -> Option<[f64; 2]> { case.numbers(name)?.try_into().ok() };
    let (rows, columns) = (pair("rows")?, pair("columns")?);
    let sides = |pair: [f64; 2]| pair.map(|n| n.abs() as usize);
    let cropped = rows.iter().chain(&columns).any(|&n| n < 0.0);
    Some(if cropped {
        Box::new(Cropping2d::sides(sides(rows), sides(columns)))
    } else {
        Box::new(ZeroPad2d::sides(sides(rows), sides(columns)))
    })
}
