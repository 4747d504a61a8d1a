//! GPT-2 (Radford et al. 2019), as transformers' `GPT2LMHeadModel`.

use unisono::graph::Type;
use unisono::{Context, INPUT, Initializer, Inputs, LayerNorm, Var};

use super::decoder::{self, Decoder, DecoderSizes, Reader};
use super::{Activation, Architecture, MASK, divides, ids, prefixed, split};
use crate::config::Config;

/// GPT-2 with its language model head, which shares its weights with the token embedding: ids `[B, T]` to
/// logits `[B, T, vocabulary]`.
#[derive(Clone, Debug)]
pub struct Gpt2 {
    vocabulary: usize,
    context: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    hidden: usize,
    epsilon: f32,
    activation: Activation,
}

impl Architecture for Gpt2 {
    const MODEL_TYPE: &'static str = "gpt2";
    const IN_OUT: bool = true;

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[
            ("scale_attn_weights", true.into()),
            ("scale_attn_by_inverse_layer_idx", false.into()),
            ("add_cross_attention", false.into()),
            ("tie_word_embeddings", true.into()),
        ])?;
        let (width, heads) = (config.size("n_embd")?, config.size("n_head")?);
        divides(heads, width)?;
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            context: config.size("n_positions")?,
            width,
            blocks: config.layers("n_layer")?,
            heads,
            hidden: config.size_or("n_inner", 4 * width)?,
            epsilon: config.number_or("layer_norm_epsilon", 1e-5)?,
            activation: Activation::named(config.text_or("activation_function", "gelu_new")?)?,
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
        // Old files have the causal mask, and new ones may have the head, which is `wte`.
        let is_mask = in_file.ends_with(".attn.bias") || in_file.ends_with(".attn.masked_bias");
        (!is_mask && in_file != "lm_head.weight").then(|| prefixed(in_file, "transformer.", &[]))
    }
}

impl Decoder for Gpt2 {
    fn sizes(&self) -> DecoderSizes {
        let Self { context, blocks, heads, width, .. } = *self;
        DecoderSizes { context, layers: blocks, heads, width: width / heads }
    }

    fn decode(&self, cx: &mut Context, x: &Var, reader: &mut Reader) -> Var {
        let norm = LayerNorm::new().epsilon(self.epsilon);
        cx.within("transformer", "gpt2", |cx| {
            let words = cx.kernel("wte.weight", &[self.vocabulary, self.width], 0, INIT);
            let positions = cx.kernel("wpe.weight", &[self.context, self.width], 0, INIT);
            let mut h = words.embed(x) + reader.positions(&positions, x);
            for block in 0..self.blocks {
                h = cx.within(&format!("h.{block}"), "block", |cx| {
                    let normed = cx.apply("ln_1", &norm, &h);
                    let h = &h + cx.within("attn", "attention", |cx| self.attend(cx, &normed, reader));
                    let normed = cx.apply("ln_2", &norm, &h);
                    let inner = (self.activation.0)(&conv1d(cx, "mlp.c_fc", &normed, self.hidden));
                    h + conv1d(cx, "mlp.c_proj", &inner, self.width)
                });
            }
            cx.apply("ln_f", &norm, &reader.wanted(&h)).matmul_t(&words)
        })
    }
}

const INIT: Initializer = Initializer::Normal(0.02);

impl Gpt2 {
    fn attend(&self, cx: &mut Context, x: &Var, reader: &mut Reader) -> Var {
        let all = conv1d(cx, "c_attn", x, 3 * self.width);
        let [q, k, v] =
            [0, 1, 2].map(|i| split(&all.slice(-1, i * self.width..(i + 1) * self.width), self.heads));
        let found = reader.attend([&q, &k, &v], 1).permute(&[1, 0, 2]).reshape(x.dims());
        conv1d(cx, "c_proj", &found, self.width)
    }
}

/// Computes x W + b with W `[in, out]`, as GPT-2 stores it.
fn conv1d(cx: &mut Context, name: &str, x: &Var, units: usize) -> Var {
    cx.within(name, "conv1d", |cx| {
        let weight = cx.kernel("weight", &[x.dims().last().copied().unwrap_or(1), units], 1, INIT);
        x.matmul(&weight) + cx.parameter("bias", &[units], Initializer::Zeros)
    })
}
