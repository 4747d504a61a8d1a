//! What a run's bits depend on beside the run itself: the numeric classes of its adapters, as checkpoints record them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use unisono_gpu::Adapter;
use unisono_replica::{machine, probe};

use crate::Error;

/// The numeric class of an adapter, as a checkpoint has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct SavedClass {
    /// Backend, device and driver.
    pub machine: String,
    /// Of what the probe gave, as `adapters --probe` shows it. `None` in files of versions that did not say.
    pub probe: Option<String>,
}

/// What there is in files: only the machine in older ones.
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

/// The classes of a run's adapters, probed when they are asked for and not before: a probe opens a device of its own.
#[derive(Debug)]
pub(crate) struct Classes {
    /// By replica, those that left included.
    adapters: BTreeMap<usize, Adapter>,
    /// By machine.
    known: BTreeMap<String, SavedClass>,
}

impl Classes {
    pub fn new(adapters: Vec<Adapter>) -> Self {
        Self { adapters: adapters.into_iter().enumerate().collect(), known: BTreeMap::new() }
    }

    /// One adapter of each machine there was so far, and this one.
    pub fn with(&self, adapter: &Adapter) -> Vec<Adapter> {
        let mut each: BTreeMap<String, &Adapter> = BTreeMap::new();
        for adapter in self.adapters.values().chain([adapter]) {
            each.entry(machine(adapter)).or_insert(adapter);
        }
        each.into_values().cloned().collect()
    }

    pub fn join(&mut self, replica: usize, adapter: Adapter) {
        self.adapters.insert(replica, adapter);
    }

    /// Each class once, in the order of the machines' names.
    ///
    /// # Errors
    /// An adapter cannot be probed.
    pub fn all(&mut self) -> Result<Vec<SavedClass>, Error> {
        for adapter in self.adapters.values() {
            let machine = machine(adapter);
            if !self.known.contains_key(&machine) {
                let probe = Some(probe(adapter)?.to_string());
                self.known.insert(machine.clone(), SavedClass { machine, probe });
            }
        }
        Ok(self.known.values().cloned().collect())
    }

    /// The machines of some replicas, in their order.
    pub fn machines(&self, replicas: impl Iterator<Item = usize>) -> Vec<String> {
        replicas.filter_map(|replica| self.adapters.get(&replica).map(machine)).collect()
    }
}

/// Two lists of classes as text, to be compared: without probes where one of them has none.
pub(crate) fn compared(saved: &[SavedClass], own: &[SavedClass]) -> [String; 2] {
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
