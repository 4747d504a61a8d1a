//! Opening a model's directory, and writing one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use unisono::checkpoint::{Info, Plan, Tensor, TensorDType, Tensors, write_model_of_format, write_whole};
use unisono::data::FieldSpec;
use unisono::{Context, Inputs, Mode, Model, OUTPUT, Outputs, Predictor, PredictorBuilder, Tape, Trainer};

use crate::architectures::Architecture;
use crate::config::Config;
use crate::error::Error;
use crate::files::{BESIDE, CONFIG, GENERATION, WEIGHTS, file_in_place, read, weights};

/// A model of the architecture `M` with its weights, opened from a directory (`from_pretrained` in Hugging
/// Face's transformers).
#[derive(Clone, Debug)]
pub struct Pretrained<M> {
    architecture: M,
    dir: PathBuf,
    /// The text of `config.json`, if there is one.
    config: Option<Vec<u8>>,
    weights: Tensors,
    /// The way from the file's tensors to those with transformers' names.
    plan: Plan,
    /// The types and shapes of the file's tensors.
    in_file: BTreeMap<String, Info>,
    /// The name in the file of each of the model's tensors.
    names: BTreeMap<String, String>,
    /// The tensors of the file that are no weights. They are written back as they were.
    others: Tensors,
}

/// Returns the `model_type` of the model in a directory, such as `gpt2`.
///
/// # Errors
/// `config.json` cannot be read, is broken, or names no model.
pub fn model_type(dir: impl AsRef<Path>) -> Result<String, Error> {
    let path = dir.as_ref().join(CONFIG);
    let config = Config::parse(&read(&path)?).map_err(|problem| Error::broken(&path, problem))?;
    let kind = config.text_or("model_type", "").map_err(|problem| Error::broken(&path, problem))?;
    if kind.is_empty() { Err(Error::broken(&path, "model_type is missing")) } else { Ok(kind.to_owned()) }
}

