//! Mistakes that a newcomer makes, each with what the library says to it.

use unisono::data::Windows;
use unisono::{
    Accuracy, Builder, Conv2d, CrossEntropy, Gru, Lstm, MaxPool2d, MeanSquaredError, Model,
    MultiHeadAttention, Optimizer, Outputs, Phase, TransformerBlock,
};

use super::*;

mod likely;
mod outsider;
mod runs;
mod second_outsider;
mod silent;
mod third_outsider;

/// What the mistake is, what the library says, and the words that must be in it.
type Mistake = (&'static str, String, &'static [&'static str]);

/// Returns the error of building a trainer, or its notes, or nothing where it says nothing.
fn said(builder: Builder, data: &Loader) -> String {
    match builder.global_batch(16).replicas(1).build(&data.fields().unwrap()) {
        Ok(trainer) => trainer.notes().join("\n"),
        Err(error) => error.to_string(),
    }
}

/// 32 samples with numbers "x" [6], pictures "picture" [1, 8, 8], words "words" [5], labels "y", a number
/// "price" [1] and labels of f32 "class".
fn data() -> Loader {
    let numbers = |each: usize| Values::F32((0..32 * each).map(|i| (i % 7) as f32 / 7.0).collect());
    let ids = |each: usize| Values::I32((0..32 * each).map(|i| (i % 3) as i32).collect());
    let memory = Memory::new("x", [6], numbers(6)).unwrap();
    let memory = memory.with("picture", [1, 8, 8], numbers(64)).unwrap().with("words", [5], ids(5)).unwrap();
    let memory = memory.with("y", [], ids(1)).unwrap().with("price", [1], numbers(1)).unwrap();
    Loader::new(memory.with("class", [], numbers(1)).unwrap())
}

/// What is said to a model of some fields whose output has no loss of its own.
fn model(forward: impl Fn(&mut Context, &unisono::Inputs) -> Var + Send + Sync + 'static) -> String {
    let model = Model::new(move |cx, x| {
        let y = forward(cx, x);
        cx.loss("own", &y.square(), 1.0);
        Outputs::new().with("made", &y)
    });
    said(Trainer::builder(model), &data())
}

/// What is said to a layer that takes one field.
fn layer(field: &'static str, layer: impl Layer + 'static) -> String {
    model(move |cx, x| cx.apply("layer", &layer, &x[field]))
}

/// What is said to a trainer of three logits of "x" with settings.
fn trainer(with: impl FnOnce(Builder) -> Builder) -> String {
    let model = Model::new(|cx, x| {
        let logits = cx.apply("logits", &Dense::new(3), &x["x"]);
        Outputs::new().with("y", &logits).with("price", &logits.slice(-1, 0..1))
    });
    said(with(Trainer::builder(model)), &data())
}

/// Mistakes in models, layers, losses and metrics.
fn mistakes() -> Vec<Mistake> {
    let loss = |builder: Builder| builder.loss_of("y", CrossEntropy::new(), 1.0);
    vec![
        // Shapes and types in a model.
        ("a field of another name", model(|_, x| x["pixels"].clone()), &["no field \"pixels\"", "picture"]),
        ("two widths added", model(|_, x| &x["x"] + &x["words"].to_f32()), &["add", "[B, 6]", "[B, 5]"]),
        ("ids as numbers", model(|_, x| &x["words"] * 2.0), &["mul", "[B, 5] i32"]),
        (
            "a reshape of other elements",
            model(|_, x| x["x"].reshape(&[2, 4])),
            &["reshape", "[B, 6]", "[B, 2, 4]"],
        ),
        ("a batch in a reshape", model(|_, x| x["x"].reshape(&[32, 6])), &["reshape", "[B, 6]"]),
        (
            "a slice beyond the end",
            model(|_, x| x["x"].slice(-1, 4..8)),
            &["slice", "[4] values from [4]", "[B, 6]"],
        ),
        ("an axis that is not there", model(|_, x| x["x"].sum(&[3])), &["sum", "3", "[B, 6]"]),
        (
            "parts that do not join",
            model(|_, x| x["x"].concat(&[&x["picture"]], -1)),
            &["concat", "[B, 6]", "[B, 1, 8, 8]"],
        ),
        ("a product of other sizes", model(|_, x| x["picture"].matmul(&x["x"])), &["[B, 1, 8, 8]", "[B, 6]"]),
        (
            "letters of two lengths",
            model(|cx, x| cx.tape().einsum("bi,bi->b", &[&x["x"], &x["words"].to_f32()])),
            &["einsum", "6", "5"],
        ),
        ("more than there are", model(|_, x| x["x"].top_k(9).0), &["top_k", "9", "[B, 6]"]),
        (
            "rows by numbers",
            model(|_, x| x["picture"].gather_rows(&x["x"])),
            &["gather_rows", "[B, 6]", "[B, 1, 8, 8]"],
        ),
        (
            "a permutation without an axis",
            model(|_, x| x["picture"].permute(&[0, 1])),
            &["permute", "[0, 1]"],
        ),
        ("a class of numbers", model(|_, x| x["x"].one_hot(3)), &["i32"]),
        (
            "constants of another number",
            model(|cx, x| &x["x"] * cx.constant("c", &[6], &[1.0, 2.0])),
            &["constant", "6", "2"],
        ),
        (
            "a name taken twice",
            model(|cx, x| {
                let w = cx.parameter("w", &[6], Initializer::Ones);
                &x["x"] * w * cx.parameter("w", &[6], Initializer::Ones)
            }),
            &["w"],
        ),
        (
            "a layer again at another width",
            model(|cx, x| {
                let y = cx.apply("same", &Dense::new(4), &x["x"]);
                cx.apply("same", &Dense::new(4), &y)
            }),
            &["same.weight", "[4, 4]", "[4, 6]"],
        ),
        (
            "a carry of another shape",
            model(|cx, x| {
                let carry = cx.carry("c", &[6]);
                cx.keep(&carry, &x["words"].to_f32());
                x["x"].clone()
            }),
            &["keep", "[B, 6]", "[B, 5]"],
        ),
        // Layers.
        ("a convolution of rows", layer("x", Conv2d::new(4, 3)), &["conv2d", "[B, 6]"]),
        ("a pool larger than the picture", layer("picture", MaxPool2d::new(9)), &["max_pool2d", "9", "8"]),
        ("an embedding of numbers", layer("x", Embedding::new(9, 4)), &["embed", "i32"]),
        ("a dense layer of ids", layer("words", Dense::new(4)), &["dense", "i32"]),
        ("a recurrent layer of rows", layer("x", Lstm::new(4)), &["lstm", "[B, 6]"]),
        ("attention of rows", layer("x", MultiHeadAttention::new(2)), &["multi_head_attention", "[B, 6]"]),
        (
            "heads that do not divide",
            model(|cx, x| {
                let words = cx.apply("e", &Embedding::new(3, 6), &x["words"]);
                cx.apply("block", &TransformerBlock::new(4), &words)
            }),
            &["6", "4 heads"],
        ),
        (
            "a decoder of another width",
            model(|cx, x| {
                let [a, b] = [4, 8]
                    .map(|width| cx.apply(&format!("e{width}"), &Embedding::new(3, width), &x["words"]));
                TransformerBlock::new(2).cross_attention().decode(cx, &a, &b, None)
            }),
            &["multi_head_attention", "[B, 5, 4]", "[B, 5, 8]"],
        ),
        (
            "a state for half an LSTM",
            model(|cx, x| {
                let words = cx.apply("e", &Embedding::new(3, 4), &x["words"]);
                Lstm::new(6).with_state(cx, &words, None, &[x["x"].clone()]).0
            }),
            &["lstm", "state"],
        ),
        ("a rate in percent", layer("x", Dropout::new(30.0)), &["dropout", "30"]),
        ("no units", layer("x", Dense::new(0)), &["dense", "0"]),
        ("a gated unit without steps", layer("x", Gru::new(4)), &["gru", "[B, 6]"]),
        // Losses, metrics and settings.
        (
            "a loss of no output",
            trainer(|b| loss(b).loss_of("label", CrossEntropy::new(), 1.0)),
            &["label", "price"],
        ),
        (
            "a metric of no output",
            trainer(|b| loss(b).metric_of("label", Accuracy::new())),
            &["label", "price"],
        ),
        (
            "a target that is not there",
            trainer(|b| b.loss_between("y", "label", CrossEntropy::new(), 1.0)),
            &["label", "price"],
        ),
        ("a loss of no name", trainer(|b| loss(b).minimize("divergence", 1.0)), &["divergence"]),
        (
            "labels that are numbers",
            trainer(|b| b.loss_between("y", "class", CrossEntropy::new(), 1.0)),
            &["cross-entropy", "i32", "got [B]", "cast"],
        ),
        (
            "an error of labels",
            trainer(|b| b.loss_of("y", MeanSquaredError, 1.0)),
            &["mean squared error", "[B, 3]", "i32"],
        ),
        ("no loss at all", trainer(|b| b), &["loss"]),
        ("a loss that does not count", trainer(|b| b.loss_of("y", CrossEntropy::new(), 0.0)), &["weight 0"]),
        (
            "classes of a price",
            trainer(|b| b.loss_of("price", MeanSquaredError, 1.0).class_weights([1.0, 2.0])),
            &["class weights", "quantities"],
        ),
        (
            "a loss of the only output under another name",
            said(
                Trainer::builder(Model::new(|cx, x| {
                    Outputs::new().with("logits", &cx.apply("logits", &Dense::new(3), &x["x"]))
                })),
                &data(),
            ),
            &["no output \"output\"", "loss_between(\"logits\", \"y\", ..)"],
        ),
        (
            "a phase without its loss",
            trainer(|b| loss(b).phase(Phase::new("first").minimize("divergence", 1.0))),
            &["divergence"],
        ),
        ("the sum of a batch as an output", model(|_, x| x["x"].sum_samples()), &["own"]),
        (
            "keys and values that stay on devices",
            model(|_, x| {
                x["x"].tape().keep_resident(0, &x["x"]);
                x["x"].clone()
            }),
            &["resident", "signatures of a predictor"],
        ),
        (
            "a negative weight",
            model(|cx, x| {
                cx.loss("less", &x["x"], -1.0);
                x["x"].clone()
            }),
            &["less", "-1"],
        ),
        (
            "averages that nobody keeps",
            trainer(|b| loss(b).optimizer(AdamW::new(0.1)).use_average_weights()),
            &["average"],
        ),
        ("a rate that is negative", trainer(|b| loss(b).optimizer(AdamW::new(-0.1))), &["adamw", "-0.1"]),
        (
            "all parameters frozen",
            trainer(|b| loss(b).optimizer(AdamW::new(0.1).freeze(|_| true))),
            &["freeze"],
        ),
        (
            "windows without a length",
            Loader::new(Windows::new(Field::f32([4], [0.0; 4]))).fields().unwrap_err().to_string(),
            &["Windows::length"],
        ),
        (
            "arrays of two lengths",
            Memory::labelled([0.0; 6], [2], [0, 1]).unwrap_err().to_string(),
            &["2 samples", "3"],
        ),
    ]
}

#[test]
fn each_mistake_is_told_with_what_it_is_about() {
    let mut all = mistakes();
    all.extend(runs::all());
    all.extend(silent::all());
    all.extend(likely::all());
    all.extend(outsider::all());
    all.extend(second_outsider::all());
    all.extend(third_outsider::all());
    assert!(all.len() >= 270);
    let missed = all.iter().filter(|(_, said, parts)| !parts.iter().all(|part| said.contains(part)));
    let missed: Vec<String> =
        missed.map(|(what, said, parts)| format!("{what}, {parts:?}: {said}")).collect();
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), all.len(), missed.join("\n"));
}
