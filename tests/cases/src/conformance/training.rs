//! Runs whole trainings with the public trainer on 1, 2 and 5 replicas. All must end in the same bits, within
//! the tolerance of the reference.

use serde_json::{Map, Value};
use unisono::data::{Loader, Memory, Values};
use unisono::{
    AvgPool2d, BatchNorm, Conv2d, Dense, Description, Elu, Embedding, Flatten, Gelu, GlobalAvgPool2d,
    GroupNorm, Gru, Layer, LayerNorm, LeakyRelu, Lstm, MaxPool2d, Relu, RmsNorm, Sequential, Sigmoid, Silu,
    Softplus, Tanh, Trainer, WEIGHT,
};
use unisono_gpu::Adapter;
use unisono_graph::DType;

use super::runner::error;
use super::{Case, Reference, Verdict, losses, optimizers};

const REPLICAS: [usize; 3] = [1, 2, 5];

/// What the names of the first weights start with in a suite.
const INIT: &str = "init.";

/// The tensors of the model: for each its name here and its name in the suite.
type Names = Vec<(String, String)>;

/// Runs a training case. It is a failure if two numbers of replicas end in different bits.
pub fn train(case: &Case, adapter: &Adapter) -> Verdict {
    let mut worst = 0.0f64;
    let mut first: Option<String> = None;
    for replicas in case.sizes("replicas").unwrap_or_else(|| REPLICAS.to_vec()) {
        let (error, state) = run(case, adapter, replicas).map_err(|e| format!("{replicas} replicas: {e}"))?;
        if *first.get_or_insert_with(|| state.clone()) != state {
            return Err(format!("{replicas} replicas end in other bits than 1"));
        }
        worst = worst.max(error);
    }
    Ok(worst / case.tolerance)
}

/// Trains on some replicas. Returns the worst error, and the hash of the last state.
fn run(case: &Case, adapter: &Adapter, replicas: usize) -> Result<(f64, String), String> {
    let batches = batches(case)?;
    let first = batches.first().ok_or("there is no batch")?;
    let fields = first.loader.fields().map_err(|e| e.to_string())?;
    let mut loss = part(case, "loss")?;
    // Whether targets are labels or probabilities is seen in the first ones.
    loss.inputs.extend(input(case, 'y', 0).map(|y| ("target".to_owned(), y.clone())));
    let mut builder = Trainer::builder(model(case)?);
    if let Some(weights) = case.numbers("class_weights") {
        builder = builder.class_weights(weights.iter().map(|&weight| weight as f32).collect::<Vec<_>>());
    }
    let mut trainer = builder
        .loss(losses::loss(&loss).ok_or("no such loss")?)
        .optimizer(optimizers::optimizer(&part(case, "optimizer")?).ok_or("no such optimizer")??)
        .global_batch(batches.iter().map(|b| b.samples).max().unwrap_or(1))
        .adapter(&format!("{}:{}", adapter.backend, adapter.label()))
        .replicas(replicas)
        .build(&fields)
        .map_err(|e| e.to_string())?;
    let names = names(case, &trainer)?;
    for (own, theirs) in &names {
        let start: Vec<f32> =
            case.inputs[&format!("{INIT}{theirs}")].data.iter().map(|&x| x as f32).collect();
        trainer.set_tensor(own, &start).map_err(|e| e.to_string())?;
    }
    let mut losses = Vec::new();
    for batch in &batches {
        let mut batches = batch.loader.epoch(0).map_err(|e| e.to_string())?;
        let batch = batches.next().ok_or("an empty batch")?.map_err(|e| e.to_string())?;
        losses.push(trainer.step(&batch).map_err(|e| e.to_string())?.now.loss as f32);
    }
    let mut worst = match case.expect.get("losses") {
        Some(expected) => error(Some(&losses), expected).map_err(|e| format!("losses: {e}"))?,
        None => 0.0,
    };
    for (own, theirs) in &names {
        let Some(expected) = case.expect.get(&format!("final.{theirs}")) else { continue };
        let values = trainer.tensor(own).transpose().map_err(|e| e.to_string())?;
        worst = worst.max(error(values.as_ref(), expected).map_err(|e| format!("{theirs}: {e}"))?);
        let Some(expected) = case.expect.get(&format!("average.{theirs}")) else { continue };
        let values = trainer.tensor(&format!("{own}/average")).transpose().map_err(|e| e.to_string())?;
        worst = worst.max(error(values.as_ref(), expected).map_err(|e| format!("average of {theirs}: {e}"))?);
    }
    trainer.check_replicas().map_err(|e| e.to_string())?;
    Ok((worst, trainer.state_sha256().map_err(|e| e.to_string())?))
}

