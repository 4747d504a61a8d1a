//! Gathers: each rank gives a record and receives those of all. A gather is atomic: where ranks are lost, it
//! has happened on all that are left or on none.

use super::{ENDED, Meeting, Records, Session, unpack_records};
use crate::error::{ClusterError, Problem};
use crate::message::Kind;

impl Session {
    /// Gives a record to all ranks and returns the records of all. `what` says what the records are.
    ///
    /// # Errors
    /// [`ClusterError::Changed`]: the gather has happened on none of those that are left.
    /// [`ClusterError::Other`]: a rank concludes instead. [`ClusterError::Crossed`]: a rank gathers something
    /// else. Others end the run.
    pub fn gather(&mut self, what: &str, record: &[u8]) -> Result<Records, ClusterError> {
        let records = self.meet((self.sequence, false), named(what, record))?;
        let mut all = Records::new();
        let mut wanted: Option<(usize, String)> = None;
        for (rank, record) in records {
            let wrong = || ClusterError::Link(format!("rank {rank} sent a record without a name"));
            let (found, record) = name_of(record).ok_or_else(wrong)?;
            match &wanted {
                Some((first, wanted)) if *wanted != found => {
                    let (rank, other) = (self.name(rank), self.name(*first));
                    return Err(ClusterError::Crossed { rank, found, other, wanted: wanted.clone() });
                }
                Some(_) => {}
                None => wanted = Some((rank, found)),
            }
            all.push((rank, record));
        }
        Ok(all)
    }

    /// Returns the error of ranks that gather something while this one waits for their part of a sum. What a
    /// rank sends for a sum comes before what it gathers after that, so they have left it out.
    pub(super) fn crossed(&self, missing: &[usize]) -> Option<ClusterError> {
        let records = self.records.get(&(self.sequence, false))?;
        let (rank, record) = missing.iter().find_map(|rank| Some((*rank, records.get(rank)?)))?;
        let found = name_of(record.clone()).map(|(name, _)| name).unwrap_or_default();
        let (rank, other) = (self.name(rank), self.name(self.me));
        Some(ClusterError::Crossed { rank, found, other, wanted: "the sums of a step".into() })
    }

    /// Ends a part of the run: gives the reason for which it ended here, if it is an error, and returns those
    /// of all ranks. An operation in which another rank is fails there.
    ///
    /// # Errors
    /// As [`Session::gather`].
    pub fn conclude(
        &mut self,
        problem: Option<&Problem>,
    ) -> Result<Vec<(usize, Option<Problem>)>, ClusterError> {
        let records = self.meet((self.sequence, true), Problem::encode(problem))?;
        Ok(records.into_iter().map(|(rank, record)| (rank, Problem::decode(&record))).collect())
    }

    fn meet(&mut self, meeting: Meeting, record: Vec<u8>) -> Result<Records, ClusterError> {
        self.take_change()?;
        self.send_all(if meeting.1 { Kind::Conclude } else { Kind::Gather }, 0, &record);
        self.records.entry(meeting).or_default().insert(self.me, record);
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
                    return Err(ClusterError::Changed);
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
        self.in_a_row += 1;
        let next = self.sequence;
        self.records.retain(|(sequence, _), _| *sequence >= next);
        self.exchanges.forget_before(next);
    }

    /// Takes the records of a gather that other ranks have completed.
    pub(super) fn adopt(&mut self, packed: &[u8]) -> Result<(), ClusterError> {
        let wrong = || ClusterError::Link("records that are no records".into());
        self.completed(unpack_records(packed).ok_or_else(wrong)?);
        Ok(())
    }

    /// Returns the error of a rank that concludes instead of going on.
    pub(super) fn concluded(&self) -> Option<ClusterError> {
        let (rank, record) = self.records.get(&(self.sequence, true))?.first_key_value()?;
        Some(Problem::decode(record).unwrap_or_else(|| ENDED.into()).of(self.name(*rank)))
    }
}

/// Returns a record with its name behind it, of which at most 255 bytes count, and the name's length.
fn named(what: &str, record: &[u8]) -> Vec<u8> {
    let name = &what.as_bytes()[..what.len().min(255)];
    [record, name, &[name.len() as u8]].concat()
}

/// Takes the name off a record.
fn name_of(mut record: Vec<u8>) -> Option<(String, Vec<u8>)> {
    let len = usize::from(record.pop()?);
    let name = record.split_off(record.len().checked_sub(len)?);
    Some((String::from_utf8_lossy(&name).into_owned(), record))
}
