//! What a trainer trains: the model, what is minimised and measured of which output, and the optimizer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use unisono_graph::Precision;

use crate::compile::class_weights::check as check_class_weights;
use crate::compile::objective::{Itself, LossOn, Objective, On};
use crate::compile::phases::Phase;
use crate::compile::weights::Weighing;
use crate::model::context::{Added, FrozenNames};
use crate::model::functional::{INPUT, Model};
use crate::optimizers::RateChange;
use crate::{Chain, CrossEntropy, Epoch, Error, OptimizerSettings, Sgd};

/// What a trainer trains.
pub(crate) struct Parts {
    pub model: Model,
    pub optimizer: Chain,
    /// What is minimised and measured, as the builder was told.
    pub told: Objective,
    /// The same with what the model adds, once it was traced.
    settled: OnceLock<Objective>,
    /// Whether the builder was told a loss.
    is_loss_set: bool,
    pub precision: Precision,
    /// What weighs the losses of outputs.
    pub weighing: Weighing,
    /// The phases, if the run has any. The optimizer above is not used then.
    pub phases: Vec<Phase>,
    /// Accepts the statistics that keep their values.
    pub frozen_statistics: Option<Arc<FrozenNames>>,
    /// Whether moving averages are used in the places of weights, where the model is not trained.
    pub uses_averages: bool,
    /// Texts that are exported with the model, by name.
    pub attached: BTreeMap<String, String>,
}

/// Returns the epochs of a history whose numbers are in a range.
pub(crate) fn epochs_in<'a>(history: &'a [Epoch], epochs: &Range<u32>) -> &'a [Epoch] {
    let from = history.partition_point(|epoch| epoch.epoch < epochs.start);
    let end = history.partition_point(|epoch| epoch.epoch < epochs.end);
    &history[from..end.max(from)]
}

impl Parts {
    /// Returns the parts of a model with the default loss and optimizer.
    pub fn new(model: Model) -> Self {
        Self {
            model,
            optimizer: Sgd::new(0.01).into(),
            told: Objective { losses: vec![LossOn::only(CrossEntropy::new())], ..Objective::default() },
            settled: OnceLock::new(),
            is_loss_set: false,
            precision: Precision::F32,
            weighing: Weighing::default(),
            phases: Vec::new(),
            frozen_statistics: None,
            uses_averages: false,
            attached: BTreeMap::new(),
        }
    }

    /// Returns what is minimised and measured: what the model adds belongs to it, once the model was traced.
    pub fn objective(&self) -> &Objective {
        self.settled.get().unwrap_or(&self.told)
    }

    /// Settles what is minimised and what is measured of it, after losses or phases were added. Where the
    /// trainer has no loss of its own, the losses of all phases are measured.
    pub fn settle_losses(&mut self, has_own: bool) {
        self.is_loss_set = has_own;
        self.settled = OnceLock::new();
        if !has_own {
            let mut losses: Vec<LossOn> = Vec::new();
            for part in self.phases.iter().flat_map(|phase| &phase.losses) {
                let is_it = |other: &LossOn| other.on == part.on && other.loss.name() == part.loss.name();
                if !losses.iter().any(is_it) {
                    losses.push(part.clone());
                }
            }
            if !losses.is_empty() {
                self.told.losses = losses;
            }
        }
        self.told.settle();
    }

    /// Adds the losses and metrics that the model adds by itself, by the names of their values. The first
    /// call counts. A loss that the builder was told too has the weight from there. The default loss is left
    /// out where the model adds one.
    pub fn settle_with(&self, added: &Added) {
        let own = || {
            let mut all = self.told.clone();
            let has_default = !self.is_loss_set && self.phases.iter().all(|phase| phase.losses.is_empty());
            if has_default && !added.losses.is_empty() {
                all.losses.clear();
            }
            let losses = added.losses.iter().map(|(name, _, weight)| LossOn::itself(name, *weight));
            for loss in losses {
                if !all.losses.iter().any(|other| other.on == loss.on) {
                    all.losses.push(loss);
                }
            }
            for (name, _) in &added.metrics {
                all.measure(On::itself(name), Arc::new(Itself(name.clone())));
            }
            all.settle();
            all
        };
        self.settled.get_or_init(own);
    }

    /// Returns the losses that are measured, and those that phases minimise.
    pub fn all_losses(&self) -> impl Iterator<Item = &LossOn> {
        self.objective().losses.iter().chain(self.phases.iter().flat_map(|phase| &phase.losses))
    }

