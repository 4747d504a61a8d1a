//! Looking at checkpoints: what the program `checkpoint` of the examples prints.
//!
//! A path may be that of a run's directory (which stands for its newest complete checkpoint), of a
//! checkpoint, or of a safetensors file.

mod diff;
mod identity;
mod target;

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use self::diff::{Diff, TensorDiff, diff};

use crate::disk::{Disk, StdDisk};
use crate::inspect::target::Target;
use crate::store::load::{self, all_on, glance, list_on};
use crate::store::names::{CHECKPOINTS, step_of, suspect_of};
use crate::store::record::Record;
use crate::tensors::error::{Result, Skipped, broken, io};
use crate::tensors::file::TensorFile;
use crate::tensors::float::each_f64;
use crate::tensors::info::Info;
use crate::tensors::tensor::Tensors;

/// A checkpoint in a list. It was looked at, but not verified.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Listed {
    /// The checkpoint's step.
    pub step: u64,
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The number of bytes that its files take.
    pub bytes: u64,
    /// The metric that it was saved with.
    pub metric: Option<f64>,
    /// Whether an audit of the run's steps up to it has passed.
    pub trusted: bool,
    /// Whether a later audit failed, so that it may hold wrong numbers.
    pub suspect: bool,
    /// The reason why it is not complete.
    pub problem: Option<String>,
}

/// What the audits of a run left beside its checkpoints.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Audited {
    /// The checkpoints that may hold wrong numbers, newest first. No run resumes from them.
    pub suspects: Vec<Listed>,
    /// The record of trusted checkpoints, if it is there and cannot be read, and the reason. No checkpoint is
    /// then trusted.
    pub problem: Option<Skipped>,
}

/// The result of verifying a checkpoint or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// The directory or file.
    pub path: PathBuf,
    /// The problem, if there is one.
    pub problem: Option<String>,
}

/// The contents of a checkpoint or a file, as shown to a person.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Shown {
    /// The directory or file.
    pub path: PathBuf,
    /// The step, of a checkpoint.
    pub step: Option<u64>,
    /// The tensors, file by file, in order of names.
    pub tensors: Vec<Row>,
    /// The contents of `trainer.json`, of a checkpoint.
    pub trainer: Option<Value>,
}

/// A tensor in a [`Shown`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Row {
    /// The name of its file, such as `model.safetensors`.
    pub file: String,
    /// The tensor's name.
    pub name: String,
    /// The tensor's type and shape.
    pub info: Info,
    /// The tensor's Euclidean norm, computed in f64 in order.
    pub norm: f64,
    /// The tensor's smallest and largest value. NaN is left out; without other values there is none.
    pub range: Option<(f64, f64)>,
    /// The number of values that are NaN or infinite.
    pub not_finite: usize,
}

/// Lists the checkpoints of a run, newest first.
///
/// # Errors
/// The directory is not that of a run, or its checkpoints cannot be listed. A broken checkpoint is no error:
/// [`Listed::problem`] says what is wrong with it.
pub fn list(dir: impl AsRef<Path>) -> Result<Vec<Listed>> {
    let checkpoints = checkpoints_of(dir.as_ref())?;
    let (record, _) = Record::read(&StdDisk, &checkpoints)?;
    let found = list_on(&StdDisk, dir.as_ref())?.into_iter();
    Ok(found.map(|found| listed(found.step, found.path, &record, false)).collect())
}

/// Returns what the audits of a run left beside the checkpoints that [`list()`] returns.
///
/// # Errors
/// The directory is not that of a run, or its checkpoints cannot be listed.
pub fn audited(dir: impl AsRef<Path>) -> Result<Audited> {
    let checkpoints = checkpoints_of(dir.as_ref())?;
    let (record, problem) = Record::read(&StdDisk, &checkpoints)?;
    let names = StdDisk.list(&checkpoints).map_err(io(&checkpoints, "list"))?;
    let mut found: Vec<(u64, PathBuf)> =
        names.iter().filter_map(|name| Some((suspect_of(name)?, checkpoints.join(name)))).collect();
    // These were to be renamed when the process ended.
    let left = all_on(&StdDisk, dir.as_ref())?.into_iter().filter(|found| record.distrusts(found.step));
    found.extend(left.map(|found| (found.step, found.path)));
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let suspects = found.into_iter().map(|(step, path)| listed(step, path, &Record::default(), true));
    Ok(Audited { suspects: suspects.collect(), problem })
}

fn checkpoints_of(dir: &Path) -> Result<PathBuf> {
    let checkpoints = dir.join(CHECKPOINTS);
    if StdDisk.is_dir(&checkpoints) { Ok(checkpoints) } else { Err(broken(dir, "is no directory of a run")) }
}

