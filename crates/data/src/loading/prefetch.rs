//! Prefetch: threads that prepare batches ahead of the consumer, who gets them in order.
//!
//! # Protocol
//!
//! The consumer holds tickets. A ticket is the right to make one batch. The consumer hands out as many as the
//! pace's window says (see `pace.rs`), in the order of the schedule, and with each batch it takes it hands
//! out as many as are missing. A worker waits for a ticket, makes the batch, sends it with the ticket's
//! number, and waits again. The consumer puts batches that come early aside.
//!
//! * *Bounded*: the batches in preparation, in the channel and aside are at most as many as the tickets out.
//! * *No deadlock*: both channels have room for the largest window, so no send ever waits. A worker waits
//!   only for a ticket, and the consumer only for a batch whose ticket is out. A worker answers every ticket,
//!   be it with an error (panics are caught).
//! * *Stopping*: the consumer sets `stop`, which workers look at before each sample, and drops its end of the
//!   tickets, which ends their wait. Then it waits for them, which takes at most one sample a thread, but no
//!   longer than [`PATIENCE`]. A thread whose source or transform has not returned by then, and may never do
//!   so, is left alone: it ends after its sample, and until then it keeps the pipeline in memory.
//! * *Being stopped*: a loader may have flags that ask it to stop (`Loader::stop_on`). The consumer looks at
//!   them before it takes a batch and, while it waits for one, every [`LOOK`].
//! * *Bad samples*: a worker leaves them out of its batch and says so. Whether that is allowed is decided by
//!   the consumer, batch by batch in order, so it never depends on which worker was first. A sample once
//!   skipped stays skipped, even if it fails by what was drawn and is good in a later epoch. Transforms of
//!   whole batches must not see it then, since they do not after a resume: a batch that was made before the
//!   consumer knew of it is made again.
//!
//! After an error the iterator ends.

mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::loading::known::Known;
use crate::loading::pace::Pace;
use crate::loading::pipeline::{FetchedBatch, Pipeline, StageSpecs};
use crate::order::schedule::{Schedule, Unit};

use self::worker::{Answer, Shared, Ticket, work};
use crate::loading::seen::Meters;
use crate::{Batch, DataError, LoaderState, Position, Sample, Seen};

/// An iterator over the batches from a position on, in order. Threads prepare them, and end with this
/// iterator.
///
/// Dropping it waits until the threads have finished the samples that they are at, for at most a second. A
/// thread that takes longer, because its source or transform does not return, ends after that sample.
pub struct Batches {
    schedule: Schedule,
    pace: Pace,
    /// `None` once the iterator has ended.
    tickets: Option<Sender<Ticket>>,
    answers: Receiver<Answer>,
    shared: Shared,
    /// The batches that were handed back, whose memory is used again.
    spares: Sender<Sample>,
    /// The batches that came before their turn, by their number.
    early: BTreeMap<u64, Answer>,
    /// The number of the next ticket to be handed out.
    issued: u64,
    /// The number of the next batch to be taken.
    taken: u64,
    position: Position,
    skipped: Known,
    /// The samples that were skipped and not taken yet, and why.
    newly_skipped: Vec<u64>,
    skip_reasons: Vec<DataError>,
    consumed: u64,
    started: Instant,
    waited: Duration,
    /// The flags that ask this iterator to end.
    stop: Vec<Arc<AtomicBool>>,
    workers: Vec<JoinHandle<()>>,
    /// Each worker holds a sender, so that the receiver is disconnected when the last one has ended.
    running: (Sender<()>, Receiver<()>),
}

/// The number of batches handed back that are kept for their memory.
const MOST_SPARES: usize = 2;
/// The interval at which a wait looks whether it is asked to end.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// The longest time that the end of an iterator waits for its threads.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns whether one of the flags is set.
pub(super) fn is_asked(flags: &[Arc<AtomicBool>]) -> bool {
    flags.iter().any(|flag| flag.load(Ordering::Relaxed))
}

