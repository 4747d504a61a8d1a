//! What a model loses if its weights are stored in fewer bits.

use std::fmt;

use unisono_checkpoint::{Plan, Rounded, WeightPrecision};
use unisono_data::Loader;

use crate::{Error, Evaluation, Trainer};

/// Compares a model with the same model whose weights have fewer bits. [`Trainer::compare_precision`] returns
/// it. Its `Display` is two tables: loss and metrics before and after, and the largest error of each tensor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PrecisionReport {
    /// The precision of the weights after.
    pub precision: WeightPrecision,
    /// The loss and the metrics with the weights as they are.
    pub before: Evaluation,
    /// The loss and the metrics with the weights as they are read from a file of this precision.
    pub after: Evaluation,
    /// The bytes of the weights before and after, without the headers of files.
    pub bytes: [u64; 2],
    /// The tensors that are not stored exactly, with their largest errors, in order of names.
    pub rounded: Vec<Rounded>,
}

impl Trainer {
    /// Evaluates one epoch of a loader twice: with the weights as they are, and with those that
    /// [`Trainer::export`] in this precision writes. The trainer's own weights and the rest of the run do not
    /// change. On several machines all ranks call this.
    ///
    /// ```no_run
    /// # use unisono::{Error, Trainer, checkpoint::WeightPrecision, data::Loader};
    /// # fn compare(trainer: &mut Trainer, held_out: &Loader) -> Result<(), Error> {
    /// let report = trainer.compare_precision(held_out, WeightPrecision::I8)?;
    /// println!("{report}");
    /// assert!(report.after.metric("accuracy") > Some(0.95));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Trainer::evaluate`] and of [`WeightPrecision::store`].
    #[doc(alias("quantize", "quantization"))]
    pub fn compare_precision(
        &mut self,
        loader: &Loader,
        precision: WeightPrecision,
    ) -> Result<PrecisionReport, Error> {
        self.check_before_leaving()?;
        let tensors = self.weights_in_use()?;
        let stored = precision.store(&tensors, &self.plan.programs.channels)?;
        let model = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.info().clone())).collect();
        let (read, _) = Plan::new().take(&stored.tensors, &model)?;
        let before = self.evaluate(loader)?;
        let own = self.read_states()?;
        let after = self.write_tensors(&read).and_then(|()| self.evaluate(loader));
        // The run went back to an earlier step, whose tensors are on the devices.
        if let Err(error @ Error::RolledBack { .. }) = after {
            return Err(error);
        }
        self.write_states(&own)?;
        let bytes = [tensors.values().map(|tensor| tensor.bytes().len() as u64).sum(), stored.bytes()];
        Ok(PrecisionReport { precision, before, after: after?, bytes, rounded: stored.rounded })
    }
}

impl fmt::Display for PrecisionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { precision, before, after, bytes: [from, to], rounded } = self;
        writeln!(f, "weights in {precision:?}: {to} bytes instead of {from}")?;
        let metrics = before.metrics.iter().zip(&after.metrics);
        let metrics = metrics.map(|((name, before), (_, after))| (name.as_str(), *before, *after));
        let rows = std::iter::once(("loss", before.loss, after.loss)).chain(metrics);
        let names =
            rows.clone().map(|(name, ..)| name).chain(rounded.iter().map(|tensor| tensor.name.as_str()));
        let wide = names.map(|name| name.chars().count()).max().unwrap_or(0).max("tensor".len());
        writeln!(f, "{:wide$}  {:>10}  {:>10}", "", "before", "after")?;
        for (name, before, after) in rows {
            writeln!(f, "{name:wide$}  {before:>10.4}  {after:>10.4}")?;
        }
        write!(f, "{:wide$}  {:>10}  {:>10}  largest error", "tensor", "stored in", "largest")?;
        for Rounded { name, dtype, largest_error, largest, .. } in rounded {
            let dtype = dtype.to_string();
            write!(f, "\n{name:wide$}  {dtype:>10}  {largest:>10.4}  {largest_error:>13.3e}")?;
        }
        Ok(())
    }
}