impl<M: Architecture> Pretrained<M> {
    /// Opens a directory with `config.json` and `model.safetensors`, or with the shards that
    /// `model.safetensors.index.json` lists, or with PyTorch's `pytorch_model.bin`. Weights of f16 and bf16
    /// become f32, exactly. Uses no device.
    ///
    /// Where an architecture knows the names of torchvision, timm or others, `config.json` may be missing:
    /// sizes are then those of the tensors. The directory may then have one file of any name, and the path
    /// may be that of the file, such as `resnet18.pth`.
    ///
    /// # Errors
    /// A file is missing or broken. `config.json` describes another architecture. A tensor is missing, has
    /// another shape, or does not belong to the model; a table then lists all such tensors by pattern.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let dir = dir.as_ref();
        let path = dir.join(CONFIG);
        let text = if path.exists() { Some(read(&path)?) } else { None };
        let wrong = |problem: String| Error::broken(if text.is_some() { &path } else { dir }, problem);
        let config = Config::parse(text.as_deref().unwrap_or(b"{}")).map_err(wrong)?;
        let kind = config.text_or("model_type", "").map_err(wrong)?;
        let is_ours = kind == M::MODEL_TYPE;
        if !is_ours && !kind.is_empty() {
            return Err(wrong(format!("model_type is {kind:?}, and {:?} is opened", M::MODEL_TYPE)));
        }
        let found = weights(dir)?;
        let (architecture, plan) = match M::foreign(&config, &found).map_err(wrong)? {
            Some(known) => known,
            None if is_ours => (M::new(&config).map_err(wrong)?, Plan::new()),
            None if dir.is_file() => return Err(wrong(file_in_place(dir))),
            None if text.is_none() => return Err(wrong(undescribed::<M>(&found))),
            None => return Err(wrong(format!("model_type is {kind:?}, and {:?} is opened", M::MODEL_TYPE))),
        };
        let in_file = found.iter().map(|(name, tensor)| (name.clone(), tensor.info().clone())).collect();
        let mut opened = Self {
            architecture,
            dir: dir.to_owned(),
            weights: Tensors::new(),
            names: BTreeMap::new(),
            others: Tensors::new(),
            in_file,
            config: text,
            plan,
        };
        for (in_file, tensor) in
            opened.plan.arrange(&found).map_err(|error| Error::broken(dir, error.to_string()))?
        {
            let Some(name) = opened.architecture.name(&in_file) else {
                opened.others.insert(in_file, tensor);
                continue;
            };
            if let Some(other) = opened.names.insert(name.clone(), in_file.clone()) {
                return Err(Error::broken(dir, format!("{other} and {in_file} are both {name}")));
            }
            opened.weights.insert(name, tensor);
        }
        opened.check()?;
        Ok(opened)
    }

    /// Returns the model for [`Trainer::builder`]. Its input is the field `x`, and `attention_mask` if the
    /// data have it. Its output is `output`. A model with a decoder also reads `decoder_input_ids`, or else
    /// makes these from the labels `y`; the loss is then `CrossEntropy::new().ignore_index(-100)`.
    pub fn model(&self) -> Model {
        let architecture = self.architecture.clone();
        Model::new(move |cx, x| {
            let logits = architecture.forward(cx, x);
            Outputs::new().with(OUTPUT, &logits)
        })
    }

    /// Returns the architecture with its sizes.
    pub fn architecture(&self) -> &M {
        &self.architecture
    }

    /// Returns tokens that play a part in generation, such as `eos_token_id`: those of
    /// `generation_config.json`, else of `config.json`.
    ///
    /// # Errors
    /// A file cannot be read, or it is no id and no list of ids.
    pub(crate) fn generation_ids(&self, name: &str) -> Result<Vec<i32>, Error> {
        let own = self.dir.join(GENERATION);
        let (path, text) = if own.exists() {
            (own.clone(), read(&own)?)
        } else {
            (self.dir.join(CONFIG), self.config.clone().unwrap_or_else(|| b"{}".to_vec()))
        };
        let wrong = |problem: String| Error::broken(&path, problem);
        let config = Config::parse(&text).map_err(wrong)?;
        let Some(value) = config.get(name) else { return Ok(Vec::new()) };
        let id = |value: &Value| {
            let id = value.as_i64().and_then(|id| i32::try_from(id).ok());
            id.ok_or_else(|| wrong(format!("{name} is {value}, and no id")))
        };
        value.as_array().map_or_else(|| Ok(vec![id(value)?]), |list| list.iter().map(id).collect())
    }

    /// Returns the weights by the model's names, with the types that they have on disk.
    pub fn weights(&self) -> &Tensors {
        &self.weights
    }

    /// Sets the weights of a trainer of [`Pretrained::model`].
    ///
    /// # Errors
    /// The trainer has another model, or its replicas fail.
    pub fn load(&self, trainer: &mut Trainer) -> Result<(), Error> {
        trainer.load_tensors(&self.weights, &Plan::new())?;
        Ok(())
    }

    /// Opens a predictor with the weights, for samples with these fields.
    ///
    /// # Errors
    /// The fields do not fit the model, or there is no adapter.
    pub fn predictor(&self, builder: PredictorBuilder, fields: &[FieldSpec]) -> Result<Predictor, Error> {
        Ok(builder.open_tensors(self.model(), fields, &self.weights)?)
    }

    /// Returns the same model with other weights, such as those of a trainer.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, or does not belong to the model.
    pub fn with_weights(&self, weights: Tensors) -> Result<Self, Error> {
        self.compare(&self.dir, &weights)?;
        let others = self.renewed_copies(&weights);
        Ok(Self {
            architecture: self.architecture.clone(),
            dir: self.dir.clone(),
            config: self.config.clone(),
            weights,
            plan: self.plan.clone(),
            in_file: self.in_file.clone(),
            names: self.names.clone(),
            others,
        })
    }

    /// Writes the model as transformers does (`save_pretrained`): `model.safetensors`, with the tensor names
    /// of the directory that was opened, and `config.json`. The files of that directory that say how texts or
    /// images become inputs, and how to generate, are copied. The directory is created if it does not exist.
    /// Weights keep their type, which is f32 after training; a `dtype` in `config.json` follows it if all
    /// weights have the same one.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn save_pretrained(&self, dir: impl AsRef<Path>) -> Result<(), Error> {
        let dir = dir.as_ref();
        let mut all = self.others.clone();
        for (name, tensor) in &self.weights {
            let in_file = self.names.get(name).unwrap_or(name);
            all.insert(in_file.clone(), tensor.clone());
        }
        let all = self.plan.revert(&all, &self.in_file)?;
        std::fs::create_dir_all(dir).map_err(|reason| Error::Io { path: dir.to_owned(), reason })?;
        write_model_of_format(dir.join(WEIGHTS), &all, "pt")?;
        for name in BESIDE {
            let own = self.dir.join(name);
            if own.is_file() && dir != self.dir {
                write_whole(dir.join(name), &[&read(&own)?])?;
            }
        }
        match &self.config {
            Some(config) => Ok(write_whole(dir.join(CONFIG), &[&with_type(config, &self.weights)])?),
            None => Ok(()),
        }
    }

    /// Returns the directory that was opened.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the `tokenizer.json` of the directory. Needs the feature `tokenizers`, which is on by default.
    ///
    /// # Errors
    /// The directory has none, or it is broken.
    #[cfg(feature = "tokenizers")]
    pub fn tokenizer(&self) -> Result<unisono::data::Tokenizer, Error> {
        crate::files::tokenizer(&self.dir)
    }

    /// Returns the copies of tensors in the file, such as a head that is tied to the vectors of words, with
    /// the new values: those of the tensor whose old values were the same.
    fn renewed_copies(&self, weights: &Tensors) -> Tensors {
        let renewed = |(copy, old): (&String, &Tensor)| {
            let mut known = self.weights.iter();
            let may_be_one = old.dtype() != TensorDType::I64 && self.architecture.is_copy(copy);
            let original = known.find(|(_, tensor)| may_be_one && *tensor == old);
            let new = original.and_then(|(name, _)| weights.get(name)).unwrap_or(old);
            (copy.clone(), new.clone())
        };
        self.others.iter().map(renewed).collect()
    }

    fn check(&self) -> Result<(), Error> {
        self.compare(&self.dir, &self.weights)
    }

    /// Compares tensors with those that the model has.
    fn compare(&self, dir: &Path, weights: &Tensors) -> Result<(), Error> {
        let [mut wanted, statistics] = self.traced(dir)?;
        wanted.extend(statistics);
        let mut table = Table::default();
        for (name, info) in &wanted {
            match weights.get(name) {
                None => table.add(name, "missing".into()),
                Some(tensor) if tensor.shape() != info.shape => {
                    table.add(
                        name,
                        format!("{:?} in the file, {:?} in the model", tensor.shape(), info.shape),
                    );
                }
                Some(tensor) if !is_float(tensor.dtype()) => {
                    table.add(name, format!("of {}", tensor.dtype()))
                }
                Some(_) => {}
            }
        }
        for name in weights.keys().filter(|name| !wanted.contains_key(*name)) {
            table.add(self.names.get(name).unwrap_or(name), "not in the model".into());
        }
        if table.0.is_empty() { Ok(()) } else { Err(Error::broken(dir, table.text())) }
    }

    /// Returns the types and shapes of the model's parameters. They are trained, and statistics are not.
    ///
    /// # Errors
    /// The model cannot be traced, so that it could not be opened either.
    pub(crate) fn parameters(&self) -> Result<BTreeMap<String, Info>, Error> {
        self.traced(&self.dir).map(|[parameters, _]| parameters)
    }

    /// Traces the model, and returns its parameters and its statistics.
    fn traced(&self, dir: &Path) -> Result<[BTreeMap<String, Info>; 2], Error> {
        let tape = Tape::new();
        let mut cx = Context::new(&tape, Mode::Evaluate);
        let fields = self.architecture.inputs();
        let x = Inputs::new(&tape, fields.iter().map(|(name, ty)| (*name, ty)));
        self.architecture.forward(&mut cx, &x);
        if let Some(error) = tape.error() {
            let path = if self.config.is_some() { dir.join(CONFIG) } else { dir.to_owned() };
            return Err(Error::broken(&path, error.to_string()));
        }
        Ok([cx.parameters(), cx.statistics()].map(|all| {
            all.iter().map(|tensor| (tensor.name.clone(), Info::f32(tensor.var.dims()))).collect()
        }))
    }
}

