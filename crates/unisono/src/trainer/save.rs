//! A run in a checkpoint and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unisono_checkpoint::{Contents, Info, LoadReport, Mismatch, Tensor, TensorDType, Tensors};
use unisono_data::{Loader, LoaderState, Position};
use unisono_graph::{DType, StateDecl, StateKind, Type};

use crate::objective::history::Running;
use crate::run::class::{SavedClass, compared};
use crate::run::order::Order;
use crate::{Error, History, Precision, Scaling, Trainer};

/// The version of `trainer.json`.
const VERSION: u32 = 1;

/// A run's own part of a checkpoint: `trainer.json`, whose fields the README of `unisono-checkpoint` documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedRun {
    version: u32,
    /// The version of this crate that wrote it.
    pub unisono: String,
    /// Steps done.
    pub step: u64,
    /// Epoch of the next step.
    pub epoch: u32,
    /// Position in the epoch of the next step's first sample.
    pub sample: u64,
    /// Samples of the training data that were found bad and left out so far, ascending.
    #[serde(default)]
    pub skipped: Vec<u64>,
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Samples in a step.
    pub global_batch: usize,
    /// Parts that a step is cut into.
    pub shards: usize,
    /// The precision of products, `f32` or `mixed`. `None` in files of versions that knew f32 only.
    #[serde(default)]
    pub precision: Option<String>,
    /// The loss scale in mixed precision.
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// The optimizer's name.
    pub optimizer: String,
    /// The loss's name.
    pub loss: String,
    /// The metrics' names.
    pub metrics: Vec<String>,
    /// Fingerprint of the training data, as hexadecimal digits.
    pub data: Option<String>,
    /// What the loader was set to, see [`Loader::settings`]. `None` in files of versions that did not say.
    #[serde(default)]
    pub loader: Option<BTreeMap<String, String>>,
    /// What the replicas ran on, each class once; bits are promised within one. `None` in files of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Vec<SavedClass>>,
    /// In a run on a mixture of classes, the machine of each replica: with the shards, they say who runs what. Else empty.
    #[serde(default)]
    pub mixture: Vec<String>,
    /// The epochs done.
    pub history: History,
    running: Running,
}

impl SavedRun {
    /// The newest complete checkpoint's run in a directory, if there is one: its settings are those a resumed run has to use.
    pub fn newest(dir: &Path) -> Result<Option<Self>, Error> {
        match unisono_checkpoint::newest(dir)? {
            Some(loaded) => Ok(Some(parse(&loaded.path, &loaded.contents)?)),
            None => Ok(None),
        }
    }
}

fn parse(path: &Path, contents: &Contents) -> Result<SavedRun, Error> {
    let wrong = |problem: String| Error::Resume { path: path.into(), problem };
    let run: SavedRun = serde_json::from_value(contents.trainer.clone()).map_err(|e| wrong(e.to_string()))?;
    if run.version == VERSION {
        Ok(run)
    } else {
        Err(wrong(format!("version {} is not {VERSION}", run.version)))
    }
}

/// What a tensor of the state is in a file.
pub(crate) fn info(ty: &Type) -> Info {
    let dtype = match ty.dtype {
        DType::F32 => TensorDType::F32,
        DType::I32 => TensorDType::I32,
        DType::U32 => TensorDType::U32,
    };
    Info { dtype, shape: ty.dims.clone() }
}

/// How a checkpoint's tensors and a trainer's fit together: all of them, and as they are.
fn fit_together(found: &BTreeMap<&String, &Tensor>, states: &[StateDecl]) -> LoadReport {
    let mut report = LoadReport::default();
    for state in states {
        let model = info(&state.ty);
        match found.get(&state.name).map(|tensor| tensor.info()) {
            None => report.missing.push(state.name.clone()),
            Some(file) if *file == model => report.loaded.push(state.name.clone()),
            Some(file) => {
                report.mismatched.push(Mismatch { name: state.name.clone(), file: file.clone(), model })
            }
        }
    }
    let known = |name: &String| states.iter().any(|state| state.name == *name);
    report.unexpected = found.keys().filter(|name| !known(name)).map(|name| (*name).clone()).collect();
    report
}

