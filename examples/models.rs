//! Networks that people know, with their published numbers of parameters: ResNet-18, MobileNetV2, U-Net,
//! ViT-B/16, BERT and GPT-2. Each is traced for training, which opens no device.
//!
//!     cargo run --release -p unisono-examples --bin models

use std::process::ExitCode;

use clap::Parser;
use unisono::data::{FieldDType, FieldSpec};
use unisono::{
    BatchNorm, Context, Conv2d, ConvTranspose2d, CrossEntropy, Dense, DepthwiseConv2d, Embedding,
    GlobalAvgPool2d, Initializer, LayerNorm, Lead, MaxPool2d, Model, MultiHeadAttention, Outputs, Relu,
    Relu6, Residual, Sequential, Trainer, TransformerBlock, Var,
};
use unisono_examples::{Error, program};

#[derive(Parser)]
#[command(about = "Builds networks that people know and counts their parameters")]
struct Flags {}

fn main() -> ExitCode {
    program(models)
}

fn models(_: Flags) -> Result<(), Error> {
    use FieldDType::{F32, I32};
    let picture = |side| ("x", F32, vec![3, side, side]);
    let ids = |name, length| (name, I32, vec![length]);
    counted("ResNet-18", resnet18(), [picture(224)], vec![], 11_689_512)?;
    counted("MobileNetV2", mobilenet_v2(), [picture(224)], vec![], 3_504_872)?;
    counted("U-Net", unet(2), [picture(64)], vec![64, 64], 31_037_698)?;
    counted("ViT-B/16", vit(), [picture(224)], vec![], 86_567_656)?;
    counted("BERT", bert(), [ids("x", 16), ids("type", 16), ("mask", F32, vec![16])], vec![], 109_482_240)?;
    counted("GPT-2", gpt2(), [ids("x", 16)], vec![16], 124_439_808)
}

/// Traces a model and compares the number of its parameters.
fn counted<const N: usize>(
    name: &str,
    model: Model,
    fields: [(&str, FieldDType, Vec<usize>); N],
    target: Vec<usize>,
    expected: u64,
) -> Result<(), Error> {
    let target = ("y", FieldDType::I32, target);
    let spec =
        |(name, dtype, shape): (&str, FieldDType, Vec<usize>)| FieldSpec { name: name.into(), dtype, shape };
    let specs: Vec<FieldSpec> = fields.into_iter().chain([target]).map(spec).collect();
    let builder = Trainer::builder(model).loss_between("logits", "y", CrossEntropy::new(), 1.0);
    let found = builder.count_parameters(&specs)?;
    println!("{name:<12} {found:>11} parameters");
    if found == expected { Ok(()) } else { Err(format!("{name} has {found}, not {expected}").into()) }
}

fn only(forward: impl Fn(&mut Context, &Var) -> Var + Send + Sync + 'static) -> Model {
    Model::new(move |cx, x| Outputs::new().with("logits", &forward(cx, &x["x"])))
}

fn normed(channels: usize, kernel: usize, stride: usize) -> Sequential {
    let conv = Conv2d::new(channels, kernel).padding(kernel / 2).stride(stride).no_bias();
    Sequential::new().add(conv).add(BatchNorm::new())
}

/// He et al. 2016.
fn resnet18() -> Model {
    let block = |channels, stride, widens: bool| {
        let inner = normed(channels, 3, stride).add(Relu).add(normed(channels, 3, 1));
        let block = Residual::new(inner);
        let block = if widens { block.shortcut(normed(channels, 1, stride)) } else { block };
        Sequential::new().add(block).add(Relu)
    };
    let stem = normed(64, 7, 2).add(Relu).add(MaxPool2d::new(3).stride(2).padding(1));
    let body = [64, 128, 256, 512].into_iter().fold(stem, |network, channels| {
        let widens = channels > 64;
        network.add(block(channels, 1 + usize::from(widens), widens)).add(block(channels, 1, false))
    });
    let network = body.add(GlobalAvgPool2d).add(Dense::new(1000));
    only(move |cx, x| cx.apply("network", &network, x))
}

