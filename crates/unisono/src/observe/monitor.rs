//! The observers of a run, and the stop that may end it.

use std::path::Path;

use unisono_data::Seen;
use unisono_replica::ReplicaReport;

use crate::error::caught;
use crate::observe::events;
use crate::observe::logged::Logged;
use crate::observe::machines::MachineReport;
use crate::observe::observer::{Observer, Start, Step};
use crate::run::stop::Stop;
use crate::{Epoch, Error};

/// The most notes that are kept: a callback may give one each step.
const MOST_NOTES: usize = 1000;

/// An observer of a run.
pub(crate) struct ObserverSlot {
    observer: Box<dyn Observer>,
    /// The name of its type.
    pub name: &'static str,
    /// Whether it has panicked, after which it is called no more.
    panicked: bool,
}

impl ObserverSlot {
    /// Takes an observer.
    pub fn new<O: Observer + 'static>(observer: O) -> Self {
        Self { observer: Box::new(observer), name: std::any::type_name::<O>(), panicked: false }
    }

    /// Asks the observer, if this rank calls it, which `forwards` if another one calls its observers.
    ///
    /// # Errors
    /// The first panic, with the observer's name and `what` it was called with.
    pub fn ask<T>(
        &mut self,
        forwards: bool,
        what: &str,
        ask: impl FnOnce(&mut dyn Observer) -> T,
    ) -> Result<Option<T>, (String, String)> {
        if self.panicked {
            return Ok(None);
        }
        let observer = &mut *self.observer;
        let asked = caught(|| (!forwards || observer.on_all_ranks()).then(|| ask(observer)));
        asked.map_err(|message| {
            self.panicked = true;
            (format!("the observer {} (Observer::{what})", self.name), message)
        })
    }
}

/// The observers of a run, its notes, and the stop that may end it.
#[derive(Default)]
pub(crate) struct Monitor {
    /// The observers, which are called with steps, epochs, checkpoints and notes.
    pub observers: Vec<ObserverSlot>,
    /// The first observer or metric that panicked since this was last asked for, and the panic's message.
    pub panicked: Option<(String, String)>,
    /// Notes for the user about the settings, and those that observers were told since.
    pub notes: Vec<String>,
    /// The stop that ends fits. On several machines it is asked once all of them know that one was asked.
    pub stop: Stop,
    /// The stop that this machine was asked by, in a run on several machines.
    pub asked: Stop,
    /// What the input pipeline of the last fit did.
    pub input: Option<Seen>,
    /// What each machine did up to the end of the last fit.
    pub machines: Vec<MachineReport>,
    /// Whether another rank calls its observers, so that they hear of what concerns this machine through it.
    pub forwards: bool,
    /// The notes of this machine that the observers of that rank have not heard yet.
    pub unheard: Vec<String>,
    /// The number of lost ranks that observers know of.
    pub lost_told: usize,
    /// Whether observers were told that a loop of the user's own has begun.
    pub own_loop: bool,
    /// Whether observers were told what is odd about the data and the schedule of a fit.
    pub told_fit: bool,
    /// Whether observers were told that a loss is that of a guess, and that an accuracy is.
    pub told_guess: bool,
    pub told_share: bool,
    /// Whether observers were told of a schedule that is made for another run.
    pub told_schedule: bool,
    /// The step after which a callback kept weights last, in this process.
    pub kept_at: Option<u64>,
}

impl Monitor {
    /// Watches a run. `forwards`: another rank calls its observers.
    ///
    /// # Errors
    /// Those of [`Monitor::check_files`].
    pub fn new(observers: Vec<ObserverSlot>, notes: Vec<String>, forwards: bool) -> Result<Self, Error> {
        let mut monitor = Self { observers, notes, forwards, ..Self::default() };
        monitor.check_files()?;
        Ok(monitor)
    }

    /// Tells observers that a fit begins.
    pub fn started(&mut self, start: &Start<'_>) {
        self.notify("started", |o| o.started(start));
    }

    /// Tells observers that a step is done.
    pub fn step(&mut self, step: &Step) {
        events::step_done(step);
        self.notify("step", |o| o.step(step));
    }

    /// Tells observers that an epoch is done.
    pub fn epoch(&mut self, epoch: &Epoch) {
        events::epoch_done(epoch);
        self.notify("epoch", |o| o.epoch(epoch));
    }

    /// Tells observers what each replica did so far.
    pub fn replicas(&mut self, step: u64, replicas: &[ReplicaReport]) {
        self.notify("replicas", |o| o.replicas(step, replicas));
    }

    /// Returns whether this rank calls any observer.
    pub fn is_observed(&mut self) -> bool {
        self.ask("on_all_ranks", |_| true).contains(&true)
    }

