//! Former names, which go with the next version.

use unisono_cluster::Cluster;

use crate::{Builder, Error, Evaluation, Step, Trainer, Witness};

/// The former name of [`Cluster`].
#[deprecated(note = "renamed to `Cluster`")]
pub type World = Cluster;

impl Builder {
    /// The former name of [`Builder::cluster`].
    #[deprecated(note = "renamed to `cluster`")]
    pub fn world(self, cluster: Cluster) -> Self {
        self.cluster(cluster)
    }
}

impl Witness {
    /// The former name of [`Witness::cpu`].
    #[deprecated(note = "renamed to `cpu`")]
    pub fn processor() -> Self {
        Self::cpu()
    }
}

impl Trainer {
    /// The former name of [`Trainer::notify_step`].
    #[deprecated(note = "renamed to `notify_step`")]
    pub fn tell_step(&mut self, step: &Step) {
        self.notify_step(step);
    }

    /// The former name of [`Trainer::notify_epoch_ended`].
    ///
    /// # Errors
    /// As there.
    #[deprecated(note = "renamed to `notify_epoch_ended`")]
    pub fn tell_epoch_ended(&mut self, last: &Step, validation: Option<Evaluation>) -> Result<(), Error> {
        self.notify_epoch_ended(last, validation)
    }

    /// The former name of [`Trainer::notify_ended`].
    #[deprecated(note = "renamed to `notify_ended`")]
    pub fn tell_ended(&mut self) {
        self.notify_ended();
    }
}
