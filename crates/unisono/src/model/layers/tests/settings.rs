//! Settings that cannot work are errors that name layer and setting, from code and from a description alike.

use unisono_graph::{DType, Tape, Type};

use super::super::*;
use crate::model::context::Mode;
use crate::{Context, Layer};

/// Returns the error of tracing a layer, without and with its way through JSON.
fn errors(layer: Box<dyn Layer>, input: &Type) -> Vec<String> {
    let json = serde_json::to_string(&layer.description().unwrap()).unwrap();
    // JSON has no numbers that are not finite.
    let again = serde_json::from_str::<Description>(&json).ok().map(Description::layer);
    let trace = |layer: Box<dyn Layer>| {
        let tape = Tape::new();
        let mut cx = Context::new(&tape, Mode::Train);
        let x = tape.input("x", input.clone());
        cx.apply("0", &layer, &x);
        tape.finish().map_or_else(|error| error.to_string(), |_| format!("{json} is taken"))
    };
    std::iter::once(layer).chain(again).map(trace).collect()
}

fn check(input: Type, cases: Vec<(Box<dyn Layer>, &str)>) {
    for (layer, problem) in cases {
        let name = layer.name().to_string();
        for error in errors(layer, &input) {
            assert!(
                error.contains(&format!("0.{name}: ")) && error.contains(problem),
                "{problem:?}: {error}"
            );
        }
    }
}

#[test]
fn features() {
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Dense::new(0)), "dense: units is 0, and must be at least 1"),
        (Box::new(Dense::new(usize::MAX)), "[18446744073709551615, 12] has more than 2^48 elements"),
        (Box::new(Dense::new(1 << 62)), "more than 2^48 elements"),
        (Box::new(Dropout::new(f32::NAN)), "dropout: rate is NaN, and must be in [0, 1)"),
        (Box::new(Dropout::new(1.0)), "rate is 1, and must be in [0, 1)"),
        (Box::new(Dropout::new(-0.1)), "rate is -0.1, and must be in [0, 1)"),
        (Box::new(BatchNorm::new().momentum(f32::NAN)), "batch_norm: momentum is NaN"),
        (Box::new(BatchNorm::new().momentum(-0.1)), "momentum is -0.1, and must be in [0, 1]"),
        (Box::new(BatchNorm::new().momentum(1.5)), "momentum is 1.5, and must be in [0, 1]"),
        (Box::new(BatchNorm::new().epsilon(f32::INFINITY)), "batch_norm: epsilon is inf"),
        (Box::new(LayerNorm::new().epsilon(f32::NAN)), "layer_norm: epsilon is NaN"),
        (Box::new(LayerNorm::new().axes(usize::MAX)), "layer_norm: "),
        (Box::new(RmsNorm::new().epsilon(-1e-5)), "rms_norm: epsilon is -0.00001"),
        (Box::new(GroupNorm::new(0)), "group_norm: groups is 0, and must be at least 1"),
        (Box::new(GroupNorm::new(2).epsilon(f32::NAN)), "group_norm: epsilon is NaN"),
        (Box::new(Elu::new(f32::NAN)), "elu: alpha is NaN, and must be finite"),
        (Box::new(LeakyRelu::new(f32::INFINITY)), "leaky_relu: slope is inf, and must be finite"),
        (Box::new(PRelu::new().slope(f32::NAN)), "p_relu: slope is NaN, and must be finite"),
        (Box::new(HardTanh::new(1.0, 1.0)), "hard_tanh: low is 1, and must be below high, 1"),
        (Box::new(HardTanh::new(0.0, f32::INFINITY)), "hard_tanh: high is inf, and must be finite"),
        (Box::new(GaussianNoise::new(-0.1)), "gaussian_noise: deviation is -0.1"),
        (Box::new(InstanceNorm::new()), "instance_norm: needs channels of pixels, got [B, 12]"),
        (Box::new(Branches::sum()), "branches: there are no layers"),
        (
            Box::new(Branches::sum().add(Dense::new(2)).add(Dense::new(3))),
            "[B, 2] and [B, 3] cannot be added",
        ),
    ];
    check(Type::sample(&[12]), cases);
    check(Type::sample(&[0]), vec![(Box::new(Dense::new(3)), "the number of input features is 0")]);
}

#[test]
fn ids() {
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Embedding::new(4, 0)), "embedding: width is 0, and must be at least 1"),
        (Box::new(Embedding::new(0, 4)), "embedding: rows is 0, and must be at least 1"),
        (Box::new(Embedding::new(usize::MAX, 2)), "more than 2^48 elements"),
        (Box::new(Embedding::new(4, 2).padding_idx(4)), "embedding: padding_idx is 4, and must be below 4"),
    ];
    check(Type::sample(&[5]).of(DType::I32), cases);
}

