//! A run's state: everything that the next step depends on beside the tensors on the devices, and what the
//! run measured.
//!
//! The list of sections below is the one place that knows what a run saves. A new piece of state is a line in
//! it and a type that implements [`Section`]; writing, reading, comparing, digesting and documenting follow
//! from the list.

use std::path::Path;

use serde_json::json;
use unisono_checkpoint::{Contents, Tensors};

use crate::objective::running::Running;
use crate::run::carries::Carries;
use crate::run::classes::SavedClasses;
use crate::run::control::RunControl;
use crate::run::data::{Fingerprint, Order};
use crate::run::identity::RunIdentity;
use crate::run::lbfgs::KeptLbfgs;
use crate::run::limits;
use crate::run::loss_scale::Scaling;
use crate::run::phases::PhaseCounts;
use crate::run::position::RunPosition;
use crate::run::replay::KeptReplay;
use crate::run::scales::Scales;
use crate::run::section::{Difference, Section, Sections};
use crate::run::settings::RunSettings;
use crate::{Error, History};

/// The version of `trainer.json` that is written. Each section has a version of its own.
const VERSION: u32 = 2;

/// Makes the state, its one pair of save and load, and the documentation of `trainer.json` of the list of
/// sections. Differences are reported, and sections are digested, in the order of the list.
macro_rules! run_state {
    ($($(#[doc = $doc:literal])+ $name:ident: $section:ty,)+) => {
        /// What a run saves, section by section.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct RunState {
            $($(#[doc = $doc])+ pub $name: $section,)+
        }

        impl RunState {
            /// The names of all sections.
            #[cfg(test)]
            const NAMES: &[&str] = &[$(stringify!($name)),+];

            fn sections(&self) -> Result<Sections, Error> {
                let mut sections = Sections::default();
                $(sections.put(stringify!($name), &self.$name)?;)+
                Ok(sections)
            }

            fn of(mut sections: Sections) -> Result<Self, String> {
                let state = Self { $($name: sections.take(stringify!($name))?,)+ };
                sections.finish()?;
                Ok(state)
            }

            /// Returns the bytes that the state's digest takes beside tensors.
            pub fn digested(&self) -> Vec<u8> {
                let mut bytes = Vec::new();
                $(self.$name.digest(&mut bytes);)+
                bytes
            }

            /// Returns the tensors of the sections that the state's digest takes.
            ///
            /// # Errors
            /// A tensor whose bytes do not fit its shape.
            pub fn digested_tensors(&self) -> Result<Tensors, Error> {
                let mut tensors = Tensors::new();
                $(if <$section as Section>::TENSORS_ARE_DIGESTED {
                    tensors.extend(self.$name.tensors()?);
                })+
                Ok(tensors)
            }

            /// Compares this run with one that it would resume.
            pub fn differences(&self, saved: &Self) -> Vec<Difference> {
                let mut all = Vec::new();
                $(all.extend(self.$name.differences(&saved.$name));)+
                all
            }

            /// Goes on from a saved run, which was compared with this one.
            pub fn resume(&mut self, saved: Self) {
                $(self.$name.resume(saved.$name);)+
            }
        }

        /// A run as a checkpoint has it: the sections of `trainer.json` version 2.
        ///
        /// The file is `{"version": 2, "unisono": VERSION OF THE CRATE, "sections": {NAME: {"version": N,
        /// "value": ...}}}`. A section that is unknown, missing or of a later version than this program knows
        /// is an error that names it.
        ///
        /// | section | what it is |
        /// |---|---|
        $(#[doc = concat!("| `", stringify!($name), "` |", $($doc),+, " |")])+
        ///
        /// Schedules and random draws need no section: they are functions of the step, the seed and the
        /// position.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SavedRun {
            /// The version of this crate that wrote the checkpoint.
            pub unisono: String,
            pub(crate) state: RunState,
        }
    };
}

run_state! {
    /// The settings that the answer depends on: `seed`, `global_batch`, `shards`, `precision`, and the names
    /// of the `loss`, the `optimizer` and the `metrics`. Others than the run's are an error; all but the
    /// optimizer and the metrics can be forced.
    settings: RunSettings,
    /// The place of the run: `step` counts the steps done, `weightless`, where it is not 0, those of them
    /// that changed nothing because all weights were 0, `epoch` and `sample` are where the next step's first
    /// sample is, and `skipped` lists the numbers of the samples that were found bad and left out, ascending.
    position: RunPosition,
    /// The loss scale in mixed precision: its `setting`, the `scale` of the next step, the `good` steps since
    /// it changed, and the steps `skipped` for it. Null in full precision. Another setting is an error unless
    /// forced.
    loss_scale: Option<Scaling>,
    /// The numeric classes that the run was on: in `class` each machine with what its probe gave, and in
    /// `mixture`, for a run on several classes, the machine of each replica in the order in which shards are
    /// given to them. Others are an error unless forced.
    classes: SavedClasses,
    /// The fingerprint of the training data as 16 hexadecimal digits, or null before the first fit. Other
    /// data are an error unless forced.
    data: Fingerprint,
    /// What the training data's loader was set to by name, see
    /// [`Loader::settings`](unisono_data::Loader::settings), or null before the first fit. Another loader is
    /// an error unless forced.
    loader: Order,
    /// The epochs done: for each its number, the steps until then, and loss and metrics in training and on
    /// the validation data. Numbers that are not finite are `"NaN"`, `"inf"` or `"-inf"`. If the history has
    /// more than 4,096 numbers, they are stored as the tensors `history/counts` and `history/numbers` in
    /// `carries.safetensors`. The section then contains only the names of the metrics, and its version is 2.
    history: History,
    /// The sums of the epoch that is not done: loss, weights, samples, penalties and steps, and for each
    /// metric its `sums` and, as hexadecimal digits, the f32 values that it has `kept` of all samples. Those
    /// of more than 4096 numbers are tensors in `carries.safetensors`, whose names are in `tensors`.
    running: Running,
    /// What samples carry from batch to batch: the names of the tensors in `carries.safetensors`.
    carries: Carries,
    /// What makes the run this run: the hash `sha256` over the parts `model`, `start`, `training`,
    /// `optimizer`, `settings`, `order` and `data`, each with the names by which a difference is told, then
    /// what is `not_covered`, the weights `loaded`, and the `ancestors` that the run was made of by force.
    /// Another model, optimizer or data are an error unless forced.
    identity: RunIdentity,
    /// What callbacks have asked for and what they keep: the `rates`, changes of the learning rate with the
    /// optimizer's step `from` which each holds; why the run was `stopped`, if a callback ended it, and the
    /// steps done when it had `gone_on` after that; the `callbacks` with their settings and values; and the
    /// names of the weights that are `kept`, which are tensors in `carries.safetensors`, with the callbacks
    /// that they are `kept_by`. Other callbacks that change the answer are an error unless forced.
    control: RunControl,
    /// Where a run in phases is: the `steps` that the optimizer of each phase has done, and the phase whose
    /// `turn` it is with the steps of the turn. It is empty for a run without phases.
    phases: PhaseCounts,
    /// The replay buffer of a run that makes its own samples: the number of samples ever `pushed`, with the
    /// buffer as the tensor `replay/buffer` in `carries.safetensors`. Other runs do not have the section.
    replay: KeptReplay,
    /// What L-BFGS remembers: the `iterations` (directions) and the `evaluations` of all samples so far. The
    /// tensors `lbfgs/numbers`, `lbfgs/last`, `lbfgs/steps` and `lbfgs/changes` in `carries.safetensors` have
    /// the rest. Runs with other optimizers do not have the section.
    lbfgs: KeptLbfgs,
    /// How large the values of the run's first samples are, for each f32 field: the number of `values`, and
    /// their `mean` and standard `deviation`. Before the first step there is no such section.
    scales: Scales,
}

impl RunState {
    /// Returns how many steps the optimizer of a run without phases has made.
    pub fn optimizer_steps(&self) -> u64 {
        let for_the_scale = self.loss_scale.as_ref().map_or(0, |scaling| scaling.skipped);
        self.position.step - self.position.weightless - for_the_scale
    }

    /// Writes the state into a checkpoint's contents.
    ///
    /// # Errors
    /// A section cannot be written.
    pub fn save(&self, contents: &mut Contents) -> Result<(), Error> {
        let (sections, tensors) = self.sections()?.written()?;
        contents.trainer =
            json!({ "version": VERSION, "unisono": env!("CARGO_PKG_VERSION"), "sections": sections });
        contents.carries = tensors;
        Ok(())
    }

    /// Reads the state out of a checkpoint's contents.
    ///
    /// # Errors
    /// What is wrong with the checkpoint, or of another version.
    pub fn load(contents: &Contents) -> Result<SavedRun, String> {
        let trainer = &contents.trainer;
        let Some(version) = trainer["version"].as_u64() else {
            return Err("trainer.json has no version".into());
        };
        let unisono = trainer["unisono"].as_str().unwrap_or_default().to_owned();
        let tensors = contents.carries.clone();
        let sections = match u32::try_from(version) {
            Ok(VERSION) => Sections::parse(trainer["sections"].clone(), tensors)?,
            _ => return Err(format!("version {version} of trainer.json, but only {VERSION} is known")),
        };
        let state = Self::of(sections)?;
        limits::check(&state)?;
        Ok(SavedRun { unisono, state })
    }
}

impl SavedRun {
    /// Returns the newest complete checkpoint's run in a directory, or `None` where there is not a
    /// checkpoint. A resumed run has to use its settings.
    ///
    /// # Errors
    /// The directory cannot be read, no checkpoint in it is complete, or the newest is of another version.
    pub fn newest(dir: &Path) -> Result<Option<Self>, Error> {
        let loaded = unisono_checkpoint::newest(dir)?;
        loaded.map(|loaded| Self::load(&loaded.path, loaded.step, &loaded.contents)).transpose()
    }

    /// Reads the run of a checkpoint of a step; errors name its path.
    ///
    /// # Errors
    /// As [`RunState::load`]; `trainer.json` is of another step than the checkpoint's manifest.
    pub(crate) fn load(path: &Path, step: u64, contents: &Contents) -> Result<Self, Error> {
        let own_step = |run: Self| match run.steps() {
            own if own == step => Ok(run),
            own => Err(format!("trainer.json is of step {own}, the manifest of step {step}")),
        };
        let run = RunState::load(contents).and_then(own_step);
        run.map_err(|problem| Error::Resume { path: path.into(), problem })
    }

    /// Returns the run's identity as hexadecimal digits. `None` for checkpoints of earlier versions, and for
    /// those that were written before the data were hashed.
    pub fn identity(&self) -> Option<&str> {
        self.state.identity.sha256.as_deref()
    }

    /// Returns the settings that the run's result depends on.
    pub fn settings(&self) -> &RunSettings {
        &self.state.settings
    }

    /// Returns the number of steps done.
    pub fn steps(&self) -> u64 {
        self.state.position.step
    }

    /// Returns where the next step's first sample is.
    pub fn position(&self) -> unisono_data::Position {
        self.state.position.data.position
    }

    /// Returns the numbers of the samples that were found bad and left out so far, ascending.
    pub fn skipped(&self) -> &[u64] {
        &self.state.position.data.skipped
    }

    /// Returns the loss scale in mixed precision.
    pub fn scaling(&self) -> Option<&Scaling> {
        self.state.loss_scale.as_ref()
    }

    /// Returns the numeric classes that the run was on.
    pub fn classes(&self) -> &SavedClasses {
        &self.state.classes
    }

    /// Returns the epochs done.
    pub fn history(&self) -> &History {
        &self.state.history
    }
}

#[cfg(test)]
mod tests;
