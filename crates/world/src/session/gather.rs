//! Gathers: each rank gives a record and receives those of all. A gather is atomic: where ranks are lost, it
//! has happened on all that are left or on none.

use super::{Meeting, Records, Session, unpack_records};
use crate::error::WorldError;
use crate::message::Kind;

impl Session {
    /// Gives a record to all ranks and returns the records of all.
    ///
    /// # Errors
    /// [`WorldError::Changed`]: the gather has happened on none of those that are left.
    /// [`WorldError::Other`]: a rank concludes instead. Others end the run.
    pub fn gather(&mut self, record: &[u8]) -> Result<Records, WorldError> {
        self.meet((self.sequence, false), record)
    }

    /// Ends a part of the run: gives the reason for which it ended here, if it is an error, and returns those
    /// of all ranks. An operation in which another rank is fails there.
    ///
    /// # Errors
    /// As [`Session::gather`].
    pub fn conclude(&mut self, problem: Option<&str>) -> Result<Vec<(usize, Option<String>)>, WorldError> {
        let mut record = vec![u8::from(problem.is_some())];
        record.extend_from_slice(problem.unwrap_or_default().as_bytes());
        let records = self.meet((self.sequence, true), &record)?;
        Ok(records.into_iter().map(|(rank, record)| (rank, problem_of(&record))).collect())
    }

    fn meet(&mut self, meeting: Meeting, record: &[u8]) -> Result<Records, WorldError> {
        self.take_change()?;
        self.records.entry(meeting).or_default().insert(self.me, record.to_vec());
        self.send_all(if meeting.1 { Kind::Conclude } else { Kind::Gather }, 0, record);
        let missing = |session: &Self| {
            let records = session.records.get(&meeting);
            let has = |rank: &usize| records.is_some_and(|records| records.contains_key(rank));
            session.present.iter().copied().filter(|rank| !has(rank)).collect::<Vec<_>>()
        };
        let done = |session: &mut Self| match missing(session).is_empty() {
            true => Some(Ok(())),
            false => session.concluded().filter(|_| !meeting.1).map(Err),
        };
        match self.wait(done, missing)? {
            Some(met) => met?,
            None => {
                self.go_through_change()?;
                if self.sequence == meeting.0 {
                    self.changed = false;
                    return Err(WorldError::Changed);
                }
                return Ok(self.last.clone());
            }
        }
        let records = self.records.remove(&meeting).unwrap_or_default();
        self.completed(records.into_iter().collect());
        Ok(self.last.clone())
    }

    /// Notes that a gather is completed.
    fn completed(&mut self, records: Records) {
        self.last = records;
        self.sequence += 1;
        let next = self.sequence;
        self.records.retain(|(sequence, _), _| *sequence >= next);
        self.exchanges.forget_before(next);
    }

    /// Takes the records of a gather that other ranks have completed.
    pub(super) fn adopt(&mut self, packed: &[u8]) -> Result<(), WorldError> {
        let wrong = || WorldError::Link("records that are no records".into());
        self.completed(unpack_records(packed).ok_or_else(wrong)?);
        Ok(())
    }

    /// Returns the error of a rank that concludes instead of going on.
    pub(super) fn concluded(&self) -> Option<WorldError> {
        let (rank, record) = self.records.get(&(self.sequence, true))?.first_key_value()?;
        let why = problem_of(record).unwrap_or_else(|| "it has ended".to_owned());
        Some(WorldError::Other { rank: self.name(*rank), why })
    }
}

/// Returns the problem in the record of a rank that concludes.
fn problem_of(record: &[u8]) -> Option<String> {
    let (1, why) = record.split_first()? else { return None };
    Some(String::from_utf8_lossy(why).into_owned())
}
