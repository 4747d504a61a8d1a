//! The loader of a run: another order or other transforms would show samples twice and leave others out.

use std::collections::BTreeMap;

use unisono_data::{Loader, Position};

use crate::{Error, Trainer};

/// What the loader of a run is set to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Order {
    /// See [`Loader::settings`]; `None` before the first fit, and where a checkpoint does not say.
    pub settings: Option<BTreeMap<String, String>>,
    /// This trainer has seen a loader like that. One who resumes has to show it first.
    seen: bool,
}

impl Order {
    /// That of a checkpoint.
    pub fn saved(settings: Option<BTreeMap<String, String>>) -> Self {
        Self { settings, seen: false }
    }
}

impl Trainer {
    /// The order and the transforms of a run stay what they are: within an epoch always, and where a resumed run goes on. A fit
    /// that starts with an epoch may have others than the fit before, and one that has nothing to do any.
    pub(crate) fn same_order(&mut self, train: &Loader, epochs: u32) -> Result<(), Error> {
        let Position { epoch, sample } = self.progress.position;
        if epoch >= epochs {
            // It may be that a resumed run is beyond this one.
            self.order.seen |= self.order.settings.as_ref() == Some(&train.settings());
            return Ok(());
        }
        let found = train.settings();
        let before = self.order.settings.as_ref().filter(|_| sample > 0 || !self.order.seen);
        let problems: Vec<String> = before.map(|before| differences(before, &found)).unwrap_or_default();
        if !problems.is_empty() {
            let problem = format!("the loader is not that of the run: {}", problems.join("; "));
            if !self.checkpoints.as_ref().is_some_and(|c| c.forced) {
                return Err(Error::setting("data", problem));
            }
            self.tell_note(&format!("warning: {problem}"));
        }
        self.order = Order { settings: Some(found), seen: true };
        Ok(())
    }
}

/// What differs, by name.
fn differences(saved: &BTreeMap<String, String>, own: &BTreeMap<String, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = saved.keys().chain(own.keys()).collect();
    let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or_else(|| "none".into());
    let differs = names.into_iter().filter(|&name| saved.get(name) != own.get(name));
    differs.map(|name| format!("{name}: {}, not {}", value(saved, name), value(own, name))).collect()
}
