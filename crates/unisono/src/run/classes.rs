//! The section `classes`: the numeric classes of a run's adapters. The bits of a run depend on them.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use unisono_replica::{ARITHMETIC, Class, cpus_of};

use crate::run::section::{Difference, Section};

/// The numeric classes that a run is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SavedClasses {
    /// The class of each machine once, in the order of the machines' names. `None` in checkpoints of versions
    /// that did not record them.
    #[serde(deserialize_with = "Option::deserialize")]
    pub class: Option<Vec<SavedClass>>,
    /// The machine of each replica in a run on a mixture of classes, in the order in which shards are given
    /// to them; otherwise empty. With the number of shards it determines which replica runs which shards.
    pub mixture: Vec<String>,
    /// The version of the arithmetic with which the checkpoint was written. `None` in checkpoints of versions
    /// that did not record it, which stands for version 1.
    #[serde(default)]
    pub arithmetic: Option<u32>,
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

/// A class as it stands in files. Older files have the machine alone.
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
        let class = Some(classes.into_iter().map(saved).collect());
        Self { class, mixture, arithmetic: Some(ARITHMETIC) }
    }

    /// Whether an adapter is recorded without what its probe gave, so that it can only be compared by its
    /// name.
    pub(crate) fn lacks_probe(&self) -> bool {
        self.class.iter().flatten().any(|class| class.probe.is_none())
    }
}

impl Section for SavedClasses {
    /// Version 2 has the arithmetic.
    const VERSION: u32 = 2;

    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let classes = match (&saved.class, &self.class) {
            (Some(saved), Some(own)) => {
                let [theirs, own] = compared(saved, own);
                Difference::of("the numeric class", &theirs, &own, true)
                    .map(|differs| differs.with(cpu(saved)))
            }
            _ => None,
        };
        let [theirs, own] =
            [saved, self].map(|classes| format!("version {}", classes.arithmetic.unwrap_or(1)));
        // Another arithmetic is another class already where there is a probe.
        let arithmetic = Difference::of("the arithmetic", &theirs, &own, true);
        let classes = arithmetic.or(classes);
        let [theirs, own] = [saved, self].map(|classes| classes.mixture.join(", "));
        classes.into_iter().chain(Difference::of("the mixture", &theirs, &own, true)).collect()
    }

    /// A resumed run is on the adapters of its trainer.
    fn resume(&mut self, _saved: Self) {}
}

/// Says in which arithmetic the CPU is of a saved class, or nothing.
fn cpu(saved: &[SavedClass]) -> String {
    let probes: BTreeSet<_> = saved.iter().map(|class| class.probe.as_deref()).collect();
    let [Some(probe)] = probes.into_iter().collect::<Vec<_>>()[..] else { return String::new() };
    let same = cpus_of(probe);
    same.first()
        .map(|arithmetic| format!("; the CPU computes as the run did by `--adapter cpu:{arithmetic}`"))
        .unwrap_or_default()
}

/// Writes two lists of classes as text to be compared: as nothing where all machines are of one class, and
/// without probes where one of them has none.
fn compared(saved: &[SavedClass], own: &[SavedClass]) -> [String; 2] {
    let probed = saved.iter().all(|class| class.probe.is_some());
    let probes: BTreeSet<_> = saved.iter().chain(own).map(|class| &class.probe).collect();
    if probed && probes.len() == 1 {
        return [String::new(), String::new()];
    }
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

    #[test]
    fn machines_of_one_class_are_equal_and_another_arithmetic_is_named() {
        let class =
            |machine: &str, probe: &str| SavedClass { machine: machine.into(), probe: Some(probe.into()) };
        let [a, b, other] = [class("gpu a", "12"), class("gpu b", "12"), class("gpu c", "34")];
        let saved = |class: &[SavedClass], arithmetic| SavedClasses {
            class: Some(class.to_vec()),
            mixture: Vec::new(),
            arithmetic,
        };
        let own = saved(std::slice::from_ref(&b), Some(2));
        assert_eq!(own.differences(&saved(&[a.clone(), b.clone()], Some(2))), []);
        assert_eq!(own.differences(&saved(&[a.clone(), other], Some(2))).len(), 1);
        let [older] = &own.differences(&saved(&[a], None))[..] else { panic!("one difference") };
        assert!(
            older.problem.contains("version 1") && older.problem.contains("version 2"),
            "{}",
            older.problem
        );
    }
}