    /// Whether an observer wants the parameters after an epoch.
    pub fn wants_weights(&mut self, epoch: u32) -> bool {
        self.ask("wants_weights", |o| o.wants_weights(epoch)).contains(&true)
    }

    /// Returns the error of an observer or a metric that has panicked, once.
    ///
    /// # Errors
    /// That error. The observer is called no more; the others are. The metric is NaN for the epoch.
    pub fn check(&mut self) -> Result<(), Error> {
        self.panicked.take().map_or(Ok(()), |(what, message)| Err(Error::Panic { what, message }))
    }

    /// Gives the parameters after an epoch to the observers that want them.
    pub fn weights(&mut self, epoch: u32, step: u64, weights: &[(&str, Vec<f32>)]) {
        self.notify("weights", |o| {
            if o.wants_weights(epoch) {
                o.weights(step, weights);
            }
        });
    }

    /// Tells observers what a program logs.
    pub fn logged(&mut self, step: u64, tag: &str, value: &Logged) {
        self.notify("logged", |o| o.logged(step, tag, value));
    }

    /// Tells observers that a checkpoint is in place.
    pub fn saved(&mut self, path: &Path) {
        events::saved(path);
        self.notify("saved", |o| o.saved(path));
    }

    /// Tells observers that the run goes on from a checkpoint of a step.
    pub fn resumed(&mut self, step: u64) {
        self.notify("resumed", |o| o.resumed(step));
    }

    /// Tells observers that the run goes back to a step.
    pub fn rolled_back(&mut self, step: u64) {
        events::rolled_back(step);
        self.notify("rolled_back", |o| o.rolled_back(step));
    }

    /// Tells observers that a replica left.
    pub fn left(&mut self, text: &str) {
        events::replica_left(text);
        self.forward(text);
        self.tell_note(text);
    }

    /// Tells observers something worth knowing that concerns this machine alone.
    pub fn note_here(&mut self, text: &str) {
        self.forward(text);
        self.note(text);
    }

    /// Keeps a text for the rank that has the observers.
    fn forward(&mut self, text: &str) {
        if self.forwards {
            self.unheard.push(text.to_owned());
        }
    }

    /// Tells observers something worth knowing.
    pub fn note(&mut self, text: &str) {
        events::note(text);
        self.tell_note(text);
    }

    /// Tells observers a note, and keeps it for a user who has none of them.
    fn tell_note(&mut self, text: &str) {
        self.keep_note(text);
        self.notify("note", |o| o.note(text));
    }

    fn keep_note(&mut self, text: &str) {
        let own = without_label(text);
        if self.notes.len() < MOST_NOTES && !self.notes.iter().any(|note| note == own) {
            self.notes.push(own.to_owned());
        }
    }

    /// Tells observers once that `what` measured nothing of some numbers.
    pub fn unmeasured(&mut self, what: &str, names: &[String]) {
        let names = names.join(", ");
        let text = format!(
            "note: {what} has measured nothing for {names}, which is NaN: no label counts, all weights are 0 or a \
             class has no label; what is kept or decided by it passes over such epochs"
        );
        if !names.is_empty() {
            self.note_once(&text);
        }
    }

    /// Tells observers something worth knowing, if they have not been told it before.
    pub fn note_once(&mut self, text: &str) {
        if !self.notes.iter().any(|note| note == without_label(text)) {
            self.note(text);
        }
    }

    /// Tells observers that a fit is over.
    pub fn ended(&mut self) {
        self.notify("ended", |o| o.ended());
    }

    /// Calls the observers of this rank. Then these receive the problems that some of them have.
    fn notify(&mut self, what: &str, call: impl Fn(&mut dyn Observer)) {
        self.ask(what, call);
        let problems = self.ask("take_problem", |o| o.take_problem());
        for problem in problems.into_iter().flatten() {
            events::note(&problem);
            self.keep_note(&problem);
            self.ask("note", |o| o.note(&problem));
        }
    }

    /// Asks the observers of this rank, and returns their answers. One that panics has none.
    fn ask<T>(&mut self, what: &str, ask: impl Fn(&mut dyn Observer) -> T) -> Vec<T> {
        let mut answers = Vec::new();
        for watched in &mut self.observers {
            match watched.ask(self.forwards, what, &ask) {
                Ok(answer) => answers.extend(answer),
                Err(panicked) => {
                    self.panicked.get_or_insert(panicked);
                }
            }
        }
        answers
    }
}

/// Returns a note without the word before it.
fn without_label(text: &str) -> &str {
    text.strip_prefix("note: ").or_else(|| text.strip_prefix("warning: ")).unwrap_or(text)
}
