//! MobileNetV2 (Sandler et al. 2018), with torchvision's names. Directories of transformers'
//! `MobileNetV2ForImageClassification` are opened too.

use unisono::checkpoint::{Plan, Tensors};
use unisono::graph::Type;
use unisono::{
    BatchNorm, Context, Conv2d, Dense, DepthwiseConv2d, GlobalAvgPool2d, INPUT, Inputs, Layer, Var, ZeroPad2d,
};

use super::Architecture;
use super::shapes::Shapes;
use crate::config::Config;

/// MobileNetV2: images `[B, C, H, W]` to logits `[B, classes]`.
#[derive(Clone, Debug)]
pub struct MobileNetV2 {
    channels: usize,
    image: usize,
    stem: usize,
    blocks: Vec<Block>,
    last: usize,
    classes: usize,
    epsilon: f32,
    momentum: f32,
    /// Whether zeros are put around images as TensorFlow does: more of them below and on the right.
    uneven: bool,
}

/// An inverted residual block.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The channels inside, or none if the block does not expand.
    hidden: Option<usize>,
    channels: usize,
    stride: usize,
    /// Whether the block's input is added, where it has the shape of the result.
    adds: bool,
}

/// The channels of the paper's blocks, and their strides.
const CHANNELS: [usize; 17] = [16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320];
const STRIDES: [usize; 17] = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];

impl Architecture for MobileNetV2 {
    const MODEL_TYPE: &'static str = "mobilenet_v2";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[
            ("hidden_act", "relu6".into()),
            ("first_layer_is_expansion", true.into()),
            ("output_stride", 32.into()),
        ])?;
        let times = config.number_or("depth_multiplier", 1.0)?;
        let (by, least) = (config.size_or("depth_divisible_by", 8)?, config.size_or("min_depth", 8)?);
        let wide = |channels: usize| divisible((channels as f32 * times).round_ties_even(), by, least);
        let expand = config.number_or("expand_ratio", 6.0)?;
        let mut from = wide(CHANNELS[0]);
        // transformers counts the first block as a part of the stem, and adds nothing there.
        let mut blocks = vec![Block { hidden: None, channels: from, stride: 1, adds: false }];
        for (&channels, &stride) in CHANNELS.iter().zip(&STRIDES).skip(1) {
            let hidden = divisible((from as f32 * expand).round_ties_even(), by, least);
            from = wide(channels);
            blocks.push(Block { hidden: Some(hidden), channels: from, stride, adds: true });
        }
        let is_fine = config.flag_or("finegrained_output", true)? && times < 1.0;
        Ok(Self {
            channels: config.size_or("num_channels", 3)?,
            image: config.size_or("image_size", 224)?,
            stem: wide(32),
            blocks,
            last: if is_fine { 1280 } else { wide(1280) },
            classes: config.labels()?,
            epsilon: config.number_or("layer_norm_eps", 1e-3)?,
            // transformers gives TensorFlow's number to PyTorch, where it means the opposite.
            momentum: 0.997,
            uneven: config.flag_or("tf_padding", true)?,
        })
    }

    fn foreign(config: &Config, tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        if config.text_or("model_type", "")? == Self::MODEL_TYPE {
            return Ok(Some((Self::new(config)?, transformers())));
        }
        let shapes = Shapes(tensors);
        if !shapes.has("features.1.conv.0.0.weight") || !shapes.has("classifier.1.weight") {
            return Ok(None);
        }
        let of = |name: &str| Ok::<_, String>(shapes.of::<4>(name)?[0]);
        let [stem, channels, ..] = shapes.of::<4>("features.0.0.weight")?;
        let count = shapes.count("features.*.conv.0.0.weight");
        if count != STRIDES.len() {
            return Err(format!("there are {count} blocks, and a MobileNetV2 has {}", STRIDES.len()));
        }
        let block = |(at, &stride): (usize, &usize)| {
            let path = format!("features.{}.conv", at + 1);
            let expands = shapes.has(&format!("{path}.3.weight"));
            let hidden = if expands { Some(of(&format!("{path}.0.0.weight"))?) } else { None };
            let channels = of(&format!("{path}.{}.weight", if expands { 2 } else { 1 }))?;
            Ok::<_, String>(Block { hidden, channels, stride, adds: true })
        };
        let blocks = STRIDES.iter().enumerate().map(block).collect::<Result<_, _>>()?;
        let [classes, last] = shapes.of::<2>("classifier.1.weight")?;
        let (epsilon, momentum, uneven, image) = (1e-5, 0.1, false, 224);
        let found = Self { channels, image, stem, blocks, last, classes, epsilon, momentum, uneven };
        Ok(Some((found, Plan::new())))
    }

    /// Images of other sizes fit too.
    fn input(&self) -> Type {
        Type::sample(&[self.channels, self.image, self.image])
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let h = cx.within("features", "features", |cx| {
            let mut h = self.conv(cx, ["0.0", "0.1"], &x[INPUT], [self.stem, 3, 2]).relu6();
            for (at, block) in self.blocks.iter().enumerate() {
                h = cx.within(&format!("{}.conv", at + 1), "block", |cx| self.block(cx, &h, block));
            }
            let end = self.blocks.len() + 1;
            let names = [0, 1].map(|part| format!("{end}.{part}"));
            self.conv(cx, [&names[0], &names[1]], &h, [self.last, 1, 1]).relu6()
        });
        let pooled = cx.apply("pool", &GlobalAvgPool2d, &h);
        cx.apply("classifier.1", &Dense::new(self.classes), &pooled)
    }

    fn name(&self, in_file: &str) -> Option<String> {
        (!in_file.ends_with(".num_batches_tracked")).then(|| in_file.to_owned())
    }
}

