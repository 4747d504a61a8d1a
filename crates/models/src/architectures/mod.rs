//! The models, a file each.

pub(crate) mod bert;
pub(crate) mod decoder;
pub(crate) mod distilbert;
pub(crate) mod encoder_decoder;
pub(crate) mod gpt2;
pub(crate) mod llama;
pub(crate) mod mobilenet;
pub(crate) mod resnet;
mod rotations;
mod shapes;
pub(crate) mod t5;
pub(crate) mod unet;
pub(crate) mod vit;
pub(crate) mod whisper;

use unisono::checkpoint::{Plan, Tensors};
use unisono::functional::scaled_dot_product_attention_masked;
use unisono::graph::{DType, Lead, Type};
use unisono::{Context, Dense, INPUT, Inputs, Var};

use crate::config::Config;

/// The name of the field that says which positions are padding (0) and which are not (1).
pub(crate) const MASK: &str = "attention_mask";
/// The name of the field with the ids that a decoder reads.
const DECODER: &str = "decoder_input_ids";
/// The name of the field with the labels.
const LABELS: &str = "y";

/// An architecture that `config.json` describes. Its parameters have the names of the original.
pub trait Architecture: Clone + Send + Sync + Sized + 'static {
    /// The `model_type` in `config.json`.
    const MODEL_TYPE: &'static str;
    /// Whether linear layers store their weights `[in, out]` (peft's `fan_in_fan_out`).
    const IN_OUT: bool = false;

    /// Reads the sizes.
    ///
    /// # Errors
    /// A setting is missing or has a value that this model does not know. The text names it.
    fn new(config: &Config) -> Result<Self, String>;

    /// Returns the type of the model's input, `[B, ...]`: ids of i32 or images of f32. Models of texts take
    /// other lengths too.
    fn input(&self) -> Type;

    /// Recognises a file whose tensors have other names than those of transformers. Returns the sizes, which
    /// are those of the tensors, and the plan that leads from the names of the file to those of
    /// transformers. Returns `None` for transformers' names. `config` is empty if there is no `config.json`.
    ///
    /// # Errors
    /// The tensors do not belong together, or a setting is missing that their shapes do not tell.
    fn foreign(_config: &Config, _tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        Ok(None)
    }

    /// Returns the fields that the model needs, with their types. Default: `x`, see
    /// [`Architecture::input`].
    fn inputs(&self) -> Vec<(&'static str, Type)> {
        vec![(INPUT, self.input())]
    }

    /// Returns the logits for the fields of samples. Besides those of [`Architecture::inputs`], models of
    /// texts use `attention_mask` where it is there: positions where it is 0 are padding.
    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var;

    /// Returns the name that this model gives to a tensor of a file with transformers' names, or `None` if
    /// the tensor is no weight but a constant, a counter, a copy of another one, or a part of another head.
    fn name(&self, in_file: &str) -> Option<String>;

    /// Returns whether a parameter is a table in which ids are looked up. Default: whether it has one of the
    /// names that transformers gives to such tables. An architecture with other names says it itself.
    fn is_table(&self, name: &str) -> bool {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let last = layer.rsplit('.').next().unwrap_or(layer);
        let names = ["wte", "wpe", "embed_tokens", "embed_positions", "shared", "relative_attention_bias"];
        names.contains(&last) || last.ends_with("_embeddings")
    }

    /// Returns whether a tensor without a name in this model may be a copy of a weight. Copies are saved with
    /// the weight's new values, and others as they were. Default: yes.
    fn is_copy(&self, _in_file: &str) -> bool {
        true
    }
}

/// Returns the type of ids `[B, length]`.
fn ids(length: usize) -> Type {
    Type::sample(&[length]).of(DType::I32)
}

/// Looks ids up in a table. Rows of `padding` have no gradient (PyTorch's `padding_idx`).
fn lookup(cx: &mut Context, table: &Var, x: &Var, padding: Option<usize>) -> Var {
    let found = table.embed(x);
    match padding.filter(|_| cx.is_training()) {
        Some(id) => {
            let is_padding = x.to_f32().eq_mask(&x.tape().constant(id as f32));
            is_padding.add_axis().select(&found.detach(), &found)
        }
        None => found,
    }
}

/// Applies x W^T + b under a name.
fn dense(cx: &mut Context, name: &str, x: &Var, units: usize) -> Var {
    cx.apply(name, &Dense::new(units), x)
}

/// Splits `[B, T, heads d]` into `[B, heads, T, d]`.
fn split(x: &Var, heads: usize) -> Var {
    let (steps, width) = (x.dims().first().copied().unwrap_or(1), x.dims().last().copied().unwrap_or(1));
    x.reshape(&[steps, heads, width / heads]).permute(&[1, 0, 2])
}

/// Computes attention of `[B, T, E]`, and joins the heads again.
fn attention([q, k, v]: [&Var; 3], heads: usize, causal: bool, mask: Option<&Var>) -> Var {
    let mask = mask.map(|m| m.to_f32().reshape(&[1, 1, m.ty().count()]));
    let [q4, k4, v4] = [q, k, v].map(|x| split(x, heads));
    let found = scaled_dot_product_attention_masked(&q4, &k4, &v4, causal, mask.as_ref());
    found.permute(&[1, 0, 2]).reshape(q.dims())
}

/// An activation, as transformers' configs call it.
#[derive(Clone, Copy, Debug)]
struct Activation(fn(&Var) -> Var);

impl Activation {
    fn named(name: &str) -> Result<Self, String> {
        Ok(Self(match name {
            "gelu" => Var::gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Var::gelu_tanh,
            "relu" => Var::relu,
            "silu" | "swish" => Var::silu,
            "tanh" => Var::tanh,
            _ => return Err(format!("the activation {name:?} is unknown: gelu, gelu_new, relu, silu, tanh")),
        }))
    }
}

/// Returns the ids that a decoder reads: the field `decoder_input_ids`, or else the labels one place later,
/// behind the token `start`. Labels of -100, which do not count, become `padding` there. This is what
/// transformers does.
fn decoder_ids(cx: &mut Context, x: &Inputs, start: usize, padding: usize) -> Var {
    if let Some(ids) = x.get(DECODER) {
        return ids.clone();
    }
    if x.get(LABELS).is_none() {
        return x[DECODER].clone();
    }
    let labels = x[LABELS].to_f32();
    let tape = cx.tape();
    let zero = tape.constant(0.0);
    let known = zero.greater(&labels).select(&tape.constant(padding as f32), &labels);
    let first = tape.constant(start as f32).expand(Lead::Sample, &[1]);
    let length = labels.dims().first().copied().unwrap_or(1);
    if length < 2 {
        return first.to_i32();
    }
    first.concat(&[&known.slice(1, 0..length - 1)], 1).to_i32()
}

/// Refuses heads that do not divide the width.
fn divides(heads: usize, width: usize) -> Result<(), String> {
    if width.is_multiple_of(heads) { Ok(()) } else { Err(format!("{heads} heads do not divide {width}")) }
}

/// Puts `prefix` in front of a name, unless it is there or another part of the model is.
fn prefixed(name: &str, prefix: &str, others: &[&str]) -> String {
    let is_whole = name.starts_with(prefix) || others.iter().any(|other| name.starts_with(other));
    if is_whole { name.to_owned() } else { format!("{prefix}{name}") }
}
