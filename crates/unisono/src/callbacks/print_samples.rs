//! Shows what a model predicts as it learns.

use unisono_data::Loader;

use crate::{Callback, Control, Epoch, Error, Influence, Predictions};

type Show = dyn FnMut(&Predictions) -> String + Send;

/// Predicts a few samples after epochs, and logs a text about them as `samples`. `Progress` prints it;
/// [`TensorBoard`](crate::TensorBoard) and [`JsonLines`](crate::JsonLines) store it. Never changes the
/// result.
///
/// ```
/// use unisono::data::{Loader, Memory};
/// use unisono::{Dense, PrintSamples, Trainer};
///
/// let few = Loader::new(Memory::labelled(vec![0.0; 3], [1], vec![0; 3])?);
/// let print = PrintSamples::new(&few, |predictions| {
///     let all = predictions.iter().map(|output| format!("{}: {:?}", output.name, output.values));
///     all.collect::<Vec<_>>().join("; ")
/// });
/// let builder = Trainer::builder(Dense::new(10)).callback(print.every(5));
/// # Ok::<(), unisono::data::DataError>(())
/// ```
pub struct PrintSamples {
    loader: Loader,
    every: u32,
    show: Box<Show>,
}

impl PrintSamples {
    /// Creates a callback that predicts the samples of a loader after each epoch, and logs the text that
    /// `show` returns for them.
    pub fn new(samples: &Loader, show: impl FnMut(&Predictions) -> String + Send + 'static) -> Self {
        Self { loader: samples.clone(), every: 1, show: Box::new(show) }
    }

    /// Predicts only after every `epochs` epochs. Default: 1.
    pub fn every(self, epochs: u32) -> Self {
        Self { every: epochs, ..self }
    }
}

impl Callback for PrintSamples {
    fn name(&self) -> &str {
        "print samples"
    }

    fn influence(&self) -> Influence {
        Influence::None
    }

    fn check(&self, _: &Epoch) -> Result<(), String> {
        if self.every == 0 { Err("it predicts every 0 epochs".into()) } else { Ok(()) }
    }

    fn awaits_steps(&self) -> bool {
        false
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        if (u64::from(epoch.epoch) + 1).is_multiple_of(u64::from(self.every)) {
            let predictions = run.predict_all(&self.loader)?;
            let text = (self.show)(&predictions);
            run.log("samples", text);
        }
        Ok(())
    }
}
