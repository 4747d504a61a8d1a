//! Limits of a fit besides its epochs.

use std::time::{Duration, Instant};

use crate::{Callback, Control, Error, Influence, Step};

/// Ends a fit after a number of steps or an amount of time (Lightning's `max_steps` and `max_time`). The run
/// itself has not ended: it is saved, and the next fit, also after a resume, continues from there to the same
/// bytes.
///
/// ```
/// use std::time::Duration;
/// use unisono::{Dense, PauseAfter, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).callback(PauseAfter::time(Duration::from_secs(3600)));
/// ```
#[derive(Clone, Debug)]
pub struct PauseAfter {
    steps: Option<u64>,
    time: Option<Duration>,
    began: Option<Instant>,
}

impl PauseAfter {
    /// Ends fits once the run has done `steps` steps, counted from the start of the run.
    pub fn steps(steps: u64) -> Self {
        Self { steps: Some(steps), time: None, began: None }
    }

    /// Ends each fit after the current step once `time` has passed since the fit began. On several machines,
    /// the first machine on which the time has passed ends the fit on all.
    pub fn time(time: Duration) -> Self {
        Self { steps: None, time: Some(time), began: None }
    }

    fn count(&self, run: &mut Control<'_>) {
        if let Some(most) = self.steps.filter(|most| run.steps() >= *most) {
            run.pause(&format!("{most} steps are done"));
        }
    }
}

impl Callback for PauseAfter {
    fn name(&self) -> &str {
        if self.steps.is_some() { "pause after steps" } else { "pause after a time" }
    }

    /// Where a run pauses changes nothing of where it goes.
    fn influence(&self) -> Influence {
        Influence::None
    }

    fn fit_begins(&mut self, run: &mut Control<'_>) -> Result<(), Error> {
        self.began = Some(Instant::now());
        self.count(run);
        Ok(())
    }

    fn step_ended(&mut self, _: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        self.count(run);
        let took = self.began.map(|began| began.elapsed()).unwrap_or_default();
        if let Some(most) = self.time.filter(|most| took >= *most) {
            run.pause(&format!("the fit has taken its {} s", most.as_secs_f64()));
        }
        Ok(())
    }
}
