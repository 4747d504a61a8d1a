//! The directory of a run, held open for writing.
//!
//! A save moves through these states; each arrow is one rename, made durable before the next begins:
//!
//! ```text
//! .tmp-step-N  --complete and synced-->  step-N  --K newer ones are durable-->  .tmp-gone-step-N  -->  nothing
//!                                          |  its step is saved again
//!                                          +--> .old-step-N  --the new step-N is durable-->  .tmp-gone-step-N
//! ```
//!
//! Whatever is interrupted, [`Store::recover`] finishes: `.tmp-...` is removed; `.old-step-N` is put back when no
//! step-N took its place. So a directory that has its final name is complete from its first instant to its last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Contents;
use crate::disk::{Disk, StdDisk};
use crate::error::{Error, Result, Skipped, io};
use crate::format::Encoded;
use crate::load::{Loaded, list_on, newest_on, verify};
use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::names::{
    CHECKPOINTS, LOCK, MANIFEST, MODEL, OLD, OPTIMIZER, TEMPORARY, TRAINER, step_name, step_of,
};
use crate::tensor::Tensors;
use crate::write::{create_dirs, probe, replace_model, sync_dir, write_file};

/// How a [`Store`] goes about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many checkpoints are kept, the one just saved among them; 0 keeps all. 3 by default.
    pub keep: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { keep: 3 }
    }
}

/// What a save did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The new checkpoint, durable.
    pub path: PathBuf,
    /// Older ones and leftovers that could not be removed. Worth a warning; tried again at the next save.
    pub not_removed: Vec<Skipped>,
}

/// A run's directory, opened for saving and locked against a second run until dropped.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    checkpoints: PathBuf,
    options: Options,
    disk: Arc<dyn Disk>,
    _lock: Lock,
}

