//! A replay buffer as a part of a run.

use unisono_data::Replay;

use crate::Trainer;
use crate::run::replay::KeptReplay;

impl Trainer {
    /// Makes a replay buffer part of the run, in place of an earlier one. Every checkpoint contains it. A
    /// resume restores it, and so does a return to an earlier step after replicas were wrong
    /// ([`Error::RolledBack`](crate::Error::RolledBack)): the buffer is then as that step left it. Call it
    /// before [`Trainer::resume`], which refuses a checkpoint of a buffer with another capacity, seed or
    /// fields.
    ///
    /// The state's digest does not cover the buffer. On several machines every rank adds the same samples.
    ///
    /// ```no_run
    /// # fn run(builder: unisono::Builder) -> Result<(), Box<dyn std::error::Error>> {
    /// use unisono::data::{Field, Replay, Sample};
    ///
    /// let number = |x: f32| Field::f32([1], [x]);
    /// let sample = |x: f32| Sample::new().with("x", number(x)).with("y", number(x * x));
    /// let mut replay = Replay::new(10_000, 42);
    /// replay.push(&sample(0.0))?;
    /// let mut trainer = builder.build(replay.fields())?;
    /// trainer.keep_replay(replay);
    /// trainer.checkpoints("run".as_ref(), 0)?;
    /// trainer.resume()?;
    /// while trainer.steps() < 1000 {
    ///     let played = sample(trainer.steps() as f32 / 1000.0);
    ///     let Some(replay) = trainer.replay_mut() else { break };
    ///     replay.push(&played)?;
    ///     let batch = replay.draw(32)?;
    ///     trainer.step(&batch)?;
    ///     if trainer.steps() % 100 == 0 {
    ///         trainer.save()?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("ReplayBuffer", "replay buffer"))]
    pub fn keep_replay(&mut self, replay: Replay) {
        self.state.replay = KeptReplay::new(replay);
    }

    /// Returns the run's replay buffer, if it has one.
    pub fn replay(&self) -> Option<&Replay> {
        self.state.replay.get()
    }

    /// Returns the run's replay buffer, if it has one, to add samples and to draw batches. After an audit of
    /// a step the first call copies the buffer, because the run may go back to it.
    pub fn replay_mut(&mut self) -> Option<&mut Replay> {
        self.state.replay.get_mut()
    }
}
