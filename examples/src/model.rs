//! The models that are measured, and the noise that they are trained on.

use clap::ValueEnum;
use unisono::data::{Draws, FieldDType, FieldSpec, Loader, Memory, Tokens, Values, Width};
use unisono::{
    Conv2d, Dense, Embedding, Flatten, FromFn, GlobalAvgPool2d, Initializer, LayerNorm, Lstm, MaxPool2d,
    MultiHeadAttention, Relu, Sequential, TransformerBlock,
};

use crate::{Error, resnet18};

/// The number of batches of noise.
const BATCHES: usize = 8;
/// The number of different characters in a text.
const VOCABULARY: usize = 64;
/// The number of different words in a text for BERT.
const WORDS: usize = 30_522;

/// A model that benchmarks measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// A 784-512-512-10 perceptron at batch 128 with AdamW
    Mlp,
    /// A 784-1024-1024-10 perceptron at batch 256 with AdamW
    Wide,
    /// Two convolutions of 16 and 32 channels, each with a pool, and two dense layers over 28 x 28, batch 32
    /// with AdamW
    Cnn,
    /// The model of `text_lstm` over 32 characters at batch 64 with AdamW
    Lstm,
    /// The model of `tiny_gpt` over 64 characters at batch 16 with AdamW
    Gpt,
    /// Two convolutions of 128 channels over 28 x 28 with as many channels, batch 32 with AdamW
    Conv,
    /// A GPT of 98 million parameters: 12 causal blocks of width 768 with 12 heads, a vocabulary of 8,192,
    /// 1,024 tokens, batch 8 with AdamW
    Gpt100m,
    /// A 4096-4096-4096 perceptron at batch 4096 with AdamW: its products have 4096 rows, columns and steps
    Big,
    /// ResNet-18 over 64 x 64, batch 16 with AdamW
    Resnet18,
    /// BERT-mini, which classifies texts: 4 blocks of width 256 with 4 heads, 30,522 words, 128 tokens,
    /// batch 8 with AdamW
    BertMini,
}

