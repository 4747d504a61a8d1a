//! Callbacks: a user's code that is called as a run proceeds, and that may change how it goes on.

use std::sync::Arc;

use serde_json::Value;

use crate::error::caught;
use crate::objective::metrics::wrong_way;
use crate::run::control::Kept;
use crate::trainer::Trainer;
use crate::trainer::control::Control;
use crate::{Better, Epoch, Error, Metric, Step};

/// A callback of a run (Keras's and Lightning's `Callback`). It is called on the trainer's thread at steps
/// and epochs, with a [`Control`] that can change how the run continues. An [`Observer`](crate::Observer)
/// only watches.
///
/// Every change applies to all replicas alike. The result therefore stays the same for any number of
/// replicas, if the callback decides only by what the run gives it: steps, epochs, the control.
///
/// To return an error of your own, use [`Error::other`]. If any function of a callback panics, this is an
/// error that names it, too: of the build, the fit or the resume that called it.
///
/// ```
/// use unisono::{Callback, Control, Epoch, Error, Influence};
///
/// /// Multiplies the learning rate by 0.9 after each epoch.
/// struct Decay;
///
/// impl Callback for Decay {
///     fn name(&self) -> &str {
///         "decay"
///     }
///     fn influence(&self) -> Influence {
///         Influence::By("0.9 an epoch".into())
///     }
///     fn epoch_ended(&mut self, _: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
///         run.scale_learning_rate(0.9)
///     }
/// }
/// ```
pub trait Callback: Send {
    /// Returns the name by which checkpoints know the callback.
    fn name(&self) -> &str;

    /// Returns how the callback changes the result of the run. Default: [`Influence::NotCovered`].
    fn influence(&self) -> Influence {
        Influence::NotCovered
    }

    /// Checks the callback's settings before the run. `example` is an epoch with the metrics of the run, in
    /// which everything is 0. Default: `Ok(())`.
    ///
    /// # Errors
    /// A setting cannot work, or a value that the callback needs is not measured. The error is the message.
    fn check(&self, _example: &Epoch) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value that the callback decides by, `"loss"` or a metric, and which values it takes to be
    /// better. If the metric itself says the opposite ([`Metric::better`](crate::Metric::better)), building
    /// the trainer notes it. Default: `None`.
    fn watches(&self) -> Option<(&str, Better)> {
        None
    }

