//! Models of one layer between two dense ones, and one model for each optimizer, trained for four steps.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, AvgPool2d, BatchNorm, Chain, Context, Conv1d, Conv2d,
    ConvTranspose1d, ConvTranspose2d, Dense, DropPath, Dropout, Elu, Embedding, Flatten, FromFn, Gelu,
    GlobalAvgPool2d, GroupNorm, Gru, HardSwish, InstanceNorm, Lamb, Lars, Layer, LayerNorm, LayerScale, Lion,
    Lstm, MaxPool2d, Mish, MultiHeadAttention, Muon, NAdam, PRelu, Relu, Resize2d, RmsNorm, RmsProp,
    Sequential, Sgd, Sigmoid, Silu, SimpleRnn, Softmax, Softplus, SqueezeExcite, Tanh, TimeDistributed,
    Trainer, TransformerBlock, Upsample2d, Var,
};
use unisono_gpu::Adapter;
use unisono_random::Draws;

use crate::{CLASSES, blobs};

const BATCH: usize = 12;
const STEPS: usize = 4;
const WORDS: i32 = 11;

/// A model that is trained for a few steps.
pub struct Model {
    /// The name of the layer or of the optimizer.
    pub name: &'static str,
    layers: Box<dyn Fn() -> Sequential>,
    optimizer: fn() -> Chain,
    /// Whether the samples are ids, for an embedding.
    ids: bool,
}

impl Model {
    /// Trains the model on an adapter. Returns its tensors by name, as bits, after each other.
    ///
    /// # Errors
    /// The model cannot be built or trained there.
    pub fn train(&self, adapter: &Adapter) -> Result<super::Values, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let data = Loader::new(self.samples().map_err(|error| failed(&error))?).threads(1).shuffle(5);
        let mut trainer = self.trainer(adapter)?;
        trainer.fit(&data, None, 1).map_err(|error| failed(&error))?;
        let mut tensors = Vec::new();
        for (name, _) in trainer.tensors() {
            let Some(values) = trainer.tensor(&name) else { continue };
            let values = values.map_err(|error| failed(&error))?;
            tensors.push((name, values.iter().map(|x| x.to_bits()).collect()));
        }
        Ok(tensors)
    }

    /// Returns a trainer of the model on an adapter.
    ///
    /// # Errors
    /// The model cannot be built there.
    pub fn trainer(&self, adapter: &Adapter) -> Result<Trainer, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let data = Loader::new(self.samples().map_err(|error| failed(&error))?).threads(1);
        Trainer::builder((self.layers)())
            .optimizer((self.optimizer)())
            .adapter(&format!("{}:{}", adapter.backend, adapter.label()))
            .global_batch(BATCH)
            .shards(5)
            .seed(3)
            .build(&data.fields().map_err(|error| failed(&error))?)
            .map_err(|error| failed(&error))
    }

    fn samples(&self) -> Result<Memory, unisono::data::DataError> {
        let samples = BATCH * STEPS;
        if !self.ids {
            return blobs(samples, 5);
        }
        let mut draws = Draws::of(5, "vendors", "ids", 0, 0);
        let ids = (0..samples * 4).map(|_| draws.below(WORDS as u32) as i32).collect();
        let labels = (0..samples).map(|i| (i % CLASSES) as i32).collect();
        Memory::new("x", [4], Values::I32(ids))?.with("y", [0usize; 0], Values::I32(labels))
    }
}

/// Returns the models.
pub fn models() -> Vec<Model> {
    let mut all = layers();
    all.push(Model {
        name: "embedding",
        layers: Box::new(|| {
            Sequential::new().add(Embedding::new(WORDS as usize, 6)).add(Flatten).add(Dense::new(CLASSES))
        }),
        optimizer: || AdamW::new(0.01).into(),
        ids: true,
    });
    let optimizers: [Named; 14] = [
        ("sgd", || Sgd::new(0.05).momentum(0.9).nesterov().weight_decay(0.01).into()),
        ("adam", || Adam::new(0.01).weight_decay(0.01).into()),
        ("adamw", || Chain::from(AdamW::new(0.01)).clip_norm(1.0).average_weights(0.9)),
        ("rmsprop", || RmsProp::new(0.01).momentum(0.5).centered().into()),
        ("adagrad", || Adagrad::new(0.05).into()),
        ("adadelta", || Adadelta::new(1.0).into()),
        ("adamax", || Adamax::new(0.01).into()),
        ("nadam", || NAdam::new(0.01).into()),
        ("adafactor", || Adafactor::new(0.05).into()),
        ("lamb", || Lamb::new(0.01).into()),
        ("lars", || Lars::new(0.1).momentum(0.9).into()),
        ("lion", || Lion::new(0.003).into()),
        ("muon", || Muon::new(0.02).into()),
        ("clipped", || Chain::from(Sgd::new(0.05)).clip_value(0.01)),
    ];
    all.extend(optimizers.map(|(name, optimizer)| Model {
        name,
        layers: Box::new(|| Sequential::new().add(Dense::new(32)).add(Tanh).add(Dense::new(CLASSES))),
        optimizer,
        ids: false,
    }));
    all
}

