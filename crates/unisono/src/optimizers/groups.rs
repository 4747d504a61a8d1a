use unisono_graph::Var;

use super::chain::transforms;
use super::transform::{Names, Transform};
use super::{Chain, Gradient, Optimizer, OptimizerSettings, Plateau, RateChange, Scalar, Update};
use crate::objective::Epoch;

/// Parameter groups (PyTorch's parameter groups): one optimizer for most parameters, and others for
/// parameters that you select by name.
///
/// Each optimizer may have transforms of its own, which see only its parameters. Transforms around the groups
/// see all parameters.
///
/// ```
/// use unisono::{AdamW, Groups, Optimizer, Sgd};
///
/// let optimizer = Groups::new(AdamW::new(1e-3))
///     .group(|name| name.starts_with("encoder."), AdamW::new(1e-5).clip_value(0.1))
///     .group(|name| name.ends_with(".bias"), Sgd::new(0.1))
///     .clip_norm(1.0);
/// ```
#[doc(alias = "param_groups")]
pub struct Groups {
    /// The optimizer of the rest first, then those of the groups.
    optimizers: Vec<Chain>,
    /// What each group accepts.
    accepts: Vec<Box<Names>>,
    name: String,
}

impl Groups {
    /// Creates groups. `rest` trains all parameters that no group accepts.
    pub fn new(rest: impl Into<Chain>) -> Self {
        let rest = rest.into();
        let name = rest.name().to_string();
        Self { optimizers: vec![rest], accepts: vec![], name }
    }

    /// Adds a group: `optimizer` trains the parameters whose name `accepts` accepts and no earlier group
    /// does.
    ///
    /// The scalars of group i have names that start with `group i/`, the rest being group 0.
    pub fn group(
        mut self,
        accepts: impl Fn(&str) -> bool + Send + Sync + 'static,
        optimizer: impl Into<Chain>,
    ) -> Self {
        let optimizer = optimizer.into();
        self.name = format!("{}, {}", self.name, optimizer.name());
        self.accepts.push(Box::new(accepts));
        self.optimizers.push(optimizer);
        self
    }

    transforms!([pub] []);

    /// Returns whether a group keeps averages of its weights.
    pub(super) fn keeps_averages(&self) -> bool {
        self.optimizers.iter().any(Chain::keeps_averages)
    }

    /// Returns the number of a parameter's group, 0 being the rest.
    fn index(&self, name: &str) -> usize {
        self.accepts.iter().position(|accepts| accepts(name)).map_or(0, |i| i + 1)
    }

    /// Returns the names of all optimizers, the rest's first.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn scalars(&self, step: u64) -> Vec<Scalar> {
        let groups = self.optimizers.iter().enumerate();
        groups.flat_map(|(i, optimizer)| in_group(i, optimizer.scalars(step))).collect()
    }

    pub(super) fn finite_scalars(&self, step: u64) -> Result<Vec<Scalar>, String> {
        let mut all = Vec::new();
        for (i, optimizer) in self.optimizers.iter().enumerate() {
            all.extend(in_group(i, optimizer.finite_scalars(step)?));
        }
        Ok(all)
    }

    pub(super) fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.optimizers.iter_mut().try_for_each(|optimizer| optimizer.observe(history))
    }

    pub(super) fn learning_rate(&self, step: u64) -> Option<f64> {
        self.optimizers.iter().find_map(|optimizer| optimizer.learning_rate(step))
    }

    pub(super) fn plateaus(&self) -> Vec<Plateau> {
        self.optimizers.iter().flat_map(Chain::plateaus).collect()
    }

    pub(super) fn set_changes(&mut self, changes: &[RateChange]) -> Result<(), String> {
        self.optimizers.iter_mut().try_for_each(|optimizer| optimizer.set_changes(changes))
    }

    /// Returns notes on groups that get none of these parameters, and on freezes in the others.
    pub(super) fn empty_notes(&self, names: &[&str]) -> Vec<String> {
        let of = |number: usize| -> Vec<&str> {
            names.iter().copied().filter(|name| self.index(name) == number).collect()
        };
        let notes = |(number, optimizer): (usize, &Chain)| match (&*of(number), number) {
            ([], 0) => vec!["the groups have all parameters: the optimizer of the rest gets none".to_owned()],
            ([], _) => {
                vec![format!(
                    "group {number} gets none of the {} parameters: {}",
                    names.len(),
                    names.join(", ")
                )]
            }
            (own, _) => optimizer.freeze_notes(own),
        };
        self.optimizers.iter().enumerate().flat_map(notes).collect()
    }

    /// Returns the notes of all groups.
    pub(super) fn notes(&self) -> Vec<String> {
        self.optimizers.iter().flat_map(Chain::notes).collect()
    }

    /// Returns the notes of all groups on a run of this many steps.
    pub(super) fn notes_on_steps(&self, steps: u64) -> Vec<String> {
        self.optimizers.iter().flat_map(|optimizer| optimizer.notes_on_steps(steps)).collect()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.optimizers.iter().any(|group| group.sharpness().is_some()) {
            return Err("sharpness_aware is in a group: put it around the groups".into());
        }
        if let Some(rule) = self.optimizers.iter().find_map(Chain::of_all_samples) {
            let name = rule.name();
            return Err(format!("{name} cannot be in a group, because it updates all parameters together"));
        }
        self.optimizers.iter().try_for_each(Chain::check)
    }

    /// Returns the settings of all groups.
    pub(super) fn settings(&self) -> OptimizerSettings {
        let groups = self.optimizers.iter().enumerate();
        groups.fold(OptimizerSettings::new(), |all, (i, group)| all.group(&prefix(i), group.settings()))
    }

    pub(super) fn trains(&self, name: &str) -> bool {
        self.optimizers[self.index(name)].trains(name)
    }

    /// Lets each group transform its own gradients.
    pub(super) fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        let mut parts: Vec<Vec<Gradient>> = vec![vec![]; self.optimizers.len()];
        gradients.into_iter().for_each(|g| parts[self.index(&g.name)].push(g));
        let prepared =
            self.optimizers.iter().zip(parts).flat_map(|(optimizer, part)| optimizer.prepare(part));
        prepared.collect()
    }

    pub(super) fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let index = self.index(cx.parameter());
        cx.in_group(&prefix(index), |cx| self.optimizers[index].update(cx, weight, gradient))
    }

    /// Traces what follows from the new value of a statistic in the group that accepts its name.
    pub(super) fn follow_statistic(&self, cx: &mut Update, new: &Var) {
        let index = self.index(cx.parameter());
        cx.in_group(&prefix(index), |cx| self.optimizers[index].follow_statistic(cx, new));
    }
}

/// Returns the scalars of a group under their full names.
fn in_group(index: usize, scalars: Vec<Scalar>) -> impl Iterator<Item = Scalar> {
    scalars.into_iter().map(move |s| Scalar::new(&format!("{}{}", prefix(index), s.name), s.value))
}

/// Returns what the names of a group's scalars start with.
fn prefix(index: usize) -> String {
    format!("group {index}/")
}
