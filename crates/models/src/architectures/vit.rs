//! The vision transformer (Dosovitskiy et al. 2021), as transformers' `ViTForImageClassification`. Files with
//! timm's or torchvision's names are opened as well.

use unisono::checkpoint::{Plan, Tensors};
use unisono::graph::{Lead, Type};
use unisono::{Context, Conv2d, INPUT, Initializer, Inputs, LayerNorm, Var};

use super::shapes::Shapes;
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
            blocks: config.layers("num_hidden_layers")?,
            heads,
            hidden: config.size("intermediate_size")?,
            classes: config.labels()?,
            epsilon: config.number_or("layer_norm_eps", 1e-12)?,
            activation: Activation::named(config.text_or("hidden_act", "gelu")?)?,
        })
    }

    /// The shapes do not tell the number of heads. It is that of the published model of the same width, or
    /// `num_heads` in a `config.json`, where timm has it among `model_args`.
    fn foreign(config: &Config, tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        let shapes = Shapes(tensors);
        let Some(names) = KNOWN.iter().find(|names| shapes.has(names.token) && shapes.has(names.cut)) else {
            return Ok(None);
        };
        config.expect(&[("global_pool", "token".into())])?;
        let [width, channels, patch, _] = shapes.of(names.cut)?;
        let [_, places, _] = shapes.of::<3>(names.positions)?;
        let side = (places - 1).isqrt();
        if side == 0 || side * side + 1 != places {
            return Err(format!("{places} positions are not those of a square image and its class token"));
        }
        let heads = heads(config, width)?;
        divides(heads, width)?;
        let blocks = shapes.count(names.norm);
        let first = names.hidden.map(|name| name.replacen('*', "0", 1));
        let [hidden, _] = shapes.of::<2>(first.iter().find(|name| shapes.has(name)).unwrap_or(&first[0]))?;
        let [classes, _] = shapes.of::<2>(names.head)?;
        let activation = Activation::named("gelu")?;
        let (image, epsilon) = (side * patch, 1e-6);
        let found =
            Self { image, channels, patch, width, blocks, heads, hidden, classes, epsilon, activation };
        Ok(Some((found, (names.plan)())))
    }

    fn input(&self) -> Type {
        Type::sample(&[self.channels, self.image, self.image])
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let x = &x[INPUT];
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

/// The names by which a library's files are recognised.
struct Names {
    token: &'static str,
    cut: &'static str,
    positions: &'static str,
    norm: &'static str,
    /// The first dense layer of a block, as newer and older versions call it.
    hidden: [&'static str; 2],
    head: &'static str,
    plan: fn() -> Plan,
}

const KNOWN: [Names; 2] = [
    Names {
        token: "cls_token",
        cut: "patch_embed.proj.weight",
        positions: "pos_embed",
        norm: "blocks.*.norm1.weight",
        hidden: ["blocks.*.mlp.fc1.weight"; 2],
        head: "head.weight",
        plan: timm,
    },
    Names {
        token: "class_token",
        cut: "conv_proj.weight",
        positions: "encoder.pos_embedding",
        norm: "encoder.layers.encoder_layer_*.ln_1.weight",
        hidden: [
            "encoder.layers.encoder_layer_*.mlp.0.weight",
            "encoder.layers.encoder_layer_*.mlp.linear_1.weight",
        ],
        head: "heads.head.weight",
        plan: torchvision,
    },
];

/// Returns the number of heads: that of the config, or of the published models of this width.
fn heads(config: &Config, width: usize) -> Result<usize, String> {
    if let Some(value) = config.argument("num_heads") {
        let heads = value.as_u64().filter(|&heads| heads > 0).and_then(|heads| usize::try_from(heads).ok());
        return heads.ok_or_else(|| format!("num_heads is {value}, not a positive integer"));
    }
    match width {
        192 | 384 | 768 | 1024 => Ok(width / 64),
        1152 | 1280 | 1408 | 1664 => Ok(16),
        _ => Err(format!(
            "a width of {width} does not tell the number of heads: write {{\"num_heads\": ..}} into \
             config.json"
        )),
    }
}

/// The three parts of attention's first product, in their order.
const PARTS: [&str; 3] = ["query", "key", "value"];

/// Adds rules that split the weights and biases of attention, which are one tensor each.
fn split(plan: Plan, weight: &str, bias: &str) -> Plan {
    let into = |end: &str| PARTS.map(|part| format!("vit.encoder.layer.*.attention.attention.{part}.{end}"));
    [(weight, into("weight")), (bias, into("bias"))]
        .into_iter()
        .fold(plan, |plan, (from, into)| plan.split(from, 0, &into.each_ref().map(String::as_str)))
}

/// Adds rules that rename the parts of blocks and of the model.
fn renamed(plan: Plan, block: &str, parts: &[(&str, &str)], whole: &[(&str, &str)]) -> Plan {
    let plan = parts.iter().fold(plan, |plan, (from, to)| {
        plan.rename(&format!("{block}.{from}.*"), &format!("vit.encoder.layer.*.{to}.*"))
    });
    whole.iter().fold(plan, |plan, (from, to)| plan.rename(from, to))
}

/// Returns the way from timm's names to transformers'.
fn timm() -> Plan {
    let plan = split(Plan::new(), "blocks.*.attn.qkv.weight", "blocks.*.attn.qkv.bias");
    let parts = [
        ("norm1", "layernorm_before"),
        ("attn.proj", "attention.output.dense"),
        ("norm2", "layernorm_after"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ];
    let whole = [
        ("cls_token", "vit.embeddings.cls_token"),
        ("pos_embed", "vit.embeddings.position_embeddings"),
        ("patch_embed.proj.*", "vit.embeddings.patch_embeddings.projection.*"),
        ("norm.*", "vit.layernorm.*"),
        ("head.*", "classifier.*"),
    ];
    renamed(plan, "blocks.*", &parts, &whole)
}

/// Returns the way from torchvision's names to transformers'.
fn torchvision() -> Plan {
    let block = "encoder.layers.encoder_layer_*";
    let plan = split(
        Plan::new(),
        &format!("{block}.self_attention.in_proj_weight"),
        &format!("{block}.self_attention.in_proj_bias"),
    );
    // Older versions call the layers of the perceptron `linear_1` and `linear_2`.
    let parts = [
        ("ln_1", "layernorm_before"),
        ("self_attention.out_proj", "attention.output.dense"),
        ("ln_2", "layernorm_after"),
        ("mlp.0", "intermediate.dense"),
        ("mlp.linear_1", "intermediate.dense"),
        ("mlp.3", "output.dense"),
        ("mlp.linear_2", "output.dense"),
    ];
    let whole = [
        ("class_token", "vit.embeddings.cls_token"),
        ("encoder.pos_embedding", "vit.embeddings.position_embeddings"),
        ("conv_proj.*", "vit.embeddings.patch_embeddings.projection.*"),
        ("encoder.ln.*", "vit.layernorm.*"),
        ("heads.head.*", "classifier.*"),
    ];
    renamed(plan, block, &parts, &whole)
}