impl Batches {
    pub(crate) fn start(
        pipeline: Arc<Pipeline>,
        specs: Arc<StageSpecs>,
        schedule: Schedule,
        pace: Pace,
        known: Known,
        stop: Vec<Arc<AtomicBool>>,
    ) -> Result<Self, DataError> {
        let (tickets, ticket_queue) = bounded(pace.most_window);
        let (answer_queue, answers) = bounded(pace.most_window);
        let (spares, spare_queue) = bounded(MOST_SPARES);
        let meters = Arc::new(Meters::new(pipeline.stage_names()));
        let shared = Shared {
            pipeline,
            specs,
            meters,
            stop: Arc::default(),
            tickets: ticket_queue,
            answers: answer_queue,
            spares: spare_queue,
        };
        let mut batches = Self {
            position: schedule.position(),
            schedule,
            pace,
            tickets: Some(tickets),
            answers,
            shared,
            spares,
            early: BTreeMap::new(),
            issued: 0,
            taken: 0,
            skipped: known,
            newly_skipped: Vec::new(),
            skip_reasons: Vec::new(),
            consumed: 0,
            started: Instant::now(),
            waited: Duration::ZERO,
            stop,
            workers: Vec::new(),
            running: bounded(0),
        };
        // On failure, dropping `batches` ends the threads that already run.
        batches.top_up()?;
        Ok(batches)
    }

    /// Returns the position of the next batch, at which to start again for the same batches as from here.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the position with the record of bad samples skipped, with which to start again where some may
    /// be skipped. This takes time for each sample skipped so far; for the newest there is
    /// [`Batches::take_skipped`].
    pub fn progress(&self) -> LoaderState {
        LoaderState { position: self.position, skipped: self.skipped.iter().collect() }
    }

    /// Returns why samples were skipped since this iterator started or [`Batches::take_skipped`] was called,
    /// in the order in which they were met.
    pub fn skip_reasons(&self) -> &[DataError] {
        &self.skip_reasons
    }

    /// Takes the index in the source of each sample that was skipped since this iterator started or this was
    /// called last, and why, in the order in which they were met.
    pub fn take_skipped(&mut self) -> Vec<(u64, DataError)> {
        std::mem::take(&mut self.newly_skipped)
            .into_iter()
            .zip(std::mem::take(&mut self.skip_reasons))
            .collect()
    }

    /// Returns how long `next` has waited for batches that were not ready.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the number of batches that are ready now.
    pub fn ready(&self) -> usize {
        self.early.len() + self.answers.len()
    }

    /// Hands back a batch that is no longer needed, so that a later one is made in its memory.
    ///
    /// This changes only the time: the system has to clear fresh memory for large batches, which may cost
    /// more than the copy itself.
    pub fn recycle(&self, batch: Batch) {
        // If enough of them are at hand, the batch is freed.
        let _ = self.spares.try_send(batch.stacked);
    }

    /// Returns the names of the transforms that drew at random so far, such as "map 'crop'".
    pub fn drawn(&self) -> Vec<String> {
        self.shared.meters.drawn()
    }

    /// Returns what was done so far, and where the time went.
    pub fn seen(&self) -> Seen {
        Seen {
            elapsed: self.started.elapsed(),
            waited: self.waited,
            idle: Duration::from_nanos(self.shared.meters.idle.load(Ordering::Relaxed)),
            produced: self.shared.meters.samples(),
            consumed: self.consumed,
            ready: self.ready(),
            depth: self.pace.window,
            threads: self.pace.threads,
            stages: self.shared.meters.stages(),
        }
    }

    /// Starts the threads, and hands out the tickets, that the pace asks for.
    fn top_up(&mut self) -> Result<(), DataError> {
        while self.workers.len() < self.pace.threads {
            let (shared, running) = (self.shared.clone(), self.running.0.clone());
            let worker = std::thread::Builder::new()
                .name(format!("unisono-data-{}", self.workers.len()))
                .spawn(move || {
                    work(&shared);
                    // The pipeline goes first: who waits for the end of the threads finds it gone.
                    drop(shared);
                    drop(running);
                });
            self.workers.push(worker.map_err(|error| DataError::Threads(error.to_string()))?);
        }
        while self.issued - self.taken < self.pace.window as u64 {
            let Some(unit) = self.schedule.next() else { break };
            if !self.hand_out(unit) {
                break;
            }
            self.issued += 1;
        }
        Ok(())
    }

