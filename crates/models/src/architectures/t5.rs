//! T5 (Raffel et al. 2020), as transformers' `T5ForConditionalGeneration`: 1.0, and 1.1 and Flan with gated
//! layers and a head of their own.

use unisono::checkpoint::{Plan, Tensors};
use unisono::functional::{RelativeBuckets, relative_position_bias, scaled_dot_product_attention_biased};
use unisono::graph::Type;
use unisono::{Context, Dense, INPUT, Initializer, Inputs, RmsNorm, Var};

use super::decoder::{DecoderSizes, Reader};
use super::encoder_decoder::{Cross, EncoderDecoder, Source};
use super::{Activation, Architecture, DECODER, MASK, decoder_ids, ids, lookup, split};
use crate::config::Config;

/// T5: ids `[B, S]` for the encoder and `[B, T]` for the decoder to logits `[B, T, vocabulary]`.
#[derive(Clone, Debug)]
pub struct T5 {
    vocabulary: usize,
    context: usize,
    width: usize,
    head_width: usize,
    hidden: usize,
    blocks: [usize; 2],
    heads: usize,
    buckets: usize,
    farthest: usize,
    epsilon: f32,
    gated: bool,
    activation: Activation,
    /// Whether the head is the table of words, in place of one of its own.
    tied: bool,
    /// Whether the decoder's result is scaled by 1 / sqrt(width).
    scaled: bool,
    start: usize,
    padding: usize,
}

impl Architecture for T5 {
    const MODEL_TYPE: &'static str = "t5";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[("is_encoder_decoder", true.into())])?;
        let blocks = config.layers("num_layers")?;
        let forward = config.text_or("feed_forward_proj", "relu")?;
        let (gated, activation) = match forward {
            // The config of T5 1.1 says gelu and means its approximation.
            "gated-gelu" => (true, "gelu_new"),
            _ => (forward.starts_with("gated-"), forward.trim_start_matches("gated-")),
        };
        let tied = config.flag_or("tie_word_embeddings", true)?;
        let padding = config.id_or("pad_token_id", 0)?.unwrap_or(0);
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            context: config.size_or("n_positions", 512)?,
            width: config.size("d_model")?,
            head_width: config.size("d_kv")?,
            hidden: config.size("d_ff")?,
            blocks: [blocks, config.layers_or("num_decoder_layers", blocks)?],
            heads: config.size("num_heads")?,
            buckets: config.size_or("relative_attention_num_buckets", 32)?,
            farthest: config.size_or("relative_attention_max_distance", 128)?,
            epsilon: config.number_or("layer_norm_epsilon", 1e-6)?,
            gated,
            activation: Activation::named(activation)?,
            tied,
            scaled: config.flag_or("scale_decoder_outputs", tied)?,
            start: config.id_or("decoder_start_token_id", padding)?.unwrap_or(padding),
            padding,
        })
    }

    /// Recognises a head of its own where the config says that it is tied: newer versions of transformers
    /// always write that.
    fn foreign(config: &Config, tensors: &Tensors) -> Result<Option<(Self, Plan)>, String> {
        if config.text_or("model_type", "")? != Self::MODEL_TYPE {
            return Ok(None);
        }
        let t5 = Self::new(config)?;
        let head = tensors.get("lm_head.weight");
        let tied = t5.tied && (head.is_none() || head == tensors.get("shared.weight"));
        Ok(Some((Self { tied, ..t5 }, Plan::new())))
    }

    fn input(&self) -> Type {
        ids(self.context)
    }

    fn inputs(&self) -> Vec<(&'static str, Type)> {
        vec![(INPUT, self.input()), (DECODER, self.input())]
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let ids = decoder_ids(cx, x, self.start, self.padding);
        let source = Source { x: &x[INPUT], mask: x.get(MASK) };
        self.write(cx, source, &ids, &mut Reader::whole(None), &mut Cross::default())
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_copy = in_file.ends_with("embed_tokens.weight") || self.tied && in_file == "lm_head.weight";
        // The first files have biases of cross-attention, which no version reads.
        let is_old = in_file.ends_with("EncDecAttention.relative_attention_bias.weight");
        (!is_copy && !is_old).then(|| in_file.to_owned())
    }
}

impl EncoderDecoder for T5 {
    fn sizes(&self) -> DecoderSizes {
        let Self { heads, head_width, .. } = *self;
        // Positions are distances, of which there may be any.
        DecoderSizes { context: usize::MAX, layers: self.blocks[1], heads, width: head_width }
    }

    fn start(&self) -> usize {
        self.start
    }

    fn write(
        &self,
        cx: &mut Context,
        source: Source<'_>,
        ids: &Var,
        reader: &mut Reader,
        cross: &mut Cross,
    ) -> Var {
        let start = Initializer::Normal(1.0);
        let words = cx.kernel("shared.weight", &[self.vocabulary, self.width], 0, start);
        let read = lookup(cx, &words, source.x, None);
        let encoded = cx.within("encoder", "encoder", |cx| self.encode(cx, read, source.mask));
        let read = lookup(cx, &words, ids, None);
        let other = Source { x: &encoded, mask: source.mask };
        let decoded = cx.within("decoder", "decoder", |cx| self.decode(cx, read, other, reader, cross));
        // Computed in f64 and rounded once, because `powf` differs between platforms.
        let scale = (1.0 / (self.width as f64).sqrt()) as f32;
        let decoded = if self.scaled { decoded * scale } else { decoded };
        if self.tied {
            return decoded.matmul_t(&words);
        }
        linear(cx, "lm_head", &decoded, self.vocabulary)
    }
}

