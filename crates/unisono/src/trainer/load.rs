//! Weights out of a file, whichever program wrote it.

use std::collections::BTreeMap;
use std::path::Path;

use unisono_checkpoint::{Info, LoadReport, Plan, TensorFile, Tensors};
use unisono_graph::StateKind;

use crate::saving::tensors::{info, weights_file};
use crate::{Error, Trainer};

impl Trainer {
    /// Takes parameters and statistics from a safetensors file, or from `model.safetensors` in the directory
    /// of a run. The [`Plan`] says which and what they are called there. Returns what became of each.
    ///
    /// The run's position, history and optimizer stay what they are; the weights become a part of its
    /// identity. Weights of i8 are multiplied by their scales
    /// ([`WeightPrecision::I8`](unisono_checkpoint::WeightPrecision::I8)), and training goes on in f32.
    ///
    /// # Errors
    /// The file cannot be read, or does not fit, or a weight in it is NaN or infinite; the error lists
    /// everything that does not fit. A step has made the state not finite ([`Error::StateNotFinite`]):
    /// resume first. In these cases nothing has changed.
    #[doc(alias("load_state_dict", "load_weights"))]
    pub fn load_model(&mut self, path: impl AsRef<Path>, plan: &Plan) -> Result<LoadReport, Error> {
        let given = path.as_ref();
        let path = weights_file(given)?;
        if given.join("checkpoints").is_dir() && self.steps() == 0 {
            self.monitor.note_once(&format!(
                "note: load_model takes only the weights of the run in {}: Trainer::resume goes on with its \
                 optimizer state and epoch count too",
                given.display()
            ));
        }
        self.take_weights(|model| plan.read(&TensorFile::open(&path)?, model))
    }

    /// Takes parameters and statistics out of tensors in memory, as [`Trainer::load_model`] takes those of a
    /// file.
    ///
    /// # Errors
    /// Those of [`Trainer::load_model`], except that no file is read.
    pub fn load_tensors(&mut self, tensors: &Tensors, plan: &Plan) -> Result<LoadReport, Error> {
        self.take_weights(|model| plan.take(tensors, model))
    }

    /// Returns all parameters and statistics by name, as predictions use them (PyTorch's `state_dict`).
    ///
    /// # Errors
    /// The replicas fail, or the state is not finite.
    pub fn weights(&mut self) -> Result<Tensors, Error> {
        self.check_before_leaving()?;
        self.weights_in_use()
    }

    /// Takes the parameters and statistics that `read` returns for what the model has.
    pub(super) fn take_weights(
        &mut self,
        read: impl FnOnce(&BTreeMap<String, Info>) -> unisono_checkpoint::Result<(Tensors, LoadReport)>,
    ) -> Result<LoadReport, Error> {
        let (tensors, report) = self.write_weights(read)?;
        if let [first, others @ ..] = &*report.missing {
            let more =
                if others.is_empty() { String::new() } else { format!(" and {} more tensors", others.len()) };
            self.monitor.note(&format!("note: not loaded, so unchanged: {first}{more}"));
        }
        let arranges = |rule: &&String| !rule.starts_with("rename ");
        if let Some(rule) = report.unused.iter().find(|rule| !report.is_exact() || arranges(rule)) {
            self.monitor.note(&format!("note: the plan would {rule}: there is no such tensor"));
        }
        // A run that started elsewhere is another.
        let loaded = unisono_checkpoint::state_sha256(&[("model", &tensors)], &[]);
        self.state.identity.load(self.steps(), loaded);
        self.state_was_set();
        Ok(report)
    }

    /// Writes the parameters and statistics that `read` returns for what the model has to all replicas.
    pub(super) fn write_weights(
        &mut self,
        read: impl FnOnce(&BTreeMap<String, Info>) -> unisono_checkpoint::Result<(Tensors, LoadReport)>,
    ) -> Result<(Tensors, LoadReport), Error> {
        // What the optimizer keeps would stay that of the step that went wrong.
        self.replica_set.check_state()?;
        self.check_trust()?;
        let own = self.plan.programs.states_of(&[StateKind::Parameter, StateKind::Statistic]);
        let states = self.plan.programs.train().states();
        let model: BTreeMap<String, Info> =
            own.iter().map(|&index| (states[index].name.clone(), info(&states[index].ty))).collect();
        let (tensors, report) = read(&model)?;
        if self.callbacks.keeps_before && self.callbacks.before.is_none() {
            self.callbacks.before = Some(self.read_states()?);
        }
        self.write_tensors(&tensors)?;
        Ok((tensors, report))
    }

    /// Writes parameters and statistics by name to all replicas, and averages of these parameters.
    pub(super) fn write_tensors(&mut self, tensors: &Tensors) -> Result<(), Error> {
        self.state_was_written();
        for index in self.plan.programs.states_of(&[StateKind::Parameter, StateKind::Statistic]) {
            if let Some(tensor) = tensors.get(&self.plan.programs.train().states()[index].name) {
                let written = self.replica_set.replicas.write_state(index, tensor.bytes());
                self.check_result(written)?;
            }
        }
        self.set_averages(tensors)?;
        self.replica_set.compared = None;
        Ok(())
    }

    /// Returns the bytes of all tensors of the state.
    pub(super) fn read_states(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let all: Vec<usize> = (0..self.plan.programs.train().states().len()).collect();
        let tensors = self.replica_set.replicas.read_states(&all, Vec::new());
        self.check_result(tensors)
    }

    /// Writes tensors of the state to all replicas, from the first on.
    pub(super) fn write_states(&mut self, tensors: &[Vec<u8>]) -> Result<(), Error> {
        self.state_was_written();
        for (index, tensor) in tensors.iter().enumerate() {
            let written = self.replica_set.replicas.write_state(index, tensor);
            self.check_result(written)?;
            self.replica_set.compared = None;
        }
        Ok(())
    }
}
