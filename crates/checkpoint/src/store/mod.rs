//! The directory of a run, held open for writing.
//!
//! A save moves through these states; each arrow is one rename, made durable before the next begins:
//!
//! ```text
//! .tmp-step-N  --complete and synced-->  step-N  --retention lets it go-->  .tmp-gone-step-N  -->  nothing
//!                                          |  its step is saved again
//!                                          |--> .old-step-N  --the new one is durable-->  .tmp-gone-step-N
//!                                          |  it is distrusted: this is recorded before the renames
//!                                          '--> suspect-step-N  --others are distrusted-->  .tmp-gone-...
//! ```
//!
//! Each `.tmp-` name has a suffix besides, which nobody can guess.
//!
//! If a save is interrupted, `Store::recover` finishes it: `.tmp-...` is removed, and `.old-step-N` is put
//! back if no step-N took its place. If a distrust is interrupted, `Store::finish_distrust` renames the rest.
//! So a directory that has its final name is complete from its first instant to its last.

pub(crate) mod contents;
mod copy;
pub(crate) mod load;
mod lock;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod retention;
mod seal;
mod trust;
pub(crate) mod upkeep;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::temporary::{FILE, sweep, temporary_name};
use crate::disk::write::{create_dirs, parent, probe, replace_model, sync_dir, write_file, write_files};
use crate::disk::{Disk, StdDisk};
use crate::model::export::{Export, Exported, export_on};
use crate::store::contents::Contents;
use crate::store::load::{Loaded, all_on, glance, list_on, list_usable, newest_on};
use crate::store::lock::Lock;
use crate::store::manifest::{LONGEST_TRAINER, Manifest};
use crate::store::names::{
    CARRIES, CHECKPOINTS, LATEST, LOCK, MANIFEST, MODEL, OLD, OPTIMIZER, TRAINER, sibling, step_name,
};
use crate::store::record::Record;
use crate::store::retention::{Candidate, Metric, Options};
use crate::tensors::encoded::Encoded;
use crate::tensors::error::{self, Error, Result, Skipped};
use crate::tensors::json::{self, heaviest};
use crate::tensors::tensor::Tensors;

/// The result of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The directory of the new checkpoint, which is durable.
    pub path: PathBuf,
    /// The older checkpoints and leftovers that could not be removed. They deserve a warning. The next save
    /// tries again.
    pub not_removed: Vec<Skipped>,
    /// The checkpoints of this step and later ones that were broken, each by the name that it has now, and
    /// why. They deserve a warning: they are kept.
    pub set_aside: Vec<Skipped>,
    /// What was gone when the step was saved, and was made and locked anew. This deserves a warning.
    pub reopened: Option<Reopened>,
    /// The record of trusted checkpoints, if it is there and cannot be read, and the reason. This deserves a
    /// warning: no checkpoint is trusted, nor kept because it was, until [`Store::trust`] is called again.
    pub record_problem: Option<Skipped>,
}

/// What was gone when a step was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reopened {
    /// The directory was gone, or another one was in its place. The checkpoints before this one may be
    /// elsewhere.
    Directory,
    /// The file `.lock` alone, by which a second run is kept away: somebody has removed or replaced it.
    Lock,
}

/// A run's directory, opened for saving and locked against a second run until dropped.
#[derive(Debug)]
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) checkpoints: PathBuf,
    pub(crate) options: Options,
    /// Whether DIR was a link when it was opened. It may not become one while it is open.
    linked: bool,
    /// The file system that the store was opened on.
    given: Arc<dyn Disk>,
    /// The same, seen from DIR as it was when it was opened or made anew.
    pub(crate) disk: Arc<dyn Disk>,
    lock: Lock,
    /// Whether the record of trusted checkpoints that is read is known to be the one that is durable.
    record_is_durable: bool,
}

