//! The section `identity`: what makes a run this run and no other.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::identity::part::{Part, add, hex, is_hex};
use crate::run::ancestry::Ancestor;
use crate::run::content::DataContent;
use crate::run::section::Section;

/// The most entries of weights that were set from outside.
const MOST_LOADED: usize = 64;

/// What a run's identity is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunIdentity {
    /// The hash over all parts, or `None` while the data or their order are not known.
    pub sha256: Option<String>,
    /// The simplified graph of the forward pass, with loss and metrics.
    pub model: Part,
    /// What the parameters start with.
    pub start: Part,
    /// The simplified graph of the training step.
    pub training: Part,
    /// The optimizer's settings and schedule.
    pub optimizer: Part,
    /// The run's other settings.
    pub settings: Part,
    /// The order of the data and their transforms. Where a later fit of the run has another, the hash is that
    /// of all of them in turn.
    pub order: Part,
    /// The content of the data.
    pub data: DataContent,
    /// What code decides and nothing stands for, in this trainer and in all steps that were done.
    pub not_covered: Vec<String>,
    /// The weights that were set from outside, each time: the number of steps done then, and their hash.
    pub loaded: Vec<(u64, String)>,
    /// The runs that this one was made of.
    pub ancestors: Vec<Ancestor>,
    /// The entries of `not_covered` that belong to the trainer, whatever run it does.
    #[serde(skip)]
    pub of_trainer: Vec<String>,
    /// The transforms that the last fit added to `not_covered`, and the number of steps done then.
    #[serde(skip)]
    pub of_fit: (u64, Vec<String>),
    /// The SHA-256 over the state of the checkpoint that the run was resumed from, if that did not say the
    /// run's identity.
    #[serde(skip)]
    pub resumed_state: Option<String>,
}

impl Section for RunIdentity {
    /// Reads the parts and checks that all hashes are hashes.
    fn read(_version: u32, value: Value) -> Result<Self, String> {
        let identity: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        identity.check_hashes()?;
        Ok(identity)
    }

    /// A checkpoint of an earlier version says nothing of its identity.
    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    /// A resumed run keeps what its trainer is made of, and goes on with the saved run's data and past.
    fn resume(&mut self, saved: Self) {
        (self.order, self.data, self.loaded) = (saved.order, saved.data, saved.loaded);
        self.ancestors = saved.ancestors;
        // The run's steps were done with what it lists, whatever comes after them.
        self.not_covered.clone_from(&self.of_trainer);
        saved.not_covered.into_iter().for_each(|what| self.not_covering(what));
        (self.of_fit, self.resumed_state) = Default::default();
        self.settle();
    }
}

impl RunIdentity {
    /// Whether a checkpoint says what its run is.
    pub fn is_known(&self) -> bool {
        !self.model.sha256.is_empty()
    }

    /// Says what of a saved run is not as in this trainer. The data and their order, which only a fit
    /// brings, are not compared.
    pub fn problems(&self, saved: &Self) -> Vec<String> {
        if !saved.is_known() {
            return Vec::new();
        }
        let mut problems = self.model.differences(&saved.model, "the model's layer ");
        problems.extend(self.start.differences(&saved.start, "the start of "));
        problems.extend(self.optimizer.differences(&saved.optimizer, "the optimizer's "));
        if problems.is_empty() {
            problems = self.training.differences(&saved.training, "the training step of ");
        }
        problems
    }

    /// Returns whether no weights were loaded.
    pub fn is_from_start(&self) -> bool {
        self.loaded.is_empty()
    }

    /// Notes weights that the run goes on with instead of its own. Several at one step, and those beyond
    /// [`MOST_LOADED`], are joined to one entry.
    pub fn load(&mut self, step: u64, sha256: String) {
        let is_full = self.loaded.len() >= MOST_LOADED;
        match self.loaded.last_mut().filter(|last| last.0 == step || is_full) {
            Some(last) => {
                let mut hash = Sha256::new();
                [&last.0.to_string(), &last.1, &step.to_string(), &sha256]
                    .into_iter()
                    .for_each(|text| add(&mut hash, text));
                *last = (step, hex(&hash.finalize()));
            }
            None => self.loaded.push((step, sha256)),
        }
        self.settle();
    }

    /// Notes what code decides and nothing stands for, once.
    pub fn not_covering(&mut self, what: String) {
        if !self.not_covered.contains(&what) {
            self.not_covered.push(what);
        }
    }

    /// Notes the transforms of a fit that nothing stands for, at the number of steps done before it. Those of
    /// a fit that did no step are forgotten.
    pub fn set_transforms(&mut self, transforms: impl Iterator<Item = String>, step: u64) {
        let (since, before) = std::mem::take(&mut self.of_fit);
        if since == step {
            self.not_covered.retain(|what| !before.contains(what));
        }
        let new: Vec<String> = transforms.filter(|what| !self.not_covered.contains(what)).collect();
        new.iter().for_each(|what| self.not_covering(what.clone()));
        self.of_fit = (step, new);
    }

