//! The vision transformer (Dosovitskiy et al. 2021), as transformers' `ViTForImageClassification`.

use unisono::graph::{Lead, Type};
use unisono::{Context, Conv2d, Initializer, LayerNorm, Var};

use super::{Activation, Architecture, attention, dense, divides, prefixed};
use crate::config::Config;

/// A vision transformer that classifies images `[B, C, H, W]` to logits `[B, classes]`.
#[derive(Clone, Debug)]
pub struct Vit {
    image: usize,
    channels: usize,
    patch: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    hidden: usize,
    classes: usize,
    epsilon: f32,
    activation: Activation,
}

impl Architecture for Vit {
    const MODEL_TYPE: &'static str = "vit";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[("qkv_bias", true.into())])?;
        let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let (image, patch) = (config.size("image_size")?, config.size("patch_size")?);
        divides(heads, width)?;
        if !image.is_multiple_of(patch) {
            return Err(format!("patches of {patch} pixels do not divide images of {image}"));
        }
        Ok(Self {
            image,
            channels: config.size_or("num_channels", 3)?,
            patch,
            width,
            blocks: config.size("num_hidden_layers")?,
            heads,
            hidden: config.size("intermediate_size")?,
            classes: config.labels()?,
            epsilon: config.number_or("layer_norm_eps", 1e-12)?,
            activation: Activation::named(config.text_or("hidden_act", "gelu")?)?,
        })
    }

    fn input(&self) -> Type {
        Type::sample(&[self.channels, self.image, self.image])
    }

    fn forward(&self, cx: &mut Context, x: &Var, _mask: Option<&Var>) -> Var {
        let norm = LayerNorm::new().epsilon(self.epsilon);
        let h = cx.within("vit", "vit", |cx| {
            let cut = Conv2d::new(self.width, self.patch).stride(self.patch);
            let patches = cx.apply("embeddings.patch_embeddings.projection", &cut, x);
            let count = patches.dims().iter().skip(1).product::<usize>();
            let patches = patches.reshape(&[self.width, count]).permute(&[1, 0]);
            let token = cx.parameter("embeddings.cls_token", &[1, 1, self.width], Initializer::Zeros);
            let token = token.reshape(&[1, self.width]).expand(Lead::Sample, &[1, self.width]);
            let start = Initializer::Normal(0.02);
            let places = cx.parameter("embeddings.position_embeddings", &[1, count + 1, self.width], start);
            let mut h = token.concat(&[&patches], 1) + places.reshape(&[count + 1, self.width]);
            for block in 0..self.blocks {
                h = cx.within(&format!("encoder.layer.{block}"), "block", |cx| {
                    let normed = cx.apply("layernorm_before", &norm, &h);
                    let [q, k, v] = ["query", "key", "value"]
                        .map(|part| dense(cx, &format!("attention.attention.{part}"), &normed, self.width));
                    let found = attention([&q, &k, &v], self.heads, false, None);
                    let h = &h + dense(cx, "attention.output.dense", &found, self.width);
                    let normed = cx.apply("layernorm_after", &norm, &h);
                    let inner = (self.activation.0)(&dense(cx, "intermediate.dense", &normed, self.hidden));
                    h + dense(cx, "output.dense", &inner, self.width)
                });
            }
            cx.apply("layernorm", &norm, &h)
        });
        dense(cx, "classifier", &h.slice(1, 0..1).reshape(&[self.width]), self.classes)
    }

    fn name(&self, in_file: &str) -> Option<String> {
        Some(prefixed(in_file, "vit.", &["classifier."]))
    }
}