    /// Hands out a ticket, for which there is room. Returns whether there is anybody to take it.
    fn hand_out(&self, unit: Unit) -> bool {
        let ticket = Ticket { unit, known: self.skipped.clone() };
        self.tickets.as_ref().is_some_and(|tickets| tickets.send(ticket).is_ok())
    }

    /// Whether transforms of a whole batch have seen samples that are known to be bad by now.
    fn is_outdated(&self, Answer { ticket, made }: &Answer) -> bool {
        !self.shared.pipeline.batch_stages.is_empty()
            && match made {
                Ok(made) => made.batch.indices.iter().any(|index| self.skipped.contains(*index)),
                // They only become more.
                Err(_) => ticket.known.len() != self.skipped.len(),
            }
    }

    /// Waits for the batch whose turn it is.
    ///
    /// # Errors
    /// The batch could not be made; the iterator is asked to end and the batch is not ready.
    fn receive(&mut self) -> Result<FetchedBatch, DataError> {
        let mut since = None;
        let made = loop {
            match self.early.remove(&self.taken) {
                Some(answer) if self.is_outdated(&answer) => drop(self.hand_out(answer.ticket.unit)),
                Some(answer) => break answer.made,
                None => {}
            }
            let answer = self.answers.try_recv().or_else(|_| {
                since.get_or_insert_with(Instant::now);
                self.answers.recv_timeout(LOOK)
            });
            match answer {
                Ok(answer) => drop(self.early.insert(answer.ticket.unit.number, answer)),
                Err(RecvTimeoutError::Timeout) if is_asked(&self.stop) => break Err(DataError::Stopped),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(DataError::Threads("they ended by themselves".into()));
                }
            }
        };
        self.waited += since.map_or(Duration::ZERO, |since| since.elapsed());
        self.pace.taken(since.is_some(), self.ready());
        made
    }

    /// Adds a batch's bad samples to the record. The first beyond the allowed number is the error.
    fn record(&mut self, made: FetchedBatch) -> Result<Batch, DataError> {
        let FetchedBatch { mut batch, failed, .. } = made;
        for (index, error) in failed {
            if self.skipped.contains(index) {
                continue;
            }
            if self.skipped.len() >= self.shared.pipeline.skip {
                return Err(error);
            }
            self.skipped.insert(index);
            self.newly_skipped.push(index);
            self.skip_reasons.push(error);
        }
        // A sample once skipped stays skipped, even if it is good now: a resumed run does not try it either.
        batch.leave_out(|index| self.skipped.contains(index));
        batch.skipped.sort_unstable();
        Ok(batch)
    }

    /// Ends the iterator and its threads. A thread that does not end within [`PATIENCE`] is left alone.
    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.tickets = None;
        if self.workers.is_empty() {
            return;
        }
        let (own, running) = std::mem::replace(&mut self.running, bounded(0));
        drop(own);
        // Nothing is ever sent, so this ends with the last thread or with the patience.
        let all_end = running.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Disconnected);
        for worker in self.workers.drain(..).filter(|worker| all_end || worker.is_finished()) {
            // A panic of the thread was reported in place of a batch.
            let _ = worker.join();
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.tickets.is_none() || self.taken == self.issued {
                self.end();
                return None;
            }
            if is_asked(&self.stop) {
                self.end();
                return Some(Err(DataError::Stopped));
            }
            let made = self.receive();
            self.taken += 1;
            let batch = made.and_then(|made| {
                let batch = self.record(made)?;
                self.top_up()?;
                Ok(batch)
            });
            match &batch {
                Ok(batch) => {
                    self.position = batch.after;
                    self.consumed += batch.rows().len() as u64;
                    if batch.indices.is_empty() {
                        continue;
                    }
                }
                Err(_) => self.end(),
            }
            return Some(batch);
        }
    }
}

impl std::iter::FusedIterator for Batches {}

impl Drop for Batches {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches")
            .field("position", &self.position)
            .field("ready", &self.ready())
            .field("waited", &self.waited)
            .finish_non_exhaustive()
    }
}
