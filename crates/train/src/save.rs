//! A run in a checkpoint and back.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unisono_checkpoint::{Contents, Store, Tensor, Tensors};
use unisono_data::{Loader, Position, Progress};
use unisono_graph::StateKind;

use crate::history::Running;
use crate::{Error, History, Trainer};

/// The version of `trainer.json`.
const VERSION: u32 = 1;

/// Where checkpoints go and how often.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    store: Store,
    every: u64,
    /// The step of the newest one that this run wrote or took.
    pub(crate) saved: Option<u64>,
}

/// A run's own part of a checkpoint: `trainer.json`.
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
    /// The optimizer's name.
    pub optimizer: String,
    /// The loss's name.
    pub loss: String,
    /// The metrics' names.
    pub metrics: Vec<String>,
    /// Fingerprint of the training data, as hexadecimal digits.
    pub data: Option<String>,
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

impl Trainer {
    /// Saves the run to `dir` every `every` steps of a fit, and at its end; 0: only at the end. The directory is tried at once.
    pub fn checkpoints(&mut self, dir: &Path, every: u64) -> Result<(), Error> {
        self.checkpoints = Some(Checkpoints { store: Store::open(dir)?, every, saved: None });
        Ok(())
    }

    /// Takes the newest complete checkpoint of the directory given to [`Trainer::checkpoints`]; says which one, and which
    /// broken ones were passed over. Without any checkpoint the run starts at its start.
    pub fn resume(&mut self) -> Result<Option<Resumed>, Error> {
        let Some(checkpoints) = &self.checkpoints else {
            return Err(Error::setting("resume", "no checkpoint directory is set"));
        };
        let Some(loaded) = checkpoints.store.newest()? else { return Ok(None) };
        self.restore(&loaded.path, &loaded.contents)?;
        let skipped = loaded.skipped.iter().map(ToString::to_string).collect();
        Ok(Some(Resumed { step: self.step, path: loaded.path, skipped }))
    }

    /// Removes the checkpoints of an earlier run from the directory, for a fresh start in it.
    pub fn clear_checkpoints(&mut self) -> Result<(), Error> {
        match &mut self.checkpoints {
            Some(checkpoints) => Ok(checkpoints.store.clear()?),
            None => Ok(()),
        }
    }

