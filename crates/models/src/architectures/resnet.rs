//! ResNet-18, 34 and 50 (He et al. 2016), as transformers' `ResNetForImageClassification`. Files with
//! torchvision's names, which timm uses too, are opened as well.

use unisono::checkpoint::{Plan, Tensors};
use unisono::graph::Type;
use unisono::{BatchNorm, Context, Conv2d, Dense, GlobalAvgPool2d, INPUT, Inputs, MaxPool2d, Var};

use super::shapes::Shapes;
use super::{Architecture, prefixed};
use crate::config::{Config, MOST_LAYERS};

/// A ResNet that classifies images `[B, C, H, W]` to logits `[B, classes]`.
#[derive(Clone, Debug)]
pub struct ResNet {
    channels: usize,
    stem: usize,
    widths: Vec<usize>,
    depths: Vec<usize>,
    bottleneck: bool,
    classes: usize,
}

impl Architecture for ResNet {
    const MODEL_TYPE: &'static str = "resnet";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[
            ("hidden_act", "relu".into()),
            ("downsample_in_first_stage", false.into()),
            ("downsample_in_bottleneck", false.into()),
        ])?;
        let bottleneck = match config.text_or("layer_type", "bottleneck")? {
            "basic" => false,
            "bottleneck" => true,
            other => return Err(format!("layer_type is {other:?}; known are basic and bottleneck")),
        };
        let (widths, depths) = (config.sizes("hidden_sizes")?, config.sizes("depths")?);
        if widths.len() != depths.len() {
            return Err(format!("hidden_sizes has {} stages, and depths {}", widths.len(), depths.len()));
        }
        if depths.iter().any(|depth| *depth > MOST_LAYERS) {
            return Err(format!("depths is {depths:?}, and a stage has at most {MOST_LAYERS} blocks"));
        }
        Ok(Self {
            channels: config.size_or("num_channels", 3)?,
            stem: config.size("embedding_size")?,
            widths,
            depths,
            bottleneck,
            classes: config.labels()?,
        })
    }

    fn foreign(config: &Config, tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        let shapes = Shapes(tensors);
        if !shapes.has("conv1.weight") || !shapes.has("layer1.0.conv1.weight") {
            return Ok(None);
        }
        // These variants have a plain ResNet's tensor names and shapes, but blur where it uses strides.
        let name = config.text_or("architecture", "")?;
        if ["resnetaa", "resnetblur"].iter().any(|blurred| name.starts_with(blurred)) {
            return Err(format!("architecture is {name:?}, but only plain ResNets are supported"));
        }
        let [stem, channels, ..] = shapes.of::<4>("conv1.weight")?;
        let bottleneck = shapes.has("layer1.0.conv3.weight");
        let stages = shapes.count("layer*.0.conv1.weight");
        let last = if bottleneck { 3 } else { 2 };
        let width = |stage: usize| Ok(shapes.of::<4>(&format!("layer{stage}.0.conv{last}.weight"))?[0]);
        let widths = (1..=stages).map(width).collect::<Result<_, String>>()?;
        let depths =
            (1..=stages).map(|stage| shapes.count(&format!("layer{stage}.*.conv1.weight"))).collect();
        let [classes, _] = shapes.of::<2>("fc.weight")?;
        let found = Self { channels, stem, widths, depths, bottleneck, classes };
        Ok(Some((found, torchvision(stages))))
    }

    /// Images of 224 pixels are what the originals were trained on. Others fit too.
    fn input(&self) -> Type {
        Type::sample(&[self.channels, 224, 224])
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let x = &x[INPUT];
        let stem = conv(cx, "resnet.embedder.embedder", x, [self.stem, 7, 2]).relu();
        let mut h = cx.apply("pool", &MaxPool2d::new(3).stride(2).padding(1), &stem);
        for (stage, (&width, &depth)) in self.widths.iter().zip(&self.depths).enumerate() {
            for layer in 0..depth {
                let stride = if stage > 0 && layer == 0 { 2 } else { 1 };
                let path = format!("resnet.encoder.stages.{stage}.layers.{layer}");
                h = cx.within(&path, "block", |cx| self.block(cx, &h, width, stride));
            }
        }
        let pooled = cx.apply("pooler", &GlobalAvgPool2d, &h);
        cx.apply("classifier.1", &Dense::new(self.classes), &pooled)
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_counter = in_file.ends_with(".num_batches_tracked");
        (!is_counter).then(|| prefixed(in_file, "resnet.", &["classifier."]))
    }
}

impl ResNet {
    fn block(&self, cx: &mut Context, x: &Var, width: usize, stride: usize) -> Var {
        let widens = stride != 1 || x.dims().first() != Some(&width);
        let around = if widens { conv(cx, "shortcut", x, [width, 1, stride]) } else { x.clone() };
        let inner = if self.bottleneck {
            let h = conv(cx, "layer.0", x, [width / 4, 1, 1]).relu();
            let h = conv(cx, "layer.1", &h, [width / 4, 3, stride]).relu();
            conv(cx, "layer.2", &h, [width, 1, 1])
        } else {
            let h = conv(cx, "layer.0", x, [width, 3, stride]).relu();
            conv(cx, "layer.1", &h, [width, 3, 1])
        };
        (inner + around).relu()
    }
}

/// Returns the way from torchvision's names to transformers'.
fn torchvision(stages: usize) -> Plan {
    let stem = "resnet.embedder.embedder";
    let mut plan = Plan::new()
        .rename("conv1.weight", &format!("{stem}.convolution.weight"))
        .rename("bn1.*", &format!("{stem}.normalization.*"))
        .rename("fc.*", "classifier.1.*");
    for stage in 1..=stages {
        let to = format!("resnet.encoder.stages.{}.layers.*", stage - 1);
        for layer in 1..=3 {
            let inner = format!("{to}.layer.{}", layer - 1);
            plan = plan
                .rename(&format!("layer{stage}.*.conv{layer}.weight"), &format!("{inner}.convolution.weight"))
                .rename(&format!("layer{stage}.*.bn{layer}.*"), &format!("{inner}.normalization.*"));
        }
        let around = format!("layer{stage}.*.downsample");
        plan = plan
            .rename(&format!("{around}.0.weight"), &format!("{to}.shortcut.convolution.weight"))
            .rename(&format!("{around}.1.*"), &format!("{to}.shortcut.normalization.*"));
    }
    plan
}

/// Applies a convolution without bias and its norm.
fn conv(cx: &mut Context, name: &str, x: &Var, [channels, kernel, stride]: [usize; 3]) -> Var {
    cx.within(name, "conv", |cx| {
        let layer = Conv2d::new(channels, kernel).stride(stride).padding(kernel / 2).no_bias();
        let y = cx.apply("convolution", &layer, x);
        cx.apply("normalization", &BatchNorm::new(), &y)
    })
}
