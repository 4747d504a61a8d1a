//! Whisper (Radford et al. 2022), as transformers' `WhisperForConditionalGeneration`.

use unisono::functional::scaled_dot_product_attention;
use unisono::graph::Type;
use unisono::{Context, Conv1d, Dense, INPUT, Initializer, Inputs, LayerNorm, Var};

use super::decoder::{DecoderSizes, Reader};
use super::encoder_decoder::{Cross, EncoderDecoder, Source};
use super::{Activation, Architecture, DECODER, decoder_ids, dense, divides, ids, lookup, split};
use crate::config::Config;

/// Whisper: log-mel spectra `[B, bins, frames]` and ids `[B, T]` for the decoder to logits
/// `[B, T, vocabulary]`. There are two frames for each position of the encoder.
#[derive(Clone, Debug)]
pub struct Whisper {
    vocabulary: usize,
    bins: usize,
    /// The positions of the encoder and of the decoder.
    contexts: [usize; 2],
    width: usize,
    encoder: Stack,
    decoder: Stack,
    activation: Activation,
    padding: Option<usize>,
    start: usize,
}

#[derive(Clone, Copy, Debug)]
struct Stack {
    blocks: usize,
    heads: usize,
    hidden: usize,
}

impl Architecture for Whisper {
    const MODEL_TYPE: &'static str = "whisper";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[("scale_embedding", false.into()), ("tie_word_embeddings", true.into())])?;
        let class = config.class();
        if class != "WhisperForConditionalGeneration" {
            return Err(format!("architectures has {class:?}; known is WhisperForConditionalGeneration"));
        }
        let width = config.size("d_model")?;
        let stack = |which: &str| {
            let heads = config.size(&format!("{which}_attention_heads"))?;
            divides(heads, width)?;
            let blocks = config.layers(&format!("{which}_layers"))?;
            Ok::<_, String>(Stack { blocks, heads, hidden: config.size(&format!("{which}_ffn_dim"))? })
        };
        let padding = config.id_or("pad_token_id", 50_256)?;
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            bins: config.size_or("num_mel_bins", 80)?,
            contexts: [
                config.size_or("max_source_positions", 1500)?,
                config.size_or("max_target_positions", 448)?,
            ],
            width,
            encoder: stack("encoder")?,
            decoder: stack("decoder")?,
            activation: Activation::named(config.text_or("activation_function", "gelu")?)?,
            padding,
            start: config.id_or("decoder_start_token_id", 50_257)?.unwrap_or(0),
        })
    }

    fn input(&self) -> Type {
        Type::sample(&[self.bins, 2 * self.contexts[0]])
    }

    fn inputs(&self) -> Vec<(&'static str, Type)> {
        vec![(INPUT, self.input()), (DECODER, ids(self.contexts[1]))]
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let ids = decoder_ids(cx, x, self.start, self.padding.unwrap_or(0));
        let source = Source { x: &x[INPUT], mask: None };
        self.write(cx, source, &ids, &mut Reader::whole(None), &mut Cross::default())
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_own = in_file != "proj_out.weight";
        is_own.then(|| super::prefixed(in_file, "model.", &[]))
    }
}

impl EncoderDecoder for Whisper {
    fn sizes(&self) -> DecoderSizes {
        let Stack { blocks, heads, .. } = self.decoder;
        DecoderSizes { context: self.contexts[1], layers: blocks, heads, width: self.width / heads }
    }

    fn start(&self) -> usize {
        self.start
    }

    fn positions(&self) -> usize {
        self.contexts[0]
    }

    fn write(
        &self,
        cx: &mut Context,
        source: Source<'_>,
        ids: &Var,
        reader: &mut Reader,
        cross: &mut Cross,
    ) -> Var {
        cx.within("model", "whisper", |cx| {
            let encoded = cx.within("encoder", "encoder", |cx| self.encode(cx, source.x));
            cx.within("decoder", "decoder", |cx| self.decode(cx, ids, &encoded, reader, cross))
        })
    }
}

