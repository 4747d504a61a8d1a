//! The settings of a predictor, and how one is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use unisono_checkpoint::{Info, LoadReport, Plan, TensorFile, Tensors, description_path};
use unisono_data::FieldSpec;
use unisono_gpu::Arithmetic;
use unisono_graph::Precision;
use unisono_replica::{Options, Replicas, describe_classes, is_one_class};

use crate::compile::fields::Fields;
use crate::compile::memory::Budget;
use crate::compile::plan::{check_units, in_precision, selected};
use crate::compile::prediction::PredictionProgram;
use crate::model::Model;
use crate::model::functional::INPUT;
use crate::predictor::Predictor;
use crate::predictor::report::Clock;
use crate::run::carries::Carries;
use crate::run::settings::{LENGTHS, SHARDS};
use crate::saving::tensors::{info, weights_file};
use crate::trainer::build::{check_batch, check_shards, spread};
use crate::{Error, ExportedModel};

/// The weights that a plan takes, and what became of each.
type Taken = unisono_checkpoint::Result<(Tensors, LoadReport)>;

/// The settings of a [`Predictor`]. [`Predictor::builder`] returns one.
#[derive(Clone, Debug)]
pub struct PredictorBuilder {
    adapters: Vec<String>,
    arithmetic: Option<Arithmetic>,
    replicas: Option<usize>,
    batch: usize,
    shards: usize,
    precision: Precision,
    seed: u64,
    mixed: bool,
    deadline: Option<Duration>,
    memory_limit: Option<u64>,
    lengths: usize,
    weights: Plan,
}

impl Default for PredictorBuilder {
    fn default() -> Self {
        Self {
            adapters: Vec::new(),
            arithmetic: None,
            replicas: None,
            batch: 32,
            shards: SHARDS,
            precision: Precision::F32,
            seed: 0,
            mixed: false,
            deadline: None,
            memory_limit: None,
            lengths: LENGTHS,
            weights: Plan::new(),
        }
    }
}

impl PredictorBuilder {
    /// Predicts on the adapters whose label contains `name` (see [`unisono_gpu::select`]). Call it several
    /// times to choose several adapters. Default: as for a trainer.
    pub fn adapter(mut self, name: &str) -> Self {
        self.adapters.push(name.into());
        self
    }