/// Returns the model of a case: a text, or a description.
fn model(case: &Case) -> Result<Box<dyn Layer>, String> {
    match case.attrs.get("model") {
        Some(Value::String(text)) => Ok(Box::new(sequential(text)?)),
        Some(description) => {
            let description: Description =
                serde_json::from_value(description.clone()).map_err(|e| e.to_string())?;
            Ok(description.layer())
        }
        None => Err("there is no model".into()),
    }
}

struct OneBatch {
    samples: usize,
    loader: Loader,
}

/// Returns the batches `x0`, `y0`, `x1`, ... in order.
fn batches(case: &Case) -> Result<Vec<OneBatch>, String> {
    let mut all = Vec::new();
    while let (Some(x), Some(y)) = (input(case, 'x', all.len()), input(case, 'y', all.len())) {
        let source = Memory::new("x", &x.dims[1..], values(x)).map_err(|e| e.to_string())?;
        let mut source = source.with("y", &y.dims[1..], values(y)).map_err(|e| e.to_string())?;
        if let Some(weights) = input(case, 'w', all.len()) {
            source = source.with(WEIGHT, [], values(weights)).map_err(|e| e.to_string())?;
        }
        all.push(OneBatch { samples: x.dims[0], loader: Loader::new(source).batch(x.dims[0]).threads(1) });
    }
    Ok(all)
}

fn input(case: &Case, role: char, index: usize) -> Option<&Reference> {
    case.inputs.get(&format!("{role}{index}"))
}

fn values(tensor: &Reference) -> Values {
    match tensor.dtype {
        DType::F32 => Values::F32(tensor.data.iter().map(|&x| x as f32).collect()),
        _ => Values::I32(tensor.data.iter().map(|&x| x as i32).collect()),
    }
}

/// Parses a text such as `adamw lr 0.01 betas 0.9 0.999` into a case of its own: the op, then attributes,
/// each of them a number, a list or a flag.
///
/// An attribute that is an object is [`Case::part`].
fn part(case: &Case, attr: &str) -> Result<Case, String> {
    if let Some(part) = case.part(attr) {
        return Ok(part);
    }
    let text = case.text(attr).ok_or_else(|| format!("there is no {attr}"))?;
    let mut words = text.split([' ', ',']).filter(|w| !w.is_empty());
    let op = words.next().unwrap_or_default().to_string();
    let mut lists: Vec<(&str, Vec<Value>)> = Vec::new();
    for word in words {
        match (word.parse::<f64>(), lists.last_mut()) {
            (Ok(number), Some((_, list))) => list.push(number.into()),
            _ => lists.push((word, vec![])),
        }
    }
    let value = |mut list: Vec<Value>| match list.len() {
        0 => Value::Bool(true),
        1 => list.remove(0),
        _ => Value::Array(list),
    };
    let mut attrs: Map<String, Value> = lists.into_iter().map(|(k, list)| (k.into(), value(list))).collect();
    // The text has the reduction as a single word.
    for reduction in ["mean", "sum"] {
        if attrs.remove(reduction).is_some() {
            attrs.insert("reduction".into(), reduction.into());
        }
    }
    Ok(Case { op, attrs, ..case.clone() })
}

/// Finds the tensor of the suite for each tensor of the model: the one of the same name, or one with the same
/// last part of the name and the same axes.
fn names(case: &Case, trainer: &Trainer) -> Result<Names, String> {
    let theirs: Vec<(&str, &[usize])> =
        case.inputs.iter().filter_map(|(role, t)| Some((role.strip_prefix(INIT)?, &t.dims[..]))).collect();
    let own = trainer.tensors();
    let mut names: Names = Vec::new();
    for (name, dims) in &own {
        let is_free = |other: &str| !names.iter().any(|(_, taken)| taken == other);
        let suffix = |name: &str| name.rsplit('.').next().map(str::to_string);
        let fits = |(other, shape): &&(&str, &[usize])| {
            (*other == name || suffix(other) == suffix(name)) && *shape == dims && is_free(other)
        };
        let same = theirs.iter().find(|t| t.0 == name).into_iter();
        let found =
            same.chain(&theirs).find(fits).ok_or_else(|| format!("no first value for {name} {dims:?}"))?;
        names.push((name.clone(), found.0.to_string()));
    }
    if own.len() == theirs.len() {
        Ok(names)
    } else {
        Err(format!("{} tensors are given, the model has {}", theirs.len(), own.len()))
    }
}

