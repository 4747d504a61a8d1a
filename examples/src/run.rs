//! Trains a model from the settings of a run to its last line of output.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, stdout};
use std::path::{Component, Path, PathBuf};

use unisono::checkpoint::{WeightPrecision, check_replaceable};
use unisono::data::{FieldSpec, Loader, Source};
use unisono::{
    BestBy, Builder, Cluster, CsvLog, EarlyStopping, Identity, JsonLines, Precision, Predictor,
    PredictorBuilder, Progress, Saving, TensorBoard, Trainer, Witness,
};

use crate::interrupt::{self, Interrupted};
use crate::{Error, Refused, RunFlags, kept_epoch, onnx, say};

/// The settings of a run. [`RunFlags::settle`] makes them.
#[derive(Clone, Debug)]
pub struct Run {
    /// The number of samples in a step, over all replicas together.
    pub global_batch: usize,
    /// The number of shards that a step is cut into.
    pub shards: usize,
    /// The number of epochs, counted from the start of the run.
    pub epochs: u32,
    /// The seed of initial weights, dropout and the order of the data.
    pub seed: u64,
    /// The precision of products.
    pub precision: Precision,
    /// The machines of the run.
    pub cluster: Cluster,
    pub(crate) flags: RunFlags,
    /// The files that the program writes for `--save` after the run.
    pub(crate) saved: Vec<PathBuf>,
}

impl Run {
    /// Returns a loader with the seed and the threads of the run.
    pub fn loader(&self, source: impl Source + 'static) -> Loader {
        let loader = Loader::new(source).seed(self.seed);
        match self.flags.loader_threads {
            Some(threads) => loader.threads(threads),
            None => loader,
        }
    }

    /// Returns the number of steps of the run on these samples.
    pub fn steps(&self, train: &Loader) -> u64 {
        train.samples().div_ceil(self.global_batch as u64) * u64::from(self.epochs)
    }

    /// Returns the run of a program that writes these files for `--save` after it. Training refuses places
    /// that cannot be written, before its first step.
    #[must_use]
    pub fn saves(self, files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { saved: files.into_iter().collect(), ..self }
    }

    /// Returns the builder of another trainer on the adapters of the run, with its arithmetic.
    pub fn on_adapters(&self, builder: Builder) -> Builder {
        let RunFlags { adapter, arithmetic, .. } = &self.flags;
        let builder = adapter.iter().fold(builder, |builder, name| builder.adapter(name));
        arithmetic.iter().fold(builder, |builder, arithmetic| builder.arithmetic(*arithmetic))
    }

    /// Returns the builder of a predictor on the adapters of the run, with its arithmetic and precision.
    pub fn predictor(&self) -> PredictorBuilder {
        let RunFlags { adapter, arithmetic, .. } = &self.flags;
        let builder = Predictor::builder().precision(self.precision);
        let builder = adapter.iter().fold(builder, |builder, name| builder.adapter(name));
        arithmetic.iter().fold(builder, |builder, arithmetic| builder.arithmetic(*arithmetic))
    }

    /// Writes the model as `--onnx` does, with its weights in a precision, to a folder of that name in the
    /// folder of `--onnx`, if the flag is given. The answers next to it are those of the trainer as it is.
    ///
    /// # Errors
    /// The model cannot be exported, or a file cannot be written.
    pub fn write_onnx(
        &self,
        trainer: &mut Trainer,
        held_out: &Loader,
        precision: WeightPrecision,
    ) -> Result<(), Error> {
        let Some(dir) = &self.flags.onnx else { return Ok(()) };
        onnx::write(trainer, held_out, &dir.join(format!("{precision:?}")), precision)
    }

    /// Trains what `builder` describes with the settings of the run. It resumes and saves as the flags say,
    /// shows the model, the progress and where the time went on standard error, and writes the history to
    /// standard output if asked for. For a resumed run this is the history of the whole run.
    ///
    /// # Errors
    /// It returns the error that stopped the run, [`Interrupted`] if that was a signal. It is an error too if
    /// the last checkpoint or the final model cannot be written to the directory of `--out`, and, behind all
    /// other output of the run, if what `--trace` or `--onnx` asks for cannot be written.
    pub fn train(&self, builder: Builder, train: &Loader, held_out: &Loader) -> Result<Trainer, Error> {
        self.train_from(builder, train, held_out, |_| Ok(()))
    }

