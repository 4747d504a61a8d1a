//! What a rank knows of the others, and the messages that it has received.

pub(crate) mod exchange;
mod gather;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::{ClusterError, Problem};
use crate::link::{Link, Received};
use crate::message::{Kind, Message};
use crate::packed::{pack, unpack};
use crate::session::exchange::Exchanges;
use crate::session::view::Change;

/// The longest single wait for a message: if it takes much longer, this process was stopped meanwhile.
const SLICE: Duration = Duration::from_millis(250);
/// How long a rank waits, after its deadline, for others to say for whom they wait.
const ASKING: Duration = Duration::from_secs(2);

/// Why a rank is gone that has not said why.
const ENDED: &str = "it has ended";

/// The records of a gather, each with the number of its rank, in the order of the ranks.
pub(crate) type Records = Vec<(usize, Vec<u8>)>;

/// A gather: its number, and whether it concludes a part of the run, whatever the other ranks are doing.
type Meeting = (u64, bool);

/// What a rank knows.
pub(crate) struct Session {
    link: Box<dyn Link>,
    pub me: usize,
    /// The ranks that are there, in order.
    pub present: Vec<usize>,
    /// The ranks that were there after the last change of the view.
    agreed: Vec<usize>,
    /// The ranks that were lost, and why.
    pub lost: BTreeMap<usize, String>,
    /// Which ranks are lost, as a hash. Messages that were sent in another view do not count.
    view: u64,
    /// The number of gathers that are completed.
    sequence: u64,
    /// The records of the last completed gather.
    last: Records,
    /// The records of the gathers that are not completed.
    records: BTreeMap<Meeting, BTreeMap<usize, Vec<u8>>>,
    pub exchanges: Exchanges,
    /// The change of the view that is under way.
    change: Option<Change>,
    /// Whether the view has changed, and the caller does not know it yet.
    changed: bool,
    /// The ranks that have ended their part of the run, and why.
    gone: BTreeMap<usize, Problem>,
    /// The ranks for which others wait, as they said after their deadline.
    waiting: BTreeMap<usize, BTreeSet<usize>>,
    pub deadline: Duration,
    /// The time that this rank has waited for others.
    pub waited: Duration,
    /// The part of it within steps: for sums, and for what the ranks gather before a step commits.
    pub waited_in_steps: Duration,
    /// The messages that came one after another, each the answer to the one before: one for each gather, and
    /// two for the sums between two gathers.
    pub in_a_row: u64,
    /// The gather, by its number, before which the last sums were waited for.
    last_summed: Option<u64>,
    /// The bytes sent for exchanges.
    pub sent: u64,
}

impl Session {
    pub fn new(link: Box<dyn Link>, deadline: Duration) -> Self {
        Self {
            me: link.rank(),
            present: (0..link.hosts().len()).collect(),
            agreed: (0..link.hosts().len()).collect(),
            link,
            lost: BTreeMap::new(),
            view: view::hash(std::iter::empty()),
            sequence: 0,
            last: Records::new(),
            records: BTreeMap::new(),
            exchanges: Exchanges::default(),
            change: None,
            changed: false,
            gone: BTreeMap::new(),
            waiting: BTreeMap::new(),
            deadline,
            waited: Duration::ZERO,
            waited_in_steps: Duration::ZERO,
            in_a_row: 0,
            last_summed: None,
            sent: 0,
        }
    }

    /// Returns the number and the host of a rank, as messages name it.
    pub fn name(&self, rank: usize) -> String {
        let host = self.link.hosts().get(rank).map_or("", |host| host.as_str());
        format!("rank {rank} ({host})")
    }

    pub fn hosts(&self) -> &[String] {
        self.link.hosts()
    }

    /// Returns the time that a message takes to the farthest rank.
    pub fn latency(&self) -> Duration {
        self.link.latency()
    }

    /// Returns the other ranks that are there.
    fn others(&self) -> Vec<usize> {
        self.present.iter().copied().filter(|&rank| rank != self.me).collect()
    }

