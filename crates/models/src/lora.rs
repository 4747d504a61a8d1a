//! Low-rank adaptation: fine-tuning by small matrices beside weights that stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use unisono::checkpoint::{
    Info, Pattern, Plan, Tensor, Tensors, read_tensors, write_model_of_format, write_whole,
};
use unisono::{Context, Initializer, Model, OUTPUT, Outputs, Trainer, Var};

use crate::architectures::Architecture;
use crate::config::Config;
use crate::error::Error;
use crate::files::read;
use crate::pretrained::Pretrained;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What peft puts in front of the model's names.
const PREFIX: &str = "base_model.model.";

/// The settings of low-rank adaptation (Hu et al. 2021; peft's `LoraConfig`): a linear layer with the
/// weight W computes with W + (scale / rank) B A, where A has `rank` rows and B as many columns. Only A and
/// B are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    rank: usize,
    scale: f32,
    on: Vec<Pattern>,
}

impl Lora {
    /// Returns settings with matrices of this rank (`r`), for no layer yet. The scale is the rank.
    pub fn rank(rank: usize) -> Self {
        Self { rank, scale: rank as f32, on: Vec::new() }
    }

    /// Sets the scale (`lora_alpha`).
    pub fn scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// Adapts the linear layers whose names match (`target_modules`), such as `*.c_attn`. It may be called
    /// several times.
    pub fn on(mut self, pattern: &str) -> Self {
        self.on.push(Pattern::new(pattern));
        self
    }

    /// Returns whether a parameter is not one of the small matrices: for the optimizer's
    /// [`freeze`](unisono::Optimizer::freeze).
    pub fn freezes(name: &str) -> bool {
        !is_own(name)
    }

    /// Returns what is wrong for a model with these linear layers.
    fn problem(&self, layers: &[&str]) -> Option<String> {
        let Self { rank, scale, on } = self;
        if *rank == 0 || !scale.is_finite() {
            return Some(format!("rank {rank} and scale {scale} are out of range"));
        }
        if on.is_empty() {
            return Some("no layer is named: call `on`".into());
        }
        if layers.is_empty() {
            return Some("the model has no linear layer".into());
        }
        let pattern = on.iter().find(|pattern| !layers.iter().any(|name| pattern.matches(name)))?;
        let some = layers.iter().take(8).copied().collect::<Vec<_>>().join(", ");
        Some(format!("{pattern} matches no linear layer of the model: {some}, ..."))
    }
}

fn is_own(name: &str) -> bool {
    name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
}

/// A pretrained model with low-rank matrices added to some of its weights. [`Pretrained::with`] returns one.
#[derive(Clone, Debug)]
pub struct Adapted<M> {
    base: Pretrained<M>,
    lora: Lora,
    /// The names of the layers that have matrices.
    layers: Arc<BTreeSet<String>>,
    /// The matrices that were read, or none.
    matrices: Tensors,
    /// What is wrong with the settings.
    problem: Option<String>,
}

impl<M: Architecture> Pretrained<M> {
    /// Adds low-rank matrices to the layers that `lora` selects. They have no effect at first, because B is
    /// 0.
    ///
    /// Tables of embeddings and statistics get no matrices, even if a pattern matches them. A setting out of
    /// range, or a pattern that matches no linear layer, is an error of everything that is done with the
    /// result. [`Adapted::check`] returns it at once.
    pub fn with(self, lora: Lora) -> Adapted<M> {
        let (parameters, failed) = match self.parameters() {
            Ok(parameters) => (parameters, None),
            Err(error) => (BTreeMap::new(), Some(error.to_string())),
        };
        let is_linear =
            |(name, info): &(&String, &Info)| info.shape.len() == 2 && !self.architecture().is_table(name);
        let linear = parameters.iter().filter(is_linear);
        let names: Vec<&str> = linear.filter_map(|(name, _)| name.strip_suffix(".weight")).collect();
        let problem = failed.or_else(|| lora.problem(&names));
        let is_on = |name: &&str| lora.on.iter().any(|pattern| pattern.matches(name));
        let layers = names.into_iter().filter(is_on).map(str::to_owned).collect();
        Adapted { base: self, lora, layers: Arc::new(layers), matrices: Tensors::new(), problem }
    }