    /// Trains as [`Run::train`] does, after `prepare` has loaded weights into the trainer.
    ///
    /// # Errors
    /// Those of [`Run::train`] and of `prepare`.
    pub fn train_from(
        &self,
        builder: Builder,
        train: &Loader,
        held_out: &Loader,
        prepare: impl FnOnce(&mut Trainer) -> Result<(), Error>,
    ) -> Result<Trainer, Error> {
        let mut trainer = self.start(builder, &train.fields()?, prepare)?;
        trainer.stop_on(&interrupt::stop()?);
        let before = trainer.steps();
        let sha256 = match self.fit_and_save(&mut trainer, train, held_out) {
            Ok(sha256) => sha256,
            Err(error) => {
                self.trace_despite(&error, &mut trainer, before);
                return Err(error);
            }
        };
        self.finish(trainer, &sha256, Some(held_out))
    }

    /// Builds the trainer of a run, says what it is, and resumes if the flags say so.
    pub(crate) fn start(
        &self,
        builder: Builder,
        fields: &[FieldSpec],
        prepare: impl FnOnce(&mut Trainer) -> Result<(), Error>,
    ) -> Result<Trainer, Error> {
        self.try_places()?;
        let mut trainer = self.builder(builder).build(fields)?;
        prepare(&mut trainer)?;
        say!("{}", trainer.summary());
        trainer.notes().iter().for_each(|note| say!("note: {note}"));
        if let Some(dir) = &self.flags.out {
            self.open(dir, &mut trainer)?;
        }
        Ok(trainer)
    }

    /// Says how a run went, and writes what the flags ask for behind it.
    pub(crate) fn finish(
        &self,
        mut trainer: Trainer,
        sha256: &str,
        held_out: Option<&Loader>,
    ) -> Result<Trainer, Error> {
        crate::machines::follow(trainer.cluster());
        say!("{}", trainer.report());
        let traced = self.trace(&mut trainer);
        say!("{} steps, state {sha256}", trainer.steps());
        print_identity(&trainer.identity());
        let mut told = Ok(());
        if self.flags.json && self.cluster.is_first() {
            let done = JsonLines::new(stdout()).done(trainer.steps(), kept_epoch(&trainer), sha256);
            told = done.map_err(|error| format!("standard output: {error}").into());
        }
        let exported = match (&self.flags.onnx, held_out) {
            (Some(dir), Some(held_out)) => onnx::write(&mut trainer, held_out, dir, WeightPrecision::F32),
            _ => Ok(()),
        };
        // The run itself is told and saved: what could not be written behind it comes last.
        let mut problems = [told, traced, exported].into_iter().filter_map(Result::err);
        let first = problems.next();
        problems.for_each(|problem| say!("error: {problem}"));
        first.map_or(Ok(trainer), Err)
    }

    /// Trains to the last epoch, and saves the final model. Returns the digest of the state.
    fn fit_and_save(
        &self,
        trainer: &mut Trainer,
        train: &Loader,
        held_out: &Loader,
    ) -> Result<String, Error> {
        trainer.fit(train, Some(held_out), self.epochs)?;
        // A run that was asked to stop during its last step is complete.
        // Of several machines another one may have been asked.
        let asked = interrupt::stop()?.is_asked() || !self.cluster.is_alone() && trainer.stopped().is_none();
        if asked && trainer.position().epoch < self.epochs {
            let (step, out) = (trainer.steps(), self.flags.out.clone());
            let unsaved = trainer.saved_step().filter(|saved| *saved < step);
            return Err(Interrupted { step, out, unsaved }.into());
        }
        trainer.save_model()?;
        // What follows a fit may predict, and what the model carries is part of the state.
        Ok(trainer.state_sha256()?)
    }

