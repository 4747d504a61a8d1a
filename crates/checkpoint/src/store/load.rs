//! Finding, verifying and reading checkpoints. This needs no lock: what has its final name is complete.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::disk::listed::{open_as_listed, read_as_listed, size_as_listed};
use crate::disk::{Disk, StdDisk};
use crate::store::contents::Contents;
use crate::store::manifest::{FILES, LONGEST, LONGEST_TRAINER, Manifest};
use crate::store::names::{CHECKPOINTS, MANIFEST, OLD, step_of};
use crate::store::record::Record;
use crate::tensors::digest::hex;
use crate::tensors::error::{Error, Result, Skipped, broken, io};
use crate::tensors::file::parse_tensors;
use crate::tensors::json;
use crate::tensors::tensor::Tensors;

/// A checkpoint that was found complete.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The checkpoint's step.
    pub step: u64,
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The checkpoint's contents.
    pub contents: Contents,
    /// The newer checkpoints that are not complete, newest first. They deserve a warning.
    pub skipped: Vec<Skipped>,
}

/// Returns the newest complete checkpoint in DIR, verified, or `None` if there is not a checkpoint at all.
///
/// Broken checkpoints are skipped and listed. If all are broken, that is [`Error::NoneComplete`], so that
/// no run starts from scratch by mistake. If the record of trusted checkpoints cannot be read, any of them
/// may be a suspect, which is [`Error::Record`]. This needs no [`Store`](crate::Store) and disturbs none that
/// is in use.
///
/// # Errors
/// All checkpoints are broken, the record of trusted ones cannot be read, or the directory cannot be listed.
pub fn newest(dir: impl AsRef<Path>) -> Result<Option<Loaded>> {
    newest_on(&StdDisk, dir.as_ref())
}

/// Finds the newest checkpoint as [`newest`] does, on another file system.
///
/// # Errors
/// Those of [`newest`].
pub fn newest_with(disk: &dyn Disk, dir: impl AsRef<Path>) -> Result<Option<Loaded>> {
    newest_on(disk, dir.as_ref())
}

/// Returns steps and directories of the checkpoints in DIR, newest first, not verified.
///
/// # Errors
/// The directory cannot be listed. One that is not there has no checkpoints, and is no error.
pub fn list(dir: impl AsRef<Path>) -> Result<Vec<(u64, PathBuf)>> {
    let found = list_on(&StdDisk, dir.as_ref())?;
    Ok(found.into_iter().map(|found| (found.step, found.path)).collect())
}

/// Loads one checkpoint, given its own directory, and verifies it. Returns its step and its contents.
///
/// # Errors
/// A file is missing, cannot be read, or is not what the manifest says by size and SHA-256; the manifest, or
/// what a file holds, is not valid.
pub fn load(checkpoint: impl AsRef<Path>) -> Result<(u64, Contents)> {
    load_on(&StdDisk, checkpoint.as_ref())
}

/// Loads a checkpoint as [`load`] does, from another file system.
///
/// # Errors
/// Those of [`load`].
pub fn load_with(disk: &dyn Disk, checkpoint: impl AsRef<Path>) -> Result<(u64, Contents)> {
    load_on(disk, checkpoint.as_ref())
}

pub(crate) struct Found {
    pub(crate) step: u64,
    pub(crate) path: PathBuf,
}

/// Lists the checkpoints, newest first, one for each step. Those that are distrusted and not yet renamed are
/// left out, unless the record of them is damaged.
pub(crate) fn list_on(disk: &dyn Disk, dir: &Path) -> Result<Vec<Found>> {
    Ok(listed(disk, dir)?.0)
}

/// Lists the checkpoints that may be used, as [`list_on`] does. If the record cannot be read, any of them may
/// be a suspect.
pub(crate) fn list_usable(disk: &dyn Disk, dir: &Path) -> Result<Vec<Found>> {
    match listed(disk, dir)? {
        (found, Some(Skipped { path, reason })) if !found.is_empty() => Err(Error::Record { path, reason }),
        (found, _) => Ok(found),
    }
}

/// Lists the checkpoints. Returns besides why the record cannot be read.
fn listed(disk: &dyn Disk, dir: &Path) -> Result<(Vec<Found>, Option<Skipped>)> {
    let mut found = all_on(disk, dir)?;
    // The record is read after the names: if a distrust ends in between, the old names lead nowhere.
    let (record, problem) = Record::read(disk, &dir.join(CHECKPOINTS))?;
    found.retain(|found| !record.distrusts(found.step));
    found.dedup_by_key(|found| found.step);
    Ok((found, problem))
}