/// Sandler et al. 2018.
fn mobilenet_v2() -> Model {
    let block = |from: usize, to: usize, expand: usize, stride| {
        let wide = if expand > 1 { normed(from * expand, 1, 1).add(Relu6) } else { Sequential::new() };
        let depthwise = DepthwiseConv2d::new(3).stride(stride).padding(1).no_bias();
        wide.add(depthwise).add(BatchNorm::new()).add(Relu6).add(normed(to, 1, 1))
    };
    let stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ];
    let (mut network, mut from) = (normed(32, 3, 2).add(Relu6), 32);
    for (expand, to, times, stride) in stages {
        network = network.add(block(from, to, expand, stride));
        for _ in 1..times {
            network = network.add(Residual::new(block(to, to, expand, 1)));
        }
        from = to;
    }
    let network = network.add(normed(1280, 1, 1)).add(Relu6).add(GlobalAvgPool2d).add(Dense::new(1000));
    only(move |cx, x| cx.apply("network", &network, x))
}

/// Ronneberger et al. 2015, with batch norms.
fn unet(classes: usize) -> Model {
    let double = |channels| normed(channels, 3, 1).add(Relu).add(normed(channels, 3, 1)).add(Relu);
    only(move |cx, x| {
        let (mut x, mut skips) = (cx.apply("stem", &double(64), x), vec![]);
        for channels in [128, 256, 512, 1024] {
            skips.push(x.clone());
            let half = cx.apply(&format!("pool{channels}"), &MaxPool2d::new(2), &x);
            x = cx.apply(&format!("down{channels}"), &double(channels), &half);
        }
        for (channels, skip) in [512, 256, 128, 64].into_iter().zip(skips.into_iter().rev()) {
            let up = cx.apply(&format!("up{channels}"), &ConvTranspose2d::new(channels, 2).stride(2), &x);
            x = cx.apply(&format!("join{channels}"), &double(channels), &skip.concat(&[&up], 1));
        }
        cx.apply("out", &Conv2d::new(classes, 1), &x).permute(&[1, 2, 0])
    })
}

/// Dosovitskiy et al. 2021.
fn vit() -> Model {
    only(|cx, x| {
        let patches = cx.apply("patches", &Conv2d::new(768, 16).stride(16), x).reshape(&[768, 196]);
        let class = cx.parameter("class", &[1, 768], Initializer::Zeros).expand(Lead::Sample, &[1, 768]);
        let mut x = class.concat(&[&patches.transpose(1, 2)], 1);
        x = &x + cx.parameter("positions", &[197, 768], Initializer::Normal(0.02));
        for block in 0..12 {
            x = cx.apply(&format!("block{block}"), &TransformerBlock::new(12), &x);
        }
        let class = cx.apply("norm", &LayerNorm::new(), &x).slice(1, 0..1).reshape(&[768]);
        cx.apply("head", &Dense::new(1000), &class)
    })
}

/// Devlin et al. 2019: the base model with its pooler.
fn bert() -> Model {
    Model::new(|cx, x| {
        let words = cx.apply("words", &Embedding::new(30_522, 768), &x["x"]);
        let types = cx.apply("types", &Embedding::new(2, 768), &x["type"]);
        let positions = cx.parameter("positions", &[512, 768], Initializer::Normal(0.02));
        let sum = words + types + positions.slice(0, 0..x["x"].dims()[0]);
        let mut x_ = cx.apply("norm", &LayerNorm::new(), &sum);
        for block in 0..12 {
            x_ = cx.within(&format!("block{block}"), "bert_block", |cx| {
                let attention = MultiHeadAttention::new(12);
                let found = cx
                    .within("attention", "attention", |cx| attention.attend(cx, &x_, &x_, Some(&x["mask"])));
                let x = cx.apply("norm1", &LayerNorm::new(), &(&x_ + found));
                let inner = cx.apply("linear1", &Dense::new(3072), &x).gelu();
                let outer = cx.apply("linear2", &Dense::new(768), &inner);
                cx.apply("norm2", &LayerNorm::new(), &(x + outer))
            });
        }
        let pooled = cx.apply("pooler", &Dense::new(768), &x_.slice(1, 0..1).reshape(&[768])).tanh();
        Outputs::new().with("logits", &pooled)
    })
}

/// Radford et al. 2019: the smallest model. The words' vectors are the head's weights too.
fn gpt2() -> Model {
    only(|cx, x| {
        let words = cx.parameter("words", &[50_257, 768], Initializer::Normal(0.02));
        let positions = cx.parameter("positions", &[1024, 768], Initializer::Normal(0.02));
        let mut x = words.embed(x) + positions.slice(0, 0..x.dims()[0]);
        for block in 0..12 {
            x = cx.apply(&format!("block{block}"), &TransformerBlock::new(12).causal(), &x);
        }
        cx.apply("norm", &LayerNorm::new(), &x).matmul_t(&words)
    })
}
