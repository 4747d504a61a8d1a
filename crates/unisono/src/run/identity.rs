//! The section `identity`: what makes a run this run and no other.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::identity::part::{Part, add, hex};
use crate::run::ancestry::Ancestor;
use crate::run::content::DataContent;
use crate::run::section::Section;

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
    /// What code decides and nothing stands for.
    pub not_covered: Vec<String>,
    /// The weights that were loaded from a file, each time: the number of steps done then, and their hash.
    pub loaded: Vec<(u64, String)>,
    /// The runs that this one was made of.
    pub ancestors: Vec<Ancestor>,
}

impl Section for RunIdentity {
    /// A checkpoint of an earlier version says nothing of its identity.
    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    /// A resumed run keeps what its trainer is made of, and goes on with the saved run's data and past.
    fn resume(&mut self, saved: Self) {
        (self.order, self.data, self.loaded) = (saved.order, saved.data, saved.loaded);
        self.ancestors = saved.ancestors;
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

    /// Notes weights that the run goes on with instead of its own.
    pub fn load(&mut self, step: u64, sha256: String) {
        self.loaded.push((step, sha256));
        self.settle();
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

    /// Notes that the run goes on as another.
    pub fn leave(&mut self, ancestor: Ancestor) {
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
        for Ancestor { identity, step, differs } in &self.ancestors {
            add(&mut hash, identity.as_deref().unwrap_or("unknown"));
            add(&mut hash, &step.to_string());
            differs.iter().for_each(|text| add(&mut hash, text));
        }
        for (step, sha256) in &self.loaded {
            add(&mut hash, &format!("weights at step {step}"));
            add(&mut hash, sha256);
        }
        self.sha256 = Some(hex(&hash.finalize()));
    }
}
