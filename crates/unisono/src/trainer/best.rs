//! The best checkpoint: where it is, and its weights.

use std::path::PathBuf;

use unisono_checkpoint::Plan;

use crate::{Error, Trainer};

impl Trainer {
    /// The best checkpoint of the directory that the run is saved to, by [`crate::Saving::keep_best`]: its step and its
    /// directory. `None` where that is not asked for, or nothing was measured yet.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn best(&self) -> Result<Option<(u64, PathBuf)>, Error> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(None) };
        Ok(checkpoints.saver.with_store(|store| store.best())?)
    }

    /// Takes parameters and statistics of the best checkpoint, to use or export them when training is over, and returns its
    /// step. Position, history and optimizer stay what they are: training that goes on from here is another run.
    ///
    /// # Errors
    /// There is none; it cannot be read, or is not as it was written. Then nothing has changed.
    pub fn load_best(&mut self) -> Result<u64, Error> {
        let Some((step, path)) = self.best()? else {
            return Err(Error::setting("best", "no checkpoint was kept as the best: see Saving::keep_best"));
        };
        // Verified before it is believed.
        unisono_checkpoint::load(&path)?;
        self.load_model(path.join("model.safetensors"), &Plan::new())?;
        Ok(step)
    }
}