    fn send(&mut self, to: usize, kind: Kind, bucket: usize, body: &[u8]) {
        let message = Message { kind, view: self.view, sequence: self.sequence, bucket: bucket as u64, body };
        if matches!(kind, Kind::Blocks | Kind::Sums) {
            self.sent += body.len() as u64;
        }
        let bytes = message.encode();
        self.link.send(to, bytes);
    }

    fn send_all(&mut self, kind: Kind, bucket: usize, body: &[u8]) {
        for rank in self.others() {
            self.send(rank, kind, bucket, body);
        }
    }

    /// Waits until `done` says that what it returns is there. `missing` says for which ranks it waits.
    ///
    /// # Errors
    /// [`ClusterError::Silent`] after the deadline, and whatever else ends the wait. A change of the view
    /// ends it too: then `None` is returned.
    fn wait<T>(
        &mut self,
        done: impl Fn(&mut Self) -> Option<T>,
        missing: impl Fn(&Self) -> Vec<usize>,
    ) -> Result<Option<T>, ClusterError> {
        let (mut waited, mut asked, mut said) = (Duration::ZERO, false, None);
        self.waiting.clear();
        loop {
            if self.change.is_some() {
                return Ok(None);
            }
            if let Some(done) = done(self) {
                return Ok(Some(done));
            }
            let missing = missing(self);
            let gone = missing.iter().find_map(|rank| Some((*rank, self.gone.get(rank)?.clone())));
            if let Some((rank, problem)) = gone {
                return Err(problem.of(self.name(rank)));
            }
            asked |= waited >= self.deadline;
            let is_new = said.is_none_or(|said| waited >= said + SLICE);
            if (asked || !self.waiting.is_empty()) && is_new {
                said = Some(waited);
                self.say_waiting(&missing);
            }
            let all_wait = missing.iter().all(|rank| self.waiting.contains_key(rank));
            if asked && (all_wait || waited >= self.deadline + ASKING) {
                return Err(self.silent(&missing, waited));
            }
            waited += self.receive_within(self.deadline.saturating_sub(waited))?;
            // Looking for what is missing takes longer than receiving, with many ranks.
            self.poll()?;
        }
    }

    /// Receives a message if one comes within a slice of this time. Returns the time that it took, without
    /// that in which this process was stopped.
    fn receive_within(&mut self, wait: Duration) -> Result<Duration, ClusterError> {
        let since = self.link.now();
        self.receive(wait.clamp(SLICE / 10, SLICE))?;
        let took = self.link.now().saturating_sub(since).min(2 * SLICE);
        self.waited += took;
        Ok(took)
    }

    /// Tells the other ranks for which ones this rank waits.
    fn say_waiting(&mut self, missing: &[usize]) {
        let words: Vec<u8> = missing.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
        self.send_all(Kind::Waiting, 0, &words);
    }

    /// Returns the error that names the ranks which do not answer: those for which this one waits, without
    /// those that wait themselves.
    fn silent(&self, missing: &[usize], waited: Duration) -> ClusterError {
        let mut silent: BTreeSet<usize> =
            missing.iter().copied().filter(|rank| !self.waiting.contains_key(rank)).collect();
        if silent.is_empty() {
            silent = self.waiting.values().flatten().copied().filter(|rank| *rank != self.me).collect();
            let waits = |rank: &usize| !self.waiting.contains_key(rank);
            if silent.iter().any(waits) {
                silent.retain(waits);
            }
        }
        // All wait for each other, and so for what nobody does.
        if silent.is_empty() {
            silent = missing.iter().copied().collect();
        }
        let ranks: Vec<String> = silent.into_iter().map(|rank| self.name(rank)).collect();
        ClusterError::Silent { ranks: ranks.join(", "), seconds: waited.as_secs() }
    }

    /// Receives what has come, without waiting, and does what follows.
    ///
    /// # Errors
    /// Nothing can be received any more.
    pub fn poll(&mut self) -> Result<(), ClusterError> {
        while self.receive(Duration::ZERO)? {}
        Ok(())
    }

