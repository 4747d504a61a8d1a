//! The end of planning: memories become buffers, and the plan is made.

use std::collections::BTreeMap;

use super::emitter::{Emitter, Part, Step, Steps};
use crate::fuse::Store;
use crate::plan::{Buffer, Command, Launch, Lifetime, Plan, Role, Segment, Slice, Transfer, plan_memory};
use crate::program::Slot;
use crate::trace::GraphError;
use crate::values::{Lead, Type};

impl Emitter<'_> {
    /// Gives every memory a buffer, and makes the plan.
    ///
    /// # Errors
    /// [`GraphError::Limit`] if a memory is larger than the device allows a buffer to be.
    pub(super) fn finish(self) -> Result<Plan, GraphError> {
        let (buffers, buffer_of) = self.buffers();
        if let Some((&store, &needs)) = self.sizes.iter().find(|(_, b)| **b > self.target.max_buffer_bytes) {
            let (what, of_samples) = self.describe(store);
            let adapter_allows = self.target.max_buffer_bytes;
            return Err(GraphError::Limit { what, needs, adapter_allows, of_samples });
        }
        Ok(Plan { segments: self.placed_segments(&buffer_of), kernels: self.kernels, buffers })
    }

    /// Says what is in a memory, and whether it has values for each sample.
    fn describe(&self, store: Store) -> (String, bool) {
        let graph = &self.program.graph;
        let is_of_samples = |ty: &Type| ty.lead == Lead::Sample;
        match store {
            Store::Value(id) | Store::Again(id) => (graph.describe(id), is_of_samples(&graph.nodes[id].ty)),
            Store::Temp(id) | Store::Temp2(id) | Store::Apart(id) => {
                (format!("{}: its chunks", graph.describe(id)), is_of_samples(&graph.nodes[id].ty))
            }
            Store::Packed(id, _) => (format!("{}: its panels", graph.describe(id)), false),
            Store::Input(index) => {
                let input = &graph.inputs[index];
                (format!("input {} {}", input.name, input.ty), is_of_samples(&input.ty))
            }
            Store::Resident(number) => (format!("resident memory {number}"), true),
            Store::State(buffer) => (format!("buffer {buffer} of the state"), false),
            Store::Partial(bucket)
            | Store::Joined(bucket)
            | Store::ApartOf(bucket)
            | Store::Blocks(bucket)
            | Store::Sums(bucket) => (format!("bucket {bucket} of the sums over samples"), false),
            Store::Table(_) => ("a table of constants".to_owned(), false),
            Store::Scalars => ("the scalar inputs".to_owned(), false),
            Store::Flags | Store::StateFlag | Store::Commit | Store::Chained | Store::ShardStarts => {
                ("what a step decides by".to_owned(), false)
            }
        }
    }

    /// Returns all buffers, and the index of the buffer of each memory. Scratch memories share buffers
    /// where their lifetimes allow it; the others have a buffer each.
    fn buffers(&self) -> (Vec<Buffer>, BTreeMap<Store, usize>) {
        let scratch: Vec<Store> =
            self.lives.keys().copied().filter(|&store| self.own_role(store).is_none()).collect();
        let lifetime = |s: &Store| {
            let (first, last) = self.life(*s);
            Lifetime { bytes: self.sizes[s], first, last }
        };
        let memory = plan_memory(&scratch.iter().map(lifetime).collect::<Vec<_>>());
        let mut buffers: Vec<Buffer> =
            memory.buffer_bytes.iter().map(|&bytes| Buffer { bytes, role: Role::Scratch }).collect();
        let mut buffer_of: BTreeMap<Store, usize> = scratch.into_iter().zip(memory.buffer).collect();
        for &store in self.lives.keys() {
            let Some(role) = self.own_role(store) else { continue };
            buffers.push(Buffer { bytes: self.sizes[&store], role });
            buffer_of.insert(store, buffers.len() - 1);
        }
        (buffers, buffer_of)
    }

    /// Returns the first and the last time at which no other memory may have a memory's buffer. Where a
    /// kernel has put sums into a memory of their own, that is always: a launch that writes a buffer which
    /// nothing else used needs no barrier for it.
    fn life(&self, store: Store) -> (usize, usize) {
        match store {
            Store::Value(id) if self.alone.contains(&id) => (0, usize::MAX - 1),
            _ => self.lives[&store],
        }
    }

    /// Returns the role of a memory's buffer, or `None` for a scratch memory, which has no buffer of its own.
    pub(super) fn own_role(&self, store: Store) -> Option<Role> {
        let exchanges = self.target.shares_memory && !self.run.is_whole();
        match store {
            Store::State(i) => Some(Role::State(i)),
            Store::Resident(number) => Some(Role::Resident(number)),
            Store::Commit if self.decides => Some(Role::Verdict(0)),
            Store::StateFlag if self.decides => Some(Role::Verdict(1)),
            Store::Commit => Some(Role::Table(vec![0])),
            Store::ShardStarts => Some(Role::Table(self.shard_starts())),
            Store::Table(index) => Some(Role::Table(self.tables[index].clone())),
            Store::Blocks(_) | Store::Sums(_) if exchanges => Some(Role::Shared),
            _ => None,
        }
    }

    /// Returns the first row of each shard, and the end of the last one.
    fn shard_starts(&self) -> Vec<u32> {
        let mut at = 0;
        let mut table = vec![0];
        for &size in &self.run.sizes {
            at += size as u32;
            table.push(at);
        }
        table
    }

    /// Returns the segments with slices of buffers in place of parts of memories.
    fn placed_segments(&self, buffer_of: &BTreeMap<Store, usize>) -> Vec<Segment> {
        let slice = |p: &Part| Slice { buffer: buffer_of[&p.store], offset: p.offset, bytes: p.bytes };
        let transfer = |(slot, part): &(Slot, Part)| Transfer { slot: slot.code(), slice: slice(part) };
        let command = |step: &Step| match step {
            Step::Launch { kernel, bindings, params, grid, work, .. } => Command::Launch(Launch {
                kernel: *kernel,
                bindings: bindings.iter().map(slice).collect(),
                params: params.clone(),
                grid: *grid,
                work: *work,
            }),
            Step::Copy { from, to } => Command::Copy { from: slice(from), to: slice(to) },
            Step::Clear(part) => Command::Clear(slice(part)),
        };
        let segment = |s: &Steps| Segment {
            uploads: s.uploads.iter().map(transfer).collect(),
            commands: s.steps.iter().map(command).collect(),
            downloads: s.downloads.iter().map(transfer).collect(),
        };
        self.segments.iter().map(segment).collect()
    }
}
