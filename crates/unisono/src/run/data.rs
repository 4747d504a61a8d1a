//! The sections `data` and `loader`: the samples of a run and their order. Other data, another order or other
//! transforms would show samples twice and leave others out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::run::section::Section;

/// The fingerprint of the training data, once a fit has seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Option<String>", try_from = "Option<String>")]
pub(crate) struct Fingerprint(pub Option<u64>);

impl From<Fingerprint> for Option<String> {
    fn from(Fingerprint(data): Fingerprint) -> Self {
        data.map(|data| format!("{data:016x}"))
    }
}

impl TryFrom<Option<String>> for Fingerprint {
    type Error = String;

    fn try_from(written: Option<String>) -> Result<Self, String> {
        let parse = |digits: String| {
            u64::from_str_radix(&digits, 16).map_err(|error| format!("no fingerprint {digits:?}: {error}"))
        };
        Ok(Self(written.map(parse).transpose()?))
    }
}

impl Section for Fingerprint {}

/// What the loader of a run is set to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Order {
    /// The settings by name, see [`unisono_data::Loader::settings`]. They are `None` before the first fit,
    /// and where a checkpoint does not say.
    pub settings: Option<BTreeMap<String, String>>,
    /// Whether this trainer has seen a loader with these settings. One that resumes a run has to show it
    /// first.
    #[serde(skip)]
    seen: bool,
}

impl Section for Order {}

impl Order {
    /// Notes a loader that a fit has nothing to do with: a resumed run may be beyond that fit's epochs.
    pub fn see(&mut self, found: &BTreeMap<String, String>) {
        self.seen |= self.settings.as_ref() == Some(found);
    }

    /// Takes a loader's settings as the run's.
    pub fn set(&mut self, found: BTreeMap<String, String>) {
        *self = Self { settings: Some(found), seen: true };
    }

    /// Says how a loader differs from the run's where it must not: within an epoch always, and where a
    /// resumed run goes on. A fit that starts with an epoch may have another loader than the fit before.
    pub fn problem(&self, found: &BTreeMap<String, String>, within_epoch: bool) -> Option<String> {
        let before = self.settings.as_ref().filter(|_| within_epoch || !self.seen)?;
        let problems = differences(before, found);
        let problem = || format!("the loader is not that of the run: {}", problems.join("; "));
        (!problems.is_empty()).then(problem)
    }
}

/// Returns what differs, by name.
fn differences(saved: &BTreeMap<String, String>, own: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = saved.keys().chain(own.keys()).collect();
    let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or_else(|| "none".into());
    let differs = names.into_iter().filter(|&name| saved.get(name) != own.get(name));
    differs.map(|name| format!("{name}: {}, not {}", value(saved, name), value(own, name))).collect()
}