    /// Reads matrices that [`Adapted::save_adapter`] or peft's `save_pretrained` wrote.
    ///
    /// # Errors
    /// A file cannot be read; it describes another kind of adapter than plain LoRA; the matrices do not fit
    /// the model.
    pub fn with_adapter(self, dir: impl AsRef<Path>) -> Result<Adapted<M>, Error> {
        let path = dir.as_ref().join(CONFIG);
        let wrong = |problem: String| Error::broken(&path, problem);
        let config = Config::parse(&read(&path)?).map_err(wrong)?;
        let lora = settings(&config).map_err(wrong)?;
        let path = dir.as_ref().join(WEIGHTS);
        let wrong = |problem: String| Error::broken(&path, problem);
        let mut matrices = Tensors::new();
        for (in_file, tensor) in read_tensors(&path)? {
            let name = in_file.strip_prefix(PREFIX).filter(|name| is_own(name));
            let name = name.ok_or_else(|| wrong(format!("{in_file} is not a matrix of plain LoRA")))?;
            let name = self.architecture().name(name).unwrap_or_else(|| name.to_owned());
            let values = tensor.floats().map(|values| Tensor::f32(tensor.shape(), &values)).transpose()?;
            matrices.insert(name, values.unwrap_or(tensor));
        }
        let layers: BTreeSet<&str> =
            matrices.keys().filter_map(|name| name.strip_suffix(".lora_A.weight")).collect();
        let lora = layers.iter().fold(lora, |lora, layer| lora.on(layer));
        let adapted = self.with(lora);
        adapted.check()?;
        adapted.check_matrices(&matrices).map_err(wrong)?;
        Ok(Adapted { matrices, ..adapted })
    }
}

impl<M: Architecture> Adapted<M> {
    /// Returns the model for [`Trainer::builder`]. Freeze the rest with
    /// `AdamW::new(2e-4).freeze(Lora::freezes)`.
    pub fn model(&self) -> Model {
        let (architecture, layers) = (self.base.architecture().clone(), Arc::clone(&self.layers));
        let (rank, factor, problem) = (self.lora.rank, self.factor(), self.problem.clone());
        Model::new(move |cx, x| {
            if let Some(problem) = &problem {
                cx.tape().fail_here("lora", problem.clone());
            }
            let layers = Arc::clone(&layers);
            cx.reparametrize(move |cx, name, weight| {
                let layer = name.strip_suffix(".weight").filter(|layer| layers.contains(*layer));
                layer.map_or_else(|| weight.clone(), |layer| adapted::<M>(cx, layer, weight, (rank, factor)))
            });
            let logits = architecture.forward(cx, x);
            Outputs::new().with(OUTPUT, &logits)
        })
    }

    /// Sets the weights of a trainer of [`Adapted::model`]: those of the base, and the matrices if they were
    /// read.
    ///
    /// # Errors
    /// The trainer has another model, or its replicas fail.
    pub fn load(&self, trainer: &mut Trainer) -> Result<(), Error> {
        self.check()?;
        let mut all = self.base.weights().clone();
        all.extend(self.matrices.clone());
        trainer.load_tensors(&all, &Plan::new().partial())?;
        Ok(())
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A setting is out of range. A pattern matches no linear layer.
    pub fn check(&self) -> Result<(), Error> {
        self.problem.as_ref().map_or(Ok(()), |problem| Err(Error::setting("lora", problem)))
    }

    /// Returns the pretrained model.
    pub fn base(&self) -> &Pretrained<M> {
        &self.base
    }

    /// Returns the names of the layers that have matrices.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(String::as_str)
    }

    /// Returns the weights of the plain model that computes the same, except for rounding: each weight with
    /// its matrices added (peft's `merge_and_unload`), all in f32. `weights`: all tensors of a trainer
    /// (including updated statistics), or the matrices alone. The weights in the base's directory stay
    /// unchanged.
    ///
    /// # Errors
    /// A matrix is missing or has another shape.
    pub fn merged(&self, weights: &Tensors) -> Result<Tensors, Error> {
        self.check()?;
        self.check_matrices(weights).map_err(|problem| Error::setting("merged", problem))?;
        let mut all = Tensors::new();
        for (name, base) in self.base.weights() {
            let layer = name.strip_suffix(".weight").filter(|layer| self.layers.contains(*layer));
            let (plain, matrices) = match layer {
                Some(layer) => (base, names(layer).map(|name| weights.get(&name))),
                None => (weights.get(name).unwrap_or(base), [None, None]),
            };
            let Some(values) = plain.floats() else {
                all.insert(name.clone(), plain.clone());
                continue;
            };
            let values = match matrices {
                [Some(a), Some(b)] => {
                    let [a, b] = [a, b].map(|matrix| matrix.floats().unwrap_or_default());
                    self.sum(base.shape(), [values, a, b])
                }
                _ => values,
            };
            all.insert(name.clone(), Tensor::f32(base.shape(), &values)?);
        }
        Ok(all)
    }

    /// Returns the matrices that were read, for [`Adapted::merged`].
    pub fn matrices(&self) -> &Tensors {
        &self.matrices
    }

    /// Writes the matrices as peft does: `adapter_model.safetensors` and `adapter_config.json`.
    ///
    /// # Errors
    /// A matrix is missing or has another shape; a file cannot be written.
    pub fn save_adapter(&self, dir: impl AsRef<Path>, weights: &Tensors) -> Result<(), Error> {
        let dir = dir.as_ref();
        self.check()?;
        self.check_matrices(weights).map_err(|problem| Error::setting("save_adapter", problem))?;
        let own = weights.iter().filter(|(name, _)| is_own(name));
        let all = own.map(|(name, tensor)| (format!("{PREFIX}{name}"), tensor.clone())).collect();
        let config = json!({
            "peft_type": "LORA",
            "r": self.lora.rank,
            "lora_alpha": self.lora.scale,
            "target_modules": self.layers.iter().collect::<Vec<_>>(),
            "fan_in_fan_out": M::IN_OUT,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": true,
        });
        std::fs::create_dir_all(dir).map_err(|reason| Error::Io { path: dir.to_owned(), reason })?;
        write_model_of_format(dir.join(WEIGHTS), &all, "pt")?;
        Ok(write_whole(dir.join(CONFIG), &[format!("{config:#}\n").as_bytes()])?)
    }

