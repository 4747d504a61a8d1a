//! DistilBERT (Sanh et al. 2019), as transformers' `DistilBertForSequenceClassification`.

use unisono::graph::Type;
use unisono::{Context, INPUT, Initializer, Inputs, LayerNorm, Var};

use super::{Activation, Architecture, MASK, attention, dense, divides, ids, lookup, prefixed};
use crate::config::Config;

/// DistilBERT with a head that classifies sequences: ids `[B, T]` to logits `[B, classes]`.
#[derive(Clone, Debug)]
pub struct DistilBert {
    vocabulary: usize,
    context: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    hidden: usize,
    classes: usize,
    padding: Option<usize>,
    activation: Activation,
}

impl Architecture for DistilBert {
    const MODEL_TYPE: &'static str = "distilbert";

    fn new(config: &Config) -> Result<Self, String> {
        let (width, heads) = (config.size("dim")?, config.size("n_heads")?);
        divides(heads, width)?;
        let class = config.class();
        if class != "DistilBertForSequenceClassification" {
            return Err(format!("architectures has {class:?}; known is DistilBertForSequenceClassification"));
        }
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            width,
            blocks: config.layers("n_layers")?,
            heads,
            hidden: config.size("hidden_dim")?,
            classes: config.labels()?,
            padding: config.id_or("pad_token_id", 0)?,
            activation: Activation::named(config.text_or("activation", "gelu")?)?,
        })
    }

    fn input(&self) -> Type {
        ids(self.context)
    }

    fn forward(&self, cx: &mut Context, x: &Inputs) -> Var {
        let (x, mask) = (&x[INPUT], x.get(MASK));
        let norm = LayerNorm::new().epsilon(1e-12);
        let start = Initializer::Normal(0.02);
        let h = cx.within("distilbert", "distilbert", |cx| {
            let words = [self.vocabulary, self.width];
            let words = cx.kernel("embeddings.word_embeddings.weight", &words, 0, start.clone());
            let positions = [self.context, self.width];
            let positions = cx.kernel("embeddings.position_embeddings.weight", &positions, 0, start.clone());
            let sum = lookup(cx, &words, x, self.padding)
                + positions.slice(0, 0..x.dims().first().copied().unwrap_or(1));
            let mut h = cx.apply("embeddings.LayerNorm", &norm, &sum);
            for block in 0..self.blocks {
                h = cx.within(&format!("transformer.layer.{block}"), "block", |cx| {
                    let [q, k, v] = ["q", "k", "v"]
                        .map(|part| dense(cx, &format!("attention.{part}_lin"), &h, self.width));
                    let found = attention([&q, &k, &v], self.heads, false, mask);
                    let found = dense(cx, "attention.out_lin", &found, self.width);
                    let h = cx.apply("sa_layer_norm", &norm, &(found + &h));
                    let inner = (self.activation.0)(&dense(cx, "ffn.lin1", &h, self.hidden));
                    let outer = dense(cx, "ffn.lin2", &inner, self.width);
                    cx.apply("output_layer_norm", &norm, &(outer + &h))
                });
            }
            h
        });
        let first = h.slice(1, 0..1).reshape(&[self.width]);
        let pooled = dense(cx, "pre_classifier", &first, self.width).relu();
        dense(cx, "classifier", &pooled, self.classes)
    }

    fn name(&self, in_file: &str) -> Option<String> {
        let is_constant = in_file.ends_with("position_ids");
        (!is_constant).then(|| prefixed(in_file, "distilbert.", &["pre_classifier.", "classifier."]))
    }
}