    /// Returns the optimizers: that of each phase, or the only one.
    fn optimizers(&self) -> Vec<&Chain> {
        match &self.phases[..] {
            [] => vec![&self.optimizer],
            phases => phases.iter().map(|phase| &phase.optimizer).collect(),
        }
    }

    /// Returns the optimizer of a phase, or the only one.
    pub fn optimizer_of(&self, phase: Option<usize>) -> &Chain {
        phase.and_then(|at| self.phases.get(at)).map_or(&self.optimizer, |phase| &phase.optimizer)
    }

    /// Returns the optimizer's name, or those of all phases with the phases' names.
    pub fn optimizer_name(&self) -> String {
        match &self.phases[..] {
            [] => self.optimizer.name().to_owned(),
            phases => {
                let name = |phase: &Phase| format!("{}: {}", phase.name, phase.optimizer.name());
                phases.iter().map(name).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the settings of the optimizer, or those of all phases.
    pub fn optimizer_settings(&self) -> OptimizerSettings {
        let settings = self.settings_of_optimizers();
        if self.uses_averages { settings.with("model in use", "average weights") } else { settings }
    }

    fn settings_of_optimizers(&self) -> OptimizerSettings {
        if self.phases.is_empty() {
            return self.optimizer.settings();
        }
        self.phases.iter().fold(OptimizerSettings::new(), |all, phase| {
            let Phase { name, steps, epochs, .. } = phase;
            let turns = format!("{steps} steps, epochs {epochs:?}");
            let prefix = format!("phase {name}/");
            all.with(&format!("{prefix}turns"), turns).group(&prefix, phase.optimizer.settings())
        })
    }

    /// Lets all optimizers see a history. Those of phases see the epochs in which the phase has turns.
    ///
    /// # Errors
    /// One needs what is not measured; the error is the message.
    pub fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.observe_each(|epochs| epochs_in(history, &epochs))
    }

    /// Lets each optimizer see the history that is given for the epochs of its phase: all of them in a run
    /// without phases.
    ///
    /// # Errors
    /// One needs what is not measured; the error is the message.
    pub fn observe_each<'a>(&mut self, of: impl Fn(Range<u32>) -> &'a [Epoch]) -> Result<(), String> {
        match &mut self.phases[..] {
            [] => self.optimizer.observe(of(0..u32::MAX)),
            phases => {
                phases.iter_mut().try_for_each(|phase| phase.optimizer.observe(of(phase.epochs.clone())))
            }
        }
    }

    /// Shows the optimizers what callbacks have changed of the learning rates. `of` gives the changes for the
    /// optimizer of a phase, or for the only one.
    ///
    /// # Errors
    /// An optimizer has no schedule that can be changed; the error is the message.
    pub fn set_changes<'a>(&mut self, of: impl Fn(Option<&str>) -> &'a [RateChange]) -> Result<(), String> {
        self.phases.iter_mut().try_for_each(|phase| {
            let set = phase.optimizer.set_changes(of(Some(&phase.name)));
            set.map_err(|problem| format!("the phase {:?}: {problem}", phase.name))
        })?;
        if self.phases.is_empty() { self.optimizer.set_changes(of(None)) } else { Ok(()) }
    }

    /// Returns notes on settings of the optimizers that are most likely a mistake.
    pub fn optimizer_notes(&self) -> Vec<String> {
        self.optimizers().iter().flat_map(|optimizer| optimizer.notes()).collect()
    }

    /// Returns a note if averages of weights are kept and evaluations do not use them.
    pub fn note_on_averages(&self) -> Option<String> {
        let is_kept = self.optimizers().iter().any(|optimizer| optimizer.keeps_averages());
        (is_kept && !self.uses_averages).then(|| {
            "average_weights keeps averages that evaluations, predictions and exports do not use: \
             Builder::use_average_weights uses them, and Trainer::adopt_average_weights takes them over at the end"
                .into()
        })
    }

    /// Returns a note if a phase trains all parameters in the epochs in which another trains some.
    fn note_on_phases(&self, names: &[&str]) -> Option<String> {
        let trained = |phase: &Phase| names.iter().filter(|name| (phase.trains)(name)).count();
        self.phases.iter().find_map(|all| {
            let some = self.phases.iter().find(|some| {
                let at_once = all.epochs.start.max(some.epochs.start) < all.epochs.end.min(some.epochs.end);
                at_once && (1..names.len()).contains(&trained(some))
            })?;
            (trained(all) == names.len()).then(|| {
                format!(
                    "the phase {:?} trains all parameters, also those of the phase {:?}: Phase::trains chooses some",
                    all.name, some.name
                )
            })
        })
    }