impl Trainer {
    /// Everything the next step depends on, and the history.
    pub fn contents(&mut self) -> Result<Contents, Error> {
        self.contents_into(Contents::default())
    }

    /// [`Trainer::contents`] in the memory of earlier ones.
    pub(crate) fn contents_into(&mut self, spare: Contents) -> Result<Contents, Error> {
        self.check_what_is_saved()?;
        let run = SavedRun {
            version: VERSION,
            unisono: env!("CARGO_PKG_VERSION").into(),
            step: self.step,
            epoch: self.progress.position.epoch,
            sample: self.progress.position.sample,
            skipped: self.progress.skipped.clone(),
            seed: self.settings.seed,
            global_batch: self.settings.global_batch,
            shards: self.settings.shards,
            precision: Some(self.parts.precision.to_string()),
            scaling: self.scaling.clone(),
            optimizer: self.parts.optimizer.name().into(),
            loss: self.parts.loss.name().into(),
            metrics: self.parts.metrics.iter().map(|m| m.name().into()).collect(),
            data: self.fingerprint.map(|f| format!("{f:016x}")),
            loader: self.order.settings.clone(),
            class: Some(self.classes.all()?),
            mixture: self.mixture(),
            history: self.history.clone(),
            running: self.running.clone(),
        };
        let trainer = serde_json::to_value(&run)
            .map_err(|e| Error::setting("checkpoint", format!("the run cannot be written as JSON: {e}")))?;
        self.tensors_and(trainer, spare)
    }

    fn tensors_and(&mut self, trainer: serde_json::Value, spare: Contents) -> Result<Contents, Error> {
        let model = self.tensors_into(&[StateKind::Parameter, StateKind::Statistic], spare.model)?;
        let optimizer = self.tensors_into(&[StateKind::Optimizer], spare.optimizer)?;
        Ok(Contents { model, optimizer, carries: self.carries.tensors()?, trainer })
    }

    /// The machines of the replicas that are there, if they are a mixture: shards are given to them evenly, in this order.
    fn mixture(&self) -> Vec<String> {
        let there = self.replicas.reports().into_iter().filter(|report| report.left.is_none());
        let there = there.filter(|_| self.settings.mixed).map(|report| report.replica);
        self.classes.machines(there)
    }

    /// SHA-256 over names, shapes and bytes of parameters, statistics, the optimizer's state and carries, the position,
    /// the samples skipped before it, and the loss scale where there is one.
    pub fn state_sha256(&mut self) -> Result<String, Error> {
        let LoaderState { position: Position { epoch, sample }, skipped } = &self.progress;
        let mut position = epoch.to_le_bytes().to_vec();
        position.extend(sample.to_le_bytes());
        position.extend(self.step.to_le_bytes());
        position.extend(skipped.iter().flat_map(|index| index.to_le_bytes()));
        position.extend(self.scaling.iter().flat_map(Scaling::digested));
        let contents = self.tensors_and(serde_json::Value::Null, Contents::default())?;
        Ok(contents.state_sha256(&position))
    }

    pub(crate) fn tensors_of(&mut self, kinds: &[StateKind]) -> Result<Tensors, Error> {
        self.tensors_into(kinds, Tensors::new())
    }

    /// Into the memory of tensors that were read before.
    fn tensors_into(&mut self, kinds: &[StateKind], mut spare: Tensors) -> Result<Tensors, Error> {
        let indices = self.programs.states_of(kinds);
        let states = self.programs.train.states();
        let memory = |&index: &usize| spare.remove(&states[index].name).map(Tensor::into_bytes);
        let memory = indices.iter().map(memory).map(Option::unwrap_or_default).collect();
        // As they come off the devices, without another copy: training waits for this.
        let all = self.replicas.read_states(&indices, memory);
        let all = self.heard(all)?;
        let states = self.programs.train.states();
        let named = indices.iter().zip(all).map(|(&index, bytes)| {
            let Info { dtype, shape } = info(&states[index].ty);
            Ok((states[index].name.clone(), Tensor::new(dtype, shape, bytes)?))
        });
        named.collect()
    }

