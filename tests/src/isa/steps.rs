//! The counts of a step: launches, barriers, bytes and floating-point operations by kind.

use std::collections::BTreeMap;

use unisono::graph::Plan;
use unisono::graph::plan::{Access, Command, Launch};

/// The counts of one kind of command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of launches, copies or clears.
    pub launches: u64,
    /// The bytes that have to move, see [`unisono::graph::plan::Work::bytes`].
    pub bytes: u64,
    /// The floating-point operations.
    pub flops: u64,
}

/// Returns the counts of a plan's commands by kind. Those behind the first cut are `update: KIND`.
pub fn by_kind(plan: &Plan) -> BTreeMap<String, Count> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (segment, commands) in plan.segments.iter().enumerate() {
        for command in &commands.commands {
            let (kind, bytes, flops) = match command {
                Command::Launch(Launch { work, .. }) => {
                    let update = if segment > 0 { "update: " } else { "" };
                    (format!("{update}{}", work.kind), work.bytes, work.flops)
                }
                Command::Copy { to, .. } => ("copy, clear".to_owned(), to.bytes, 0),
                Command::Clear(slice) => ("copy, clear".to_owned(), slice.bytes, 0),
            };
            let count = counts.entry(kind).or_default();
            count.launches += 1;
            count.bytes += bytes;
            count.flops += flops;
        }
    }
    counts
}

/// Returns the number of barriers that wgpu puts into a step. It tracks whole buffers: a launch waits for
/// those before it if it uses a buffer that was used otherwise, or writes one that was used at all. Each copy
/// and clear counts as one.
pub fn barriers(plan: &Plan) -> usize {
    let mut used: BTreeMap<usize, Access> = BTreeMap::new();
    let mut barriers = 0;
    for command in plan.segments.iter().flat_map(|segment| &segment.commands) {
        let Command::Launch(launch) = command else {
            barriers += 1;
            continue;
        };
        let mut own: BTreeMap<usize, Access> = BTreeMap::new();
        for (slice, &access) in launch.bindings.iter().zip(&plan.kernels[launch.kernel].bindings) {
            let entry = own.entry(slice.buffer).or_insert(access);
            if access == Access::ReadWrite {
                *entry = access;
            }
        }
        let waits = |(buffer, &access): (&usize, &Access)| {
            used.get(buffer).is_some_and(|&before| before != access || access == Access::ReadWrite)
        };
        barriers += usize::from(own.iter().any(waits));
        used.extend(own);
    }
    barriers
}