impl Store {
    /// Opens DIR, and makes it if it is not there. DIR may be a link, but not `DIR/checkpoints`:
    /// what is written and removed is in DIR.
    ///
    /// # Errors
    /// DIR cannot be made, read or written, or `DIR/checkpoints` is a link; [`Error::Locked`] if another
    /// store has it open. The error names path and reason.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, Options::default(), Arc::new(StdDisk))
    }

    /// Opens DIR with options, on another file system.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_with(dir: impl AsRef<Path>, options: Options, disk: Arc<dyn Disk>) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        let checkpoints = dir.join(CHECKPOINTS);
        let given = disk;
        let linked = given.is_link(&dir);
        let disk = anchor(&given, &dir, true)?;
        create_dirs(&*disk, &checkpoints)?;
        no_link(&*disk, &checkpoints)?;
        sync_names(&*given, &*disk, &dir)?;
        let lock = Lock::acquire(&*disk, &dir.join(LOCK))?;
        sweep(&*disk, &dir)?;
        probe(&*disk, &dir)?;
        probe(&*disk, &checkpoints)?;
        let record_is_durable = false;
        let mut store = Self { dir, checkpoints, options, linked, given, disk, lock, record_is_durable };
        store.recover()?;
        store.finish_distrust()?;
        Ok(store)
    }

    /// Returns DIR.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Saves a checkpoint. When this returns, it is complete and durable; until then its name does not exist.
    ///
    /// A checkpoint of the same step is replaced, and removed only after its successor is durable. A complete
    /// one of a later step is [`Error::Behind`]: it would be found in place of this one. Broken ones in the
    /// way are renamed `broken-step-...` and kept. A step later than 2^53 is [`Error::Step`].
    ///
    /// # Errors
    /// [`Error::Behind`] and [`Error::Step`]; contents that cannot be stored or would be too large to be read
    /// again; the checkpoint cannot be written, and those before it stay; the directory has vanished and
    /// another store has locked what took its place.
    pub fn save(&mut self, step: u64, contents: &Contents) -> Result<Saved> {
        self.save_with_metric(step, contents, None)
    }

    /// Saves as [`Store::save`] does, with the metric measured at this step, for [`Options::best`]. It is
    /// stored in the manifest. A metric that is not finite counts as none.
    ///
    /// # Errors
    /// Those of [`Store::save`].
    pub fn save_with_metric(
        &mut self,
        step: u64,
        contents: &Contents,
        metric: Option<&Metric>,
    ) -> Result<Saved> {
        if step > LATEST {
            return Err(Error::Step { step, latest: LATEST });
        }
        let write = |store: &Self, temporary: &Path| store.write(temporary, step, contents, metric);
        self.place(step, Self::surplus, write)
    }

    /// Has a checkpoint written into a temporary directory, gives it its name and removes what it replaces,
    /// and those older ones that `lets_go` returns by the record of trusted ones.
    fn place(
        &mut self,
        step: u64,
        lets_go: impl FnOnce(&Self, &Record) -> Result<Vec<PathBuf>>,
        write: impl FnOnce(&Self, &Path) -> Result<()>,
    ) -> Result<Saved> {
        let reopened = self.reopen_if_gone()?;
        let mut not_removed = self.recover()?;
        let (record, record_problem) = self.finish_distrust()?;
        let set_aside = self.make_way(step)?;
        let temporary = self.checkpoints.join(temporary_name(&*self.disk, &step_name(step)));
        let path = self.checkpoints.join(step_name(step));
        let saved = write(self, &temporary).and_then(|()| self.publish(&temporary, &path));
        let surplus = saved.and_then(|replaced| Ok((replaced, lets_go(self, &record)?)));
        match surplus {
            Ok((replaced, surplus)) => {
                let unwanted = replaced.into_iter().chain(surplus);
                not_removed.extend(unwanted.filter_map(|old| Skipped::of(&old, self.retire(&old))));
                Ok(Saved { path, not_removed, set_aside, reopened, record_problem })
            }
            Err(error) => {
                // The error that is reported is that of saving. A leftover is removed at the next save.
                let _ = self.disk.remove(&temporary);
                Err(error)
            }
        }
    }

    /// Returns the newest complete checkpoint of this directory, as [`newest`](crate::newest) does.
    ///
    /// # Errors
    /// Those of [`newest`](crate::newest).
    pub fn newest(&self) -> Result<Option<Loaded>> {
        newest_on(&*self.disk, &self.dir)
    }

    /// Returns the step of the newest checkpoint that looks complete by its names and sizes. Nothing is
    /// verified.
    ///
    /// # Errors
    /// The directory cannot be listed. The record of trusted checkpoints, or the manifest of this or a newer
    /// checkpoint, cannot be read for a reason that may pass.
    pub fn newest_step(&self) -> Result<Option<u64>> {
        let mut found = list_on(&*self.disk, &self.dir)?.into_iter();
        let newest = found.find_map(|found| self.complete(found).transpose()).transpose()?;
        Ok(newest.map(|found| found.candidate.step))
    }

    /// Returns the step and directory of the best checkpoint by [`Options::best`], or `None` without that
    /// option or any metric. Checkpoints that cannot be read do not count. If the record of trusted
    /// checkpoints cannot be read, any of them may be a suspect, which is [`Error::Record`].
    ///
    /// # Errors
    /// [`Error::Record`], and those of [`Store::newest_step`].
    pub fn best(&self) -> Result<Option<(u64, PathBuf)>> {
        list_usable(&*self.disk, &self.dir)?;
        let mut found = self.readable()?;
        let candidates: Vec<Candidate> = found.iter().map(|found| found.candidate).collect();
        let best = self.options.best_of(&candidates).first().copied();
        let at = found.iter().position(|found| Some(found.candidate.step) == best);
        Ok(at.map(|at| found.swap_remove(at)).map(|found| (found.candidate.step, found.path)))
    }

    /// Removes every checkpoint, suspects included, for a run that starts anew in an old directory on
    /// purpose.
    ///
    /// # Errors
    /// The directory cannot be listed, or a checkpoint or the record of trusted ones cannot be removed.
    pub fn clear(&mut self) -> Result<()> {
        all_on(&*self.disk, &self.dir)?.iter().try_for_each(|found| self.retire(&found.path))?;
        self.forget_trust()
    }

    /// Writes `DIR/model.safetensors`, the final model, as [`write_model`](crate::write_model) does.
    ///
    /// # Errors
    /// Those of [`write_model`](crate::write_model).
    pub fn write_model(&self, tensors: &Tensors) -> Result<PathBuf> {
        create_dirs(&*self.disk, &self.dir)?;
        let path = self.dir.join(MODEL);
        replace_model(&*self.disk, &path, FILE, tensors)?;
        Ok(path)
    }

    /// Writes `DIR/model.safetensors`, and `DIR/model.json` if there is a description, as
    /// [`export_model`](crate::export_model) does.
    ///
    /// # Errors
    /// Those of [`export_model`](crate::export_model).
    pub fn export_model(&self, tensors: &Tensors, export: &Export) -> Result<Exported> {
        create_dirs(&*self.disk, &self.dir)?;
        export_on(&*self.disk, &self.dir.join(MODEL), FILE, tensors, export)
    }

    /// Makes and locks the directory again if it has vanished under the run, and locks another that took its
    /// place. Returns what was so.
    fn reopen_if_gone(&mut self) -> Result<Option<Reopened>> {
        let path = self.dir.join(LOCK);
        no_link(&*self.disk, &self.checkpoints)?;
        if self.disk.is_dir(&self.checkpoints) && self.lock.is_at(&*self.disk, &path) {
            return Ok(None);
        }
        let is_same = self.given.is_dir(&self.checkpoints) && self.lock.is_of(&self.dir);
        self.disk = anchor(&self.given, &self.dir, self.linked)?;
        create_dirs(&*self.disk, &self.checkpoints)?;
        sync_names(&*self.given, &*self.disk, &self.dir)?;
        if !self.lock.is_at(&*self.disk, &path) {
            self.lock = Lock::acquire(&*self.disk, &path)?;
        }
        Ok(Some(if is_same { Reopened::Lock } else { Reopened::Directory }))
    }

    fn write(&self, temporary: &Path, step: u64, contents: &Contents, metric: Option<&Metric>) -> Result<()> {
        let disk = &*self.disk;
        let (model, optimizer) = (Encoded::new(&contents.model)?, Encoded::new(&contents.optimizer)?);
        let carries = Encoded::new(&contents.carries)?;
        let json = |error: serde_json::Error| Error::Unstorable { reason: error.to_string() };
        if !json::is_at_most(&contents.trainer, json::DEEPEST) {
            let reason = format!("{TRAINER} has values that are nested more than {} deep", json::DEEPEST);
            return Err(Error::Unstorable { reason });
        }
        let mut trainer = serde_json::to_vec_pretty(&contents.trainer).map_err(json)?;
        trainer.push(b'\n');
        if trainer.len() as u64 > LONGEST_TRAINER {
            let (bytes, most) = (trainer.len(), heaviest(&contents.trainer));
            let reason =
                format!("{TRAINER} takes {bytes} bytes, more than {LONGEST_TRAINER}, most of them {most}");
            return Err(Error::Unstorable { reason });
        }
        if json::cost(&contents.trainer) > json::PARSED_BYTES {
            let (budget, most) = (json::PARSED_BYTES, heaviest(&contents.trainer));
            let reason =
                format!("{TRAINER} would take more than {budget} bytes when it is read, most of them {most}");
            return Err(Error::Unstorable { reason });
        }
        disk.create_dir(temporary).map_err(error::io(temporary, "create a directory"))?;
        let mut files = vec![
            (temporary.join(MODEL), model.parts().collect()),
            (temporary.join(OPTIMIZER), optimizer.parts().collect()),
            (temporary.join(TRAINER), vec![&*trainer]),
        ];
        if !contents.carries.is_empty() {
            files.push((temporary.join(CARRIES), carries.parts().collect()));
        }
        let manifest = Manifest::new(step, metric, write_files(disk, &files)?);
        let manifest = manifest.into_json().map_err(json)?;
        write_file(disk, &temporary.join(MANIFEST), std::iter::once(&*manifest))?;
        sync_dir(disk, temporary)
    }

    /// Gives a complete checkpoint its name, and looks whether it is what was written. Returns the path of
    /// the one that had the name before, now under another.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<Option<PathBuf>> {
        let old = self.disk.is_dir(path).then(|| sibling(path, OLD));
        if let Some(old) = &old {
            self.rename(path, old)?;
        }
        self.rename(temporary, path)?;
        if let Err(error) = glance(&*self.disk, path) {
            // Somebody has put another directory in its place while it was written.
            self.rename(path, temporary)?;
            old.iter().try_for_each(|old| self.rename(old, path))?;
            return Err(error::io(path, "save")(io::Error::other(format!(
                "it was changed meanwhile: {error}"
            ))));
        }
        Ok(old)
    }
}