fn listed(step: u64, path: PathBuf, record: &Record, suspect: bool) -> Listed {
    let empty = Listed { step, path, bytes: 0, metric: None, trusted: false, suspect, problem: None };
    match glance(&StdDisk, &empty.path) {
        Ok((manifest, sha256)) => {
            let bytes = manifest.files.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.bytes));
            Listed { bytes, metric: manifest.metric, trusted: record.trusts(step, &sha256), ..empty }
        }
        Err(error) => Listed { problem: Some(error.to_string()), ..empty },
    }
}

/// Reads all of a file, of a checkpoint, or of all checkpoints of a run, and compares it with its hashes.
///
/// # Errors
/// The checkpoints of a run cannot be listed. What is wrong with one, or with a file, is no error:
/// [`Checked::problem`] says it.
pub fn verify(path: impl AsRef<Path>) -> Result<Vec<Checked>> {
    let path = path.as_ref();
    let check = |path: &Path, result: Result<()>| Checked {
        path: path.to_owned(),
        problem: result.err().map(|error| error.to_string()),
    };
    if StdDisk.is_dir(&path.join(CHECKPOINTS)) {
        let found = list_on(&StdDisk, path)?.into_iter();
        let one = |found: load::Found| {
            check(&found.path, load::verify(&StdDisk, &found.path, found.step).map(drop))
        };
        return Ok(found.map(one).collect());
    }
    let result = match (StdDisk.is_dir(path), path.file_name().and_then(|name| step_of(name.to_str()?))) {
        (true, Some(step)) => load::verify(&StdDisk, path, step).map(drop),
        (true, None) => load::load(path).map(drop),
        (false, _) => TensorFile::open(path).map(drop),
    };
    Ok(vec![check(path, result)])
}

/// Returns names, shapes and norms, and what the trainer noted.
///
/// # Errors
/// Those of [`diff()`], for one of its two.
pub fn show(path: impl AsRef<Path>) -> Result<Shown> {
    let target = Target::open(path.as_ref())?;
    let mut tensors = Vec::new();
    for (file, content) in &target.files {
        for (name, info) in content.infos() {
            tensors.push(row(file, name, info, content.bytes(name).unwrap_or_default()));
        }
    }
    Ok(Shown { path: target.path, step: target.step, tensors, trainer: target.trainer })
}

/// Returns the model of a run, a checkpoint or a file, to be converted by
/// [`export_model`](crate::export_model).
///
/// # Errors
/// Those of [`show`].
pub fn model(path: impl AsRef<Path>) -> Result<Tensors> {
    let target = Target::open(path.as_ref())?;
    Ok(target.files.first().map(|(_, file)| file.tensors()).unwrap_or_default())
}

fn row(file: &str, name: &str, info: &Info, bytes: &[u8]) -> Row {
    let (mut square, mut range, mut not_finite) = (0.0f64, None, 0);
    for value in each_f64(info.dtype, bytes) {
        square += value * value;
        not_finite += usize::from(!value.is_finite());
        if !value.is_nan() {
            let (low, high): (f64, f64) = range.unwrap_or((value, value));
            range = Some((low.min(value), high.max(value)));
        }
    }
    let (file, name) = (file.to_owned(), name.to_owned());
    Row { file, name, info: info.clone(), norm: square.sqrt(), range, not_finite }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {:>8}  {:>12} bytes", self.step, self.bytes)?;
        if let Some(metric) = self.metric {
            write!(f, "  metric {metric}")?;
        }
        if self.trusted {
            write!(f, "  trusted")?;
        }
        if self.suspect {
            write!(f, "  suspect: {}", self.path.display())?;
        }
        match &self.problem {
            Some(problem) => write!(f, "  broken: {problem}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Some(problem) => write!(f, "broken  {problem}"),
            None => write!(f, "ok      {}", self.path.display()),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.path.display())?;
        let width = self.tensors.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let mut file = "";
        for row in &self.tensors {
            if row.file != file {
                file = &row.file;
                writeln!(f, "{file}")?;
            }
            let Row { name, info, norm, .. } = row;
            write!(f, "  {name:width$}  {:<20} norm {norm:<12.6e}", info.to_string())?;
            if let Some((low, high)) = row.range {
                write!(f, " {low:.6e} to {high:.6e}")?;
            }
            if row.not_finite > 0 {
                write!(f, "  {} not finite", row.not_finite)?;
            }
            writeln!(f)?;
        }
        match &self.trainer {
            Some(trainer) => {
                identity::lines(trainer).iter().try_for_each(|line| writeln!(f, "{line}"))?;
                write!(f, "trainer.json\n{:#}", identity::shortened(trainer))
            }
            None => Ok(()),
        }
    }
}
