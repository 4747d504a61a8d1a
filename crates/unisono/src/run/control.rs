//! The section `control`: what callbacks have asked for, and what they keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unisono_checkpoint::{Tensor, Tensors};

use crate::Error;
use crate::objective::tensors::take;
use crate::optimizers::{RateChange, RateReduction};
use crate::run::section::{Difference, Section};

/// What the names of the tensors start with that callbacks keep.
const KEPT: &str = "kept/";

/// Why a callback ended a run for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Stopped {
    /// The number of steps done then.
    pub steps: u64,
    /// The callback's name.
    pub by: String,
    /// The callback's reason.
    pub reason: String,
}

/// A callback's name, what its decisions depend on, and what it keeps between its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    pub name: String,
    /// The settings, for a callback that changes the answer and says by what.
    pub settings: Option<String>,
    pub value: Value,
}

/// What callbacks have asked for, and what they keep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunControl {
    /// The change of the learning rate that is in force, and those that will be, in the order of their steps.
    rates: Vec<RateChange>,
    /// The same for the learning rates of phases, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    phase_rates: BTreeMap<String, Vec<RateChange>>,
    /// Why the run has ended, if a callback has ended it.
    pub stopped: Option<Stopped>,
    /// The number of steps done when a run that had ended was last let train on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_on: Option<u64>,
    /// The callbacks, in the trainer's order.
    pub callbacks: Vec<Kept>,
    /// The names of the tensors that are kept: those that the first callback of `kept_by` keeps, then those
    /// of the n-th one behind it as `n/NAME`.
    kept: Vec<String>,
    /// The callbacks that keep tensors; the one that has kept last comes last. Earlier versions did not write
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kept_by: Vec<String>,
    /// Parameters and statistics that are kept to be restored, by name, of each callback of `kept_by`.
    #[serde(skip)]
    tensors: Vec<Arc<Tensors>>,
}

impl RunControl {
    /// Returns the control of a run that begins with these callbacks.
    pub fn of(callbacks: Vec<Kept>) -> Self {
        Self { callbacks, ..Self::default() }
    }

    /// Adds a change of the learning rate of a phase, or of the only optimizer, from a step on. `step` is the
    /// optimizer's next: what no step will use any more is forgotten.
    pub fn change_rate(&mut self, phase: Option<&str>, change: RateChange, step: u64) {
        let rates = match phase {
            Some(phase) => self.phase_rates.entry(phase.to_owned()).or_default(),
            None => &mut self.rates,
        };
        rates.retain(|other| other.from < change.from);
        rates.push(change);
        let in_force = rates.iter().rposition(|change| change.from <= step).unwrap_or(0);
        rates.drain(..in_force);
    }

    /// Returns the changes of the learning rate of a phase, or of the only optimizer.
    pub fn rates(&self, phase: Option<&str>) -> &[RateChange] {
        match phase {
            Some(phase) => self.phase_rates.get(phase).map_or(&[], |rates| rates),
            None => &self.rates,
        }
    }

    /// Returns the last change that was asked for of the learning rate of a phase, or of the only optimizer.
    pub fn last_rate(&self, phase: Option<&str>) -> RateChange {
        let none = || RateChange { from: 0, rate: None, factor: 1.0, reductions: Vec::new() };
        self.rates(phase).last().cloned().unwrap_or_else(none)
    }

    /// Keeps parameters and statistics for a callback, in place of those that it kept before.
    pub fn keep(&mut self, by: &str, tensors: Tensors) {
        // What an earlier version kept is replaced as it did it.
        while let Some(at) = self.kept_by.iter().position(|other| other == by || other.is_empty()) {
            self.kept_by.remove(at);
            self.tensors.remove(at);
        }
        self.kept_by.push(by.to_owned());
        self.tensors.push(Arc::new(tensors));
        self.kept = self.named().map(|(name, _)| name).collect();
    }