    /// Saves the run now.
    pub fn save(&mut self) -> Result<Option<PathBuf>, Error> {
        let contents = self.contents()?;
        let step = self.step;
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(None) };
        let saved = checkpoints.store.save(step, &contents)?;
        checkpoints.saved = Some(step);
        self.tell_saved(&saved.path);
        Ok(Some(saved.path))
    }

    /// Writes the final model as `model.safetensors` into the checkpoint directory.
    pub fn save_model(&mut self) -> Result<Option<PathBuf>, Error> {
        let model = self.tensors_of(&[StateKind::Parameter, StateKind::Statistic])?;
        match &self.checkpoints {
            Some(checkpoints) => Ok(Some(checkpoints.store.write_model(&model)?)),
            None => Ok(None),
        }
    }

    /// Saves where the interval or the end of a fit asks for it, and this step is not saved yet.
    pub(crate) fn save_when_due(&mut self, end: bool) -> Result<(), Error> {
        let step = self.step;
        let due = self
            .checkpoints
            .as_ref()
            .is_some_and(|c| (end || c.every > 0 && step.is_multiple_of(c.every)) && c.saved != Some(step));
        if due {
            self.save()?;
        }
        Ok(())
    }

    /// Everything the next step depends on, and the history.
    pub fn contents(&mut self) -> Result<Contents, Error> {
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
            optimizer: self.parts.optimizer.name().into(),
            loss: self.parts.loss.name().into(),
            metrics: self.parts.metrics.iter().map(|m| m.name().into()).collect(),
            data: self.fingerprint.map(|f| format!("{f:016x}")),
            history: self.history.clone(),
            running: self.running.clone(),
        };
        let trainer = serde_json::to_value(&run)
            .map_err(|e| Error::setting("checkpoint", format!("the run cannot be written as JSON: {e}")))?;
        let model = self.tensors_of(&[StateKind::Parameter, StateKind::Statistic])?;
        let optimizer = self.tensors_of(&[StateKind::Optimizer])?;
        Ok(Contents { model, optimizer, trainer })
    }

    /// SHA-256 over names, shapes and bytes of parameters, statistics and the optimizer's state, the position and the samples skipped before it.
    pub fn state_sha256(&mut self) -> Result<String, Error> {
        let Progress { position: Position { epoch, sample }, skipped } = &self.progress;
        let mut position = epoch.to_le_bytes().to_vec();
        position.extend(sample.to_le_bytes());
        position.extend(self.step.to_le_bytes());
        position.extend(skipped.iter().flat_map(|index| index.to_le_bytes()));
        Ok(self.contents()?.state_sha256(&position))
    }

    fn tensors_of(&mut self, kinds: &[StateKind]) -> Result<Tensors, Error> {
        let mut tensors = Tensors::new();
        for index in self.programs.states_of(kinds) {
            let values = self.state(index)?;
            let state = &self.programs.train.states()[index];
            tensors.insert(state.name.clone(), Tensor::f32(&state.ty.dims, &values)?);
        }
        Ok(tensors)
    }

    /// Takes a checkpoint's contents as the run's state.
    fn restore(&mut self, path: &Path, contents: &Contents) -> Result<(), Error> {
        let run = parse(path, contents)?;
        let wrong = |problem: String| Error::Resume { path: path.into(), problem };
        let metrics: Vec<String> = self.parts.metrics.iter().map(|m| m.name().into()).collect();
        for (what, saved, own) in [
            ("the global batch", run.global_batch.to_string(), self.settings.global_batch.to_string()),
            ("the number of shards", run.shards.to_string(), self.settings.shards.to_string()),
            ("the seed", run.seed.to_string(), self.settings.seed.to_string()),
            ("the optimizer", run.optimizer.clone(), self.parts.optimizer.name().into()),
            ("the loss", run.loss.clone(), self.parts.loss.name().into()),
            ("the metrics", run.metrics.join(", "), metrics.join(", ")),
        ] {
            if saved != own {
                return Err(wrong(format!("{what} of the run is {saved}, not {own}")));
            }
        }
        let states = self.programs.train.states().to_vec();
        let known = contents.model.len() + contents.optimizer.len();
        for state in &states {
            let tensor = contents.model.get(&state.name).or_else(|| contents.optimizer.get(&state.name));
            match tensor {
                None => return Err(wrong(format!("it has no tensor {:?}", state.name))),
                Some(t) if t.shape() != state.ty.dims => {
                    let problem =
                        format!("{:?} is {:?}, the model's is {:?}", state.name, t.shape(), state.ty.dims);
                    return Err(wrong(problem));
                }
                Some(_) => {}
            }
        }
        if known != states.len() {
            return Err(wrong(format!(
                "it has {known} tensors, the model and its optimizer {}",
                states.len()
            )));
        }
        for (index, state) in states.iter().enumerate() {
            let tensor = contents.model.get(&state.name).or_else(|| contents.optimizer.get(&state.name));
            if let Some(tensor) = tensor {
                self.replicas.write_state(index, tensor.bytes())?;
            }
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.saved = Some(run.step);
        }
        self.step = run.step;
        let position = Position { epoch: run.epoch, sample: run.sample };
        self.progress = Progress { position, skipped: run.skipped };
        self.history = run.history;
        self.running = run.running;
        self.fingerprint = run.data.as_deref().and_then(|d| u64::from_str_radix(d, 16).ok());
        Ok(())
    }

    /// The data of a resumed run have to be those it started with.
    pub(crate) fn same_data(&mut self, train: &Loader) -> Result<(), Error> {
        let found = train.source().fingerprint();
        match self.fingerprint.replace(found) {
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
}