    /// Takes a checkpoint's contents as the run's state. Returns what differs between the run and this trainer, which is
    /// an error unless forced.
    pub(crate) fn restore(
        &mut self,
        path: &Path,
        contents: &Contents,
        force: bool,
    ) -> Result<Vec<String>, Error> {
        let run = parse(path, contents)?;
        let wrong = |problem: String| Error::Resume { path: path.into(), problem };
        let metrics: Vec<String> = self.parts.metrics.iter().map(|m| m.name().into()).collect();
        let classes = self.classes.all()?;
        let saved = run.class.as_ref().unwrap_or(&classes);
        let [class, own_class] = compared(saved, &classes);
        if saved.iter().any(|class| class.probe.is_none()) {
            self.tell_note(
                "note: the checkpoint names its adapters but not what a probe of them gave: they are compared by their names",
            );
        }
        let mixture = self.mixture().join(", ");
        let precision = run.precision.clone().unwrap_or_else(|| Precision::F32.to_string());
        let setting = |scaling: &Option<Scaling>| {
            scaling.as_ref().map_or_else(|| "none".to_owned(), |scaling| scaling.setting.to_string())
        };
        let mut differs = Vec::new();
        for (what, saved, own, forcible) in [
            ("the global batch", run.global_batch.to_string(), self.settings.global_batch.to_string(), true),
            ("the number of shards", run.shards.to_string(), self.settings.shards.to_string(), true),
            ("the seed", run.seed.to_string(), self.settings.seed.to_string(), true),
            ("the precision", precision, self.parts.precision.to_string(), true),
            ("the loss scale", setting(&run.scaling), setting(&self.scaling), true),
            ("the numeric class", class, own_class, true),
            ("the mixture", run.mixture.join(", "), mixture, true),
            ("the loss", run.loss.clone(), self.parts.loss.name().into(), true),
            ("the optimizer", run.optimizer.clone(), self.parts.optimizer.name().into(), false),
            ("the metrics", run.metrics.join(", "), metrics.join(", "), false),
        ] {
            if saved != own {
                let problem = format!("{what} of the run is {saved}, not {own}");
                if !(force && forcible) {
                    return Err(wrong(problem));
                }
                differs.push(problem);
            }
        }
        let states = self.programs.train.states().to_vec();
        let found: BTreeMap<&String, &Tensor> = contents.model.iter().chain(&contents.optimizer).collect();
        let report = fit_together(&found, &states);
        if !report.is_exact() {
            return Err(wrong(format!("does not fit the model and its optimizer:\n{report}")));
        }
        let carries = self.carries.of(&contents.carries).map_err(wrong)?;
        for (index, state) in states.iter().enumerate() {
            if let Some(tensor) = found.get(&state.name) {
                let written = self.replicas.write_state(index, tensor.bytes());
                self.heard(written)?;
            }
        }
        // A step that is made again is compared again.
        (self.step, self.compared) = (run.step, None);
        self.scaling = self.settings.scaling.clone().map(|own| own.resumed(run.scaling));
        self.carries = carries;
        let position = Position { epoch: run.epoch, sample: run.sample };
        self.progress = LoaderState { position, skipped: run.skipped };
        self.history = run.history;
        self.observe()?;
        self.running = run.running;
        self.fingerprint = run.data.as_deref().and_then(|d| u64::from_str_radix(d, 16).ok());
        self.order = Order::saved(run.loader);
        Ok(differs)
    }

    /// The data of a resumed run have to be those it started with.
    pub(crate) fn same_data(&mut self, train: &Loader) -> Result<(), Error> {
        let found = train.source().fingerprint();
        match self.fingerprint.replace(found) {
            Some(before) if before != found && self.checkpoints.as_ref().is_some_and(|c| c.forced) => {
                self.tell_note(&format!(
                    "warning: the run was on data with fingerprint {before:016x}, and goes on with {found:016x}"
                ));
                Ok(())
            }
            Some(before) if before != found => {
                self.fingerprint = Some(before);
                let problem = format!("the run was on data with fingerprint {before:016x}, not {found:016x}");
                Err(Error::setting("data", problem))
            }
            _ => Ok(()),
        }
    }
}

/// Where a resumed run goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// Steps done.
    pub step: u64,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that are not complete, and why.
    pub skipped: Vec<String>,
    /// What differs between the run and this trainer, where that was forced; the data aside.
    pub differs: Vec<String>,
}
