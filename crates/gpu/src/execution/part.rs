//! Divides a segment into parts, so that downloads that are ready early leave early.

use unisono_graph::plan::{Access, Command, Plan, Segment, Slice, Transfer};

/// Returns the parts of a segment: the command before which each ends, and its downloads, which no later
/// command writes. A part has at least `least` bytes to download, except the last one, which has the rest.
/// The division changes no result.
pub(crate) fn split(plan: &Plan, segment: &Segment, least: u64) -> Vec<(usize, Vec<Transfer>)> {
    let end = segment.commands.len();
    let mut ready: Vec<(usize, &Transfer)> = segment
        .downloads
        .iter()
        .map(|transfer| (written(plan, segment, &transfer.slice), transfer))
        .collect();
    // The sort is stable, so downloads stay in their order within a part.
    ready.sort_by_key(|(at, _)| *at);
    let mut parts: Vec<(usize, Vec<Transfer>)> = Vec::new();
    let mut gathered: Vec<Transfer> = Vec::new();
    for group in ready.chunk_by(|a, b| a.0 == b.0) {
        gathered.extend(group.iter().map(|(_, transfer)| (*transfer).clone()));
        let bytes: u64 = gathered.iter().map(|transfer| transfer.slice.bytes).sum();
        if bytes >= least && group[0].0 < end {
            parts.push((group[0].0, std::mem::take(&mut gathered)));
        }
    }
    parts.push((end, gathered));
    parts
}

/// Returns the number of commands after which nothing writes into a slice any more.
fn written(plan: &Plan, segment: &Segment, slice: &Slice) -> usize {
    let writes = |command: &Command| match command {
        Command::Launch(launch) => {
            let access = &plan.kernels[launch.kernel].bindings;
            let written =
                launch.bindings.iter().zip(access).filter(|(_, access)| **access == Access::ReadWrite);
            written.into_iter().any(|(binding, _)| overlap(binding, slice))
        }
        Command::Copy { to, .. } => overlap(to, slice),
        Command::Clear(cleared) => overlap(cleared, slice),
    };
    segment.commands.iter().rposition(writes).map_or(0, |last| last + 1)
}

fn overlap(a: &Slice, b: &Slice) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_where_its_downloads_are_written_for_the_last_time() {
        let slice = |buffer, bytes| Slice { buffer, offset: 0, bytes };
        let down = |slot, buffer, bytes| Transfer { slot, slice: slice(buffer, bytes) };
        let commands = [0, 1, 0, 2, 3].map(|buffer| Command::Clear(slice(buffer, 64))).to_vec();
        let downloads = vec![down(0, 3, 64), down(1, 1, 64), down(2, 0, 32), down(3, 4, 64)];
        let segment = Segment { uploads: vec![], commands, downloads };
        let slots = |least| {
            let parts = split(&Plan::default(), &segment, least).into_iter();
            parts
                .map(|(end, downloads)| (end, downloads.iter().map(|t| t.slot).collect()))
                .collect::<Vec<_>>()
        };
        assert_eq!(slots(1), [(0, vec![3]), (2, vec![1]), (3, vec![2]), (5, vec![0])]);
        assert_eq!(slots(100), [(2, vec![3, 1]), (5, vec![2, 0])]);
        assert_eq!(slots(1000), [(5, vec![3, 1, 2, 0])]);
    }
}