    /// Receives a message and does what follows. Returns whether there was one.
    fn receive(&mut self, wait: Duration) -> Result<bool, ClusterError> {
        match self.link.receive(wait).map_err(ClusterError::Link)? {
            Received::Nothing => return Ok(false),
            Received::Lost { rank, why } => self.lose(&[(rank, why)]),
            Received::Message { from, bytes } => self.handle_message(from, &bytes)?,
        }
        Ok(true)
    }

    fn handle_message(&mut self, from: usize, bytes: &[u8]) -> Result<(), ClusterError> {
        let wrong =
            || ClusterError::Link(format!("rank {from} sent a message that this version does not know"));
        let message = Message::decode(bytes).ok_or_else(wrong)?;
        if self.lost.contains_key(&from) {
            return Ok(());
        }
        match message.kind {
            Kind::Report => return self.reported(from, &message),
            Kind::Bye => {
                self.gone.insert(from, Problem::decode(message.body).unwrap_or_else(|| ENDED.into()));
                return Ok(());
            }
            _ if message.view != self.view => return Ok(()),
            _ => {}
        }
        let Message { sequence, bucket, body, .. } = message;
        match message.kind {
            Kind::Gather | Kind::Conclude => {
                let meeting = (sequence, message.kind == Kind::Conclude);
                self.records.entry(meeting).or_default().insert(from, body.to_vec());
            }
            Kind::Blocks => self.take_blocks(from, sequence, bucket as usize, body)?,
            Kind::Sums => self.take_sums(from, sequence, bucket as usize, body)?,
            Kind::Adopt => self.take_adopted(body),
            Kind::Waiting => {
                let words = body.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word) as usize);
                self.waiting.insert(from, words.collect());
            }
            Kind::Report | Kind::Bye => {}
        }
        Ok(())
    }

    /// Says goodbye, and waits a while until all others have. `problem` is the reason for which this rank
    /// ends before the others, if it does. While it waits it answers those that a loss has kept in the last
    /// gather.
    pub fn end(&mut self, problem: Option<&Problem>, patience: Duration) {
        self.send_all(Kind::Bye, 0, &Problem::encode(problem));
        let mut waited = Duration::ZERO;
        let is_waiting =
            |session: &Self| session.others().into_iter().any(|rank| !session.gone.contains_key(&rank));
        while is_waiting(self) && waited < patience {
            let since = self.link.now();
            match self.link.receive(SLICE) {
                Ok(Received::Lost { rank, .. }) => drop(self.gone.insert(rank, "lost".into())),
                Ok(Received::Message { from, bytes }) => match Message::decode(&bytes) {
                    Some(message) if message.kind == Kind::Bye => {
                        self.gone.insert(from, Problem::default());
                    }
                    Some(message) if message.kind == Kind::Report => self.answer(from, &message),
                    _ => {}
                },
                Ok(Received::Nothing) => {}
                Err(_) => break,
            }
            waited += self.link.now().saturating_sub(since);
        }
        let together = !is_waiting(self);
        self.link.end(together);
    }
}

/// Packs byte strings with the numbers of their ranks.
fn pack_records<'a>(records: impl Iterator<Item = (usize, &'a [u8])>) -> Vec<u8> {
    let records: Vec<([u8; 8], &[u8])> =
        records.map(|(rank, record)| ((rank as u64).to_le_bytes(), record)).collect();
    let parts: Vec<&[u8]> = records.iter().flat_map(|(rank, record)| [&rank[..], record]).collect();
    pack(&parts)
}

/// Unpacks what [`pack_records`] has packed.
fn unpack_records(packed: &[u8]) -> Option<Records> {
    let parts = unpack(packed)?;
    let record =
        |pair: &[&[u8]; 2]| Some((u64::from_le_bytes(pair[0].try_into().ok()?) as usize, pair[1].to_vec()));
    parts.as_chunks::<2>().0.iter().map(record).collect()
}
