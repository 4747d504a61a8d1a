//! Trusted checkpoints: what an audit of the run's steps says of the checkpoints that were made meanwhile.
//!
//! ```text
//! complete  --the audit passes: trust()-->     trusted: recorded in `trusted.json`, the newest always stays
//!           --the audit fails: distrust()-->   distrusted: recorded in `trusted.json`, not found any more
//!                                                   '--one rename each-->  suspect-step-N, for a person
//! ```
//!
//! Several checkpoints are distrusted at one instant, at which the new record takes the old one's place: from
//! then on no reader finds them, under whatever name they are. After that they are renamed, and when all
//! renames are durable, the mark is taken from the record. If the process ends in between, the next
//! [`Store::open`](crate::Store::open) or save goes on, and refuses to save before that is done. Without the
//! mark, a process that ends between two renames would leave a suspect as the newest checkpoint, whatever
//! their order.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::disk::temporary::FILE;
use crate::disk::write::{replace_file, sync_dir};
use crate::store::load::{Found, all_on, list_on};
use crate::store::names::{LOCK, SUSPECT, TRUSTED, suspect_of};
use crate::store::record::{MOST, Mark, Record};
use crate::store::upkeep::Complete;
use crate::store::{Store, no_link};
use crate::tensors::error::{Error, Result, Skipped, io};

impl Store {
    /// Notes that an audit has passed: every complete checkpoint of a step up to `upto` becomes trusted. Only
    /// checkpoints later than the newest trusted one are considered. So a checkpoint that was incomplete when
    /// a later one became trusted does not become trusted afterwards. Returns the newest trusted step.
    ///
    /// Only the manifests of the newest trusted checkpoint and of later ones are read. Complete means that
    /// the sizes of the files are those in the manifest. Nothing is written if nothing changes. Of more than
    /// 1000 trusted checkpoints the newest 1000 are recorded. When this returns, the record is durable. A
    /// checkpoint that is saved again later is not trusted, unless it is the same byte for byte.
    ///
    /// # Errors
    /// The directory cannot be listed or is not the one that was opened, the record cannot be written, or the
    /// record or a manifest cannot be read for a reason that may pass. The record then stays as it is.
    pub fn trust(&mut self, upto: u64) -> Result<Option<u64>> {
        self.still_here()?;
        let (record, _) = self.record()?;
        let marks: BTreeMap<u64, &Mark> = record.trusted.iter().map(|mark| (mark.step, mark)).collect();
        let (mut trusted, mut is_known) = (Vec::new(), false);
        for Found { step, path } in list_on(&*self.disk, &self.dir)? {
            let mark = marks.get(&step).copied();
            if is_known {
                // An earlier call has looked at what is behind a trusted one.
                trusted.extend(mark.cloned());
            } else if (step <= upto || mark.is_some())
                && let Some(Complete { manifest, .. }) = self.complete(Found { step, path })?
            {
                is_known = mark.is_some_and(|mark| mark.manifest == manifest);
                if step <= upto || is_known {
                    trusted.push(Mark { step, manifest });
                }
            }
        }
        trusted.truncate(MOST);
        let newest = trusted.first().map(|mark| mark.step);
        self.keep(&record, Record { trusted, ..record.clone() })?;
        Ok(newest)
    }

    /// Returns step and directory of the newest trusted checkpoint, or `None` if none is trusted.
    ///
    /// Its manifest was compared with the SHA-256 in the record, and the sizes of its files with the
    /// manifest. [`load`](crate::load) compares their contents. A record that cannot be read counts as empty;
    /// [`Saved`] tells the reason.
    ///
    /// [`Saved`]: crate::Saved
    ///
    /// # Errors
    /// The directory cannot be listed, or the record or the manifest of the checkpoint cannot be read for a
    /// reason that may pass.
    pub fn trusted(&self) -> Result<Option<(u64, PathBuf)>> {
        let (record, _) = self.record()?;
        let mut found = list_on(&*self.disk, &self.dir)?.into_iter();
        let newest = found.find_map(|found| self.complete_in(found, &record).transpose()).transpose()?;
        Ok(newest.map(|found| (found.candidate.step, found.path)))
    }

    /// Returns step and directory of each trusted checkpoint that can be read, newest first. What was
    /// compared is what [`Store::trusted`] says.
    ///
    /// # Errors
    /// The directory cannot be listed, or the record cannot be read for a reason that may pass.
    pub fn all_trusted(&self) -> Result<Vec<(u64, PathBuf)>> {
        let (record, _) = self.record()?;
        let found = list_on(&*self.disk, &self.dir)?.into_iter();
        let found = found.filter_map(|found| self.complete_in(found, &record).ok().flatten());
        Ok(found.map(|found| (found.candidate.step, found.path)).collect())
    }

    /// Returns whether the checkpoint of a step is trusted. What is compared is what [`Store::trusted`] says.
    /// Other checkpoints are not looked at.
    ///
    /// # Errors
    /// Those of [`Store::trusted`].
    pub fn is_trusted(&self, step: u64) -> Result<bool> {
        let (record, _) = self.record()?;
        let found = list_on(&*self.disk, &self.dir)?.into_iter().find(|found| found.step == step);
        Ok(found.map(|found| self.complete_in(found, &record)).transpose()?.flatten().is_some())
    }

