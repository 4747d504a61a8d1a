//! The report of how a file's tensors and a model's fit together.

use std::fmt;

use crate::tensors::info::Info;

/// The outcome for each tensor of a file and of a model, as PyTorch's `load_state_dict` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The model's tensors that were found.
    pub loaded: Vec<String>,
    /// The tensors among those found whose elements were converted to f32. The conversion is exact, except
    /// from f64, and from i8 with scales, whose products are rounded.
    pub converted: Vec<String>,
    /// The model's tensors that the file lacks.
    pub missing: Vec<String>,
    /// The file's tensors that the model lacks, under their names in the file.
    pub unexpected: Vec<String>,
    /// The tensors whose type or shape differs.
    pub mismatched: Vec<Mismatch>,
    /// The model's tensors for which renaming left several of the file's, each with their names.
    pub ambiguous: Vec<(String, Vec<String>)>,
    /// The tensors among those found with values that are NaN or infinite, each with their number.
    pub not_finite: Vec<(String, usize)>,
    /// The rules of the plan that found no tensor of their pattern, such as `rename fc.* to head.*`, without
    /// renames of a pattern that begins with a star: a pattern without a star is one whole name.
    pub unused: Vec<String>,
}

/// A tensor whose type or shape differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The tensor's name in the model.
    pub name: String,
    /// The tensor's type and shape in the file, in this library's layout.
    pub file: Info,
    /// The tensor's type and shape in the model.
    pub model: Info,
}

impl LoadReport {
    /// Whether everything was found, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.fits()
    }

    /// Whether all that was found is what the model wants, and finite.
    pub fn fits(&self) -> bool {
        self.mismatched.is_empty() && self.ambiguous.is_empty() && self.not_finite.is_empty()
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
        let not_finite = self.not_finite.iter().map(|(name, count)| {
            format!("{count} values of {name} are NaN or infinite: the run that wrote them has diverged")
        });
        let lines: Vec<String> = lists.chain(shapes).chain(ambiguous).chain(not_finite).collect();
        let unused = self.unused.iter().map(|rule| format!("the plan would {rule}: there is no such tensor"));
        let lines: Vec<String> = lines.into_iter().chain(unused).collect();
        if lines.is_empty() {
            return write!(f, "all {} tensors loaded", self.loaded.len());
        }
        f.write_str(&lines.join("\n"))
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}