    /// Refuses the places of files that are written beside checkpoints if nothing can be written there, or
    /// two files would have one place. A run learns of it before it starts, not when it is done.
    fn try_places(&self) -> Result<(), Error> {
        let RunFlags { trace, onnx, csv, logdir, out, .. } = &self.flags;
        if !self.cluster.is_first() {
            return Ok(());
        }
        let checkpoints = out.as_ref().map(|out| place(&out.join("checkpoints")));
        let mut taken: BTreeMap<PathBuf, String> = BTreeMap::new();
        for (flag, path) in self.files() {
            // A run's directory is its own, and what somebody planted there is replaced.
            if flag != "--out" {
                check_replaceable(&path).map_err(|error| Refused(format!("{flag} {error}")))?;
            }
            if flag == "--onnx" && onnx::is_of_run(&path) {
                let (path, what) = (path.display(), "describes the model of an earlier run, which needs it");
                Err(Refused(format!("--onnx: {path} {what}: give another directory")))?;
            }
            let of_run = checkpoints.as_ref().filter(|own| place(&path).starts_with(own));
            let of_run = of_run.map(|_| "--out".to_owned());
            if let Some(other) = taken.insert(place(&path), flag.to_owned()).or(of_run) {
                let what = format!("{other} and {flag} both write {}", path.display());
                Err(Refused(format!("{what}: give one of them another place")))?;
            }
        }
        for (flag, path) in [("--trace", trace), ("--csv", csv)] {
            let Some(path) = path else { continue };
            let tried = try_dir(path.parent().unwrap_or(path));
            tried.map_err(|error| Refused(format!("{flag} {}: {error}", path.display())))?;
        }
        let dirs = self.saved.iter().filter_map(|file| Some(("--save", file.parent()?)));
        let dirs = dirs.chain(onnx.iter().map(|dir| ("--onnx", &**dir)));
        for (flag, dir) in dirs.chain(logdir.iter().map(|dir| ("--logdir", &**dir))) {
            try_dir(dir).map_err(|error| Refused(format!("{flag} {}: {error}", dir.display())))?;
        }
        Ok(())
    }

    /// Returns the files that the flags name, each with its flag.
    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let RunFlags { trace, onnx, csv, out, .. } = &self.flags;
        let beside = |dir: &Option<PathBuf>, names: [&str; 2]| {
            dir.iter().flat_map(|dir| names.map(|name| dir.join(name))).collect::<Vec<_>>()
        };
        let mut files: Vec<(&'static str, PathBuf)> = Vec::new();
        files
            .extend(beside(out, ["model.safetensors", "model.json"]).into_iter().map(|path| ("--out", path)));
        files.extend(out.iter().map(|dir| ("--out", dir.join(".lock"))));
        files.extend(beside(onnx, ["model.onnx", "model.json"]).into_iter().map(|path| ("--onnx", path)));
        files.extend(self.saved.iter().map(|path| ("--save", path.clone())));
        files.extend(trace.iter().map(|path| ("--trace", path.clone())));
        files.extend(csv.iter().map(|path| ("--csv", path.clone())));
        files
    }

    /// Writes the trace that `--trace` asks for.
    fn trace(&self, trainer: &mut Trainer) -> Result<(), Error> {
        match &self.flags.trace {
            Some(path) => Ok(trainer.write_trace(path)?),
            None => Ok(()),
        }
    }

    /// Writes the trace of a run that ends early, if it has done a step. The error of the run is the one that
    /// counts.
    pub(crate) fn trace_despite(&self, error: &Error, trainer: &mut Trainer, before: u64) {
        if self.flags.trace.is_none() || trainer.steps() == before {
            return;
        }
        // The trace of several machines takes all of them, which an error may have parted.
        if !self.cluster.is_alone() && !error.is::<Interrupted>() {
            say!("note: there is no trace: on several machines a run that failed writes none");
        } else if let Err(problem) = self.trace(trainer) {
            say!("warning: {problem}");
        }
    }