impl Model {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Mlp,
        Self::Wide,
        Self::Cnn,
        Self::Lstm,
        Self::Gpt,
        Self::Conv,
        Self::Gpt100m,
        Self::Big,
        Self::Resnet18,
        Self::BertMini,
    ];

    /// Those that reports of GPUs measure.
    pub const REPORTED: [Self; 8] =
        [Self::Mlp, Self::Wide, Self::Cnn, Self::Lstm, Self::Gpt, Self::Conv, Self::Gpt100m, Self::Big];

    /// Returns the model's name on the command line.
    pub fn flag(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }

    /// Returns what the model is, for headings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "784-512-512-10 perceptron",
            Self::Wide => "784-1024-1024-10 perceptron",
            Self::Cnn => "CNN over 28 x 28 (conv 16, conv 32, dense 128, dense 10)",
            Self::Lstm => "stateful LSTM over 32 characters (embedding 32, 128 units)",
            Self::Gpt => "GPT over 64 characters (2 causal blocks of width 64, 4 heads)",
            Self::Conv => "CNN over 128 x 28 x 28 (conv 128, conv 128, dense 10)",
            Self::Gpt100m => "GPT over 1,024 tokens (12 causal blocks of width 768, 12 heads)",
            Self::Big => "4096-4096-4096 perceptron",
            Self::Resnet18 => "ResNet-18 over 64 x 64",
            Self::BertMini => "BERT-mini over 128 tokens (4 blocks of width 256, 4 heads)",
        }
    }

    /// Returns the number of samples of a step, unless another is asked for.
    pub fn batch(self) -> usize {
        match self {
            Self::Mlp => 128,
            Self::Wide => 256,
            Self::Cnn => 32,
            Self::Lstm => 64,
            Self::Gpt => 16,
            Self::Conv => 32,
            Self::Gpt100m => 8,
            Self::Big => 4096,
            Self::Resnet18 => 16,
            Self::BertMini => 8,
        }
    }

    /// Returns the model itself.
    pub fn layers(self) -> Sequential {
        let dense = |units| Sequential::new().add(Dense::new(units)).add(Relu);
        let conv = |channels| {
            Sequential::new().add(Conv2d::new(channels, 3).padding(1)).add(Relu).add(MaxPool2d::new(2))
        };
        match self {
            Self::Mlp => Sequential::new().add(dense(512)).add(dense(512)).add(Dense::new(10)),
            Self::Wide => Sequential::new().add(dense(1024)).add(dense(1024)).add(Dense::new(10)),
            Self::Cnn => {
                let features = Sequential::new().add(conv(16)).add(conv(32)).add(Flatten);
                features.add(dense(128)).add(Dense::new(10))
            }
            Self::Lstm => Sequential::new()
                .add(Embedding::new(VOCABULARY, 32))
                .add(Lstm::new(128).stateful())
                .add(Dense::new(VOCABULARY)),
            Self::Gpt => gpt(2, 64, 4, VOCABULARY),
            Self::Conv => {
                let conv = || Sequential::new().add(Conv2d::new(128, 3).padding(1)).add(Relu);
                Sequential::new().add(conv()).add(conv()).add(GlobalAvgPool2d).add(Dense::new(10))
            }
            Self::Gpt100m => gpt(12, 768, 12, 8192),
            Self::Big => Sequential::new().add(Dense::new(4096)).add(Relu).add(Dense::new(4096)),
            Self::Resnet18 => resnet18(64, 10),
            Self::BertMini => bert(4, 256, 4),
        }
    }

    /// Returns what the samples of [`Model::noise`] look like, without making any.
    pub fn fields(self) -> Vec<FieldSpec> {
        let field =
            |name: &str, shape: &[usize], dtype| FieldSpec { name: name.into(), dtype, shape: shape.into() };
        let image =
            |dims: &[usize]| vec![field("x", dims, FieldDType::F32), field("y", &[], FieldDType::I32)];
        let text =
            |tokens| vec![field("x", &[tokens], FieldDType::I32), field("y", &[tokens], FieldDType::I32)];
        match self {
            Self::Mlp | Self::Wide => image(&[784]),
            Self::Cnn => image(&[1, 28, 28]),
            Self::Lstm => text(32),
            Self::Gpt => text(64),
            Self::Conv => image(&[128, 28, 28]),
            Self::Gpt100m => text(1024),
            Self::Big => image(&[4096]),
            Self::Resnet18 => image(&[3, 64, 64]),
            Self::BertMini => vec![field("x", &[128], FieldDType::I32), field("y", &[], FieldDType::I32)],
        }
    }

    /// Returns a loader of batches of noise with labels, in order, of `batch` samples each.
    pub fn noise(self, batch: usize) -> Result<Loader, Error> {
        match self {
            Self::Mlp | Self::Wide => self.images(batch, &[784]),
            Self::Cnn => self.images(batch, &[1, 28, 28]),
            Self::Lstm => Ok(self.text(batch, 32)?.lanes()),
            Self::Gpt => self.text(batch, 64),
            Self::Conv => self.images(batch, &[128, 28, 28]),
            Self::Gpt100m => self.text(batch, 1024),
            Self::Big => self.images(batch, &[4096]),
            Self::Resnet18 => self.images(batch, &[3, 64, 64]),
            Self::BertMini => self.labelled_text(batch, 128),
        }
    }

    /// Returns a source of samples with the axes `dims`.
    fn images(self, batch: usize, dims: &[usize]) -> Result<Loader, Error> {
        let samples = BATCHES * batch;
        let pixels = Initializer::Uniform(1.0).values(0, "noise", &[&[samples], dims].concat())?;
        let labels: Vec<i32> = (0..samples).map(|sample| (sample % 10) as i32).collect();
        Ok(Loader::new(Memory::labelled(pixels, dims, labels)?).batch(batch).threads(1))
    }

    /// Returns a source of texts of `length` words with one of two labels each.
    fn labelled_text(self, batch: usize, length: usize) -> Result<Loader, Error> {
        let mut draws = Draws::of(0, "bench", "noise", 0, 0);
        let samples = BATCHES * batch;
        let words = (0..samples * length).map(|_| draws.range(0.0, WORDS as f32) as i32).collect();
        let labels: Vec<i32> = (0..samples).map(|sample| (sample % 2) as i32).collect();
        let text = Memory::new("x", [length], Values::I32(words))?.with("y", [], Values::I32(labels))?;
        Ok(Loader::new(text).batch(batch).threads(1))
    }

    /// Returns a source of windows of `context` characters. The target of each character is the next one.
    fn text(self, batch: usize, context: usize) -> Result<Loader, Error> {
        let mut draws = Draws::of(0, "bench", "noise", 0, 0);
        let length = BATCHES * batch * context + 1;
        let text = (0..length).map(|_| draws.range(0.0, VOCABULARY as f32) as u8).collect();
        let windows = Tokens::in_memory("noise", text, Width::U8, context)?;
        Ok(Loader::new(windows).batch(batch).threads(1))
    }
}

/// Returns a BERT with two classes. Every token sees all others.
fn bert(blocks: usize, width: usize, heads: usize) -> Sequential {
    let small = Initializer::Normal(0.02);
    let encoder = FromFn::new("encoder", move |cx, x| {
        let positions = cx.parameter("positions", x.dims(), Initializer::Normal(0.02));
        let mut h = cx.apply("norm", &LayerNorm::new(), &(x + positions));
        for block in 0..blocks {
            h = cx.within(&format!("block{block}"), "bert_block", |cx| {
                let attended = cx.apply("attention", &MultiHeadAttention::new(heads), &h);
                let h = cx.apply("norm1", &LayerNorm::new(), &(&h + attended));
                let inner = cx.apply("linear1", &Dense::new(4 * width), &h).gelu();
                let outer = cx.apply("linear2", &Dense::new(width), &inner);
                cx.apply("norm2", &LayerNorm::new(), &(h + outer))
            });
        }
        cx.apply("pooler", &Dense::new(width), &h.slice(1, 0..1).reshape(&[width])).tanh()
    });
    let embedded = Sequential::new().add(Embedding::new(WORDS, width).initializer(small));
    embedded.add(encoder).add(Dense::new(2))
}

/// Returns a GPT with learned positions.
fn gpt(blocks: usize, width: usize, heads: usize, vocabulary: usize) -> Sequential {
    let small = Initializer::Normal(0.02);
    let places =
        FromFn::new("places", |cx, x| x + cx.parameter("weight", x.dims(), Initializer::Normal(0.02)));
    let block = || TransformerBlock::new(heads).causal();
    let inner = (0..blocks).fold(Sequential::new(), |inner, _| inner.add(block())).add(LayerNorm::new());
    let embedded = Embedding::new(vocabulary, width).initializer(small);
    Sequential::new().add(embedded).add(places).add(inner).add(Dense::new(vocabulary))
}