/// Lists all that has the name of a checkpoint, newest first. Of one step there may be two: the second then
/// made room for the first.
pub(crate) fn all_on(disk: &dyn Disk, dir: &Path) -> Result<Vec<Found>> {
    let checkpoints = dir.join(CHECKPOINTS);
    let names = match disk.list(&checkpoints) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        result => result.map_err(io(&checkpoints, "list"))?,
    };
    let mut found: Vec<(u64, bool, PathBuf)> = names
        .iter()
        .filter_map(|name| {
            let (old, plain) = name.strip_prefix(OLD).map_or((false, name.as_str()), |plain| (true, plain));
            Some((step_of(plain)?, old, checkpoints.join(name)))
        })
        .collect();
    found.sort_by_key(|&(step, old, _)| (Reverse(step), old));
    Ok(found.into_iter().map(|(step, _, path)| Found { step, path }).collect())
}

/// How often the directory is listed where a checkpoint is gone before it is read: a run beside has saved a
/// newer one by then.
const LOOKS: usize = 10;

pub(crate) fn newest_on(disk: &dyn Disk, dir: &Path) -> Result<Option<Loaded>> {
    let mut skipped = Vec::new();
    for _ in 0..LOOKS {
        skipped.clear();
        let mut is_changed = false;
        for Found { step, path } in list_usable(disk, dir)? {
            match verify(disk, &path, step) {
                Ok(contents) => return Ok(Some(Loaded { step, path, contents, skipped })),
                Err(error) => {
                    is_changed |= !disk.is_dir(&path);
                    skipped.push(Skipped { path, reason: error.to_string() });
                }
            }
        }
        if !is_changed {
            break;
        }
    }
    if skipped.is_empty() {
        Ok(None)
    } else {
        Err(Error::NoneComplete { path: dir.join(CHECKPOINTS), skipped })
    }
}

/// Reads a checkpoint, which must be of the step that its directory's name says.
pub(crate) fn verify(disk: &dyn Disk, path: &Path, step: u64) -> Result<Contents> {
    match load_on(disk, path)? {
        (found, contents) if found == step => Ok(contents),
        (found, _) => Err(broken(&path.join(MANIFEST), format!("is of step {found}"))),
    }
}

fn load_on(disk: &dyn Disk, path: &Path) -> Result<(u64, Contents)> {
    let manifest = read_manifest(disk, path)?;
    let [model, optimizer, trainer, carries] = FILES.map(|name| path.join(name));
    let [first, second, third, fourth @ ..] = manifest.files.as_slice() else {
        return Err(broken(&path.join(MANIFEST), "lists other files"));
    };
    let contents = Contents {
        model: parse_tensors(&model, &open_as_listed(disk, &model, first)?)?,
        optimizer: parse_tensors(&optimizer, &open_as_listed(disk, &optimizer, second)?)?,
        carries: match fourth.first() {
            Some(fourth) => parse_tensors(&carries, &open_as_listed(disk, &carries, fourth)?)?,
            None => Tensors::new(),
        },
        trainer: json::parse(&read_as_listed(disk, &trainer, third, LONGEST_TRAINER)?)
            .map_err(|error| broken(&trainer, format!("no valid JSON: {error}")))?,
    };
    Ok((manifest.step, contents))
}

/// Reads a manifest, and checks that the files it lists are there and of their sizes. Nothing but the
/// manifest is read. Returns it with its SHA-256.
pub(crate) fn glance(disk: &dyn Disk, path: &Path) -> Result<(Manifest, String)> {
    let (manifest, text) = parsed_manifest(disk, path)?;
    for entry in &manifest.files {
        size_as_listed(disk, &path.join(&entry.name), entry)?;
    }
    Ok((manifest, hex(&Sha256::digest(&text))))
}

pub(crate) fn read_manifest(disk: &dyn Disk, path: &Path) -> Result<Manifest> {
    parsed_manifest(disk, path).map(|(manifest, _)| manifest)
}

fn parsed_manifest(disk: &dyn Disk, path: &Path) -> Result<(Manifest, Vec<u8>)> {
    let manifest = path.join(MANIFEST);
    let text = disk.read_at_most(&manifest, LONGEST).map_err(io(&manifest, "read"))?;
    Ok((Manifest::parse(&manifest, &text)?, text))
}