    fn factor(&self) -> f32 {
        self.lora.scale / self.lora.rank as f32
    }

    /// Adds the product of two matrices to a weight.
    fn sum(&self, shape: &[usize], [base, a, b]: [Vec<f32>; 3]) -> Vec<f32> {
        let (rank, factor) = (self.lora.rank, f64::from(self.factor()));
        let columns = shape[1];
        let inputs = if M::IN_OUT { shape[0] } else { columns };
        let value = |(at, base): (usize, &f32)| {
            let (row, column) = (at / columns, at % columns);
            let (o, i) = if M::IN_OUT { (column, row) } else { (row, column) };
            let products = (0..rank).map(|r| f64::from(b[o * rank + r]) * f64::from(a[r * inputs + i]));
            (f64::from(*base) + factor * products.sum::<f64>()) as f32
        };
        base.iter().enumerate().map(value).collect()
    }

    /// Checks that all matrices are there, and only these.
    fn check_matrices(&self, weights: &Tensors) -> Result<(), String> {
        let mut wanted = BTreeMap::new();
        for layer in &*self.layers {
            let shape = self.base.weights().get(&format!("{layer}.weight")).map(|tensor| tensor.shape());
            let &[rows, columns] = shape.unwrap_or_default() else { continue };
            let [outputs, inputs] = if M::IN_OUT { [columns, rows] } else { [rows, columns] };
            let [a, b] = names(layer);
            wanted.extend([(a, [self.lora.rank, inputs]), (b, [outputs, self.lora.rank])]);
        }
        for (name, shape) in &wanted {
            match weights.get(name) {
                None => return Err(format!("{name} is missing")),
                Some(tensor) if tensor.shape() != shape || tensor.floats().is_none() => {
                    let (found, dtype) = (tensor.shape(), tensor.dtype());
                    return Err(format!("{name} is {found:?} {dtype}, and must be {shape:?} of floats"));
                }
                Some(_) => {}
            }
        }
        match weights.keys().find(|name| is_own(name) && !wanted.contains_key(*name)) {
            Some(name) => Err(format!("{name} belongs to no layer with matrices")),
            None => Ok(()),
        }
    }
}

/// The names of a layer's matrices A and B.
fn names(layer: &str) -> [String; 2] {
    ["A", "B"].map(|which| format!("{layer}.lora_{which}.weight"))
}

/// Declares the matrices of a layer, and returns its weight with their product added. `layer` is the layer's
/// full name. The weight may be declared in an outer scope, as a head's is.
fn adapted<M: Architecture>(
    cx: &mut Context,
    layer: &str,
    weight: &Var,
    (rank, factor): (usize, f32),
) -> Var {
    let &[rows, columns] = weight.dims() else { return weight.clone() };
    let [outputs, inputs] = if M::IN_OUT { [columns, rows] } else { [rows, columns] };
    let path = cx.path();
    let inside = layer.strip_prefix(&*path).unwrap_or(layer);
    let [a, b] = names(inside).map(|name| name.trim_start_matches('.').to_owned());
    let a = cx.parameter(&a, &[rank, inputs], Initializer::FanInUniform);
    let b = cx.parameter(&b, &[outputs, rank], Initializer::Zeros);
    let product = if M::IN_OUT { a.transpose(0, 1).matmul_t(&b) } else { b.matmul(&a) };
    weight.detach() + product * factor
}

/// Reads the settings of peft.
fn settings(config: &Config) -> Result<Lora, String> {
    let kind = config.text_or("peft_type", "")?;
    if kind != "LORA" {
        return Err(format!("peft_type is {kind:?}, and LORA is read"));
    }
    config.expect(&[
        ("use_rslora", false.into()),
        ("use_dora", false.into()),
        ("bias", "none".into()),
        ("lora_bias", false.into()),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
    ])?;
    if config.get("modules_to_save").is_some() {
        return Err("modules_to_save is set, and only matrices are read".into());
    }
    // PiSSA, OLoRA, CorDA and LoftQ also change the base's weights when they initialize the matrices.
    let start = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or("gaussian");
    if !["gaussian", "eva", "orthogonal"].contains(&start) {
        return Err(format!(
            "init_lora_weights is {start:?}: such an adapter changes the base; convert it to plain LoRA with peft first"
        ));
    }
    if config.get("alora_invocation_tokens").is_some() {
        return Err(
            "alora_invocation_tokens is set, but adapters for only some tokens are not supported".into()
        );
    }
    let rank = config.size("r")?;
    Ok(Lora::rank(rank).scale(config.number_or("lora_alpha", rank as f32)?))
}