impl Store {
    /// Opens DIR, making it if need be. Fails now, naming path and reason, if it cannot be written or is in use.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, Options::default(), Arc::new(StdDisk))
    }

    /// Opens DIR with options, on another file layer.
    pub fn open_with(dir: impl AsRef<Path>, options: Options, disk: Arc<dyn Disk>) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        let checkpoints = dir.join(CHECKPOINTS);
        create_dirs(&*disk, &checkpoints)?;
        let lock = Lock::acquire(&dir.join(LOCK))?;
        probe(&*disk, &dir)?;
        probe(&*disk, &checkpoints)?;
        let store = Self { dir, checkpoints, options, disk, _lock: lock };
        store.recover()?;
        Ok(store)
    }

    /// DIR.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Saves a checkpoint: when this returns, it is complete and durable; until then its name does not exist.
    ///
    /// A checkpoint of the same step is replaced, and lost only after its successor is durable. A complete one of a later
    /// step is [`Error::Behind`]: it would be found in place of this one. Broken ones in the way are renamed
    /// `broken-step-...` and kept.
    pub fn save(&mut self, step: u64, contents: &Contents) -> Result<Saved> {
        let mut not_removed = self.recover()?;
        self.make_way(step)?;
        let temporary = self.checkpoints.join(format!("{TEMPORARY}{}", step_name(step)));
        let path = self.checkpoints.join(step_name(step));
        let saved = self.write(&temporary, step, contents).and_then(|()| self.publish(&temporary, &path));
        let surplus = saved.and_then(|replaced| Ok((replaced, self.surplus()?)));
        match surplus {
            Ok((replaced, surplus)) => {
                let unwanted = replaced.into_iter().chain(surplus);
                not_removed.extend(unwanted.filter_map(|old| skipped(&old, self.retire(&old))));
                Ok(Saved { path, not_removed })
            }
            Err(error) => {
                // The error that is reported is the one that matters; a leftover goes at the next save.
                let _ = self.disk.remove(&temporary);
                Err(error)
            }
        }
    }

    /// [`newest`](crate::newest) of this directory.
    pub fn newest(&self) -> Result<Option<Loaded>> {
        newest_on(&*self.disk, &self.dir)
    }

    /// Removes every checkpoint, for a run that starts anew in an old directory on purpose.
    pub fn clear(&mut self) -> Result<()> {
        list_on(&*self.disk, &self.dir)?.iter().try_for_each(|found| self.retire(&found.path))
    }

    /// Writes `DIR/model.safetensors`, the final model, as [`write_model`](crate::write_model) does.
    pub fn write_model(&self, tensors: &Tensors) -> Result<PathBuf> {
        let path = self.dir.join(MODEL);
        replace_model(&*self.disk, &path, tensors)?;
        Ok(path)
    }

    fn write(&self, temporary: &Path, step: u64, contents: &Contents) -> Result<()> {
        let disk = &*self.disk;
        let (model, optimizer) = (Encoded::new(&contents.model)?, Encoded::new(&contents.optimizer)?);
        let json = |error: serde_json::Error| Error::Unstorable { reason: error.to_string() };
        let mut trainer = serde_json::to_vec_pretty(&contents.trainer).map_err(json)?;
        trainer.push(b'\n');
        disk.create_dir(temporary).map_err(io(temporary, "create a directory"))?;
        let files = vec![
            write_file(disk, &temporary.join(MODEL), model.parts())?,
            write_file(disk, &temporary.join(OPTIMIZER), optimizer.parts())?,
            write_file(disk, &temporary.join(TRAINER), std::iter::once(&*trainer))?,
        ];
        let manifest = Manifest::new(step, files).to_json().map_err(json)?;
        write_file(disk, &temporary.join(MANIFEST), std::iter::once(&*manifest))?;
        sync_dir(disk, temporary)
    }

    /// Gives a complete checkpoint its name. Returns the one that had it before, now under another.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<Option<PathBuf>> {
        let old = self.disk.is_dir(path).then(|| sibling(path, OLD));
        if let Some(old) = &old {
            self.rename(path, old)?;
        }
        self.rename(temporary, path)?;
        Ok(old)
    }

    /// Refuses a step that is behind a complete checkpoint, and moves broken ones aside.
    fn make_way(&self, step: u64) -> Result<()> {
        for found in list_on(&*self.disk, &self.dir)?.into_iter().filter(|found| found.step >= step) {
            if verify(&*self.disk, &found.path, found.step).is_err() {
                let mut aside = sibling(&found.path, "broken-");
                for n in 2.. {
                    if !self.disk.is_dir(&aside) {
                        break;
                    }
                    aside = sibling(&found.path, &format!("broken-{n}-"));
                }
                self.rename(&found.path, &aside)?;
            } else if found.step > step {
                return Err(Error::Behind { path: found.path, step, newest: found.step });
            }
        }
        Ok(())
    }

    /// All but the last K.
    fn surplus(&self) -> Result<Vec<PathBuf>> {
        let keep = if self.options.keep == 0 { usize::MAX } else { self.options.keep };
        let found = list_on(&*self.disk, &self.dir)?;
        Ok(found.into_iter().skip(keep).map(|found| found.path).collect())
    }

    /// Finishes or undoes what a killed process left, as far as it can. Returns what could not be moved.
    fn recover(&self) -> Result<Vec<Skipped>> {
        let mut stuck = Vec::new();
        for name in self.disk.list(&self.checkpoints).map_err(io(&self.checkpoints, "list"))? {
            let path = self.checkpoints.join(&name);
            if name.starts_with(TEMPORARY) {
                stuck.extend(skipped(&path, self.disk.remove(&path).map_err(io(&path, "remove"))));
            } else if let Some(plain) = name.strip_prefix(OLD).filter(|plain| step_of(plain).is_some()) {
                let place = self.checkpoints.join(plain);
                let replaced = self.disk.is_dir(&place);
                stuck.extend(skipped(
                    &path,
                    if replaced { self.retire(&path) } else { self.rename(&path, &place) },
                ));
            }
        }
        Ok(stuck)
    }

    /// Takes a complete checkpoint out of sight first and to pieces then: at no time is there a partial one.
    fn retire(&self, path: &Path) -> Result<()> {
        let gone = sibling(path, ".tmp-gone-");
        self.rename(path, &gone)?;
        self.disk.remove(&gone).map_err(io(&gone, "remove"))
    }

    /// A durable rename within the directory of checkpoints.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to).map_err(io(from, "rename"))?;
        sync_dir(&*self.disk, &self.checkpoints)
    }
}

/// The path with a prefix to its name, in place of the prefix it has.
fn sibling(path: &Path, prefix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{prefix}{}", name.strip_prefix(OLD).unwrap_or(&name)))
}

fn skipped(path: &Path, result: Result<()>) -> Option<Skipped> {
    Some(Skipped { path: path.to_owned(), reason: result.err()?.to_string() })
}
