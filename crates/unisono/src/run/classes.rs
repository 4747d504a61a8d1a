//! The section `classes`: the numeric classes of a run's adapters, which its bits depend on beside the run
//! itself.

use std::fmt;

use serde::{Deserialize, Serialize};
use unisono_replica::Class;

use crate::run::section::{Difference, Section};

/// The numeric classes that a run is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SavedClasses {
    /// The classes, each once, in the order of the machines' names. `None` in checkpoints of versions that
    /// did not record them.
    #[serde(deserialize_with = "Option::deserialize")]
    pub class: Option<Vec<SavedClass>>,
    /// The machine of each replica in a run on a mixture of classes, in the order in which shards are given
    /// to them; otherwise empty. With the number of shards it determines which replica runs which shards.
    pub mixture: Vec<String>,
}

/// The numeric class of an adapter, as a checkpoint records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written")]
#[non_exhaustive]
pub struct SavedClass {
    /// The machine: backend, device and driver.
    pub machine: String,
    /// The digest of what the probe gave, as `adapters --probe` shows it. `None` in checkpoints of versions
    /// that did not record it.
    pub probe: Option<String>,
}

/// What there is in files. Older ones have the machine alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Machine(String),
    Class { machine: String, probe: Option<String> },
}

impl From<Written> for SavedClass {
    fn from(written: Written) -> Self {
        match written {
            Written::Machine(machine) => Self { machine, probe: None },
            Written::Class { machine, probe } => Self { machine, probe },
        }
    }
}

impl fmt::Display for SavedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.probe {
            Some(probe) => write!(f, "{} ({probe})", self.machine),
            None => f.write_str(&self.machine),
        }
    }
}

impl SavedClasses {
    /// Records probed classes, and the mixture of a run on several.
    pub(crate) fn of(classes: Vec<Class>, mixture: Vec<String>) -> Self {
        let saved = |class: Class| SavedClass { probe: Some(class.to_string()), machine: class.machine };
        Self { class: Some(classes.into_iter().map(saved).collect()), mixture }
    }

    /// Whether an adapter is recorded without what its probe gave, so that it can only be compared by its
    /// name.
    pub(crate) fn lacks_probe(&self) -> bool {
        self.class.iter().flatten().any(|class| class.probe.is_none())
    }
}

impl Section for SavedClasses {
    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let classes = match (&saved.class, &self.class) {
            (Some(saved), Some(own)) => {
                let [saved, own] = compared(saved, own);
                Difference::of("the numeric class", &saved, &own, true)
            }
            _ => None,
        };
        let [theirs, own] = [saved, self].map(|classes| classes.mixture.join(", "));
        classes.into_iter().chain(Difference::of("the mixture", &theirs, &own, true)).collect()
    }

    /// A resumed run is on the adapters of its trainer.
    fn resume(&mut self, _saved: Self) {}
}

/// Writes two lists of classes as text to be compared, without probes where one of them has none.
fn compared(saved: &[SavedClass], own: &[SavedClass]) -> [String; 2] {
    let probed = saved.iter().all(|class| class.probe.is_some());
    let text = |class: &SavedClass| if probed { class.to_string() } else { class.machine.clone() };
    [saved, own].map(|classes| classes.iter().map(text).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Vec<SavedClass> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_older_versions_wrote_is_compared_by_the_machine() {
        let (old, new) = (parse(r#"["gpu a"]"#), parse(r#"[{"machine": "gpu a", "probe": "12"}]"#));
        assert_eq!(compared(&old, &new), ["gpu a", "gpu a"]);
        let other = parse(r#"[{"machine": "gpu a", "probe": "34"}]"#);
        assert_eq!(compared(&other, &new), ["gpu a (34)", "gpu a (12)"]);
        assert_eq!(parse(&serde_json::to_string(&new).unwrap()), new);
    }
}