#[test]
fn sequences() {
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Lstm::new(0)), "lstm: units is 0, and must be at least 1"),
        (Box::new(Lstm::new(usize::MAX)), "lstm: units is 18446744073709551615, and must be at most"),
        (Box::new(Gru::new(2).layers(usize::MAX)), "gru: layers is 18446744073709551615"),
        (Box::new(Gru::new(2).dropout(f32::NAN)), "gru: dropout is NaN, and must be in [0, 1)"),
        (Box::new(Lstm::new(2).layers(2).dropout(1.5)), "lstm: dropout is 1.5, and must be in [0, 1)"),
        (Box::new(MultiHeadAttention::new(0)), "multi_head_attention: "),
        (
            Box::new(MultiHeadAttention::new(4).kv_heads(3)),
            "3 heads of keys and values do not divide 4 heads",
        ),
        (
            Box::new(MultiHeadAttention::new(2).kv_heads(0)),
            "0 heads of keys and values do not divide 2 heads",
        ),
        (Box::new(MultiHeadAttention::new(4).rotary()), "a head has 1: an odd number"),
        (Box::new(MultiHeadAttention::new(2).rotary_base(1.0)), "the base of rotary positions is 1"),
        (Box::new(SimpleRnn::new(0)), "simple_rnn: units is 0, and must be at least 1"),
        (Box::new(Conv1d::new(0, 3)), "conv1d: channels is 0, and must be at least 1"),
        (Box::new(Conv1d::new(3, 0)), "kernel is 0, and must be at least 1"),
        (Box::new(Conv1d::new(3, 2).stride(0)), "stride is 0, and must be at least 1"),
        (Box::new(Conv1d::new(3, 2).dilation(0)), "dilation is 0, and must be at least 1"),
        (Box::new(Conv1d::new(3, 2).groups(0)), "groups is 0, and must be at least 1"),
        (Box::new(Conv1d::new(3, 2).groups(2)), "do not fit in 2 groups"),
        (Box::new(Conv1d::new(3, usize::MAX)), "no place for windows"),
        (Box::new(Conv1d::new(3, usize::MAX).causal()), "are too many"),
        (Box::new(Conv1d::new(3, 2).padding(usize::MAX)), "no place for windows"),
        (Box::new(MaxPool1d::new(0)), "kernel is 1 x 0, and must be at least 1 x 1"),
        (Box::new(AvgPool1d::new(2).stride(0)), "stride is 1 x 0, and must be at least 1 x 1"),
        (Box::new(MaxPool1d::new(2).padding(2)), "is above half of"),
        (Box::new(TransformerBlock::new(2).dropout(f32::NAN)), "transformer_block: dropout is NaN"),
    ];
    check(Type::sample(&[3, 4]), cases);
}

#[test]
fn images() {
    const MOST: usize = usize::MAX;
    let conv = || Conv2d::new(4, 3);
    let back = || ConvTranspose2d::new(4, 3);
    let zero = |setting: &str| format!("{setting} is 0 x 0, and must be at least 1 x 1");
    let [kernel, stride, dilation] = ["kernel", "stride", "dilation"].map(zero);
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Conv2d::new(0, 3)), "channels is 0, and must be at least 1"),
        (Box::new(Conv2d::new(4, 0)), &kernel),
        (Box::new(conv().stride(0)), &stride),
        (Box::new(conv().dilation(0)), &dilation),
        (Box::new(conv().groups(0)), "groups is 0, and must be at least 1"),
        (Box::new(conv().padding(MOST)), "no place for windows"),
        (Box::new(conv().padding(MOST / 2)), "no place for windows"),
        (Box::new(conv().padding(MOST / 4)), "are too many"),
        (Box::new(Conv2d::new(4, MOST).padding(MOST)), "no place for windows"),
        (Box::new(conv().dilation(MOST)), "no place for windows"),
        (Box::new(conv().stride(MOST).padding(MOST)), "no place for windows"),
        (Box::new(Conv2d::new(MOST, 3)), "more than 2^48 elements"),
        (Box::new(ConvTranspose2d::new(0, 3)), "channels is 0, and must be at least 1"),
        (Box::new(ConvTranspose2d::new(4, 0)), &kernel),
        (Box::new(back().stride(0)), &stride),
        (Box::new(back().dilation(0)), &dilation),
        (Box::new(back().groups(0)), "groups is 0, and must be at least 1"),
        (Box::new(back().padding(MOST)), "leaves nothing, or more than can be counted"),
        (Box::new(back().stride(MOST)), "leaves nothing, or more than can be counted"),
        (Box::new(back().dilation(MOST)), "leaves nothing, or more than can be counted"),
        (Box::new(back().output_padding(1)), "output_padding is [1, 1], and must be below the stride [1, 1]"),
        (Box::new(back().stride(MOST / 8)), ""),
        (Box::new(back().dilation(MOST / 8)), ""),
        (Box::new(MaxPool2d::new(0)), &kernel),
        (Box::new(MaxPool2d::new(2).stride(0)), &stride),
        (Box::new(MaxPool2d::new(2).padding(MOST)), "no place for windows"),
        (Box::new(MaxPool2d::new(2).padding(1 << 63)), "no place for windows"),
        (Box::new(MaxPool2d::new(MOST)), "no place for windows"),
        (Box::new(AvgPool2d::new(0)), &kernel),
        (Box::new(AvgPool2d::new(2).stride(0)), &stride),
        (Box::new(AvgPool2d::new(2).padding(MOST)), "no place for windows"),
        (Box::new(AvgPool2d::new(1 << 62).padding(1 << 61)), "too many"),
        (Box::new(DepthwiseConv2d::new(0)), &kernel),
        (Box::new(DepthwiseConv2d::new(3).stride(0)), &stride),
        (Box::new(DepthwiseConv2d::new(3).multiplier(0)), "multiplier is 0, and must be at least 1"),
        (Box::new(DepthwiseConv2d::new(3).multiplier(MOST)), "filters for each of 4 channels"),
        (Box::new(LocalResponseNorm::new(0)), "size is 0, and must be at least 1"),
        (Box::new(LocalResponseNorm::new(2).k(0.0)), "k is 0, and must be finite and above 0"),
        (Box::new(LocalResponseNorm::new(2).alpha(-1.0)), "alpha is -1"),
        (Box::new(SpectralNorm::new(Relu).iterations(0)), "iterations is 0, and must be in 1..=100"),
        (Box::new(MixtureOfExperts::new(1)), "there are no experts: add them"),
        (Box::new(MixtureOfExperts::new(0).add(Relu)), "k is 0, and must be from 1 to 1"),
        (Box::new(MixtureOfExperts::new(1).add(Relu).add(Dense::new(3))), "expert 1 gives [B, 4, 8, 3]"),
        (Box::new(MixtureOfExperts::new(1).add(Flatten)), "expert 0 gives [B, 256] for [B, 4, 8, 8]"),
        (Box::new(MixtureOfExperts::new(1).add(Relu).balance(-1.0)), "balance is -1"),
        (Box::new(Upsample2d::new(0)), "factor is 0 x 0, and must be from 1 x 1 to 1024 x 1024"),
        (Box::new(Upsample2d::new([1, MOST]).bilinear()), "and must be from 1 x 1 to 1024 x 1024"),
        (Box::new(AdaptiveAvgPool2d::new([3, 0])), "size is 3 x 0, and must be from 1 x 1 to 1024 x 1024"),
        (Box::new(ZeroPad2d::new(MOST)), "rows or columns of zeros are too many"),
        (Box::new(Cropping2d::new(4)), "nothing is left of 8 x 8"),
        (Box::new(Cropping2d::new(MOST)), "nothing is left of 8 x 8"),
    ];
    check(Type::sample(&[4, 8, 8]), cases);
}