    /// Takes the order of a fit's data. `epoch` is the one that the fit starts with.
    pub fn set_order(&mut self, order: Part, epoch: u32) {
        if self.order.sha256.is_empty() {
            self.order = order;
        } else if self.order.entries != order.entries {
            let mut hash = Sha256::new();
            add(&mut hash, &self.order.sha256);
            add(&mut hash, &format!("epoch {epoch}"));
            add(&mut hash, &order.sha256);
            self.order = Part { sha256: hex(&hash.finalize()), entries: order.entries };
        }
        self.settle();
    }

    /// Takes what is known of the data.
    pub fn set_data(&mut self, data: DataContent) {
        self.data = data;
        self.settle();
    }

    /// Notes that the run goes on as another. An ancestor of unknown identity is known by its state.
    pub fn leave(&mut self, mut ancestor: Ancestor) {
        if ancestor.identity.is_none() {
            ancestor.state_sha256 = ancestor.state_sha256.or_else(|| self.resumed_state.clone());
        }
        match self.ancestors.last_mut() {
            Some(last) if last.step == ancestor.step => last.differs.extend(ancestor.differs),
            _ => self.ancestors.push(ancestor),
        }
        self.settle();
    }

    /// Returns the parts by name, each with its hash.
    pub fn parts(&self) -> Vec<(&'static str, Option<String>)> {
        let known = |part: &Part| Some(part.sha256.clone()).filter(|sha256| !sha256.is_empty());
        vec![
            ("model", known(&self.model)),
            ("start", known(&self.start)),
            ("training", known(&self.training)),
            ("optimizer", known(&self.optimizer)),
            ("settings", known(&self.settings)),
            ("order", known(&self.order)),
            ("data", self.data.identity()),
        ]
    }

    /// Computes the hash over all parts.
    pub fn settle(&mut self) {
        let mut hash = Sha256::new();
        add(&mut hash, "unisono run 1");
        self.sha256 = None;
        for (name, part) in self.parts() {
            let Some(part) = part else { return };
            add(&mut hash, name);
            add(&mut hash, &part);
        }
        for Ancestor { identity, state_sha256, step, differs } in &self.ancestors {
            add(&mut hash, identity.as_deref().unwrap_or("unknown"));
            state_sha256.iter().for_each(|state| add(&mut hash, &format!("state {state}")));
            add(&mut hash, &step.to_string());
            differs.iter().for_each(|text| add(&mut hash, text));
        }
        for (step, sha256) in &self.loaded {
            add(&mut hash, &format!("weights at step {step}"));
            add(&mut hash, sha256);
        }
        self.sha256 = Some(hex(&hash.finalize()));
    }

    /// Checks that all hashes are 64 hexadecimal digits. Those of parts that are not known yet are empty.
    ///
    /// # Errors
    /// The first that is not, by its name in the section.
    fn check_hashes(&self) -> Result<(), String> {
        let parts = [
            ("model", &self.model),
            ("start", &self.start),
            ("training", &self.training),
            ("optimizer", &self.optimizer),
            ("settings", &self.settings),
            ("order", &self.order),
        ];
        let parts = parts.into_iter().filter(|(_, part)| !part.sha256.is_empty());
        let parts = parts.map(|(name, part)| (format!("{name}.sha256"), &part.sha256));
        let loaded = self.loaded.iter().enumerate().map(|(at, (_, hash))| (format!("loaded[{at}]"), hash));
        let ancestors = self.ancestors.iter().enumerate().flat_map(|(at, ancestor)| {
            let identity =
                ancestor.identity.iter().map(move |hash| (format!("ancestors[{at}].identity"), hash));
            let state = ancestor.state_sha256.iter();
            identity.chain(state.map(move |hash| (format!("ancestors[{at}].state_sha256"), hash)))
        });
        let own = self.sha256.iter().map(|hash| ("sha256".to_owned(), hash));
        let mut all = own.chain(parts).chain(loaded).chain(ancestors);
        match all.find(|(_, hash)| !is_hex(hash, 64)) {
            Some((name, _)) => Err(format!("{name} is not 64 lowercase hexadecimal digits")),
            None => self.data.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> RunIdentity {
        let part = Part { sha256: "0".repeat(64), ..Part::default() };
        let [model, start, training, optimizer, settings, order] = std::array::from_fn(|_| part.clone());
        let data = DataContent::NotCovered;
        RunIdentity { model, start, training, optimizer, settings, order, data, ..RunIdentity::default() }
    }

    #[test]
    fn ancestors_of_unknown_identity_differ_by_their_states() {
        let [a, b, again] = ["a", "b", "a"].map(|state| {
            let mut identity = known();
            identity.resumed_state = Some(state.repeat(64));
            identity.leave(Ancestor { step: 3, differs: vec!["the lr".into()], ..Ancestor::default() });
            identity.sha256.unwrap()
        });
        assert!(a != b && a == again);
    }

    #[test]
    fn weights_that_are_set_again_and_again_stay_few_and_all_count() {
        let set = |last: &str| {
            let mut identity = known();
            (0..3 * MOST_LOADED as u64).for_each(|step| identity.load(step, step.to_string()));
            identity.load(7, "x".into());
            identity.load(7, last.into());
            assert_eq!(identity.loaded.len(), MOST_LOADED);
            identity.sha256.unwrap()
        };
        assert_eq!(set("y"), set("y"));
        assert_ne!(set("y"), set("z"));
    }
}