/// Says that a file holds another model. There is no `config.json` to name that model.
fn undescribed<M: Architecture>(found: &Tensors) -> String {
    let some: Vec<&str> = found.keys().take(4).map(String::as_str).collect();
    let kind = M::MODEL_TYPE;
    format!(
        "there is no config.json, and the tensors have none of the names of {kind}: {}, ..",
        some.join(", ")
    )
}

/// Returns the text of a config. Its `dtype`, if it has one, becomes the type of the weights, if they are all
/// of one type.
fn with_type(config: &[u8], tensors: &Tensors) -> Vec<u8> {
    let mut types = tensors.values().map(Tensor::dtype).filter(|dtype| is_float(*dtype));
    let first = types.next();
    let name = match first.filter(|first| types.all(|other| other == *first)) {
        Some(TensorDType::F16) => "float16",
        Some(TensorDType::Bf16) => "bfloat16",
        Some(TensorDType::F32) => "float32",
        Some(TensorDType::F64) => "float64",
        _ => return config.to_vec(),
    };
    let Ok(mut settings) = serde_json::from_slice::<Value>(config) else { return config.to_vec() };
    let mut is_changed = false;
    for key in ["dtype", "torch_dtype"] {
        if let Some(own) = settings.get_mut(key).filter(|own| own.is_string() && **own != *name) {
            (*own, is_changed) = (name.into(), true);
        }
    }
    if is_changed { format!("{settings:#}\n").into_bytes() } else { config.to_vec() }
}

fn is_float(dtype: TensorDType) -> bool {
    matches!(dtype, TensorDType::F16 | TensorDType::Bf16 | TensorDType::F32 | TensorDType::F64)
}

/// Tensors that do not fit: how many there are of each pattern and problem.
#[derive(Default)]
struct Table(BTreeMap<(String, String), usize>);

impl Table {
    fn add(&mut self, name: &str, problem: String) {
        // The numbers of layers become stars.
        let parts = name.split('.').map(|part| if part.parse::<u32>().is_ok() { "*" } else { part });
        *self.0.entry((parts.collect::<Vec<_>>().join("."), problem)).or_default() += 1;
    }

    fn text(&self) -> String {
        const MOST: usize = 20;
        let width = self.0.keys().map(|(pattern, _)| pattern.len()).max().unwrap_or(0);
        let mut text = "the weights do not fit the model:".to_owned();
        for ((pattern, problem), count) in self.0.iter().take(MOST) {
            let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
            text += &format!("\n  {pattern:width$}  {problem}{times}");
        }
        if self.0.len() > MOST {
            text += &format!("\n  and {} more lines", self.0.len() - MOST);
        }
        text
    }
}