/// Draws, moves, adds up and sorts the rows of sequences, and goes on from a state: `[B, 6, 8]` to `[B,
/// 13, 8]`.
fn values(cx: &mut Context, x: &Var) -> Var {
    let ids = |cx: &mut Context, n: f32| (cx.uniform(&[6]) * n).to_i32();
    let rows = x.gather_rows(&ids(cx, 6.0));
    let sums = rows.segment_sum(&ids(cx, 4.0), 4) * cx.constant("scale", &[4, 1], &[1.0, 0.5, 0.25, 2.0]);
    let sorted = (x + cx.normal(&[6, 8]) * 0.1).sort().0.cumulative_max(-1);
    let mut state = vec![];
    cx.within("rnn", "gru", |cx| {
        let (all, last) = Gru::new(8).with_state(cx, x, None, &[]);
        state = last;
        all
    });
    let after = cx.within("rnn", "gru", |cx| Gru::new(8).with_state(cx, &sorted, None, &state).0);
    let best = x.sum(&[-1]).argmax().to_i32().one_hot(3).reshape(&[3, 1]) * x.slice(1, 0..3);
    sums.concat(&[&best, &after], 1)
}

/// Returns a model for each layer: the layer on vectors, images or sequences of 48 numbers.
/// An optimizer and its name.
type Named = (&'static str, fn() -> Chain);

fn layers() -> Vec<Model> {
    const FLAT: &[usize] = &[48];
    const IMAGE: &[usize] = &[4, 4, 3];
    const SEQUENCE: &[usize] = &[6, 8];
    fn one<L: Layer + 'static>(name: &'static str, dims: &'static [usize], layer: fn() -> L) -> Model {
        let layers = Box::new(move || {
            Sequential::new()
                .add(Dense::new(48))
                .add(FromFn::new("shaped", move |_: &mut Context, x: &Var| x.reshape(dims)))
                .add(layer())
                .add(Flatten)
                .add(Dense::new(CLASSES))
        });
        Model { name, layers, optimizer: || Sgd::new(0.1).into(), ids: false }
    }
    vec![
        one("dense", FLAT, || Dense::new(20)),
        one("dropout", FLAT, || Dropout::new(0.3)),
        one("relu", FLAT, || Relu),
        one("gelu", FLAT, || Gelu),
        one("silu", FLAT, || Silu),
        one("tanh", FLAT, || Tanh),
        one("sigmoid", FLAT, || Sigmoid),
        one("softplus", FLAT, || Softplus),
        one("elu", FLAT, Elu::default),
        one("mish", FLAT, || Mish),
        one("hard_swish", FLAT, || HardSwish),
        one("softmax", FLAT, || Softmax),
        one("p_relu", FLAT, PRelu::new),
        one("layer_norm", FLAT, LayerNorm::new),
        one("rms_norm", FLAT, RmsNorm::new),
        one("batch_norm", IMAGE, BatchNorm::new),
        one("group_norm", IMAGE, || GroupNorm::new(2)),
        one("instance_norm", IMAGE, || InstanceNorm::new().affine()),
        one("conv2d", IMAGE, || Conv2d::new(6, 3).padding(1)),
        one("conv2d_groups", IMAGE, || Conv2d::new(4, 3).stride(2).padding(1).groups(2)),
        one("conv_transpose2d", IMAGE, || ConvTranspose2d::new(3, 3).stride([2, 1])),
        one("conv1d", SEQUENCE, || Conv1d::new(5, 3).causal()),
        one("conv_transpose1d", SEQUENCE, || ConvTranspose1d::new(3, 3).stride(2)),
        one("resize2d", IMAGE, || Resize2d::new([5, 2]).bicubic()),
        one("squeeze_excite", IMAGE, || SqueezeExcite::new(2)),
        one("drop_path", FLAT, || DropPath::new(0.3)),
        one("layer_scale", FLAT, || LayerScale::new(0.5)),
        one("time_distributed", SEQUENCE, || TimeDistributed::new(Dense::new(5))),
        one("values", SEQUENCE, || FromFn::new("values", values)),
        one("max_pool2d", IMAGE, || MaxPool2d::new(2)),
        one("avg_pool2d", IMAGE, || AvgPool2d::new(3).stride(1).padding(1)),
        one("global_avg_pool2d", IMAGE, || GlobalAvgPool2d),
        one("upsample2d", IMAGE, || Upsample2d::new(2).bilinear()),
        one("lstm", SEQUENCE, || Lstm::new(7)),
        one("gru", SEQUENCE, || Gru::new(7).last()),
        one("simple_rnn", SEQUENCE, || SimpleRnn::new(7)),
        one("attention", SEQUENCE, || MultiHeadAttention::new(2).causal()),
        one("attention_rotary", SEQUENCE, || MultiHeadAttention::new(2).kv_heads(1).rotary()),
        one("transformer", SEQUENCE, || TransformerBlock::new(2).causal().dropout(0.1)),
    ]
}