    /// Returns notes on freezes that match no parameter or all, and on phases that train none.
    pub fn freeze_notes(&self, names: &[&str]) -> Vec<String> {
        let mut notes = if self.phases.is_empty() { self.optimizer.freeze_notes(names) } else { Vec::new() };
        notes.extend(self.note_on_phases(names));
        for phase in &self.phases {
            let own: Vec<&str> = names.iter().copied().filter(|name| (phase.trains)(name)).collect();
            if !own.is_empty() {
                let own = phase.optimizer.freeze_notes(&own);
                notes.extend(own.into_iter().map(|note| format!("the phase {:?}: {note}", phase.name)));
            }
            if !names.iter().any(|name| (phase.trains)(name)) {
                notes.push(format!(
                    "the phase {:?} trains none of the parameters: {}",
                    phase.name,
                    names.join(", ")
                ));
            }
        }
        notes
    }

    /// Returns whether a parameter is trained if a loss depends on it: it is not frozen, and in a phase if
    /// there are any.
    pub fn is_to_be_trained(&self, name: &str) -> bool {
        match &self.phases[..] {
            [] => self.optimizer.trains(name),
            phases => phases.iter().any(|phase| (phase.trains)(name) && phase.optimizer.trains(name)),
        }
    }

    /// Checks what each loss counts.
    ///
    /// # Errors
    /// It is negative or not finite.
    pub fn check(&self) -> Result<(), Error> {
        for (at, phase) in self.phases.iter().enumerate() {
            let wrong = |problem: &str| Err(Error::setting("phases", format!("{:?}: {problem}", phase.name)));
            if phase.name.is_empty() || phase.name.contains('/') {
                return wrong("a name is not empty and has no slash");
            }
            if self.phases[..at].iter().any(|other| other.name == phase.name) {
                return wrong("two phases have this name");
            }
            if phase.steps == 0 || phase.epochs.is_empty() {
                return wrong("it has no steps");
            }
        }
        check_class_weights(self)?;
        let weighed = self.weighing.fields.keys().chain(self.weighing.classes.keys().flatten());
        for output in weighed {
            if !self.all_losses().any(|part| part.on.output == *output) {
                let losses: Vec<&str> = self.all_losses().map(|part| &*part.on.output).collect();
                let losses = losses.join(", ");
                let problem = format!("no loss is of the output {output:?}, only of {losses}");
                return Err(Error::setting("weights of an output", problem));
            }
        }
        let wrong = self.all_losses().find(|part| !part.weight.is_finite() || part.weight < 0.0);
        wrong.map_or(Ok(()), |LossOn { on, weight, .. }| {
            let problem =
                format!("that of {:?} counts {weight} times: that is negative or not finite", on.output);
            Err(Error::setting("loss", problem))
        })
    }

    /// Returns the metrics' names, in order.
    pub fn metric_names(&self) -> Vec<String> {
        self.objective().metrics.iter().map(|metric| metric.name().to_owned()).collect()
    }

    /// Returns the name of the loss, or those of all with their outputs and what they count.
    pub fn loss_name(&self) -> String {
        match &self.objective().losses[..] {
            [LossOn { loss, weight: 1.0, .. }] => loss.name().to_owned(),
            several => {
                let named = |LossOn { on, loss, weight }: &LossOn| match &on.target {
                    Some(target) => {
                        format!("{} of {} as {target} x {weight}", loss.name(), on.output)
                    }
                    None => format!("{} itself x {weight}", on.output),
                };
                several.iter().map(named).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns what losses and metrics compare.
    pub fn compared(&self) -> impl Iterator<Item = &On> {
        self.all_losses().map(|part| &part.on).chain(&self.objective().measured)
    }

    /// Returns the fields that losses and metrics compare with, each once.
    pub fn targets(&self) -> Vec<&str> {
        let mut targets = Vec::new();
        for target in self.compared().filter_map(|on| on.target.as_deref()) {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// Returns the field that the model takes, if it is a layer.
    pub fn only_input(&self) -> Option<&'static str> {
        self.model.layer().map(|_| INPUT)
    }
}
