//! Sizes and lifetimes of memories while a plan is made, and the buffers that they become.

use std::collections::BTreeMap;

use super::{Emitter, Part, Step, whole_words};
use crate::fuse::Store;
use crate::plan::{Buffer, Command, Launch, Lifetime, Plan, Role, Segment, Slice, Transfer, plan_memory};
use crate::program::Slot;
use crate::trace::GraphError;
use crate::values::Type;

impl Emitter<'_> {
    pub(super) fn touch(&mut self, store: Store) {
        let clock = self.clock;
        let life = self.lives.entry(store).or_insert((clock, clock));
        life.1 = clock;
    }

    pub(super) fn part(&mut self, store: Store, offset: u64, bytes: u64) -> Part {
        self.touch(store);
        let all = self.size(store);
        self.sizes.insert(store, all.max(offset + bytes));
        Part { store, offset, bytes }
    }

    pub(super) fn all(&mut self, store: Store) -> Part {
        let bytes = self.size(store);
        self.part(store, 0, bytes)
    }

    pub(super) fn grow(&mut self, store: Store, bytes: u64) {
        let size = self.sizes.entry(store).or_insert(0);
        *size = bytes.max(*size);
    }

    fn size(&self, store: Store) -> u64 {
        let program = self.program;
        let count = |ty: &Type| self.extent.count(ty);
        let elements = match store {
            Store::Scalars => program.stores.scalars.len(),
            Store::Input(i) => count(&program.graph.inputs[i].ty),
            Store::State(i) => count(&program.graph.states[i].ty),
            Store::Value(id) => count(&program.graph.nodes[id].ty),
            Store::Temp(_) | Store::Temp2(_) | Store::Joined(_) => {
                return self.sizes.get(&store).copied().unwrap_or(4);
            }
            Store::Apart(id) => count(&program.graph.nodes[id].ty),
            Store::Partial(b) => {
                self.extent.shards * (program.buckets()[b].len - program.buckets()[b].joined)
            }
            Store::Blocks(b) => self.extent.blocks * program.buckets()[b].len,
            Store::Sums(b) => program.buckets()[b].len,
            Store::Flag(_) => 1,
            Store::ShardStarts => self.extent.shards + 1,
        };
        whole_words(elements.max(1) * program.stores.element_bytes(store))
    }

    /// Gives every memory a buffer, and makes the plan.
    pub(super) fn finish(self) -> Result<Plan, GraphError> {
        let exchanges = self.target.shares_memory && !self.run.is_whole();
        let is_shared = |s: &Store| exchanges && matches!(s, Store::Blocks(_) | Store::Sums(_));
        let is_own = |s: &Store| matches!(s, Store::State(_) | Store::ShardStarts) || is_shared(s);
        let scratch: Vec<Store> = self.lives.keys().copied().filter(|s| !is_own(s)).collect();
        let lifetime = |s: &Store| {
            let (first, last) = self.lives[s];
            Lifetime { bytes: self.sizes[s], first, last }
        };
        let memory = plan_memory(&scratch.iter().map(lifetime).collect::<Vec<_>>());
        let mut buffers: Vec<Buffer> =
            memory.buffer_bytes.iter().map(|&bytes| Buffer { bytes, role: Role::Scratch }).collect();
        let mut buffer_of: BTreeMap<Store, usize> = scratch.into_iter().zip(memory.buffer).collect();
        for &store in self.lives.keys() {
            let role = match store {
                Store::State(i) => Role::State(i),
                Store::ShardStarts => Role::Table(self.shard_starts()),
                store if is_shared(&store) => Role::Shared,
                _ => continue,
            };
            buffers.push(Buffer { bytes: self.sizes[&store], role });
            buffer_of.insert(store, buffers.len() - 1);
        }
        if let Some((store, _)) = self.sizes.iter().find(|(_, b)| **b > self.target.max_buffer_bytes) {
            let root = if let Store::Value(id) | Store::Temp(id) = store { *id } else { 0 };
            return Err(self.limit(root, self.sizes[store]));
        }
        let slice = |p: &Part| Slice { buffer: buffer_of[&p.store], offset: p.offset, bytes: p.bytes };
        let transfer = |(slot, part): &(Slot, Part)| Transfer { slot: slot.code(), slice: slice(part) };
        let command = |step: &Step| match step {
            Step::Launch { kernel, bindings, params, grid } => Command::Launch(Launch {
                kernel: *kernel,
                bindings: bindings.iter().map(slice).collect(),
                params: params.clone(),
                grid: *grid,
            }),
            Step::Copy { from, to } => Command::Copy { from: slice(from), to: slice(to) },
            Step::Clear(part) => Command::Clear(slice(part)),
        };
        let segments = self.segments.iter().map(|s| Segment {
            uploads: s.uploads.iter().map(transfer).collect(),
            commands: s.steps.iter().map(command).collect(),
            downloads: s.downloads.iter().map(transfer).collect(),
        });
        Ok(Plan { kernels: self.kernels, buffers, segments: segments.collect() })
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
}
