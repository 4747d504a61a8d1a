//! The settings of optimizers as text, by which a resumed run is compared with its own.

use std::fmt::Display;

use super::Schedule;

/// The settings of an optimizer by name. They take part in a run's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptimizerSettings {
    entries: Vec<(String, String)>,
    not_covered: Vec<String>,
}

impl OptimizerSettings {
    /// Creates a list of no settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a setting: a number, a name, whether something is done.
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        self.entries.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a schedule. One that is a function is covered by its name and version only, see
    /// [`Schedule::named`].
    pub fn schedule(mut self, name: &str, schedule: &Schedule) -> Self {
        if schedule.is_unnamed() {
            self.not_covered.push(format!("the function that is the schedule of {name:?}"));
        }
        self.with(name, schedule.describe())
    }

    /// Returns the settings by name, in order.
    pub fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// Returns what decides updates and is not covered by the settings.
    pub fn not_covered(&self) -> &[String] {
        &self.not_covered
    }

    /// Adds the fact that something is not covered.
    pub(super) fn uncovered(mut self, what: String) -> Self {
        self.not_covered.push(what);
        self
    }

    /// Adds the settings of a group, whose names start with `prefix`.
    pub(crate) fn group(mut self, prefix: &str, group: Self) -> Self {
        let prefixed = |(name, value): (String, String)| (format!("{prefix}{name}"), value);
        self.entries.extend(group.entries.into_iter().map(prefixed));
        self.not_covered.extend(group.not_covered.iter().map(|what| format!("{prefix}{what}")));
        self
    }
}
