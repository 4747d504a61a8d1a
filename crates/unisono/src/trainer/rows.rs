//! Batches of which a machine has a part: its rows of each, and what it needs of the others.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use unisono_cluster::{ClusterError, Records};
use unisono_data::{Batch, Loader};
use unisono_graph::Program;
use unisono_replica::{Feed, Held};

use crate::compile::asked::Asked;
use crate::compile::feed::{self, InputMemory};
use crate::compile::fields::WEIGHT;
use crate::optimizers::Scalar;
use crate::{Error, Trainer};

impl Trainer {
    /// Returns a loader that fetches this machine's part of each batch only, where there are others.
    pub(super) fn own_rows(&self, loader: Loader) -> Loader {
        if self.cluster().is_alone() {
            return loader;
        }
        let shares = self.replica_set.replicas.shares();
        loader.fetch_only(move |samples| shares.rows(samples))
    }

    /// Adds to a feed of some rows of a batch what brings others. `uses` says whether the carries are those
    /// of an evaluation or a prediction, and `asked` what samples need not have.
    pub(super) fn with_rest(
        &self,
        mut feed: Feed,
        program: &Arc<Program>,
        batch: &Batch,
        scalars: &[Scalar],
        (uses, asked): (bool, &Asked),
    ) -> Feed {
        let Some(part) = batch.part.clone() else { return feed };
        let carries = if uses { self.using.clone() } else { self.state.carries.clone() };
        let (program, scalars, asked) = (Arc::clone(program), scalars.to_vec(), asked.clone());
        feed.held = Some(Held::new(part.rows(), move |rows: Range<usize>| {
            let mut fetched = part.fetch(rows.clone()).map_err(|error| error.to_string())?;
            asked.fill_in(&mut fetched.stacked, rows.len());
            carries.add_to(&mut fetched.stacked, rows);
            feed::inputs(&program, &fetched, &scalars, &InputMemory::default())
                .map_err(|error| error.to_string())
        }));
        feed
    }

    /// Returns a batch with the fields and the carries of all its samples.
    ///
    /// # Errors
    /// A sample of another machine's part cannot be fetched.
    pub(super) fn whole_batch<'a>(&self, batch: &'a Batch) -> Result<Cow<'a, Batch>, Error> {
        if batch.part.is_none() {
            return Ok(Cow::Borrowed(batch));
        }
        let mut whole = batch.whole()?.into_owned();
        self.state.carries.add_to(&mut whole.stacked, 0..batch.len());
        Ok(Cow::Owned(whole))
    }

    /// Returns the weights of all samples of a batch of which other machines have a part, if its data have
    /// weights. All machines call this before they use the batch: the cuts between them do not move then, and
    /// nothing has happened that an error would have to take back.
    ///
    /// # Errors
    /// Samples of this machine's part that are not loaded cannot be fetched. Those of the cluster end the
    /// run.
    pub(super) fn gather_weights(&self, batch: &Batch) -> Result<Option<Vec<f32>>, Error> {
        let (Some(own), Some(part)) = (self.loaded_weights(batch), &batch.part) else { return Ok(None) };
        loop {
            // Machines may have loaded their parts before and after a change of the cuts.
            let rows = self.replica_set.replicas.shares().rows(batch.len());
            let (loaded, fetched) = (part.rows(), part.fetch_unless_loaded(&rows)?);
            let (from, values) = match &fetched {
                Some(fetched) => (rows.start, weights(fetched).unwrap_or_default()),
                None => (loaded.start, own),
            };
            let first = rows.start.saturating_sub(from);
            let values = values.get(first..first + rows.len()).unwrap_or_default();
            let record = [&(rows.start as u64).to_le_bytes(), bytemuck::cast_slice(values)].concat();
            let all = joined(self.cluster().gather("the weights of samples", &record)?, batch.len())?;
            // A machine whose rows are missing was lost: the others have them now.
            if all.is_some() {
                return Ok(all);
            }
        }
    }

    /// Returns the weights of all samples of a batch, if its data have weights: those that were gathered, or
    /// else those of the batch, which this machine has alone.
    pub(super) fn weights_of<'a>(&self, batch: &'a Batch, gathered: Option<&'a [f32]>) -> Option<&'a [f32]> {
        gathered.or_else(|| self.loaded_weights(batch))
    }

    /// Returns the weights of the samples of a batch that are loaded, if its data have weights.
    fn loaded_weights<'a>(&self, batch: &'a Batch) -> Option<&'a [f32]> {
        weights(batch).filter(|_| self.plan.fields_of(batch).get(WEIGHT).is_some())
    }
}

fn weights(batch: &Batch) -> Option<&[f32]> {
    batch.field(WEIGHT).and_then(|weights| weights.values.as_f32())
}

/// Joins the weights of all machines. Returns none if those of a sample are missing: machines that see
/// another cut than others may bring some twice.
fn joined(records: Records, samples: usize) -> Result<Option<Vec<f32>>, ClusterError> {
    let mut all = vec![None; samples];
    for (rank, record) in records {
        let wrong = || ClusterError::Link(format!("rank {rank} sent weights that are none"));
        let (first, values) = record.split_first_chunk().ok_or_else(wrong)?;
        let (first, values) = (u64::from_le_bytes(*first) as usize, values.as_chunks::<4>().0);
        let end = first.checked_add(values.len()).ok_or_else(wrong)?;
        let place = all.get_mut(first..end).ok_or_else(wrong)?;
        place.iter_mut().zip(values).for_each(|(weight, bytes)| *weight = Some(f32::from_le_bytes(*bytes)));
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(first: u64, weights: &[f32]) -> Vec<u8> {
        [&first.to_le_bytes(), bytemuck::cast_slice(weights)].concat()
    }

    #[test]
    fn weights_are_joined_if_every_sample_has_one() {
        let all = vec![(0, record(0, &[0.5, 1.0])), (2, record(2, &[2.0]))];
        assert_eq!(joined(all, 3), Ok(Some(vec![0.5, 1.0, 2.0])));
        // As many weights as samples, of a new cut and an old one: nobody has brought the last sample's.
        let mixed = vec![(0, record(0, &[0.5, 1.0])), (1, record(1, &[1.0]))];
        assert_eq!(joined(mixed, 3), Ok(None));
        let twice = vec![(0, record(0, &[0.5, 1.0])), (1, record(1, &[1.0, 2.0]))];
        assert_eq!(joined(twice, 3), Ok(Some(vec![0.5, 1.0, 2.0])));
        assert!(joined(vec![(0, record(2, &[0.5, 1.0]))], 3).is_err());
    }
}
