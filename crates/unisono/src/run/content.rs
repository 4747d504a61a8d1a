//! The content of a run's data as a checkpoint has it.

use serde::{Deserialize, Serialize};
use unisono_data::{Content, Source};

use crate::identity::part::{hex, is_hex};

/// The hexadecimal digits of a block's hash that are kept. The root covers all of them.
const DIGITS: usize = 16;
/// The most ranges of samples that are named.
const MOST_NAMED: usize = 3;

/// What is known of the content of the training data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum DataContent {
    /// No fit has seen data.
    #[default]
    Unseen,
    /// The data are being hashed.
    NotYetHashed,
    /// All samples are hashed.
    Hashed(SavedContent),
    /// The source's name and version stand for the samples.
    Named(SavedName),
    /// Nothing stands for the samples.
    NotCovered,
}

/// The tree of hashes over a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedContent {
    /// The hash over everything, as hexadecimal digits.
    pub sha256: String,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples in a block.
    pub block: u64,
    /// The first digits of the hash of each block.
    pub blocks: Vec<String>,
}

/// A data set whose samples a name stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedName {
    /// The name and version that the source's author gives.
    pub name: String,
    /// The number of samples.
    pub samples: u64,
    /// The name, type and shape of each field.
    pub fields: Vec<String>,
}

impl SavedName {
    /// Returns what stands for the samples of a source with a name.
    pub fn new(name: String, source: &dyn Source) -> Self {
        let fields = source.fields().iter();
        let fields = fields.map(|spec| format!("{}: {} {:?}", spec.name, spec.dtype, spec.shape)).collect();
        Self { name, samples: source.len(), fields }
    }

    /// Says how the data of a run differ from these, which are the trainer's.
    fn problem(&self, saved: &Self) -> Option<String> {
        if self == saved {
            return None;
        }
        let [own, run] = [self, saved].map(|data| format!("those with the name {:?}", data.name));
        Some(if self.name != saved.name {
            format!("the data of the run are {run}, not {own}")
        } else if self.samples != saved.samples {
            format!("the run was on {} samples, not {}", saved.samples, self.samples)
        } else {
            let [own, run] = [self, saved].map(|data| data.fields.join(", "));
            format!("the fields of the data of the run are {run}, not {own}")
        })
    }
}

impl From<&Content> for SavedContent {
    fn from(content: &Content) -> Self {
        Self {
            sha256: hex(&content.root()),
            samples: content.samples(),
            block: content.block(),
            blocks: content.blocks().iter().map(|hash| hex(hash)[..DIGITS].to_owned()).collect(),
        }
    }
}

impl SavedContent {
    /// Says how the data of a run differ from these, which are the trainer's.
    pub fn problem(&self, saved: &Self) -> Option<String> {
        if self.sha256 == saved.sha256 {
            return None;
        }
        if self.samples != saved.samples {
            return Some(format!("the run was on {} samples, not {}", saved.samples, self.samples));
        }
        let pairs = self.blocks.iter().zip(&saved.blocks).map(|(own, saved)| own != saved);
        let ranges = ranges(pairs, self.block.max(1), self.samples);
        let named: Vec<String> =
            ranges.iter().take(MOST_NAMED).map(|(first, last)| format!("{first} to {last}")).collect();
        let more = ranges.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
        Some(match named.as_slice() {
            [] => "the fields of the data are not those of the run".to_owned(),
            named => format!("the data are not those of the run: samples {}{more} differ", named.join(", ")),
        })
    }
}

/// Returns the first and last samples of neighbouring blocks that differ.
fn ranges(differ: impl Iterator<Item = bool>, block: u64, samples: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (at, _) in differ.enumerate().filter(|(_, differs)| *differs) {
        let first = at as u64 * block;
        let last = first.saturating_add(block).min(samples).saturating_sub(1);
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

impl DataContent {
    /// Returns the text that stands for the content in the run's hash. `None` while it is not known.
    pub fn identity(&self) -> Option<String> {
        match self {
            Self::Unseen | Self::NotYetHashed => None,
            Self::Hashed(content) => Some(content.sha256.clone()),
            Self::Named(SavedName { name, samples, fields }) => {
                Some(format!("named {name:?}: {samples} samples of {fields:?}"))
            }
            Self::NotCovered => Some("not covered".to_owned()),
        }
    }

    /// Says how the data of a run differ from these, which are the trainer's, where both are known.
    pub fn problem(&self, saved: &Self) -> Option<String> {
        match (self, saved) {
            (_, Self::Unseen | Self::NotYetHashed | Self::NotCovered)
            | (Self::Unseen | Self::NotYetHashed, _) => None,
            (Self::Hashed(own), Self::Hashed(saved)) => own.problem(saved),
            (Self::Named(own), Self::Named(saved)) => own.problem(saved),
            (own, saved) if own == saved => None,
            (own, saved) => Some(format!("the data of the run are {}, not {}", saved.kind(), own.kind())),
        }
    }

    /// Checks that hashes that were read are hashes.
    ///
    /// # Errors
    /// The first that is not, by its name in the section.
    pub fn check(&self) -> Result<(), String> {
        let Self::Hashed(content) = self else { return Ok(()) };
        if !is_hex(&content.sha256, 64) {
            return Err("data.hashed.sha256 is not 64 lowercase hexadecimal digits".to_owned());
        }
        match content.blocks.iter().position(|block| !is_hex(block, DIGITS)) {
            Some(at) => Err(format!("data.hashed.blocks[{at}] is not {DIGITS} lowercase hexadecimal digits")),
            None => Ok(()),
        }
    }

    /// Returns whether the content is known, so that it can be found again or not.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Hashed(_) | Self::Named(_))
    }

    /// Returns how the content takes part, in words.
    fn kind(&self) -> String {
        match self {
            Self::Unseen => "not seen".to_owned(),
            Self::NotYetHashed => "not yet hashed".to_owned(),
            Self::Hashed(content) => {
                format!("those with the hash {}", content.sha256.get(..12).unwrap_or(&content.sha256))
            }
            Self::Named(data) => format!("those with the name {:?}", data.name),
            Self::NotCovered => "not covered by a hash or a name".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_of_any_characters_is_told_without_a_panic() {
        let forged = SavedContent { sha256: format!("a{}", "\u{e9}".repeat(20)), ..SavedContent::default() };
        let named = DataContent::Named(SavedName { name: "waves 1".into(), ..SavedName::default() });
        let problem = named.problem(&DataContent::Hashed(forged)).unwrap();
        assert!(problem.contains("those with the hash a"), "{problem}");
    }
}
