//! Lowers learning rates where a run gets no better.

use crate::{Better, Callback, Control, Epoch, Error, Influence, Plateau};

/// Lowers the learning rate when a monitored value has stopped improving (Keras's `ReduceLROnPlateau`; it
/// counts epochs as PyTorch's, see [`Plateau`]). The lower rate takes effect in the next epoch, on top of the
/// schedule.
///
/// [`Schedule::reduce_on`](crate::Schedule::reduce_on) does the same as part of a schedule; use one of the
/// two. The callback can also lower the rate of one [`Phase`](crate::Phase).
///
/// ```
/// use unisono::{Dense, Plateau, ReduceOnPlateau, Trainer};
///
/// let lower = ReduceOnPlateau::new(Plateau::lowest("loss").patience(3).factor(0.5));
/// let builder = Trainer::builder(Dense::new(10)).callback(lower);
/// ```
#[doc(alias = "ReduceLROnPlateau")]
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    plateau: Plateau,
    name: String,
    phase: Option<String>,
}

impl ReduceOnPlateau {
    /// Creates a callback that lowers the learning rate on a plateau. In a run with phases it lowers the
    /// rates of all phases.
    pub fn new(plateau: Plateau) -> Self {
        Self { plateau, name: "reduce on plateau".into(), phase: None }
    }

    /// Lowers only the learning rate of this phase, and counts only the epochs in which the phase has turns.
    /// Default: the rates of all phases, by all epochs.
    pub fn of_phase(mut self, phase: &str) -> Self {
        (self.name, self.phase) = (format!("reduce on plateau of {phase}"), Some(phase.to_owned()));
        self
    }

    /// Returns how often a rate has been lowered in a run of this history.
    fn reductions(&self, history: &[Epoch]) -> Result<u32, Error> {
        self.plateau.reductions(history).map_err(|problem| Error::setting("reduce on plateau", problem))
    }
}

impl Callback for ReduceOnPlateau {
    fn name(&self) -> &str {
        &self.name
    }

    fn influence(&self) -> Influence {
        Influence::By(self.plateau.describe())
    }

    fn watches(&self) -> Option<(&str, Better)> {
        Some(self.plateau.watches())
    }

    fn check(&self, example: &Epoch) -> Result<(), String> {
        self.plateau.reductions(std::slice::from_ref(example)).map(drop)
    }

    fn awaits_steps(&self) -> bool {
        false
    }

    fn fit_begins(&mut self, run: &mut Control<'_>) -> Result<(), Error> {
        run.check_rates_can_change(self.phase.as_deref())
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        let history = match &self.phase {
            Some(phase) => run.history_of(phase)?,
            None => run.history(),
        };
        // The epoch that ended may be none of the phase's.
        let before = match history.split_last() {
            Some((last, before)) if last.epoch == epoch.epoch => before,
            _ => return Ok(()),
        };
        if self.reductions(history)? == self.reductions(before)? {
            return Ok(());
        }
        run.reduce_rates(self.phase.as_deref(), &self.plateau.reduction(1))
    }
}
