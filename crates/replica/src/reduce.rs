//! The all-reduce between two segments, as the coordinator runs it.

use std::sync::Arc;

use unisono_graph::Program;

use crate::error::ReplicaError;
use crate::exchange::{Blocks, not_finite, sum};
use crate::feed::Feed;
use crate::layout::Layout;
use crate::message::{Harvest, Sums};
use crate::outputs::Outputs;
use crate::replicas::{Buffers, Replicas};

impl Replicas {
    /// Sums the buckets of a cut over all shards, and shows those sums that are outputs.
    pub(crate) fn exchange(
        &mut self,
        program: &Program,
        layout: &Layout,
        cut: usize,
        harvests: &[(usize, Harvest)],
        outputs: &mut Outputs,
    ) -> Result<Sums, ReplicaError> {
        let (mut all, mut bad) = (Sums::new(), Vec::new());
        for (bucket, decl) in program.buckets().iter().enumerate().filter(|(_, bucket)| bucket.cut == cut) {
            let mut blocks = Blocks::new();
            for (replica, harvest) in harvests {
                let share = layout.shares.iter().find(|share| share.replica == *replica);
                let values = harvest.blocks.iter().find(|(b, _)| *b == bucket);
                if let (Some(share), Some((_, values))) = (share, values) {
                    blocks.extend(share.run.blocks().into_iter().zip(values.chunks_exact(decl.len.max(1))));
                }
            }
            let mut sums = self.buffers.sums(decl.len);
            if !sum(&blocks, layout.shards, layout.leaves, self.buffers.threads, &mut sums) {
                return Err(ReplicaError::Incomplete { step: self.steps - 1, bucket });
            }
            bad.extend(not_finite(program, bucket, &sums));
            for (index, output) in program.outputs().iter().enumerate() {
                if let Some((_, first)) = output.sum.filter(|(of, _)| *of == bucket) {
                    outputs.set(index, bytemuck::cast_slice(&sums[first..first + output.ty.count()]));
                }
            }
            all.push((bucket, Arc::new(sums)));
        }
        let more = bad.len().saturating_sub(1);
        match bad.into_iter().min() {
            Some((_, what)) => {
                Err(ReplicaError::NotFinite { step: self.steps - 1, what, more, outputs: Box::default() })
            }
            None => Ok(all),
        }
    }

    /// Names what is not finite where the sums stayed on the device: runs the step up to that cut again, with its sums exposed.
    pub(crate) fn diagnose(
        &mut self,
        program: usize,
        feed: &Arc<Feed>,
        layout: &Layout,
        cut: usize,
    ) -> ReplicaError {
        let sizes = layout.shares.first().map_or(Vec::new(), |share| share.run.sizes.clone());
        let replica = layout.shares.first().map_or(0, |share| share.replica);
        let exposed = Layout::exposed(&sizes, replica);
        match self.look(program, feed, &exposed, cut) {
            Err(error) => error,
            Ok(()) => {
                let what = format!("a sum of segment {cut}");
                ReplicaError::NotFinite { step: self.steps - 1, what, more: 0, outputs: Box::default() }
            }
        }
    }

    fn look(
        &mut self,
        index: usize,
        feed: &Arc<Feed>,
        layout: &Layout,
        cut: usize,
    ) -> Result<(), ReplicaError> {
        let program = Arc::clone(&self.ready(index)?.program);
        let (mut sums, mut outputs) = (Sums::new(), Outputs::new(program.outputs().len()));
        self.load(index, std::slice::from_ref(layout))?;
        for segment in 0..=cut {
            let (harvests, _) =
                self.run(index, feed, layout, segment..segment + 1, std::mem::take(&mut sums))?;
            sums = self.exchange(&program, layout, segment, &harvests, &mut outputs)?;
        }
        Ok(())
    }

    /// Keeps the memory of blocks for the worker that filled it.
    pub(crate) fn keep_blocks(&mut self, mut harvests: Vec<(usize, Harvest)>) -> Vec<(usize, Harvest)> {
        for (replica, harvest) in &mut harvests {
            // The worker takes the last first.
            self.buffers.blocks[*replica].extend(harvest.blocks.drain(..).rev().map(|(_, values)| values));
        }
        harvests
    }
}

impl Buffers {
    /// Memory that nobody reads any more, or new.
    fn sums(&mut self, len: usize) -> Vec<f32> {
        let free = self.sums.iter().position(|sums| sums.len() == len && Arc::strong_count(sums) == 1);
        let free = free.map(|at| self.sums.swap_remove(at));
        free.and_then(|sums| Arc::try_unwrap(sums).ok()).unwrap_or_else(|| vec![0.0; len])
    }
}
