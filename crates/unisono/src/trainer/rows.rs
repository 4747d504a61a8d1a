//! Batches of which a machine has a part: its rows of each, and what it needs of the others.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use unisono_data::{Batch, Loader};
use unisono_graph::Program;
use unisono_replica::{Feed, Held};
use unisono_world::{Records, WorldError};

use crate::compile::feed;
use crate::compile::fields::WEIGHT;
use crate::optimizers::Scalar;
use crate::{Error, Trainer};

impl Trainer {
    /// Returns a loader that fetches this machine's part of each batch only, where there are others.
    pub(super) fn own_rows(&self, loader: Loader) -> Loader {
        if self.world().is_alone() {
            return loader;
        }
        let shares = self.crew.replicas.shares();
        loader.fetch_only(move |samples| shares.rows(samples))
    }

    /// Adds to a feed of some rows of a batch what brings others. `uses` says whether the carries are those
    /// of an evaluation or a prediction.
    pub(super) fn with_rest(
        &self,
        mut feed: Feed,
        program: &Arc<Program>,
        batch: &Batch,
        scalars: &[Scalar],
        uses: bool,
    ) -> Feed {
        let Some(part) = batch.part.clone() else { return feed };
        let carries = if uses { self.using.clone() } else { self.state.carries.clone() };
        let (program, scalars) = (Arc::clone(program), scalars.to_vec());
        feed.held = Some(Held::new(part.rows(), move |rows: Range<usize>| {
            let mut fetched = part.fetch(rows.clone()).map_err(|error| error.to_string())?;
            carries.add_to(&mut fetched.stacked, rows);
            feed::inputs(&program, &fetched, &scalars).map_err(|error| error.to_string())
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

    /// Returns the weights of all samples of a batch, if its data have weights.
    ///
    /// # Errors
    /// Samples of this machine's part that are not loaded cannot be fetched. Those of the world end the run.
    pub(super) fn weights_of<'a>(&self, batch: &'a Batch) -> Result<Option<Cow<'a, [f32]>>, Error> {
        let has_weights = self.plan.fields_of(batch).get(WEIGHT).is_some();
        let Some(own) = weights(batch).filter(|_| has_weights) else { return Ok(None) };
        let Some(part) = &batch.part else { return Ok(Some(Cow::Borrowed(own))) };
        loop {
            // Machines may have loaded their parts before and after a change of the cuts.
            let rows = self.crew.replicas.shares().rows(batch.len());
            let (loaded, fetched) = (part.rows(), part.fetch_unless_loaded(&rows)?);
            let (from, values) = match &fetched {
                Some(fetched) => (rows.start, weights(fetched).unwrap_or_default()),
                None => (loaded.start, own),
            };
            let first = rows.start.saturating_sub(from);
            let values = values.get(first..first + rows.len()).unwrap_or_default();
            let record = [&(rows.start as u64).to_le_bytes(), bytemuck::cast_slice(values)].concat();
            let all = joined(self.world().gather(&record)?, batch.len())?;
            // A machine whose rows are missing was lost: the others have them now.
            if let Some(all) = all {
                return Ok(Some(Cow::Owned(all)));
            }
        }
    }
}

fn weights(batch: &Batch) -> Option<&[f32]> {
    batch.field(WEIGHT).and_then(|weights| weights.values.as_f32())
}

/// Joins the weights of all machines. Returns none if some are missing.
fn joined(records: Records, samples: usize) -> Result<Option<Vec<f32>>, WorldError> {
    let (mut all, mut count) = (vec![0.0; samples], 0);
    for (rank, record) in records {
        let wrong = || WorldError::Link(format!("rank {rank} sent weights that are none"));
        let (first, values) = record.split_first_chunk().ok_or_else(wrong)?;
        let (first, values) = (u64::from_le_bytes(*first) as usize, values.as_chunks::<4>().0);
        let end = first.checked_add(values.len()).ok_or_else(wrong)?;
        let place = all.get_mut(first..end).ok_or_else(wrong)?;
        place.iter_mut().zip(values).for_each(|(weight, bytes)| *weight = f32::from_le_bytes(*bytes));
        count += values.len();
    }
    Ok((count == samples).then_some(all))
}
