//! How a file's tensors and a model's fit together.

use std::fmt;

use crate::tensors::info::Info;

/// What became of each tensor of a file and of a model; as PyTorch's `load_state_dict` tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The model's tensors that were found.
    pub loaded: Vec<String>,
    /// Those among them whose elements were converted to f32: exactly, unless they were f64.
    pub converted: Vec<String>,
    /// The model's that the file has not.
    pub missing: Vec<String>,
    /// The file's that the model has not, as the file calls them.
    pub unexpected: Vec<String>,
    /// Those of which type or shape differ.
    pub mismatched: Vec<Mismatch>,
    /// The model's for which renaming left several in the file.
    pub ambiguous: Vec<(String, Vec<String>)>,
}

/// A tensor of which type or shape differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What the model calls it.
    pub name: String,
    /// The file's, in this library's layout.
    pub file: Info,
    /// The model's.
    pub model: Info,
}

impl LoadReport {
    /// Everything was found, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.fits()
    }

    /// What was found is what the model wants.
    pub fn fits(&self) -> bool {
        self.mismatched.is_empty() && self.ambiguous.is_empty()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("missing", &self.missing), ("unexpected", &self.unexpected)];
        let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
        let lists = lists.map(|(what, names)| format!("{what}: {}", quoted(names)));
        let shapes = self.mismatched.iter().map(|Mismatch { name, file, model }| {
            format!("size mismatch for {name}: {file} in the file, {model} in the model")
        });
        let ambiguous =
            self.ambiguous.iter().map(|(name, from)| format!("several would be {name}: {}", quoted(from)));
        let lines: Vec<String> = lists.chain(shapes).chain(ambiguous).collect();
        if lines.is_empty() {
            return write!(f, "all {} tensors loaded", self.loaded.len());
        }
        f.write_str(&lines.join("\n"))
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}
