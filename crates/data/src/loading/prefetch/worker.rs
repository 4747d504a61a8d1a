//! The workers' side of the protocol.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};

use crate::loading::known::Known;
use crate::loading::pipeline::{FetchedBatch, Pipeline, StageSpecs};
use crate::loading::seen::Meters;
use crate::order::schedule::Unit;
use crate::sample::check::panic_message;
use crate::sample::part::Part;
use crate::{DataError, Sample};

/// The right to make one batch.
pub(super) struct Ticket {
    pub unit: Unit,
    /// The bad samples of the run so far, as the consumer knew them.
    pub known: Known,
}

/// A ticket, and the batch made for it or the error.
pub(super) struct Answer {
    pub ticket: Ticket,
    pub made: Result<FetchedBatch, DataError>,
}

/// Runs a worker: takes tickets and makes batches until there are no more tickets or it is stopped.
pub(super) fn work(shared: &Shared) {
    loop {
        let since = Instant::now();
        let Ok(ticket) = shared.tickets.recv() else { return };
        let Ticket { unit, known } = &ticket;
        shared.meters.idle.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // Stages catch their own panics and know the sample. This catches the others.
        let spare = shared.spares.try_recv().unwrap_or_default();
        let make = || shared.pipeline.batch(unit, &shared.specs, known, spare, &shared.meters, &shared.stop);
        let made = match catch_unwind(AssertUnwindSafe(make)) {
            Ok(Some(made)) => made.map(|made| with_part(shared, *unit, made)),
            Ok(None) => return,
            Err(panic) => Err(DataError::Panic {
                sample: format!("epoch {}, positions from {}", unit.epoch, unit.first),
                stage: "batch".into(),
                message: panic_message(&*panic),
            }),
        };
        if shared.answers.send(Answer { ticket, made }).is_err() {
            return;
        }
    }
}

/// Notes which rows of a batch were fetched, where these are not all, and how others are fetched.
fn with_part(shared: &Shared, unit: Unit, mut made: FetchedBatch) -> FetchedBatch {
    if shared.pipeline.fetches_part() {
        let (pipeline, specs) = (Arc::clone(&shared.pipeline), Arc::clone(&shared.specs));
        let fetch = move |rows| pipeline.batch_of_rows(&unit, rows, &specs);
        made.batch.part = Some(Part::new(made.rows.clone(), Arc::new(fetch)));
    }
    made
}

/// The state that every worker shares with the consumer.
#[derive(Clone)]
pub(super) struct Shared {
    pub pipeline: Arc<Pipeline>,
    pub specs: Arc<StageSpecs>,
    pub meters: Arc<Meters>,
    pub stop: Arc<AtomicBool>,
    pub tickets: Receiver<Ticket>,
    pub answers: Sender<Answer>,
    pub spares: Receiver<Sample>,
}