impl T5 {
    /// Computes the blocks of the encoder.
    fn encode(&self, cx: &mut Context, mut h: Var, mask: Option<&Var>) -> Var {
        let steps = h.dims().first().copied().unwrap_or(1);
        let mut bias = None;
        for block in 0..self.blocks[0] {
            h = cx.within(&format!("block.{block}"), "block", |cx| {
                let normed = self.norm(cx, "layer.0.layer_norm", &h);
                let found = cx.within("layer.0.SelfAttention", "attention", |cx| {
                    let bias = bias.get_or_insert_with(|| self.bias(cx, steps, true));
                    self.attend(cx, [&normed, &normed], |qkv| biased(qkv, Some(&*bias), mask))
                });
                self.dense(cx, "layer.1", &(&h + found))
            });
        }
        self.norm(cx, "final_layer_norm", &h)
    }

    /// Computes the blocks of the decoder behind the encoder's result.
    fn decode(
        &self,
        cx: &mut Context,
        mut h: Var,
        encoded: Source<'_>,
        reader: &mut Reader,
        cross: &mut Cross,
    ) -> Var {
        let mut bias = None;
        for block in 0..self.blocks[1] {
            h = cx.within(&format!("block.{block}"), "block", |cx| {
                let normed = self.norm(cx, "layer.0.layer_norm", &h);
                let found = cx.within("layer.0.SelfAttention", "attention", |cx| {
                    let bias = bias.get_or_insert_with(|| self.bias(cx, reader.length(&h), false));
                    self.attend(cx, [&normed, &normed], |qkv| reader.attend_biased(qkv, bias))
                });
                let h = &h + found;
                let normed = self.norm(cx, "layer.1.layer_norm", &h);
                let found = cx.within("layer.1.EncDecAttention", "attention", |cx| {
                    self.attend(cx, [&normed, encoded.x], |[q, k, v]| {
                        let [k, v] = cross.take([k.clone(), v.clone()]);
                        biased([q, &k, &v], None, encoded.mask)
                    })
                });
                self.dense(cx, "layer.2", &(h + found))
            });
        }
        self.norm(cx, "final_layer_norm", &h)
    }

    /// Returns the biases of all distances. The first block has them, for all of its stack.
    fn bias(&self, cx: &mut Context, steps: usize, both_directions: bool) -> Var {
        let shape = [self.buckets, self.heads];
        let table = cx.parameter("relative_attention_bias.weight", &shape, Initializer::Normal(0.02));
        let Self { buckets, farthest, .. } = *self;
        let by = RelativeBuckets { buckets, farthest, both_directions };
        relative_position_bias(&table, steps, steps, by)
    }

    /// Projects to queries, keys and values, and back what `attention` makes of their heads.
    fn attend(
        &self,
        cx: &mut Context,
        [x, context]: [&Var; 2],
        attention: impl FnOnce([&Var; 3]) -> Var,
    ) -> Var {
        let all = self.heads * self.head_width;
        let q = split(&linear(cx, "q", x, all), self.heads);
        let k = split(&linear(cx, "k", context, all), self.heads);
        let v = split(&linear(cx, "v", context, all), self.heads);
        let steps = x.dims().first().copied().unwrap_or(1);
        let found = attention([&q, &k, &v]).permute(&[1, 0, 2]).reshape(&[steps, all]);
        linear(cx, "o", &found, self.width)
    }

    /// Adds what the dense layers make of a value, under the name of their part of the block.
    fn dense(&self, cx: &mut Context, name: &str, h: &Var) -> Var {
        let x = self.norm(cx, &format!("{name}.layer_norm"), h);
        let found = cx.within(&format!("{name}.DenseReluDense"), "dense", |cx| {
            let inner = if self.gated {
                let gate = (self.activation.0)(&linear(cx, "wi_0", &x, self.hidden));
                gate * linear(cx, "wi_1", &x, self.hidden)
            } else {
                (self.activation.0)(&linear(cx, "wi", &x, self.hidden))
            };
            linear(cx, "wo", &inner, self.width)
        });
        h + found
    }

    fn norm(&self, cx: &mut Context, name: &str, x: &Var) -> Var {
        cx.apply(name, &RmsNorm::new().epsilon(self.epsilon), x)
    }
}

fn linear(cx: &mut Context, name: &str, x: &Var, units: usize) -> Var {
    cx.apply(name, &Dense::new(units).no_bias(), x)
}

/// Computes attention, whose scores T5 does not scale.
fn biased([q, k, v]: [&Var; 3], bias: Option<&Var>, mask: Option<&Var>) -> Var {
    let mask = mask.map(|m| m.to_f32().reshape(&[1, 1, m.ty().count()]));
    let zero = q.tape().constant(0.0);
    scaled_dot_product_attention_biased([q, k, v], bias.unwrap_or(&zero), 1.0, false, mask.as_ref())
}
