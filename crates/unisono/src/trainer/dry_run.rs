//! A dry run: two steps and an evaluation of two batches, of which nothing stays.

use unisono_data::Loader;

use crate::objective::running::Running;
use crate::{Error, Evaluation, Trainer};

/// The number of batches of a dry run.
const BATCHES: u64 = 2;

impl Trainer {
    /// Trains on two batches, evaluates two, and restores everything (Lightning's `fast_dev_run`). Use it to
    /// find out within seconds whether a long run can work. Returns the loss and the metrics of the last
    /// step, and those of the evaluation if there are validation data.
    ///
    /// Nothing is saved. Neither observers nor callbacks are called. A fit afterwards gives the same bits as
    /// without the dry run.
    ///
    /// # Errors
    /// Those of steps and evaluations. The previous state is restored in this case too.
    #[doc(alias = "fast_dev_run")]
    pub fn dry_run(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
    ) -> Result<(Evaluation, Option<Evaluation>), Error> {
        self.hear_witness(true)?;
        self.check_before_leaving()?;
        let tensors = self.read_states()?;
        let (state, using) = (self.state.clone(), self.using.clone());
        let (trust, saver) = (std::mem::take(&mut self.trust), self.saver.take());
        let tried = self.try_out(train, validation);
        self.forget_witnessed();
        let restored = self.write_states(&tensors);
        (self.state, self.using, self.trust, self.saver) = (state, using, trust, saver);
        (self.replica_set.non_finite, self.replica_set.compared) = (None, None);
        restored.and(tried)
    }

    /// Does the steps and the evaluation.
    fn try_out(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
    ) -> Result<(Evaluation, Option<Evaluation>), Error> {
        let mut last = Running::default().finish(&self.plan.parts.objective().metrics);
        let epoch = self.position().epoch;
        for batch in self.reader(train).limit_batches(BATCHES).epoch(epoch)? {
            let batch = batch?;
            last = self.step_inner(&batch, Some(train.source()), batch.after)?.now;
        }
        let validation = validation.map(|loader| self.evaluate(&loader.clone().limit_batches(BATCHES)));
        Ok((last, validation.transpose().map_err(Error::of_validation)?))
    }
}
