//! BERT (Devlin et al. 2019), as transformers' `BertForSequenceClassification`,
//! `BertForTokenClassification` and `BertForMaskedLM`.

use unisono::graph::Type;
use unisono::{Context, INPUT, Initializer, Inputs, LayerNorm, Var};

use super::{Activation, Architecture, MASK, attention, dense, divides, ids, lookup, prefixed};
use crate::config::Config;

/// BERT with a head for sequences, tokens or masked words: ids `[B, T]` to logits `[B, classes]`, `[B, T,
/// classes]` or `[B, T, vocabulary]`. The optional field `token_type_ids`, i32 `[T]`, has the segment of
/// each token. Default: segment 0.
#[derive(Clone, Debug)]
pub struct Bert {
    vocabulary: usize,
    context: usize,
    kinds: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    hidden: usize,
    epsilon: f32,
    activation: Activation,
    padding: Option<usize>,
    head: Head,
}

#[derive(Clone, Copy, Debug)]
enum Head {
    Sequence(usize),
    Tokens(usize),
    Words,
}

impl Architecture for Bert {
    const MODEL_TYPE: &'static str = "bert";

    fn new(config: &Config) -> Result<Self, String> {
        config.expect(&[("position_embedding_type", "absolute".into()), ("is_decoder", false.into())])?;
        let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        divides(heads, width)?;
        let head = match config.class() {
            "BertForSequenceClassification" => Head::Sequence(config.labels()?),
            "BertForTokenClassification" => Head::Tokens(config.labels()?),
            "BertForMaskedLM" => {
                config.expect(&[("tie_word_embeddings", true.into())])?;
                Head::Words
            }
            other => {
                return Err(format!(
                    "architectures has {other:?}; known are BertForSequenceClassification, \
                     BertForTokenClassification and BertForMaskedLM"
                ));
            }
        };
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            kinds: config.size_or("type_vocab_size", 2)?,
            width,
            blocks: config.layers("num_hidden_layers")?,
            heads,
            hidden: config.size("intermediate_size")?,
            epsilon: config.number_or("layer_norm_eps", 1e-12)?,
            activation: Activation::named(config.text_or("hidden_act", "gelu")?)?,
            padding: config.id_or("pad_token_id", 0)?,
            head,
        })
    }

    fn input(&self) -> Type {
        ids(self.context)
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let (x, mask, segments) = (&x[INPUT], x.get(MASK), x.get(SEGMENTS));
        let words =
            cx.kernel("bert.embeddings.word_embeddings.weight", &[self.vocabulary, self.width], 0, INIT);
        let found = lookup(cx, &words, x, self.padding);
        let h = self.encode(cx, &found, (segments, mask));
        match self.head {
            Head::Sequence(classes) => {
                let first = h.slice(1, 0..1).reshape(&[self.width]);
                let pooled = dense(cx, "bert.pooler.dense", &first, self.width).tanh();
                dense(cx, "classifier", &pooled, classes)
            }
            Head::Tokens(classes) => dense(cx, "classifier", &h, classes),
            Head::Words => {
                let inner = dense(cx, "cls.predictions.transform.dense", &h, self.width);
                let inner =
                    self.norm(cx, "cls.predictions.transform.LayerNorm", &(self.activation.0)(&inner));
                let bias = cx.parameter("cls.predictions.bias", &[self.vocabulary], Initializer::Zeros);
                inner.matmul_t(&words) + bias
            }
        }
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_copy = in_file.ends_with("position_ids") || in_file.starts_with("cls.predictions.decoder.");
        let name = prefixed(in_file, "bert.", &["cls.", "classifier."]);
        let is_other = self.is_of_other_head(&name);
        // Files that came from TensorFlow call a norm's weight and bias so.
        let name =
            name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias");
        (!is_copy && !is_other).then_some(name)
    }

    fn is_copy(&self, in_file: &str) -> bool {
        !self.is_of_other_head(&prefixed(in_file, "bert.", &["cls.", "classifier."]))
    }
}

/// The field with the segment of each token, as transformers calls it.
const SEGMENTS: &str = "token_type_ids";

const INIT: Initializer = Initializer::Normal(0.02);

impl Bert {
    /// Returns whether a tensor belongs to a head that this model does not have. Files often contain such
    /// parts, and transformers does not read them either.
    fn is_of_other_head(&self, name: &str) -> bool {
        let has_pooler = matches!(self.head, Head::Sequence(_));
        name.starts_with("cls.seq_relationship.") || name.starts_with("bert.pooler.") && !has_pooler
    }

    /// Computes the encoder for the vectors of words.
    fn encode(&self, cx: &mut Context, words: &Var, (segments, mask): (Option<&Var>, Option<&Var>)) -> Var {
        let steps = words.dims().first().copied().unwrap_or(1);
        let table = |cx: &mut Context, name: &str, rows| cx.kernel(name, &[rows, self.width], 0, INIT);
        let positions = table(cx, "bert.embeddings.position_embeddings.weight", self.context);
        let kinds = table(cx, "bert.embeddings.token_type_embeddings.weight", self.kinds);
        let kinds = segments.map_or_else(|| kinds.slice(0, 0..1), |ids| kinds.embed(ids));
        let sum = words + positions.slice(0, 0..steps) + kinds;
        let mut h = self.norm(cx, "bert.embeddings.LayerNorm", &sum);
        for block in 0..self.blocks {
            h = cx.within(&format!("bert.encoder.layer.{block}"), "block", |cx| {
                let [q, k, v] = ["query", "key", "value"]
                    .map(|part| dense(cx, &format!("attention.self.{part}"), &h, self.width));
                let found = attention([&q, &k, &v], self.heads, false, mask);
                let found = dense(cx, "attention.output.dense", &found, self.width);
                let h = self.norm(cx, "attention.output.LayerNorm", &(found + &h));
                let inner = (self.activation.0)(&dense(cx, "intermediate.dense", &h, self.hidden));
                let outer = dense(cx, "output.dense", &inner, self.width);
                self.norm(cx, "output.LayerNorm", &(outer + &h))
            });
        }
        h
    }

    fn norm(&self, cx: &mut Context, name: &str, x: &Var) -> Var {
        cx.apply(name, &LayerNorm::new().epsilon(self.epsilon), x)
    }
}