    /// Returns the parameters and statistics that a callback keeps, by name, or those that were kept last. A
    /// checkpoint of an earlier version does not say who keeps them.
    pub fn kept(&self, by: Option<&str>) -> Arc<Tensors> {
        let is_of = |owner: &String| by.is_none_or(|by| owner == by || owner.is_empty());
        let at = self.kept_by.iter().rposition(is_of);
        at.map_or_else(Arc::default, |at| Arc::clone(&self.tensors[at]))
    }

    /// Returns the callback that kept tensors last.
    pub fn keeper(&self) -> Option<&str> {
        self.kept_by.last().map(String::as_str)
    }

    /// Returns the tensors that callbacks keep, with the names that `kept` has.
    fn named(&self) -> impl Iterator<Item = (String, &Tensor)> {
        self.tensors.iter().enumerate().flat_map(|(at, tensors)| {
            let named = move |name: &String| if at == 0 { name.clone() } else { format!("{at}/{name}") };
            tensors.iter().map(move |(name, tensor)| (named(name), tensor))
        })
    }

    /// Returns the callbacks that change the answer, with what their decisions depend on.
    pub fn deciding(&self) -> String {
        let texts = self.callbacks.iter().filter_map(|kept| {
            let settings = kept.settings.as_ref()?;
            Some(format!("{} ({settings})", kept.name))
        });
        let texts: Vec<String> = texts.collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    }
}

impl Section for RunControl {
    /// A checkpoint of an earlier version is of a run without callbacks.
    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn tensors(&self) -> Result<Tensors, Error> {
        Ok(self.named().map(|(name, tensor)| (format!("{KEPT}{name}"), tensor.clone())).collect())
    }

    fn take_tensors(&mut self, _version: u32, tensors: &mut Tensors) -> Result<(), String> {
        if self.kept_by.is_empty() && !self.kept.is_empty() {
            self.kept_by.push(String::new());
        }
        let mut kept = vec![Tensors::new(); self.kept_by.len()];
        for name in &self.kept {
            let full = format!("{KEPT}{name}");
            let tensor = take(tensors, &full)?;
            let others = name.split_once('/').and_then(|(at, name)| Some((at.parse::<usize>().ok()?, name)));
            let (at, own) = others.filter(|(at, _)| (1..kept.len()).contains(at)).unwrap_or((0, name));
            kept[at].insert(own.to_owned(), tensor);
        }
        self.tensors = kept.into_iter().map(Arc::new).collect();
        Ok(())
    }

    /// What the next step depends on: the learning rate, and whether there is a next step.
    fn digest(&self, bytes: &mut Vec<u8>) {
        let phases = self.phase_rates.iter().map(|(phase, rates)| (&**phase, rates));
        for (phase, rates) in std::iter::once(("", &self.rates)).chain(phases) {
            for RateChange { from, rate, factor, reductions } in rates {
                bytes.extend(from.to_le_bytes());
                bytes.extend(rate.unwrap_or(f64::NAN).to_le_bytes());
                bytes.extend(factor.to_le_bytes());
                for RateReduction { factor, least, times } in reductions {
                    bytes.extend([factor.to_le_bytes(), least.to_le_bytes()].as_flattened());
                    bytes.extend(times.to_le_bytes());
                }
            }
            bytes.extend(phase.as_bytes());
        }
        if let Some(stopped) = &self.stopped {
            bytes.extend(stopped.steps.to_le_bytes());
        }
    }

    fn differences(&self, saved: &Self) -> Vec<Difference> {
        Difference::of("what callbacks decide", &saved.deciding(), &self.deciding(), true)
            .into_iter()
            .collect()
    }

