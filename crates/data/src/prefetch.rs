//! Threads that prepare batches ahead of the consumer, who gets them in order.
//!
//! # Protocol
//!
//! The consumer holds tickets; a ticket is the right to make one batch. It hands out `threads + prefetch` of them at
//! the start and one more for each batch it takes, in the order of the schedule. A worker waits for a ticket, makes
//! the batch, sends it with the ticket's number, and waits again. The consumer puts batches that come early aside.
//!
//! * *Bounded*: batches in the making, in the channel and aside are at most as many as the tickets out.
//! * *No deadlock*: both channels have room for all tickets out, so no send ever waits; a worker waits only for a
//!   ticket, the consumer only for a batch whose ticket is out, and a worker answers every ticket, be it with an error
//!   (panics are caught).
//! * *Stopping*: the consumer sets `stop`, which workers look at before each sample, and drops its end of the tickets,
//!   which ends their wait; then it joins them. It waits for at most one sample a thread.
//!
//! After an error the iterator ends.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::pipeline::{Pipeline, StageSpecs, panic_message};
use crate::schedule::{Schedule, Unit};
use crate::{Batch, DataError, Position};

/// The batches from a position on, in order, prepared by threads that end with this iterator.
pub struct Batches {
    schedule: Schedule,
    /// `None` once the iterator has ended.
    tickets: Option<Sender<Unit>>,
    answers: Receiver<Answer>,
    /// Batches that came before their turn.
    early: BTreeMap<u64, Result<Batch, DataError>>,
    /// Tickets handed out, and batches taken: the number of the next of each.
    issued: u64,
    taken: u64,
    position: Position,
    waited: Duration,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

type Answer = (u64, Result<Batch, DataError>);

impl Batches {
    pub(crate) fn start(
        pipeline: Arc<Pipeline>,
        specs: Arc<StageSpecs>,
        schedule: Schedule,
        threads: usize,
        prefetch: usize,
    ) -> Result<Self, DataError> {
        let window = threads + prefetch;
        let (tickets, ticket_queue) = bounded(window);
        let (answer_queue, answers) = bounded(window);
        let mut batches = Self {
            position: schedule.position(),
            schedule,
            tickets: Some(tickets),
            answers,
            early: BTreeMap::new(),
            issued: 0,
            taken: 0,
            waited: Duration::ZERO,
            stop: Arc::default(),
            workers: Vec::with_capacity(threads),
        };
        for number in 0..threads {
            let (pipeline, specs, stop) = (pipeline.clone(), specs.clone(), batches.stop.clone());
            let (tickets, answers) = (ticket_queue.clone(), answer_queue.clone());
            let worker = std::thread::Builder::new()
                .name(format!("unisono-data-{number}"))
                .spawn(move || work(&pipeline, &specs, &tickets, &answers, &stop));
            // On failure, dropping `batches` ends the threads there are.
            batches.workers.push(worker.map_err(|error| DataError::Threads(error.to_string()))?);
        }
        for _ in 0..window {
            batches.issue();
        }
        Ok(batches)
    }

    /// The position of the next batch: where to start again for the same batches as from here.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How long `next` has waited for batches that were not ready.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Batches that are ready now.
    pub fn ready(&self) -> usize {
        self.early.len() + self.answers.len()
    }

    /// Hands out the next ticket, if the schedule has one.
    fn issue(&mut self) {
        if let (Some(tickets), Some(unit)) = (&self.tickets, self.schedule.next())
            && tickets.send(unit).is_ok()
        {
            self.issued += 1;
        }
    }

    /// Waits for the batch whose turn it is.
    fn receive(&mut self) -> Result<Batch, DataError> {
        let mut since = None;
        let batch = loop {
            if let Some(batch) = self.early.remove(&self.taken) {
                break batch;
            }
            let answer = self.answers.try_recv().or_else(|_| {
                since.get_or_insert_with(Instant::now);
                self.answers.recv()
            });
            match answer {
                Ok((number, batch)) => self.early.insert(number, batch),
                Err(_) => break Err(DataError::Threads("they ended by themselves".into())),
            };
        };
        self.waited += since.map_or(Duration::ZERO, |since| since.elapsed());
        batch
    }

    /// Ends the threads and the iterator.
    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tickets = None;
        for worker in self.workers.drain(..) {
            // Its panic, if any, was reported in a batch's place.
            let _ = worker.join();
        }
    }
}

/// A worker's life.
fn work(
    pipeline: &Pipeline,
    specs: &StageSpecs,
    tickets: &Receiver<Unit>,
    answers: &Sender<Answer>,
    stop: &AtomicBool,
) {
    while let Ok(unit) = tickets.recv() {
        // Stages catch their own panics and know the sample; this is for the rest.
        let made = catch_unwind(AssertUnwindSafe(|| pipeline.batch(&unit, specs, stop)));
        let batch = match made {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(panic) => Err(DataError::Panic {
                sample: format!("epoch {}, positions from {}", unit.epoch, unit.first),
                stage: "batch".into(),
                message: panic_message(&*panic),
            }),
        };
        if answers.send((unit.number, batch)).is_err() {
            return;
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.tickets.is_none() || self.taken == self.issued {
            self.end();
            return None;
        }
        let batch = self.receive();
        self.taken += 1;
        match &batch {
            Ok(batch) => {
                self.position = batch.after;
                self.issue();
            }
            Err(_) => self.end(),
        }
        Some(batch)
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