impl Whisper {
    /// Computes the encoder: `[B, bins, frames]` to `[B, frames / 2, E]`.
    fn encode(&self, cx: &mut Context, x: &Var) -> Var {
        let [width, places] = [self.width, self.contexts[0]];
        let h = cx.apply("conv1", &Conv1d::new(width, 3).padding(1), x).gelu();
        let h = cx.apply("conv2", &Conv1d::new(width, 3).stride(2).padding(1), &h).gelu();
        // These are sines and cosines, which are stored and not trained.
        let positions = cx.statistic("embed_positions.weight", &[places, width], Initializer::Zeros);
        let mut h = h.permute(&[1, 0]) + positions;
        for block in 0..self.encoder.blocks {
            h = cx.within(&format!("layers.{block}"), "block", |cx| {
                let normed = cx.apply("self_attn_layer_norm", &LayerNorm::new(), &h);
                let heads = self.encoder.heads;
                let h = &h + self.attend(cx, "self_attn", [&normed, &normed], heads, attention_to_all);
                self.dense(cx, &h, self.encoder.hidden)
            });
        }
        cx.apply("layer_norm", &LayerNorm::new(), &h)
    }

    /// Computes the decoder, whose head is the table of words.
    fn decode(
        &self,
        cx: &mut Context,
        ids: &Var,
        encoded: &Var,
        reader: &mut Reader,
        cross: &mut Cross,
    ) -> Var {
        let start = Initializer::Normal(0.02);
        let words = cx.kernel("embed_tokens.weight", &[self.vocabulary, self.width], 0, start.clone());
        let positions = cx.kernel("embed_positions.weight", &[self.contexts[1], self.width], 0, start);
        let mut h = lookup(cx, &words, ids, self.padding) + reader.positions(&positions, ids);
        let heads = self.decoder.heads;
        for block in 0..self.decoder.blocks {
            h = cx.within(&format!("layers.{block}"), "block", |cx| {
                let normed = cx.apply("self_attn_layer_norm", &LayerNorm::new(), &h);
                let own = |qkv: [&Var; 3]| reader.attend(qkv, 1);
                let h = &h + self.attend(cx, "self_attn", [&normed, &normed], heads, own);
                let normed = cx.apply("encoder_attn_layer_norm", &LayerNorm::new(), &h);
                let other = |[q, k, v]: [&Var; 3]| {
                    let [k, v] = cross.take([k.clone(), v.clone()]);
                    attention_to_all([q, &k, &v])
                };
                let h = &h + self.attend(cx, "encoder_attn", [&normed, encoded], heads, other);
                self.dense(cx, &h, self.decoder.hidden)
            });
        }
        cx.apply("layer_norm", &LayerNorm::new(), &h).matmul_t(&words)
    }

    fn attend(
        &self,
        cx: &mut Context,
        name: &str,
        [x, context]: [&Var; 2],
        heads: usize,
        attention: impl FnOnce([&Var; 3]) -> Var,
    ) -> Var {
        cx.within(name, "attention", |cx| {
            let q = dense(cx, "q_proj", x, self.width);
            let k = cx.apply("k_proj", &Dense::new(self.width).no_bias(), context);
            let v = dense(cx, "v_proj", context, self.width);
            let [q4, k4, v4] = [&q, &k, &v].map(|x| split(x, heads));
            let found = attention([&q4, &k4, &v4]).permute(&[1, 0, 2]).reshape(q.dims());
            dense(cx, "out_proj", &found, self.width)
        })
    }

    fn dense(&self, cx: &mut Context, h: &Var, hidden: usize) -> Var {
        let normed = cx.apply("final_layer_norm", &LayerNorm::new(), h);
        let inner = (self.activation.0)(&dense(cx, "fc1", &normed, hidden));
        h + dense(cx, "fc2", &inner, self.width)
    }
}

/// Computes attention in which every position sees all others.
fn attention_to_all([q, k, v]: [&Var; 3]) -> Var {
    scaled_dot_product_attention(q, k, v, false)
}
