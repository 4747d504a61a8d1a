//! Former names, which go with the next version.

use unisono_cluster::Cluster;

use crate::{Builder, Witness};

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
