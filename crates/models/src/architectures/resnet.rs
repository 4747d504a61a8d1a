//! ResNet-18, 34 and 50 (He et al. 2016), as transformers' `ResNetForImageClassification`.

use unisono::graph::Type;
use unisono::{BatchNorm, Context, Conv2d, Dense, GlobalAvgPool2d, MaxPool2d, Var};

use super::{Architecture, prefixed};
use crate::config::Config;

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
        Ok(Self {
            channels: config.size_or("num_channels", 3)?,
            stem: config.size("embedding_size")?,
            widths,
            depths,
            bottleneck,
            classes: config.labels()?,
        })
    }

    /// Images of 224 pixels are what the originals were trained on. Others fit too.
    fn input(&self) -> Type {
        Type::sample(&[self.channels, 224, 224])
    }

    fn forward(&self, cx: &mut Context, x: &Var, _mask: Option<&Var>) -> Var {
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

/// Applies a convolution without bias and its norm.
fn conv(cx: &mut Context, name: &str, x: &Var, [channels, kernel, stride]: [usize; 3]) -> Var {
    cx.within(name, "conv", |cx| {
        let layer = Conv2d::new(channels, kernel).stride(stride).padding(kernel / 2).no_bias();
        let y = cx.apply("convolution", &layer, x);
        cx.apply("normalization", &BatchNorm::new(), &y)
    })
}
