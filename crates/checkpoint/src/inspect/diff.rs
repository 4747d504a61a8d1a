//! The differences of two checkpoints, tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::inspect::target::Target;
use crate::tensors::error::Result;
use crate::tensors::float::each_f64;
use crate::tensors::info::Info;

/// The differences of two checkpoints or files.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Diff {
    /// The number of tensors with the same bytes.
    pub equal: usize,
    /// The names of the tensors on the left alone, with their file's name.
    pub left_only: Vec<String>,
    /// The names of the tensors on the right alone, with their file's name.
    pub right_only: Vec<String>,
    /// The tensors on both sides that are not the same.
    pub changed: Vec<TensorDiff>,
    /// The places where `trainer.json` differs: `path: left, right`.
    pub trainer: Vec<String>,
}

/// The differences of two tensors of one name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorDiff {
    /// The tensor's name, with its file's name.
    pub name: String,
    /// The type and shape on either side.
    pub infos: [Info; 2],
    /// The number of elements with other bytes. If types or shapes differ, it is all of them.
    pub elements: usize,
    /// The largest difference. NaN is left out.
    pub largest: f64,
    /// The Euclidean norm of the difference, divided by that of the left. NaN is left out.
    pub relative: f64,
}

impl Diff {
    /// Whether all bytes are the same.
    pub fn is_empty(&self) -> bool {
        let Self { left_only, right_only, changed, trainer, .. } = self;
        left_only.is_empty() && right_only.is_empty() && changed.is_empty() && trainer.is_empty()
    }
}

/// Compares two runs (their newest checkpoints), checkpoints or files. Tensors are compared by their bytes,
/// so -0 and +0 differ. A file by itself is compared with a checkpoint's model.
///
/// # Errors
/// One of the two cannot be opened as what it is: a run without a complete checkpoint, a checkpoint that is
/// not what its manifest says, a file that is not valid safetensors.
pub fn diff(left: impl AsRef<Path>, right: impl AsRef<Path>) -> Result<Diff> {
    let (left, right) = (Target::open(left.as_ref())?, Target::open(right.as_ref())?);
    let mut diff = Diff::default();
    let lone = left.files.len() == 1 || right.files.len() == 1;
    let (lefts, rights) = (tensors(&left, lone), tensors(&right, lone));
    for name in lefts.keys().chain(rights.keys()).collect::<BTreeSet<_>>() {
        match (lefts.get(name), rights.get(name)) {
            (Some(&left), Some(&right)) if left == right => diff.equal += 1,
            (Some(&left), Some(&right)) => diff.changed.push(compare(name, left, right)),
            (Some(_), None) => diff.left_only.push(name.clone()),
            _ => diff.right_only.push(name.clone()),
        }
    }
    if let (Some(left), Some(right)) = (&left.trainer, &right.trainer) {
        walk("", left, right, &mut diff.trainer);
    }
    Ok(diff)
}

fn tensors(target: &Target, lone: bool) -> BTreeMap<String, (&Info, &[u8])> {
    let mut tensors = BTreeMap::new();
    for (file, content) in target.files.iter().take(if lone { 1 } else { usize::MAX }) {
        for (name, info) in content.infos() {
            let named = if lone { name.to_owned() } else { format!("{file}: {name}") };
            tensors.insert(named, (info, content.bytes(name).unwrap_or_default()));
        }
    }
    tensors
}

fn compare(name: &str, left: (&Info, &[u8]), right: (&Info, &[u8])) -> TensorDiff {
    let infos = [left.0.clone(), right.0.clone()];
    let size = left.0.dtype.size();
    if left.0 != right.0 {
        return TensorDiff {
            name: name.into(),
            infos,
            elements: left.1.len() / size,
            largest: f64::NAN,
            relative: f64::NAN,
        };
    }
    let elements =
        left.1.chunks(size).zip(right.1.chunks(size)).filter(|(left, right)| left != right).count();
    let [values, others] = [left, right].map(|(info, bytes)| each_f64(info.dtype, bytes));
    let [mut largest, mut apart, mut norm] = [0.0f64; 3];
    for (value, other) in values.zip(others) {
        let difference = (value - other).abs();
        if !difference.is_nan() {
            largest = largest.max(difference);
            apart += difference * difference;
        }
        if !value.is_nan() {
            norm += value * value;
        }
    }
    let relative = if largest == 0.0 { 0.0 } else { apart.sqrt() / norm.sqrt() };
    TensorDiff { name: name.into(), infos, elements, largest, relative }
}

/// Lists where two JSON values differ. Their depth is at most the limit of the parser.
fn walk(path: &str, left: &Value, right: &Value, found: &mut Vec<String>) {
    let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            for key in left.keys().chain(right.keys()).collect::<BTreeSet<_>>() {
                let side = |side: &serde_json::Map<String, Value>| side.get(key).cloned().unwrap_or_default();
                walk(&at(key), &side(left), &side(right), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                walk(&at(&index.to_string()), left, right, found);
            }
        }
        _ if left == right => {}
        _ => found.push(format!("{path}: {left}, {right}")),
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (side, names) in [("left", &self.left_only), ("right", &self.right_only)] {
            names.iter().try_for_each(|name| writeln!(f, "only {side:6} {name}"))?;
        }
        self.changed.iter().try_for_each(|changed| writeln!(f, "{changed}"))?;
        self.trainer.iter().try_for_each(|line| writeln!(f, "trainer.json: {line}"))?;
        write!(f, "{} tensors equal, {} differ", self.equal, self.changed.len())
    }
}

impl fmt::Display for TensorDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, infos: [left, right], elements, largest, relative } = self;
        if left != right {
            return write!(f, "differs     {name}: {left}, {right}");
        }
        write!(
            f,
            "differs     {name} {left}: {elements} elements, by {largest:.3e} at most, {relative:.3e} of the norm"
        )
    }
}
