//! The U-Net (Ronneberger et al. 2015, with padding and batch norms), with the names of the implementation
//! that most use: `milesial/Pytorch-UNet`.

use unisono::checkpoint::{Plan, Tensors};
use unisono::graph::Type;
use unisono::{
    BatchNorm, Context, Conv2d, ConvTranspose2d, INPUT, Inputs, MaxPool2d, Resize2d, Var, ZeroPad2d,
};

use super::Architecture;
use super::shapes::Shapes;
use crate::config::Config;

/// A U-Net that classifies the pixels of images `[B, C, H, W]` to logits `[B, H, W, classes]`. A file has no
/// config: the sizes are those of its tensors.
#[derive(Clone, Debug)]
pub struct UNet {
    channels: usize,
    classes: usize,
    /// The channels of the two convolutions of each level, from the largest images to the smallest ones.
    down: Vec<[usize; 2]>,
    /// The same on the way back.
    up: Vec<[usize; 2]>,
    /// Whether images are enlarged by transposed convolutions, and not by interpolation.
    transposed: bool,
}

impl Architecture for UNet {
    const MODEL_TYPE: &'static str = "unet";

    fn new(_: &Config) -> Result<Self, String> {
        Err("a U-Net has no model_type: open a file or directory with its state_dict".into())
    }

    fn foreign(_: &Config, tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        let shapes = Shapes(tensors);
        if !shapes.has("inc.double_conv.0.weight") || !shapes.has("outc.conv.weight") {
            return Ok(None);
        }
        let double = |path: &str| {
            let [first, ..] = shapes.of::<4>(&format!("{path}.double_conv.0.weight"))?;
            let [second, ..] = shapes.of::<4>(&format!("{path}.double_conv.3.weight"))?;
            Ok::<_, String>([first, second])
        };
        let levels = shapes.count("down*.maxpool_conv.1.double_conv.0.weight");
        let inside = (1..=levels).map(|level| double(&format!("down{level}.maxpool_conv.1")));
        let down: Vec<_> = [double("inc")].into_iter().chain(inside).collect::<Result<_, _>>()?;
        let up = (1..=levels).map(|level| double(&format!("up{level}.conv"))).collect::<Result<_, _>>()?;
        let [classes, ..] = shapes.of::<4>("outc.conv.weight")?;
        let [_, channels, ..] = shapes.of::<4>("inc.double_conv.0.weight")?;
        let transposed = shapes.has("up1.up.weight");
        Ok(Some((Self { channels, classes, down, up, transposed }, Plan::new())))
    }

    /// Images of any size fit whose sides are at least two to the power of the levels.
    fn input(&self) -> Type {
        let side = 32 << self.up.len().min(8);
        Type::sample(&[self.channels, side, side])
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let mut skips: Vec<Var> = Vec::new();
        let mut h = x[INPUT].clone();
        for (level, &channels) in self.down.iter().enumerate() {
            h = match level {
                0 => double(cx, "inc", &h, channels),
                _ => cx.within(&format!("down{level}"), "down", |cx| {
                    let half = cx.apply("maxpool_conv.0", &MaxPool2d::new(2), &h);
                    double(cx, "maxpool_conv.1", &half, channels)
                }),
            };
            skips.push(h.clone());
        }
        let skips = skips.iter().rev().skip(1);
        for (level, (&channels, skip)) in self.up.iter().zip(skips).enumerate() {
            h = cx.within(&format!("up{}", level + 1), "up", |cx| {
                let large = self.enlarge(cx, &h);
                let large = padded(cx, &large, skip);
                double(cx, "conv", &skip.concat(&[&large], 1), channels)
            });
        }
        cx.apply("outc.conv", &Conv2d::new(self.classes, 1), &h).permute(&[1, 2, 0])
    }

    fn name(&self, in_file: &str) -> Option<String> {
        (!in_file.ends_with(".num_batches_tracked")).then(|| in_file.to_owned())
    }
}

impl UNet {
    /// Doubles the sides of images. A transposed convolution halves the channels.
    fn enlarge(&self, cx: &mut Context, h: &Var) -> Var {
        if self.transposed {
            let channels = h.dims().first().copied().unwrap_or(2);
            return cx.apply("up", &ConvTranspose2d::new(channels / 2, 2).stride(2), h);
        }
        cx.apply("up", &Resize2d::by([2.0, 2.0]).bilinear().align_corners(), h)
    }
}

/// Pads an image with zeros to the size of another, which is odd where it was halved and rounded down.
fn padded(cx: &mut Context, image: &Var, to: &Var) -> Var {
    let (&[_, rows, columns], &[_, all_rows, all_columns]) = (image.dims(), to.dims()) else {
        return image.clone();
    };
    let sides = |all: usize, own: usize| {
        let missing = all.saturating_sub(own);
        [missing / 2, missing - missing / 2]
    };
    match [sides(all_rows, rows), sides(all_columns, columns)] {
        [[0, 0], [0, 0]] => image.clone(),
        [rows, columns] => cx.apply("pad", &ZeroPad2d::sides(rows, columns), image),
    }
}

/// Applies two convolutions, each with its norm and relu.
fn double(cx: &mut Context, name: &str, x: &Var, channels: [usize; 2]) -> Var {
    cx.within(&format!("{name}.double_conv"), "double_conv", |cx| {
        let mut h = x.clone();
        for (channels, at) in channels.into_iter().zip([0, 3]) {
            let conv = Conv2d::new(channels, 3).padding(1).no_bias();
            h = cx.apply(&at.to_string(), &conv, &h);
            h = cx.apply(&(at + 1).to_string(), &BatchNorm::new(), &h).relu();
        }
        h
    })
}
