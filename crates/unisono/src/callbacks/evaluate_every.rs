//! Evaluations within epochs.

use unisono_data::Loader;

use crate::{Callback, Control, Error, Evaluation, Influence, Step};

type Evaluated = dyn FnMut(&Evaluation, &mut Control<'_>) -> Result<(), Error> + Send;

/// Evaluates the model every given number of steps (Lightning's `val_check_interval`), in addition to the
/// evaluation after each epoch. Loss and metrics are logged as `validation/NAME`.
/// [`TensorBoard`](crate::TensorBoard) shows them by step, and observers are told. The history contains
/// epochs only.
///
/// ```
/// use unisono::data::{Loader, Memory};
/// use unisono::{Dense, EvaluateEvery, Trainer};
///
/// let held_out = Loader::new(Memory::labelled(vec![0.0; 10], [1], vec![0; 10])?);
/// let builder = Trainer::builder(Dense::new(10))
///     .callback(EvaluateEvery::steps(500, &held_out.limit_batches(20)));
/// # Ok::<(), unisono::data::DataError>(())
/// ```
#[doc(alias = "val_check_interval")]
pub struct EvaluateEvery {
    steps: u64,
    loader: Loader,
    evaluated: Option<Box<Evaluated>>,
    influence: Influence,
}

impl EvaluateEvery {
    /// Evaluates these data after every `steps` steps, counted from the start of the run.
    pub fn steps(steps: u64, loader: &Loader) -> Self {
        Self { steps, loader: loader.clone(), evaluated: None, influence: Influence::None }
    }

    /// Calls a function with each evaluation. It may stop the run, keep weights or save. `influence` says how
    /// the function changes the result. Default: none.
    pub fn then(
        mut self,
        influence: Influence,
        call: impl FnMut(&Evaluation, &mut Control<'_>) -> Result<(), Error> + Send + 'static,
    ) -> Self {
        self.influence = influence;
        self.evaluated = Some(Box::new(call));
        self
    }
}

impl Callback for EvaluateEvery {
    fn name(&self) -> &str {
        "evaluate every"
    }

    fn influence(&self) -> Influence {
        match &self.influence {
            Influence::By(settings) => Influence::By(format!("every {} steps: {settings}", self.steps)),
            other => other.clone(),
        }
    }

    fn check(&self, _: &crate::Epoch) -> Result<(), String> {
        if self.steps == 0 { Err("it evaluates every 0 steps".into()) } else { Ok(()) }
    }

    fn step_ended(&mut self, _: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        let done = run.steps();
        if !done.is_multiple_of(self.steps) {
            return Ok(());
        }
        let evaluation = run.evaluate(&self.loader)?;
        let numbers = std::iter::once(("loss", evaluation.loss));
        let numbers = numbers.chain(evaluation.metrics.iter().map(|(name, value)| (&**name, *value)));
        let mut texts = Vec::new();
        for (name, value) in numbers {
            run.log(&format!("validation/{name}"), value);
            texts.push(format!("{name} {value:.4}"));
        }
        run.note(&format!("note: after step {done}, validation: {}", texts.join(", ")));
        self.evaluated.as_mut().map_or(Ok(()), |call| call(&evaluation, run))
    }
}