    /// Returns the state that the callback has between its calls, for checkpoints. It is called after each
    /// other call.
    ///
    /// Default: null, for a callback without state, or with state that follows from the history.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Restores what [`Callback::state`] returned earlier: when a run is resumed, or when it goes back to an
    /// earlier step because replicas were wrong. Default: does nothing.
    ///
    /// # Errors
    /// The value is not one that this callback returns. The error is the message.
    fn restore(&mut self, _state: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Returns whether the next step waits for [`Callback::step_ended`]. Default: true. If no callback of a
    /// run makes it wait, a GPU computes the next step in the meantime. `step_ended` may then only set
    /// learning rates, log and note. Predictions, evaluations, weights, saving and ending the fit are errors
    /// there, on any number of replicas. At the end of an epoch everything is allowed.
    fn awaits_steps(&self) -> bool {
        true
    }

    /// Called when a fit begins, unless all its epochs are already done. Default: does nothing.
    ///
    /// # Errors
    /// An error ends the fit before its first step.
    fn fit_begins(&mut self, _run: &mut Control<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Called after each step of a fit. Default: does nothing. If the run is asked to stop in the meantime,
    /// it stops after all callbacks were called. An evaluation that one of them has started is not cut short.
    ///
    /// # Errors
    /// An error ends the fit after the step.
    fn step_ended(&mut self, _step: &Step, _run: &mut Control<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Called after each epoch of a fit and its evaluation, before the observers. Default: does nothing.
    ///
    /// # Errors
    /// An error ends the fit. The epoch has then not ended, and the next fit begins with its end.
    fn epoch_ended(&mut self, _epoch: &Epoch, _run: &mut Control<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// How a callback changes the result of a run. A resume compares it with that of the original run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Influence {
    /// The callback changes nothing that the answer depends on: it predicts, evaluates, saves or reports.
    None,
    /// The callback's decisions depend only on the settings in this text, and on what the run gives it. Put
    /// a version number into the text, and change it whenever you change the callback's code.
    By(String),
    /// The callback may change the result, and there is no text of its settings. A resume therefore cannot
    /// compare them, and the run's identity says so.
    NotCovered,
}

/// The callbacks of a trainer.
#[derive(Default)]
pub(super) struct Callbacks {
    pub all: Vec<Box<dyn Callback>>,
    /// Whether one has asked for the run to be saved.
    pub save: bool,
    /// The first callback that asked for the fit to end, and its reason.
    pub pause: Option<String>,
    /// While an epoch ends: the tensors of the state, once a callback is about to change some.
    pub before: Option<Vec<Vec<u8>>>,
    pub keeps_before: bool,
    /// What callbacks decide that nothing stands for.
    pub not_covered: Vec<String>,
}

impl Callbacks {
    /// Checks each callback, and returns what checkpoints say of it.
    ///
    /// # Errors
    /// One cannot work, or panics, or two have one name.
    pub fn kept(&mut self, example: &Epoch) -> Result<Vec<Kept>, Error> {
        let mut kept: Vec<Kept> = Vec::new();
        self.not_covered.clear();
        for (at, callback) in self.all.iter().enumerate() {
            let name = asked(&format!("number {}", at + 1), "name", || callback.name().to_owned())?;
            let wrong = |problem: String| Error::setting("callback", format!("{name}: {problem}"));
            asked(&name, "check", || callback.check(example))?.map_err(wrong)?;
            if kept.iter().any(|other| other.name == name) {
                return Err(wrong("two callbacks have this name".into()));
            }
            let settings = match asked(&name, "influence", || callback.influence())? {
                Influence::By(settings) => Some(settings),
                Influence::None => None,
                Influence::NotCovered => {
                    self.not_covered.push(format!("what the callback {name:?} decides"));
                    None
                }
            };
            let value = asked(&name, "state", || callback.state())?;
            kept.push(Kept { name, settings, value });
        }
        Ok(kept)
    }

    /// Returns a note for each callback that takes the worse values of a metric to be the better ones.
    ///
    /// # Errors
    /// One panics.
    pub fn wrong_ways(&self, metrics: &[Arc<dyn Metric>]) -> Result<Vec<String>, Error> {
        let mut notes = Vec::new();
        for (at, callback) in self.all.iter().enumerate() {
            let name = asked(&format!("number {}", at + 1), "name", || callback.name())?;
            let watched = asked(name, "watches", || callback.watches())?;
            notes.extend(watched.and_then(|watched| wrong_way(metrics, name, watched)));
        }
        Ok(notes)
    }

    /// Returns a note if a callback watches a value of an epoch in a fit without validation data.
    pub fn note_on_training_values(&self) -> Option<String> {
        let mut watching =
            self.all.iter().filter(|callback| matches!(caught(|| callback.watches()), Ok(Some(_))));
        let callback = watching.next()?;
        let name = caught(|| callback.name().to_owned()).ok()?;
        Some(format!("{name} watches training metrics, because this fit has no validation data"))
    }

    /// Returns whether the next step waits for one of the callbacks. It does for one that panics when asked,
    /// which [`Trainer::call`] finds.
    pub fn await_steps(&self) -> bool {
        self.all.iter().any(|callback| caught(|| callback.awaits_steps()).unwrap_or(true))
    }

    /// Returns what a callback has asked for that is for callbacks for which steps wait.
    fn asked(&self, stopped: bool) -> Option<&'static str> {
        let asked = [(stopped, "ends the run"), (self.pause.is_some(), "ends the fit"), (self.save, "saves")];
        asked.into_iter().find(|(is_asked, _)| *is_asked).map(|(_, what)| what)
    }
}

/// Returns the error of a callback that does after a step what the next step would have to wait for.
pub(super) fn not_awaited(name: &str, what: &str) -> Error {
    let problem =
        format!("{name}: {what} after a step, and says that steps do not wait (Callback::awaits_steps)");
    Error::setting("callback", problem)
}

/// Asks a callback for something by the name of a function.
///
/// # Errors
/// It panicked.
fn asked<T>(callback: &str, function: &str, ask: impl FnOnce() -> T) -> Result<T, Error> {
    caught(ask).map_err(|text| Error::Callback {
        callback: callback.to_owned(),
        cause: format!("panicked in Callback::{function}: {text}").into(),
    })
}

/// Calls a callback. An error of its own and a panic become errors that name it: after a panic that went
/// through, the trainer would have no callbacks and half an epoch's end.
fn guarded(callback: &str, call: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let failed = |cause| Error::Callback { callback: callback.to_owned(), cause };
    match caught(call) {
        Ok(Err(Error::Other(cause))) => Err(failed(cause)),
        Ok(result) => result,
        Err(text) => Err(failed(format!("panicked: {text}").into())),
    }
}

impl Trainer {
    /// Calls all callbacks in their order. `ahead` is the number of steps that may be under way. It is 1
    /// after a step: the step is done, so its callbacks are called even if the run is asked to stop. The next
    /// step is in `epoch`.
    ///
    /// # Errors
    /// The first of a callback; those after it are not called.
    pub(super) fn call(
        &mut self,
        ahead: u64,
        epoch: u32,
        mut event: impl FnMut(&mut dyn Callback, &mut Control<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut all = std::mem::take(&mut self.callbacks.all);
        let stop = (ahead > 0).then(|| std::mem::take(&mut self.monitor.stop));
        let mut result = Ok(());
        for (at, callback) in all.iter_mut().enumerate() {
            let name = self.state.control.callbacks[at].name.clone();
            let awaits = match asked(&name, "awaits_steps", || callback.awaits_steps()) {
                Ok(awaits) => awaits,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let is_ahead = ahead > 0 && !awaits;
            let before = self.callbacks.asked(self.stopped().is_some());
            let mut control = Control { trainer: self, name: name.clone(), ahead, epoch, is_ahead };
            result = guarded(&name, || event(&mut **callback, &mut control));
            if let (true, None, Some(what)) =
                (is_ahead, before, self.callbacks.asked(self.stopped().is_some()))
            {
                self.state.control.stopped = None;
                (self.callbacks.pause, self.callbacks.save) = (None, false);
                result = result.and(Err(not_awaited(&name, what)));
            }
            if result.is_err() {
                break;
            }
            result = guarded(&name, || {
                self.state.control.callbacks[at].value = callback.state();
                Ok(())
            });
            if result.is_err() {
                break;
            }
        }
        self.callbacks.all = all;
        self.monitor.stop = stop.unwrap_or_else(|| std::mem::take(&mut self.monitor.stop));
        if matches!(result, Err(Error::RolledBack { .. })) {
            self.restore_callbacks()?;
        }
        result
    }

    /// Gives the callbacks and the optimizer what the run's state has for them.
    ///
    /// # Errors
    /// A callback does not accept what it kept, or panics.
    pub(super) fn restore_callbacks(&mut self) -> Result<(), Error> {
        for (callback, kept) in self.callbacks.all.iter_mut().zip(&self.state.control.callbacks) {
            let wrong = |problem| Error::setting("callback", format!("{}: {problem}", kept.name));
            asked(&kept.name, "restore", || callback.restore(&kept.value))?.map_err(wrong)?;
        }
        self.apply_rates()
    }

    /// Whether the fit is to end: it was asked to stop, or a callback ends it.
    pub(super) fn is_over(&self) -> bool {
        self.monitor.stop.is_asked() || self.is_ended()
    }

    /// Whether a callback ends the fit or the run.
    pub(super) fn is_ended(&self) -> bool {
        self.stopped().is_some() || self.callbacks.pause.is_some()
    }

    /// Tells observers why a callback ends the fit, if one does.
    pub(super) fn note_end(&mut self) {
        let step = self.steps();
        if let Some(stopped) = self.stopped().cloned() {
            self.monitor.note(&format!(
                "the run ends after step {step}, ended by {}: {}",
                stopped.by, stopped.reason
            ));
        } else if let Some(pause) = self.callbacks.pause.take() {
            self.monitor.note(&format!("the fit ends after step {step}, {pause}"));
        }
    }
}
