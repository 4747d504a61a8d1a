//! Llama 2 and 3 (Touvron et al. 2023), as transformers' `LlamaForCausalLM`.

use unisono::graph::Type;
use unisono::{Context, Dense, INPUT, Initializer, Inputs, RmsNorm, Var};

use super::decoder::{self, Decoder, DecoderSizes, Reader};
use super::rotations::Rotations;
use super::{Activation, Architecture, MASK, ids, prefixed, split};
use crate::config::Config;

/// A Llama decoder with its language model head: ids `[B, T]` to logits `[B, T, vocabulary]`.
#[derive(Clone, Debug)]
pub struct Llama {
    vocabulary: usize,
    context: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    hidden: usize,
    epsilon: f32,
    rotations: Rotations,
    tied: bool,
    activation: Activation,
}

impl Architecture for Llama {
    const MODEL_TYPE: &'static str = "llama";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[("attention_bias", false.into()), ("mlp_bias", false.into())])?;
        let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let kv_heads = config.size_or("num_key_value_heads", heads)?;
        let head_width = config.size_or("head_dim", width / heads)?;
        if !heads.is_multiple_of(kv_heads) || !head_width.is_multiple_of(2) || head_width == 0 {
            return Err(format!(
                "{heads} heads of {head_width} features cannot share {kv_heads} heads of keys"
            ));
        }
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            width,
            blocks: config.layers("num_hidden_layers")?,
            heads,
            kv_heads,
            head_width,
            hidden: config.size("intermediate_size")?,
            epsilon: config.number_or("rms_norm_eps", 1e-6)?,
            rotations: Rotations::new(config)?,
            tied: config.flag_or("tie_word_embeddings", false)?,
            activation: Activation::named(config.text_or("hidden_act", "silu")?)?,
        })
    }

    fn input(&self) -> Type {
        ids(self.context)
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let (x, mask) = (&x[INPUT], x.get(MASK));
        decoder::logits(self, cx, x, mask)
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_copy = in_file.ends_with(".rotary_emb.inv_freq") || self.tied && in_file == "lm_head.weight";
        (!is_copy).then(|| prefixed(in_file, "model.", &["lm_head."]))
    }
}

impl Decoder for Llama {
    fn sizes(&self) -> DecoderSizes {
        let Self { context, blocks, kv_heads, head_width, .. } = *self;
        DecoderSizes { context, layers: blocks, heads: kv_heads, width: head_width }
    }

    fn decode(&self, cx: &mut Context, x: &Var, reader: &mut Reader) -> Var {
        let norm = RmsNorm::new().epsilon(self.epsilon);
        let start = Initializer::Normal(0.02);
        let words = cx.kernel("model.embed_tokens.weight", &[self.vocabulary, self.width], 0, start.clone());
        let mut h = words.embed(x);
        for block in 0..self.blocks {
            h = cx.within(&format!("model.layers.{block}"), "block", |cx| {
                let normed = cx.apply("input_layernorm", &norm, &h);
                let h = &h + cx.within("self_attn", "attention", |cx| self.attend(cx, &normed, reader));
                let normed = cx.apply("post_attention_layernorm", &norm, &h);
                let gate = (self.activation.0)(&linear(cx, "mlp.gate_proj", &normed, self.hidden));
                let inner = gate * linear(cx, "mlp.up_proj", &normed, self.hidden);
                h + linear(cx, "mlp.down_proj", &inner, self.width)
            });
        }
        let h = cx.apply("model.norm", &norm, &reader.wanted(&h));
        if self.tied {
            return h.matmul_t(&words);
        }
        h.matmul_t(&cx.kernel("lm_head.weight", &[self.vocabulary, self.width], 0, start))
    }
}

impl Llama {
    fn attend(&self, cx: &mut Context, x: &Var, reader: &mut Reader) -> Var {
        let (all, shared) = (self.heads * self.head_width, self.kv_heads * self.head_width);
        let q = split(&linear(cx, "q_proj", x, all), self.heads);
        let k = split(&linear(cx, "k_proj", x, shared), self.kv_heads);
        let v = split(&linear(cx, "v_proj", x, shared), self.kv_heads);
        let rates = self.rotations.rates(x, self.head_width);
        let [q, k] = [reader.rotate(&q, &rates), reader.rotate(&k, &rates)];
        let found = reader.attend([&q, &k, &v], self.heads / self.kv_heads);
        let steps = x.dims().first().copied().unwrap_or(1);
        linear(cx, "o_proj", &found.permute(&[1, 0, 2]).reshape(&[steps, all]), self.width)
    }
}

fn linear(cx: &mut Context, name: &str, x: &Var, units: usize) -> Var {
    cx.apply(name, &Dense::new(units).no_bias(), x)
}