impl MobileNetV2 {
    /// Expands the channels, filters each of them, and joins them again.
    fn block(&self, cx: &mut Context, x: &Var, block: &Block) -> Var {
        let Block { hidden, channels, stride, adds } = *block;
        let (mut h, mut at) = (x.clone(), 0);
        if let Some(hidden) = hidden {
            h = self.conv(cx, ["0.0", "0.1"], &h, [hidden, 1, 1]).relu6();
            at = 1;
        }
        let depthwise = DepthwiseConv2d::new(3).stride(stride).no_bias();
        let depthwise = if self.uneven { depthwise } else { depthwise.padding(1) };
        let names = [format!("{at}.0"), format!("{at}.1"), format!("{}", at + 1), format!("{}", at + 2)];
        h = self.normed(cx, [&names[0], &names[1]], &h, (&depthwise, 3, stride)).relu6();
        h = self.conv(cx, [&names[2], &names[3]], &h, [channels, 1, 1]);
        if adds && stride == 1 && x.dims() == h.dims() { x + h } else { h }
    }

    /// Applies a convolution without bias and its norm.
    fn conv(
        &self,
        cx: &mut Context,
        names: [&str; 2],
        x: &Var,
        [channels, kernel, stride]: [usize; 3],
    ) -> Var {
        let conv = Conv2d::new(channels, kernel).stride(stride).no_bias();
        let conv = if self.uneven { conv } else { conv.padding(kernel / 2) };
        self.normed(cx, names, x, (&conv, kernel, stride))
    }

    fn normed(
        &self,
        cx: &mut Context,
        [conv, norm]: [&str; 2],
        x: &Var,
        (layer, kernel, stride): (&dyn Layer, usize, usize),
    ) -> Var {
        let x = if self.uneven { same(cx, x, kernel, stride) } else { x.clone() };
        let y = cx.apply(conv, layer, &x);
        cx.apply(norm, &BatchNorm::new().epsilon(self.epsilon).momentum(self.momentum), &y)
    }
}

/// Pads images as TensorFlow's "same" does.
fn same(cx: &mut Context, x: &Var, kernel: usize, stride: usize) -> Var {
    let &[_, rows, columns] = x.dims() else { return x.clone() };
    let sides = |size: usize| {
        let last = if size.is_multiple_of(stride) { stride } else { size % stride };
        let all = kernel.saturating_sub(last);
        [all / 2, all - all / 2]
    };
    if kernel == 1 { x.clone() } else { cx.apply("pad", &ZeroPad2d::sides(sides(rows), sides(columns)), x) }
}

/// Rounds channels to a multiple, by no more than a tenth down.
fn divisible(channels: f32, by: usize, least: usize) -> usize {
    let rounded = ((channels + by as f32 / 2.0) as usize / by * by).max(least);
    if (rounded as f32) < 0.9 * channels { rounded + by } else { rounded }
}

/// Returns the way from transformers' names to torchvision's.
fn transformers() -> Plan {
    let conv = |plan: Plan, from: &str, conv: String, norm: String| {
        plan.rename(&format!("mobilenet_v2.{from}.convolution.*"), &format!("features.{conv}.*"))
            .rename(&format!("mobilenet_v2.{from}.normalization.*"), &format!("features.{norm}.*"))
    };
    let mut plan = conv(Plan::new(), "conv_stem.first_conv", "0.0".into(), "0.1".into());
    plan = conv(plan, "conv_stem.conv_3x3", "1.conv.0.0".into(), "1.conv.0.1".into());
    plan = conv(plan, "conv_stem.reduce_1x1", "1.conv.1".into(), "1.conv.2".into());
    for layer in 0..STRIDES.len() - 1 {
        let to = layer + 2;
        plan = conv(
            plan,
            &format!("layer.{layer}.expand_1x1"),
            format!("{to}.conv.0.0"),
            format!("{to}.conv.0.1"),
        );
        plan = conv(
            plan,
            &format!("layer.{layer}.conv_3x3"),
            format!("{to}.conv.1.0"),
            format!("{to}.conv.1.1"),
        );
        plan =
            conv(plan, &format!("layer.{layer}.reduce_1x1"), format!("{to}.conv.2"), format!("{to}.conv.3"));
    }
    let end = STRIDES.len() + 1;
    plan = conv(plan, "conv_1x1", format!("{end}.0"), format!("{end}.1"));
    plan.rename("classifier.*", "classifier.1.*")
}
