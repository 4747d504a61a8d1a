//! The work of a store around a save: it makes way for it, removes what retention lets go, and finishes what
//! a killed process left.

use std::path::{Path, PathBuf};

use crate::disk::temporary::{sweep, temporary_name};
use crate::disk::write::sync_dir;
use crate::store::Store;
use crate::store::load::{Found, glance, list_on, verify};
use crate::store::names::{BROKEN, GONE, OLD, is_unfinished, sibling, step_of};
use crate::store::record::Record;
use crate::store::retention::Candidate;
use crate::tensors::error::{Error, Result, Skipped, io};

/// A checkpoint that looks complete by its names and sizes.
pub(crate) struct Complete {
    pub(crate) path: PathBuf,
    pub(crate) candidate: Candidate,
    /// The SHA-256 of its `manifest.json`.
    pub(crate) manifest: String,
}

impl Complete {
    /// Whether a record says that it is trusted.
    pub(crate) fn is_in(&self, record: &Record) -> bool {
        record.trusts(self.candidate.step, &self.manifest)
    }
}

impl Store {
    /// Refuses a step that is earlier than a complete checkpoint, and moves broken ones aside, and what has
    /// the step and cannot be read twice. Returns these. If a later one cannot be read for a reason that may
    /// pass, that is an error, and it stays where it is.
    pub(crate) fn make_way(&self, step: u64) -> Result<Vec<Skipped>> {
        let mut set_aside = Vec::new();
        for found in list_on(&*self.disk, &self.dir)?.into_iter().filter(|found| found.step >= step) {
            let is_same = found.step == step;
            let mut verified = verify(&*self.disk, &found.path, found.step);
            // An error that does not pass would keep this step from ever being saved.
            if is_same && verified.as_ref().is_err_and(|error| !error.is_of_contents()) {
                verified = verify(&*self.disk, &found.path, found.step);
            }
            match verified {
                Err(error) if error.is_of_contents() || is_same => {
                    let path = self.aside(&found.path, BROKEN)?;
                    self.rename(&found.path, &path)?;
                    set_aside.push(Skipped { path, reason: error.to_string() });
                }
                Err(error) => return Err(error),
                Ok(_) if found.step > step => {
                    return Err(Error::Behind { path: found.path, step, newest: found.step });
                }
                Ok(_) => {}
            }
        }
        Ok(set_aside)
    }

    /// Returns the checkpoints that retention lets go. Those that do not look complete, or cannot be looked
    /// at now, do not count and are not removed.
    pub(crate) fn surplus(&self, record: &Record) -> Result<Vec<PathBuf>> {
        let found = self.readable()?;
        let candidates: Vec<Candidate> = found.iter().map(|found| found.candidate).collect();
        let trusted = found.iter().find(|found| found.is_in(record)).map(|found| found.candidate.step);
        let stays = self.options.stays(&candidates, trusted);
        Ok(found.into_iter().zip(stays).filter(|(_, stays)| !stays).map(|(found, _)| found.path).collect())
    }

    /// Returns the checkpoints that look complete as far as they can be looked at, newest first.
    pub(crate) fn readable(&self) -> Result<Vec<Complete>> {
        let found = list_on(&*self.disk, &self.dir)?.into_iter();
        Ok(found.filter_map(|found| self.complete(found).ok().flatten()).collect())
    }

    /// Returns a checkpoint if it looks complete.
    ///
    /// # Errors
    /// It cannot be looked at, for a reason that may pass.
    pub(crate) fn complete(&self, Found { step, path }: Found) -> Result<Option<Complete>> {
        let (found, manifest) = match glance(&*self.disk, &path) {
            Err(error) if error.is_of_contents() => return Ok(None),
            glanced => glanced?,
        };
        let candidate = Candidate { step, metric: self.options.rank(found.measured().as_ref()) };
        Ok((found.step == step).then_some(Complete { path, candidate, manifest }))
    }

    /// Finishes or undoes what a killed process left, as far as possible. Returns what could not be moved.
    pub(crate) fn recover(&self) -> Result<Vec<Skipped>> {
        let mut stuck = Vec::new();
        sweep(&*self.disk, &self.checkpoints)?;
        for name in self.names()? {
            let path = self.checkpoints.join(&name);
            if is_unfinished(&name) {
                stuck.extend(Skipped::of(&path, self.disk.remove(&path).map_err(io(&path, "remove"))));
            } else if let Some(plain) = name.strip_prefix(OLD).filter(|plain| step_of(plain).is_some()) {
                let place = self.checkpoints.join(plain);
                let replaced = self.disk.is_dir(&place);
                stuck.extend(Skipped::of(
                    &path,
                    if replaced { self.retire(&path) } else { self.rename(&path, &place) },
                ));
            }
        }
        Ok(stuck)
    }

    /// Removes a complete checkpoint. It is renamed first, so that at no time there is a partial one under
    /// its name.
    pub(crate) fn retire(&self, path: &Path) -> Result<()> {
        let plain = sibling(path, GONE);
        let name = plain.file_name().unwrap_or_default().to_string_lossy();
        let gone = path.with_file_name(temporary_name(&*self.disk, &name));
        self.rename(path, &gone)?;
        self.disk.remove(&gone).map_err(io(&gone, "remove"))
    }

    /// Returns a path with a prefix to its name, and with a number where that name is taken.
    pub(crate) fn aside(&self, path: &Path, prefix: &str) -> Result<PathBuf> {
        let names = self.names()?;
        let taken = |path: &Path| names.iter().any(|name| path.ends_with(name));
        let mut aside = sibling(path, prefix);
        for n in 2.. {
            if !taken(&aside) {
                break;
            }
            aside = sibling(path, &format!("{prefix}{n}-"));
        }
        Ok(aside)
    }

    /// Returns the names in the directory of checkpoints.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        self.disk.list(&self.checkpoints).map_err(io(&self.checkpoints, "list"))
    }

    /// Renames within the directory of checkpoints, and makes that durable.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to).map_err(io(from, "rename"))?;
        sync_dir(&*self.disk, &self.checkpoints)
    }
}
