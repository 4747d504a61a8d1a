//! GPT-2 (Radford et al. 2019: the smallest model, and a much smaller one) that learns to write reviews,
//! character by character. The vectors of characters are the head's weights too.
//!
//!     cargo run --release -p unisono-examples --bin gpt2 -- --replicas 2

use std::process::ExitCode;

use unisono::{AdamW, Initializer, LayerNorm, Model, Optimizer, Outputs, Trainer, TransformerBlock};
use unisono_examples::{Defaults, Error, Run, Text, data, held_out_loss, ids, published, say};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 16, shards: 4, seed: 42 };
/// The number of characters that a prediction depends on.
const CONTEXT: usize = 64;

#[derive(Clone, Copy)]
struct Size {
    vocabulary: usize,
    context: usize,
    width: usize,
    blocks: usize,
    heads: usize,
}

fn main() -> ExitCode {
    DEFAULTS.program("Trains a small GPT-2 to write reviews", gpt2)
}

fn gpt2(run: Run) -> Result<(), Error> {
    let smallest = Size { vocabulary: 50_257, context: 1024, width: 768, blocks: 12, heads: 12 };
    published(&Trainer::builder(transformer(smallest)), &[ids("x", &[16]), ids("y", &[16])], 124_439_808)?;

    let text = Text::read(&data(None, "reviews.tsv"), usize::MAX)?;
    let [train, held_out] = text.windows(CONTEXT)?;
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));
    let size = Size { vocabulary: text.vocabulary(), context: CONTEXT, width: 32, blocks: 2, heads: 4 };
    let optimizer = AdamW::new(5e-3).no_decay_for_biases_and_norms().clip_norm(1.0);
    let builder = Trainer::builder(transformer(size)).optimizer(optimizer);
    let mut trainer = run.train(builder, &train, &held_out)?;
    say!("{}", text.sample(&mut trainer, CONTEXT, "1\tthis", 200, run.seed)?);
    let (nats, pairs) = (held_out_loss(&trainer), text.bigram_nats());
    say!("validation: {nats:.3} nats per character; a bigram model: {pairs:.3}");
    DEFAULTS.claim_of(&trainer, "nats a character below the table's", pairs - nats, 0.3)
}

fn transformer(size: Size) -> Model {
    let Size { vocabulary, context, width, blocks, heads } = size;
    Model::new(move |cx, x| {
        let words = cx.parameter("words", &[vocabulary, width], Initializer::Normal(0.02));
        let positions = cx.parameter("positions", &[context, width], Initializer::Normal(0.02));
        let ids = &x["x"];
        let mut x = words.embed(ids) + positions.slice(0, 0..ids.dims()[0]);
        for block in 0..blocks {
            x = cx.apply(&format!("block{block}"), &TransformerBlock::new(heads).causal(), &x);
        }
        Outputs::new().with("output", &cx.apply("norm", &LayerNorm::new(), &x).matmul_t(&words))
    })
}
