//! A section of a run's state: how one piece of it is written to a checkpoint, read back, compared and
//! digested.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use unisono_checkpoint::Tensors;

use crate::Error;

/// One piece of what a run saves. Its name is that of its field in [`RunState`](super::state::RunState),
/// which is the list of all sections. What serde writes is its value in `trainer.json`.
///
/// A section that is added later should say in [`Section::absent`] what an older checkpoint means by not
/// having it.
pub(crate) trait Section: Default + Serialize + DeserializeOwned {
    /// The newest version, which is written unless [`Section::written_version`] says otherwise. It grows when
    /// the value changes so that older programs would misread it.
    const VERSION: u32 = 1;
    /// Whether the section's tensors are part of the state's digest. Default: true.
    const TENSORS_ARE_DIGESTED: bool = true;

    /// Returns the version that this value is written as. Default: [`Section::VERSION`].
    fn written_version(&self) -> u32 {
        Self::VERSION
    }

    /// Returns whether the section is written. Default: true. One that is not must be [`Section::absent`] in
    /// a checkpoint without it.
    fn is_written(&self) -> bool {
        true
    }

    /// Reads a value that a program wrote as `version`, which is from 1 to [`Section::VERSION`].
    ///
    /// # Errors
    /// The value is not one that this version writes.
    fn read(_version: u32, value: Value) -> Result<Self, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// Returns the section's value in `trainer.json`. Default: what serde writes.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    fn value(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }

    /// Returns the value that stands for the section in a checkpoint that does not have it. Default: `None`,
    /// which refuses the checkpoint.
    fn absent() -> Option<Self> {
        None
    }

    /// Returns the section's tensors, which are saved in `carries.safetensors`. Default: there are none.
    ///
    /// # Errors
    /// The bytes of a tensor do not fit its shape.
    fn tensors(&self) -> Result<Tensors, Error> {
        Ok(Tensors::new())
    }

    /// Takes the section's tensors out of those of a checkpoint, after [`Section::read`] of the same version.
    /// Default: it takes none.
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    fn take_tensors(&mut self, _version: u32, _tensors: &mut Tensors) -> Result<(), String> {
        Ok(())
    }

    /// Appends the section's part of the state's digest, without its tensors. Default: nothing.
    ///
    /// A section that appends nothing while it has its default value leaves the digests of earlier versions
    /// as they are.
    fn digest(&self, _bytes: &mut Vec<u8>) {}

    /// Compares this run's own section with a checkpoint's before the run is resumed. Default: nothing is
    /// compared.
    fn differences(&self, _saved: &Self) -> Vec<Difference> {
        Vec::new()
    }

    /// Continues from a checkpoint's section. Default: takes its value.
    fn resume(&mut self, saved: Self) {
        *self = saved;
    }
}

/// A difference between a checkpoint's run and the trainer that would resume it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The text of the error or warning: what differs, and how.
    pub problem: String,
    /// Whether a forced resume accepts the difference.
    pub forcible: bool,
}

impl Difference {
    /// Compares a setting by its text. `what` is its name with an article.
    pub fn of(what: &str, saved: &str, own: &str, forcible: bool) -> Option<Self> {
        let shown = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        let problem = || format!("{what} of the run is {}, not {}", shown(saved), shown(own));
        (saved != own).then(|| Self { problem: problem(), forcible })
    }

    /// Adds what a user can do.
    pub fn with(mut self, advice: String) -> Self {
        self.problem.push_str(&advice);
        self
    }
}

/// A section as `trainer.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    value: Value,
}

/// The sections of a checkpoint by name, with the tensors that belong to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sections {
    values: BTreeMap<String, Written>,
    tensors: Tensors,
}

impl Sections {
    /// Parses the value of `sections` in `trainer.json`.
    ///
    /// # Errors
    /// It is no map of versions and values.
    pub fn parse(value: Value, tensors: Tensors) -> Result<Self, String> {
        let values = serde_json::from_value(value).map_err(|error| format!("the sections: {error}"))?;
        Ok(Self { values, tensors })
    }

    /// Adds a section.
    ///
    /// # Errors
    /// It cannot be written as JSON, or its tensors do not fit their shapes.
    pub fn put<S: Section>(&mut self, name: &str, section: &S) -> Result<(), Error> {
        if !section.is_written() {
            return Ok(());
        }
        let json = |error| Error::setting("checkpoint", format!("{name} cannot be written as JSON: {error}"));
        let value = section.value().map_err(json)?;
        self.values.insert(name.to_owned(), Written { version: section.written_version(), value });
        self.tensors.extend(section.tensors()?);
        Ok(())
    }

    /// Takes a section out.
    ///
    /// # Errors
    /// It is missing, of a later version than this program knows, or not what its version writes. Each error
    /// names it.
    pub fn take<S: Section>(&mut self, name: &str) -> Result<S, String> {
        let Some(Written { version, value }) = self.values.remove(name) else {
            return S::absent().ok_or_else(|| format!("the section {name:?} is missing"));
        };
        if !(1..=S::VERSION).contains(&version) {
            let known = S::VERSION;
            return Err(format!(
                "the section {name:?} has version {version}, but only 1 to {known} are known"
            ));
        }
        let wrong = |problem| format!("the section {name:?}: {problem}");
        let mut section = S::read(version, value).map_err(wrong)?;
        section.take_tensors(version, &mut self.tensors).map_err(wrong)?;
        Ok(section)
    }

    /// Refuses sections and tensors that no section has taken, because a run that continued without them
    /// would not be the run that was saved.
    ///
    /// # Errors
    /// There is such a section or tensor; the error names the first.
    pub fn finish(self) -> Result<(), String> {
        if let Some(name) = self.values.keys().next() {
            return Err(format!("this version knows no section {name:?}: a later version has written it"));
        }
        match self.tensors.keys().next() {
            Some(name) => Err(format!("no section knows the tensor {name:?} of carries.safetensors")),
            None => Ok(()),
        }
    }

    /// Returns the value of `sections` in `trainer.json`, and the tensors of `carries.safetensors`.
    ///
    /// # Errors
    /// The sections cannot be written as JSON.
    pub fn written(self) -> Result<(Value, Tensors), Error> {
        let json =
            |error| Error::setting("checkpoint", format!("the run cannot be written as JSON: {error}"));
        Ok((serde_json::to_value(self.values).map_err(json)?, self.tensors))
    }
}
