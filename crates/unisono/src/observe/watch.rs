//! The observers of a run, and the stop that may end it.

use std::path::Path;

use unisono_data::Seen;
use unisono_replica::ReplicaReport;

use crate::Epoch;
use crate::observe::events;
use crate::observe::logged::Logged;
use crate::observe::machines::MachineReport;
use crate::observe::observer::{Observer, Start, Step};
use crate::run::stop::Stop;

/// The observers of a run, its notes, and the stop that may end it.
#[derive(Default)]
pub(crate) struct Watch {
    /// The observers, which are called with steps, epochs, checkpoints and notes.
    pub observers: Vec<Box<dyn Observer>>,
    /// Notes for the user about the settings.
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
    /// Whether observers were told that a loader's own batch size is not used.
    pub told_batch: bool,
    /// Whether observers were told that a model with carries is trained on rows that are drawn anew.
    pub told_carries: bool,
    /// Notes about values for which nothing was measured. Observers were told each of them once.
    pub told_unmeasured: Vec<String>,
}

impl Watch {
    /// Tells observers that a fit begins.
    pub fn started(&mut self, start: &Start<'_>) {
        self.tell(|o| o.started(start));
    }

    /// Tells observers that a step is done.
    pub fn step(&mut self, step: &Step) {
        events::step_done(step);
        self.tell(|o| o.step(step));
    }

    /// Tells observers that an epoch is done.
    pub fn epoch(&mut self, epoch: &Epoch) {
        events::epoch_done(epoch);
        self.tell(|o| o.epoch(epoch));
    }

    /// Tells observers what each replica did so far.
    pub fn replicas(&mut self, step: u64, replicas: &[ReplicaReport]) {
        self.tell(|o| o.replicas(step, replicas));
    }

    /// Returns whether this rank calls any observer.
    pub fn is_observed(&self) -> bool {
        self.observers.iter().any(|o| is_called(&**o, self.forwards))
    }

    /// Whether an observer wants the parameters after an epoch.
    pub fn wants_weights(&self, epoch: u32) -> bool {
        let called = self.observers.iter().filter(|o| is_called(&***o, self.forwards));
        called.into_iter().any(|o| o.wants_weights(epoch))
    }

    /// Gives the parameters after an epoch to the observers that want them.
    pub fn weights(&mut self, epoch: u32, step: u64, weights: &[(&str, Vec<f32>)]) {
        self.tell(|o| {
            if o.wants_weights(epoch) {
                o.weights(step, weights);
            }
        });
    }

    /// Tells observers what a program logs.
    pub fn logged(&mut self, step: u64, tag: &str, value: &Logged) {
        self.tell(|o| o.logged(step, tag, value));
    }

    /// Tells observers that a checkpoint is in place.
    pub fn saved(&mut self, path: &Path) {
        events::saved(path);
        self.tell(|o| o.saved(path));
    }

    /// Tells observers that the run goes on from a checkpoint of a step.
    pub fn resumed(&mut self, step: u64) {
        self.tell(|o| o.resumed(step));
    }

    /// Tells observers that the run goes back to a step.
    pub fn rolled_back(&mut self, step: u64) {
        events::rolled_back(step);
        self.tell(|o| o.rolled_back(step));
    }

    /// Tells observers that a replica left.
    pub fn left(&mut self, text: &str) {
        events::replica_left(text);
        self.forward(text);
        self.tell(|o| o.note(text));
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
        self.tell(|o| o.note(text));
    }

    /// Tells observers once that `what` measured nothing of some numbers.
    pub fn unmeasured(&mut self, what: &str, names: &[String]) {
        let names = names.join(", ");
        let text = format!(
            "note: {what} has measured nothing for {names}, which is NaN: no label counts, all weights are 0 or a \
             class has no label; what is kept or decided by it passes over such epochs"
        );
        if !names.is_empty() && !self.told_unmeasured.contains(&text) {
            self.note(&text);
            self.told_unmeasured.push(text);
        }
    }

    /// Tells observers that a fit is over.
    pub fn ended(&mut self) {
        self.tell(|o| o.ended());
    }

    /// Calls the observers of this rank. Then these receive the problems that some of them have.
    fn tell(&mut self, call: impl Fn(&mut dyn Observer)) {
        let forwards = self.forwards;
        let mut called: Vec<_> = self.observers.iter_mut().filter(|o| is_called(&***o, forwards)).collect();
        called.iter_mut().for_each(|o| call(&mut ***o));
        let problems: Vec<String> = called.iter_mut().filter_map(|o| o.take_problem()).collect();
        for problem in problems {
            events::note(&problem);
            called.iter_mut().for_each(|o| o.note(&problem));
        }
    }
}

/// Returns whether an observer is called on a rank, which `forwards` if another one calls its observers.
fn is_called(observer: &dyn Observer, forwards: bool) -> bool {
    !forwards || observer.on_all_ranks()
}
