//! The checkpoint or the file that a path stands for.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::disk::listed::{open_as_listed, read_as_listed};
use crate::disk::{Disk, StdDisk};
use crate::store::load::{newest_on, read_manifest};
use crate::store::manifest::LONGEST_TRAINER;
use crate::store::names::{CARRIES, CHECKPOINTS, MODEL, OPTIMIZER};
use crate::tensors::error::{Result, broken};
use crate::tensors::file::TensorFile;
use crate::tensors::json;

/// A run's newest checkpoint, a checkpoint, or a file by itself. It is verified and mapped.
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) step: Option<u64>,
    /// The files with their names, the model first.
    pub(crate) files: Vec<(String, TensorFile)>,
    pub(crate) trainer: Option<Value>,
}

impl Target {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let disk: &dyn Disk = &StdDisk;
        if disk.is_dir(&path.join(CHECKPOINTS)) {
            return match newest_on(disk, path)? {
                Some(newest) => Self::open(&newest.path),
                None => Err(broken(path, "holds no checkpoint")),
            };
        }
        if !disk.is_dir(path) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let files = vec![(name, TensorFile::open(path)?)];
            return Ok(Self { path: path.to_owned(), step: None, files, trainer: None });
        }
        let manifest = read_manifest(disk, path)?;
        let mut files = Vec::new();
        let mut trainer = None;
        for entry in &manifest.files {
            let file = path.join(&entry.name);
            if [MODEL, OPTIMIZER, CARRIES].contains(&entry.name.as_str()) {
                let bytes = open_as_listed(disk, &file, entry)?;
                files.push((entry.name.clone(), TensorFile::new(&file, bytes)?));
            } else {
                let parsed = json::parse(&read_as_listed(disk, &file, entry, LONGEST_TRAINER)?);
                trainer = Some(parsed.map_err(|error| broken(&file, format!("no valid JSON: {error}")))?);
            }
        }
        Ok(Self { path: path.to_owned(), step: Some(manifest.step), files, trainer })
    }
}