    /// Returns a checkpoint if it looks complete and a record says that it is trusted. Those of other steps
    /// are not looked at.
    fn complete_in(&self, found: Found, record: &Record) -> Result<Option<Complete>> {
        if !record.trusted.iter().any(|mark| mark.step == found.step) {
            return Ok(None);
        }
        Ok(self.complete(found)?.filter(|found| found.is_in(record)))
    }

    /// Notes that an audit has failed: all checkpoints of steps later than `after`, trusted ones included,
    /// may hold wrong numbers. They are renamed `suspect-step-...`, and are not found any more. Returns their
    /// new paths, newest first.
    ///
    /// A person may look at them. The suspects of earlier calls are removed, as far as possible, if there are
    /// new ones, and [`Store::clear`] removes all.
    ///
    /// # Errors
    /// The record could not be written (then the checkpoints are renamed nevertheless), or a checkpoint could
    /// not be renamed. If the record was written, no suspect is found any more, and the next call, save or
    /// [`Store::open`] goes on.
    pub fn distrust(&mut self, after: u64) -> Result<Vec<PathBuf>> {
        self.still_here()?;
        self.recover()?;
        let (record, _) = self.record()?;
        let goes_on = record.distrusted_after.is_some();
        let after = record.distrusted_after.map_or(after, |earlier| earlier.min(after));
        let mut trusted = record.trusted.clone();
        trusted.retain(|mark| mark.step <= after);
        if !goes_on {
            if !all_on(&*self.disk, &self.dir)?.iter().any(|found| found.step > after) {
                self.keep(&record, Record { trusted, distrusted_after: None })?;
                return Ok(Vec::new());
            }
            self.remove_suspects();
        }
        let marked = Record { trusted, distrusted_after: Some(after) };
        let kept = self.keep(&record, marked.clone());
        let renamed = self.set_aside(after);
        kept?;
        let renamed = renamed?;
        self.keep(&marked, Record { distrusted_after: None, ..marked.clone() })?;
        Ok(renamed)
    }

    /// Renames the suspects that a killed process left under their names. Until this succeeds nothing can be
    /// saved, because a later suspect would be in the way. Returns the record of trusted checkpoints, and the
    /// problem if the file is damaged.
    pub(crate) fn finish_distrust(&mut self) -> Result<(Record, Option<Skipped>)> {
        let (record, problem) = self.record()?;
        let Some(after) = record.distrusted_after else { return Ok((record, problem)) };
        // The process that wrote the record may have been killed before that was durable.
        sync_dir(&*self.disk, &self.checkpoints)?;
        self.set_aside(after)?;
        let done = Record { distrusted_after: None, ..record.clone() };
        self.keep(&record, done.clone())?;
        Ok((done, None))
    }

    /// Returns the record of trusted checkpoints, and the problem if the file is damaged.
    pub(crate) fn record(&self) -> Result<(Record, Option<Skipped>)> {
        Record::read(&*self.disk, &self.checkpoints)
    }

    /// Removes all suspects, and the record.
    pub(crate) fn forget_trust(&mut self) -> Result<()> {
        if !self.disk.is_dir(&self.checkpoints) {
            return Ok(());
        }
        let names = self.names()?;
        for name in names.iter().filter(|name| suspect_of(name).is_some()) {
            self.retire(&self.checkpoints.join(name))?;
        }
        if names.iter().any(|name| name == TRUSTED) {
            let record = self.checkpoints.join(TRUSTED);
            self.disk.remove(&record).map_err(io(&record, "remove"))?;
            sync_dir(&*self.disk, &self.checkpoints)?;
        }
        Ok(())
    }

    /// Renames the checkpoints of later steps, newest first, and those that made room for another of their
    /// step. When this returns, the new names are durable.
    fn set_aside(&self, after: u64) -> Result<Vec<PathBuf>> {
        let mut renamed = Vec::new();
        for found in all_on(&*self.disk, &self.dir)?.into_iter().filter(|found| found.step > after) {
            let aside = self.aside(&found.path, SUSPECT)?;
            self.rename(&found.path, &aside)?;
            renamed.push(aside);
        }
        // An earlier attempt may have renamed without syncing.
        sync_dir(&*self.disk, &self.checkpoints)?;
        Ok(renamed)
    }

    fn remove_suspects(&self) {
        for name in self.names().unwrap_or_default().iter().filter(|name| suspect_of(name).is_some()) {
            // A suspect that stays harms nobody, and is tried again with the next ones.
            let _ = self.retire(&self.checkpoints.join(name));
        }
    }

    /// Makes a new record durable in place of the one that was read. Writes nothing if they are equal.
    fn keep(&mut self, read: &Record, new: Record) -> Result<()> {
        let path = self.checkpoints.join(TRUSTED);
        if *read != new {
            let text = new.to_json().map_err(|error| Error::Unstorable { reason: error.to_string() })?;
            self.record_is_durable = false;
            replace_file(&*self.disk, &path, FILE, std::iter::once(&*text))?;
        } else if !self.record_is_durable {
            sync_dir(&*self.disk, &self.checkpoints)?;
        }
        self.record_is_durable = true;
        Ok(())
    }

    /// Refuses a directory that is gone, or has another one or a link in its place: what is there is not what
    /// was audited.
    fn still_here(&self) -> Result<()> {
        no_link(&*self.disk, &self.checkpoints)?;
        let lock = self.dir.join(LOCK);
        if self.lock.is_at(&*self.disk, &lock) {
            return Ok(());
        }
        Err(io(&lock, "find the lock that this run holds")(ErrorKind::NotFound.into()))
    }
}
