//! Who is left after a loss, which all that are left agree on.
//!
//! A rank that hears of a loss sends a report to those that are left: which ranks are lost, and how many
//! gathers it has completed. A report with more losses makes a rank begin again with these. Once a rank has
//! reports with the same losses from all that are left, the change is over. Ranks differ by one gather at
//! most, since each gather waits for a record of everyone. If one has completed it, the first such rank hands
//! its records to those that have not.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::{Session, pack_records, unpack_records};
use crate::error::ClusterError;
use crate::message::{Kind, Message};

/// How long a rank that has ended its part of the run is waited for, to answer a report.
const ANSWERING: Duration = Duration::from_secs(2);

/// A change of the view that is under way.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// The number of gathers that each rank which reported has completed.
    reports: BTreeMap<usize, u64>,
    /// The records of the gather that others have completed.
    adopted: Option<Vec<u8>>,
    /// Whether this rank has handed its records on.
    handed_on: bool,
}

/// Returns a hash of the ranks that are lost (FNV-1a).
pub(super) fn hash(lost: impl Iterator<Item = usize>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    lost.flat_map(|rank| (rank as u64).to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, mix)
}

impl Session {
    /// Begins a change of the view, or begins it again with more losses.
    pub(super) fn lose(&mut self, ranks: &[(usize, String)]) {
        let before = self.lost.len();
        for (rank, why) in ranks {
            if *rank != self.me {
                self.lost.entry(*rank).or_insert_with(|| why.clone());
            }
        }
        if self.lost.len() == before {
            return;
        }
        self.present.retain(|rank| !self.lost.contains_key(rank));
        self.view = hash(self.lost.keys().copied());
        self.records.clear();
        self.exchanges.clear();
        self.waiting.clear();
        self.changed = true;
        self.change = Some(Change::default());
        let body = pack_records(self.lost.iter().map(|(rank, why)| (*rank, why.as_bytes())));
        self.send_all(Kind::Report, 0, &body);
    }

    /// Takes the report of a rank.
    pub(super) fn reported(&mut self, from: usize, message: &Message<'_>) -> Result<(), ClusterError> {
        let wrong = || ClusterError::Link(format!("rank {from} sent a report that is none"));
        let lost = unpack_records(message.body).ok_or_else(wrong)?.into_iter();
        let lost: Vec<(usize, String)> =
            lost.map(|(rank, why)| (rank, String::from_utf8_lossy(&why).into_owned())).collect();
        if lost.iter().any(|(rank, _)| *rank == self.me) {
            return Err(ClusterError::Excluded);
        }
        self.lose(&lost);
        // One with fewer losses will report again when it hears of the others.
        if message.view == self.view
            && let Some(change) = &mut self.change
        {
            change.reports.insert(from, message.sequence);
        }
        Ok(())
    }

    /// Answers the report of a rank when this one has ended its part of the run: tells it which losses are
    /// known here, and gives it the records of the last gather if only this rank has completed it.
    pub(super) fn answer(&mut self, from: usize, message: &Message<'_>) {
        // A wrong report is ignored: nothing depends on it here any more.
        if self.lost.contains_key(&from) || self.reported(from, message).is_err() {
            return;
        }
        if message.view == self.view && message.sequence < self.sequence {
            self.send_last(from);
        }
    }

    pub(super) fn take_adopted(&mut self, body: &[u8]) {
        if let Some(change) = &mut self.change {
            change.adopted = Some(body.to_vec());
        }
    }

    /// Tells the caller of a change that it does not know of, once.
    ///
    /// # Errors
    /// [`ClusterError::Changed`].
    pub(super) fn take_change(&mut self) -> Result<(), ClusterError> {
        self.go_through_change()?;
        if std::mem::take(&mut self.changed) { Err(ClusterError::Changed) } else { Ok(()) }
    }

    /// Begins something new, for which it does not matter that the view has changed before.
    pub fn begin(&mut self) -> Result<(), ClusterError> {
        self.poll()?;
        self.go_through_change()?;
        self.changed = false;
        Ok(())
    }

    /// Goes through the change of the view that is under way, until all that are left know of it.
    pub(super) fn go_through_change(&mut self) -> Result<(), ClusterError> {
        let mut waited = Duration::ZERO;
        loop {
            let Some(change) = &self.change else { return Ok(()) };
            let has = |rank: &usize| *rank == self.me || change.reports.contains_key(rank);
            let mut missing: Vec<usize> = self.present.iter().copied().filter(|rank| !has(rank)).collect();
            if missing.is_empty() {
                if let Some(minority) = self.minority() {
                    return Err(minority);
                }
                let (most, first) = self.most_completed(change);
                if first == self.me && !change.handed_on {
                    self.hand_on(most);
                }
                if most == self.sequence {
                    self.change = None;
                    self.agreed.clone_from(&self.present);
                    return Ok(());
                }
                if let Some(adopted) = self.change.take_if(|change| change.adopted.is_some()) {
                    self.agreed.clone_from(&self.present);
                    return self.adopt(&adopted.adopted.unwrap_or_default());
                }
                missing.push(first);
            }
            // A rank that has ended its part of the run had nothing more to do in it. It may have completed
            // the gather that this one is in, and answers while it waits for the others to end.
            let gone = missing.iter().find_map(|rank| Some((*rank, self.gone.get(rank)?.clone())));
            if let Some((rank, problem)) = gone.filter(|_| waited >= ANSWERING.min(self.deadline)) {
                self.lose(&[(rank, problem.why)]);
                continue;
            }
            if waited >= self.deadline {
                return Err(self.silent(&missing, waited));
            }
            waited += self.receive_within(self.deadline.saturating_sub(waited))?;
        }
    }

    /// Returns the error of ranks that are left and may be the smaller part of a network that was cut in two:
    /// those on the other side see this one as lost, and go on. Both parts compare with the ranks that were
    /// there at the last agreement, so at most one of them goes on. A rank that has said goodbye counts for
    /// both: the run is over then.
    fn minority(&self) -> Option<ClusterError> {
        let is_ours = |rank: &usize| self.present.contains(rank) || self.gone.contains_key(rank);
        let (ours, away): (Vec<usize>, Vec<usize>) = self.agreed.iter().partition(|rank| is_ours(rank));
        let goes_on = match away.len().cmp(&ours.len()) {
            Ordering::Less => true,
            Ordering::Equal => ours.first() < away.first(),
            Ordering::Greater => false,
        };
        let names: Vec<String> = away.iter().map(|&rank| self.name(rank)).collect();
        (!goes_on).then(|| ClusterError::Minority { lost: names.join(", ") })
    }

    /// Returns the most gathers that a rank has completed, and the first such rank.
    fn most_completed(&self, change: &Change) -> (u64, usize) {
        let mut best = (self.sequence, self.me);
        for (&rank, &completed) in &change.reports {
            if (completed, best.1) > (best.0, rank) {
                best = (completed, rank);
            }
        }
        best
    }

    /// Hands the records of the last gather to those that have not completed it.
    fn hand_on(&mut self, most: u64) {
        let Some(change) = &mut self.change else { return };
        change.handed_on = true;
        let behind: Vec<usize> = change
            .reports
            .iter()
            .filter(|(_, completed)| **completed < most)
            .map(|(rank, _)| *rank)
            .collect();
        behind.into_iter().for_each(|rank| self.send_last(rank));
    }

    /// Sends the records of the last gather to a rank that has not completed it.
    fn send_last(&mut self, rank: usize) {
        let body = pack_records(self.last.iter().map(|(rank, record)| (*rank, record.as_slice())));
        self.send(rank, Kind::Adopt, 0, &body);
    }
}