    /// Takes what the callbacks have asked for, and what those keep that this trainer has too.
    fn resume(&mut self, saved: Self) {
        let mut before = saved.callbacks;
        for own in &mut self.callbacks {
            let same =
                before.iter().position(|other| (&other.name, &other.settings) == (&own.name, &own.settings));
            if let Some(at) = same {
                own.value = before.remove(at).value;
            }
        }
        (self.rates, self.phase_rates) = (saved.rates, saved.phase_rates);
        (self.stopped, self.gone_on) = (saved.stopped, saved.gone_on);
        (self.kept, self.kept_by, self.tensors) = (saved.kept, saved.kept_by, saved.tensors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: u64, rate: f64) -> RateChange {
        RateChange { from, rate: Some(rate), factor: 1.0, reductions: Vec::new() }
    }

    #[test]
    fn only_the_change_in_force_and_later_ones_stay() {
        let mut control = RunControl::default();
        (0..100).for_each(|step| control.change_rate(None, change(step + 2, step as f64), step + 1));
        let from: Vec<u64> = control.rates.iter().map(|change| change.from).collect();
        assert_eq!(from, [100, 101]);
        // A later wish for the same step replaces an earlier one.
        control.change_rate(None, change(101, 7.0), 100);
        assert_eq!(control.rates, [change(100, 98.0), change(101, 7.0)]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut control = RunControl::default();
        control.change_rate(None, change(3, 0.5), 0);
        control.change_rate(Some("critic"), change(4, 0.25), 0);
        let reductions = vec![RateReduction { factor: 0.5, least: 0.125, times: 2 }];
        control.change_rate(None, RateChange { from: 9, rate: None, factor: 0.25, reductions }, 0);
        control.stopped = Some(Stopped { steps: 9, by: "a".into(), reason: "b".into() });
        let value = serde_json::to_value(&control).unwrap();
        let read = RunControl::read(1, value).unwrap();
        assert_eq!(read, control);
        assert_eq!(
            (read.rates(Some("critic")), read.rates(Some("other"))),
            (&[change(4, 0.25)][..], &[][..])
        );
        // The digest tells the phases apart, and a run without phases has that of before.
        let digest = |control: &RunControl| {
            let mut bytes = Vec::new();
            control.digest(&mut bytes);
            bytes
        };
        let mut other = RunControl::default();
        other.change_rate(Some("a"), change(4, 0.25), 0);
        let mut another = RunControl::default();
        another.change_rate(None, change(4, 0.25), 0);
        assert_eq!(digest(&another).len(), 24);
        assert_ne!(digest(&other), digest(&another));
    }

    #[test]
    fn each_callback_keeps_its_own() {
        let weights = |value: f32| Tensors::from([("w".into(), Tensor::f32(&[1], &[value]).unwrap())]);
        let mut control = RunControl::default();
        control.keep("a", weights(1.0));
        let alone = serde_json::to_value(&control).unwrap();
        assert_eq!(control.tensors().unwrap().keys().collect::<Vec<_>>(), ["kept/w"]);
        control.keep("b", weights(2.0));
        control.keep("c", weights(3.0));
        control.keep("a", weights(4.0));
        let (value, mut tensors) = (serde_json::to_value(&control).unwrap(), control.tensors().unwrap());
        let mut read = RunControl::read(1, value).unwrap();
        read.take_tensors(1, &mut tensors).unwrap();
        assert_eq!((&read, tensors.len()), (&control, 0));
        let kept = |by| read.kept(by).get("w").and_then(Tensor::to_f32);
        assert_eq!(["a", "b", "c"].map(|by| kept(Some(by)).unwrap()[0]), [4.0, 2.0, 3.0]);
        assert_eq!((kept(None).unwrap()[0], kept(Some("d"))), (4.0, None));
        // An earlier version did not write by whom, and whoever asks gets it.
        let mut before = alone;
        before.as_object_mut().unwrap().remove("kept_by").unwrap();
        let mut read = RunControl::read(1, before).unwrap();
        let old = Tensors::from([("kept/w".into(), Tensor::f32(&[1], &[1.0]).unwrap())]);
        read.take_tensors(1, &mut old.clone()).unwrap();
        assert_eq!(read.tensors().unwrap(), old);
        assert_eq!(read.kept(Some("a")).get("w").unwrap().to_f32().unwrap(), [1.0]);
    }
}