    /// Sets how the CPU rounds, as [`Builder::arithmetic`](crate::Builder::arithmetic) does.
    pub fn arithmetic(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic: Some(arithmetic), ..self }
    }

    /// Sets the number of replicas. Default: as for a trainer.
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// Sets the maximum number of samples that are computed together, over all replicas. Default: 32.
    pub fn batch(self, samples: usize) -> Self {
        Self { batch: samples, ..self }
    }

    /// Sets the number of parts that each batch is cut into. At most this many replicas can share the work.
    /// Default: 8.
    pub fn shards(self, shards: usize) -> Self {
        Self { shards, ..self }
    }

    /// Sets the numeric precision of matrix products. Default: [`Precision::F32`].
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Sets the seed of models that draw random numbers when they predict. With the seed of a trainer they
    /// draw what [`Trainer::predict`](crate::Trainer::predict) does. Default: 0.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Allows adapters of different numeric classes. The last bits of a row then depend on the replica that
    /// computed it. Default: such adapters are an error.
    pub fn mixed(self, allowed: bool) -> Self {
        Self { mixed: allowed, ..self }
    }

    /// Sets how long the predictor waits for a replica before it counts as lost. Default: five minutes.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Sets the maximum number of bytes of device memory for a replica. Default: the memory of the device, if
    /// it is known.
    pub fn memory_limit(self, bytes: u64) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// Sets how many lengths of samples stay compiled, in addition to the longest. A length is compiled when
    /// its first sample comes, and takes memory on the host and on each device. If there is one length too
    /// many, the one that was unused for longest is dropped. If it comes again, it is compiled again, with
    /// the same results. Default: 64.
    pub fn lengths(self, most: usize) -> Self {
        Self { lengths: most, ..self }
    }

    /// Sets the names of the model's tensors in the file. Default: the model's own names.
    pub fn weights(self, plan: Plan) -> Self {
        Self { weights: plan, ..self }
    }

    /// Opens an exported model, as [`Predictor::open`] does.
    ///
    /// # Errors
    /// Those of [`Predictor::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Predictor, Error> {
        let path = weights_file(path.as_ref())?;
        let json = description_path(&path);
        if !json.exists() {
            TensorFile::open(&path)?;
            let why = match path.with_file_name("manifest.json").exists() {
                true => "these are the weights of a checkpoint, without a description of the model",
                false => "the model has layers of your own, or several fields",
            };
            let (path, json) = (path.display(), json.display());
            let problem = format!(
                "{path} has weights, but {json} is not there: {why}, so `PredictorBuilder::open_model` opens it by its code"
            );
            return Err(Error::setting("predictor", problem));
        }
        let ExportedModel { model, input, dtype, scale, attached, weights, .. } = ExportedModel::open(&path)?;
        let fields = [FieldSpec { name: INPUT.into(), dtype, shape: input }];
        let mut predictor =
            self.start(model.layer().into(), &fields, |plan, model| plan.read(&weights, model))?;
        (predictor.attached, predictor.scale) = (attached, scale);
        Ok(predictor)
    }

    /// Opens a model from your own code, with the fields of its samples and its weights: a safetensors file,
    /// or the directory of a run with `model.safetensors`.
    ///
    /// # Errors
    /// The model does not fit the fields or the file. A weight is NaN or infinite. The file cannot be read.
    /// There is no adapter.
    pub fn open_model(
        self,
        model: impl Into<Model>,
        fields: &[FieldSpec],
        path: impl AsRef<Path>,
    ) -> Result<Predictor, Error> {
        let weights = TensorFile::open(weights_file(path.as_ref())?)?;
        self.start(model.into(), fields, |plan, model| plan.read(&weights, model))
    }

    /// Opens a model from your own code, with the fields of its samples, and its weights in memory.
    ///
    /// # Errors
    /// The model does not fit the fields or the weights. There is no adapter.
    pub fn open_tensors(
        self,
        model: impl Into<Model>,
        fields: &[FieldSpec],
        weights: &Tensors,
    ) -> Result<Predictor, Error> {
        self.start(model.into(), fields, |plan, model| plan.take(weights, model))
    }

    /// Compiles the model, opens the devices and gives them the weights.
    fn start(
        self,
        model: Model,
        fields: &[FieldSpec],
        weights: impl FnOnce(&Plan, &BTreeMap<String, Info>) -> Taken,
    ) -> Result<Predictor, Error> {
        let Self { batch, precision, shards, seed, .. } = self;
        if self.replicas == Some(0) {
            return Err(Error::setting("replicas", "a prediction needs at least one"));
        }
        if self.lengths == 0 {
            return Err(Error::setting("lengths", "one length of samples at least must be ready"));
        }
        check_shards(shards)?;
        check_batch("batch", batch)?;
        let program = PredictionProgram::trace(&model, precision, &Fields::all(fields))?;
        let states = program.program.states().to_vec();
        let wanted: BTreeMap<String, Info> = states.iter().map(|s| (s.name.clone(), info(&s.ty))).collect();
        let (tensors, _) = weights(&self.weights, &wanted)?;
        let left_out: Vec<&str> =
            wanted.keys().filter(|name| !tensors.contains_key(*name)).map(|name| &**name).collect();
        if !left_out.is_empty() {
            let problem = format!(
                "the plan leaves out {}, without which nothing can be predicted",
                left_out.join(", ")
            );
            return Err(Error::setting("predictor", problem));
        }
        let mut chosen = selected(&self.adapters, self.arithmetic)?;
        chosen.truncate(self.replicas.unwrap_or(usize::MAX));
        let chosen = chosen
            .iter()
            .map(|adapter| in_precision(adapter, precision))
            .collect::<Result<Vec<_>, Error>>()?;
        check_units(&chosen)?;
        if !self.mixed && !is_one_class(&chosen)? {
            return Err(Error::Mixture { classes: describe_classes(&chosen) });
        }
        let adapters = spread(&chosen, self.replicas, shards, 1);
        let (limit, programs) = (self.memory_limit, vec![Arc::clone(&program.program)]);
        let budget =
            Budget { adapters, shards, at_once: None, limit, kept_by_others: 0, audits: 0, programs };
        let (memory, at_once) = budget.memory(&program.program, batch)?;
        let options = Options::default().with(|options| {
            (options.global_batch, options.shards, options.shards_at_once) = (batch, shards, at_once);
            options.deadline = self.deadline.unwrap_or(options.deadline);
        });
        let mut replicas = Replicas::start(&budget.adapters, vec![program.program.clone()], options)?;
        for (index, state) in states.iter().enumerate() {
            if let Some(tensor) = tensors.get(&state.name) {
                replicas.write_state(index, tensor.bytes())?;
            }
        }
        let carries = Carries::new(&program.program, batch);
        let programs = vec![(program, 0)];
        Ok(Predictor {
            model,
            precision,
            programs,
            signatures: Vec::new(),
            replicas,
            batch,
            seed,
            lengths: self.lengths,
            carries,
            memory,
            inputs: crate::compile::feed::InputMemory::default(),
            clock: Clock::default(),
            attached: BTreeMap::new(),
            scale: None,
            notes: BTreeSet::new(),
        })
    }
}