/// Makes a directory if it is not there, and returns the disk that keeps to it, if there is such.
fn anchor(disk: &Arc<dyn Disk>, dir: &Path, may_be_link: bool) -> Result<Arc<dyn Disk>> {
    create_dirs(&**disk, dir)?;
    let anchored = disk.anchored(dir, may_be_link).map_err(error::io(dir, "open"))?;
    Ok(anchored.unwrap_or_else(|| Arc::clone(disk)))
}

/// Makes it durable that DIR and its directory of checkpoints exist, also if they were there before: whoever
/// made them may have failed to do that.
fn sync_names(given: &dyn Disk, disk: &dyn Disk, dir: &Path) -> Result<()> {
    use ErrorKind::{
        InvalidInput, NotADirectory, NotFound, Other, PermissionDenied, ReadOnlyFilesystem, Unsupported,
    };
    sync_dir(disk, dir)?;
    let above = parent(dir);
    // A disk may have nothing above DIR, and who may use DIR may not be allowed to open or change what is
    // above.
    let is_not_ours =
        [InvalidInput, NotADirectory, NotFound, Other, PermissionDenied, ReadOnlyFilesystem, Unsupported];
    match given.sync_dir(&above) {
        Err(error) if is_not_ours.contains(&error.kind()) => Ok(()),
        result => result.map_err(error::io(&above, "sync")),
    }
}

/// Refuses a directory of checkpoints that is a link: whoever planted it chose where files are removed.
fn no_link(disk: &dyn Disk, checkpoints: &Path) -> Result<()> {
    if disk.is_link(checkpoints) {
        let reason =
            io::Error::new(ErrorKind::NotADirectory, "it is a link; link the run's directory instead");
        return Err(error::io(checkpoints, "write")(reason));
    }
    Ok(())
}