    fn builder(&self, builder: Builder) -> Builder {
        let RunFlags { replicas, json, .. } = &self.flags;
        let mut builder = self
            .on_adapters(builder)
            .global_batch(self.global_batch)
            .shards(self.shards)
            .seed(self.seed)
            .precision(self.precision)
            .cluster(self.cluster.clone());
        builder = match self.flags.witness.as_deref() {
            None => builder,
            Some("cpu") => builder.witness(Witness::cpu()),
            Some(name) => builder.witness(Witness::on(name)),
        };
        if let Some(replicas) = replicas {
            builder = builder.replicas(*replicas);
        }
        if *json {
            builder = builder.observer(JsonLines::new(stdout()));
        }
        if let Some(dir) = &self.flags.logdir {
            builder = builder.observer(TensorBoard::new(dir));
        }
        if let Some(path) = &self.flags.csv {
            builder = builder.observer(CsvLog::new(path));
        }
        if let Some(epochs) = self.flags.early_stopping {
            builder = builder.callback(EarlyStopping::lowest("loss").patience(epochs).restore_best());
        }
        if let Some(mib) = self.flags.memory_limit {
            builder = builder.memory_limit(mib << 20);
        }
        if let Some(owners) = self.flags.shard_optimizer {
            builder = builder.shard_optimizer(owners);
        }
        builder = builder.mixed(self.flags.mixed);
        if self.flags.trace.is_some() {
            builder = builder.timeline();
        }
        self.shown(builder)
    }

    /// Adds what shows the progress.
    fn shown(&self, builder: Builder) -> Builder {
        #[cfg(feature = "dashboard")]
        if self.flags.dashboard {
            return builder.observer(unisono::Dashboard::new());
        }
        if self.flags.dashboard {
            say!("note: there is no dashboard: build with --features dashboard");
        }
        builder.observer(Progress::new())
    }

    fn saving(&self, dir: &Path) -> Saving {
        let RunFlags { checkpoint_every, keep_last, keep_every, keep_best, require_checkpoints, .. } =
            &self.flags;
        let mut saving = Saving::new(dir)
            .every(checkpoint_every.unwrap_or(0))
            .keep_last(keep_last.unwrap_or(3))
            .keep_every(keep_every.unwrap_or(0));
        if let Some(metric) = keep_best {
            saving = saving.keep_best(BestBy::Metric(metric.clone()));
        }
        if *require_checkpoints { saving.require() } else { saving }
    }

    /// Makes the trainer save checkpoints to a directory, and resumes from the newest one there if the flags
    /// say so.
    fn open(&self, dir: &Path, trainer: &mut Trainer) -> Result<(), Error> {
        trainer.save_to(self.saving(dir))?;
        if !self.flags.resume {
            return Ok(());
        }
        let resumed = if self.flags.force { trainer.force_resume() } else { trainer.resume() };
        match resumed? {
            Some(resumed) => {
                resumed.differs.iter().for_each(|differs| say!("warning: {differs}"));
                resumed.skipped.iter().for_each(|skipped| say!("note: skipped {skipped}"));
                say!("resumed at step {} from {}", resumed.step, resumed.path.display());
            }
            None => say!("note: no checkpoint in {}: the run starts from the beginning", dir.display()),
        }
        Ok(())
    }
}

/// Returns a path under the real name of its directory, so that two ways to one file are equal. What does not
/// exist of the directory is without `.` and `..`.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut place = PathBuf::new();
    for part in path.parent().unwrap_or(&path).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::CurDir => {}
            part => place.push(part),
        }
        place = place.canonicalize().unwrap_or(place);
    }
    place.extend(path.file_name());
    place
}

/// Creates a directory, and writes and removes a file in it.
fn try_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    fs::create_dir_all(dir)?;
    let probe = dir.join(format!(".unisono-probe-{}", std::process::id()));
    File::create_new(&probe)?;
    fs::remove_file(probe)
}

/// Writes what makes the run this run: the first digits of its identity, what is not in it, and the runs that
/// it was made of by force.
fn print_identity(identity: &Identity) {
    say!("identity  {identity}");
    identity.not_covered.iter().for_each(|what| {
        say!("note: the run's identity does not cover {what}: a resume does not notice if it changes")
    });
    for ancestor in &identity.ancestors {
        let from =
            ancestor.identity.as_deref().and_then(|digits| digits.get(..12)).unwrap_or("an unknown run");
        say!("note: forced at step {} from {from}: {}", ancestor.step, ancestor.differs.join("; "));
    }
}