/// A layer as a suite writes it, for example `conv2d(2,6,3,pad 1)`.
struct Word {
    name: String,
    /// The arguments without a name, in order.
    numbers: Vec<usize>,
    /// The arguments with a name, such as `pad 1`.
    named: Vec<(String, usize)>,
}

impl Word {
    fn number(&self, index: usize) -> Result<usize, String> {
        self.numbers.get(index).copied().ok_or_else(|| format!("{} lacks argument {index}", self.name))
    }

    fn named(&self, name: &str, default: usize) -> usize {
        self.named.iter().find(|(n, _)| n.starts_with(name)).map_or(default, |n| n.1)
    }
}

/// Splits the text of a model into words, which are separated by spaces or commas outside of parentheses.
fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut all = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '(']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let (mut numbers, mut named) = (vec![], vec![]);
        rest = after;
        if let Some(inside) = after.strip_prefix('(') {
            let (arguments, after) = inside.split_once(')').ok_or_else(|| format!("no ) after {name}"))?;
            for argument in arguments.split(',').map(str::trim) {
                match argument.split_once(' ') {
                    Some((key, value)) => named.extend(value.parse().map(|v| (key.to_string(), v))),
                    None => numbers.extend(argument.parse::<usize>()),
                }
            }
            rest = after;
        }
        all.push(Word { name: name.into(), numbers, named });
        rest = rest.trim_start_matches([' ', ',']);
    }
    Ok(all)
}

/// Returns the model that a text of a suite describes.
fn sequential(text: &str) -> Result<Sequential, String> {
    let words = words(text)?;
    let mut model = Sequential::new();
    for (at, word) in words.iter().enumerate() {
        let last = words.get(at + 1).is_some_and(|next| next.name == "last");
        model = match word.name.as_str() {
            // The words "last step" belong to the layer before them.
            "last" | "step" => model,
            "linear" => model.add(Dense::new(word.number(1)?)),
            "conv2d" => {
                let layer = Conv2d::new(word.number(1)?, word.number(2)?).groups(word.named("groups", 1));
                model.add(layer.stride(word.named("stride", 1)).padding(word.named("pad", 0)))
            }
            "max_pool" | "max_pool2d" => model.add(MaxPool2d::new(word.number(0)?)),
            "avg_pool" | "avg_pool2d" => model.add(AvgPool2d::new(word.number(0)?)),
            "global_avg_pool" | "global_avg_pool2d" => model.add(GlobalAvgPool2d),
            "batch_norm" => model.add(BatchNorm::new()),
            "layer_norm" => model.add(LayerNorm::new()),
            "rms_norm" => model.add(RmsNorm::new()),
            "group_norm" => model.add(GroupNorm::new(word.number(0)?)),
            "embedding" => {
                let layer = Embedding::new(word.number(0)?, word.number(1)?);
                model.add(match word.named("padding_idx", usize::MAX) {
                    usize::MAX => layer,
                    row => layer.padding_idx(row),
                })
            }
            "lstm" if last => model.add(Lstm::new(word.number(1)?).last()),
            "lstm" => model.add(Lstm::new(word.number(1)?)),
            "gru" if last => model.add(Gru::new(word.number(1)?).last()),
            "gru" => model.add(Gru::new(word.number(1)?)),
            "flatten" => model.add(Flatten),
            "relu" => model.add(Relu),
            "gelu" => model.add(Gelu),
            "silu" => model.add(Silu),
            "tanh" => model.add(Tanh),
            "sigmoid" => model.add(Sigmoid),
            "softplus" => model.add(Softplus),
            "elu" => model.add(Elu::default()),
            "leaky_relu" => model.add(LeakyRelu::default()),
            other => return Err(format!("no layer {other:?}")),
        };
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_as_they_are_written() -> Result<(), String> {
        let all = words("conv2d(2,6,3,pad 1) relu, lstm(3,10, batch first), last step, linear(96,4)")?;
        let names: Vec<&str> = all.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, ["conv2d", "relu", "lstm", "last", "step", "linear"]);
        assert_eq!((all[0].numbers.clone(), all[0].named("pad", 0)), (vec![2, 6, 3], 1));
        assert_eq!(all[2].numbers, [3, 10]);
        assert!(sequential("linear(3").is_err() && sequential("quantum(3)").is_err());
        Ok(())
    }
}