#[test]
fn layers_of_volumes() {
    const MOST: usize = usize::MAX;
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Conv3d::new(0, 3)), "channels is 0, and must be at least 1"),
        (Box::new(Conv3d::new(4, [1, 0, 1])), "kernel is 1 x 0 x 1, and must be at least 1 x 1 x 1"),
        (Box::new(Conv3d::new(4, 3).stride(0)), "stride is 0 x 0 x 0"),
        (Box::new(Conv3d::new(4, 3).dilation([1, 1, 0])), "dilation is 1 x 1 x 0"),
        (Box::new(Conv3d::new(4, 3).groups(0)), "groups is 0, and must be at least 1"),
        (Box::new(Conv3d::new(4, 3).groups(4)), "2 channels do not fit in 4 groups"),
        (Box::new(Conv3d::new(4, 7)), "in a volume of [3, 4, 5]"),
        (Box::new(Conv3d::new(4, 3).padding(MOST)), "volume of [3, 4, 5]"),
        (Box::new(Conv3d::new(MOST, 3)), "more than 2^48 elements"),
        (
            Box::new(ConvTranspose3d::new(4, 3).output_padding(1)),
            "output_padding is [1, 1, 1], and must be below the stride [1, 1, 1]",
        ),
        (Box::new(ConvTranspose3d::new(4, 1).padding(2)), "leaves nothing"),
        (Box::new(ConvTranspose3d::new(4, 3).stride(MOST / 8)), "more than can be counted"),
        (Box::new(MaxPool3d::new(0)), "kernel is 0 x 0 x 0"),
        (Box::new(MaxPool3d::new(2).stride(0)), "stride is 0 x 0 x 0"),
        (Box::new(MaxPool3d::new(2).padding(2)), "padding [2, 2, 2] is above half of [2, 2, 2]"),
        (Box::new(AvgPool3d::new(9)), "in a volume of [3, 4, 5]"),
        (Box::new(ConvLstm2d::new(0, 3)), "channels is 0, and must be at least 1"),
        (Box::new(ConvLstm2d::new(2, [3, 2])), "kernel is 3 x 2, and must be odd"),
    ];
    check(Type::sample(&[2, 3, 4, 5]), cases);
    let cases: Vec<(Box<dyn Layer>, &str)> = vec![
        (Box::new(Conv3d::new(4, 3)), "needs volumes [B, channels, depth, height, width], got [B, 2, 3, 4]"),
        (Box::new(GlobalMaxPool3d), "needs volumes"),
        (Box::new(ConvLstm2d::new(2, 3)), "needs [B, steps, channels, height, width] of 1 to 1024 steps"),
    ];
    check(Type::sample(&[2, 3, 4]), cases);
}
