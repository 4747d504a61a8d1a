//! Records the commands of segments: uploads, launches, copies, clears and downloads.

use std::ops::Range;
use std::sync::Arc;

use unisono_graph::plan::Transfer;

use crate::device::clock::Timestamps;
use crate::device::fault::Faults;
use crate::device::pipeline::Compiled;
use crate::device::record::Recorder;
use crate::device::staging::Staging;

use super::bind::Bound;
use super::executable::{Part, Step};

/// Records the copies from staging to the buffers of the uploads, after which the staging is mapped again.
pub(super) fn record_uploads(
    recorder: &mut Recorder<'_>,
    uploads: &[Transfer],
    staging: &Staging,
    bound: &Bound,
) {
    for (Transfer { slice, .. }, place) in uploads.iter().zip(&staging.places) {
        let &Some((block, offset)) = place else { continue };
        let (from, to) = (&staging.blocks[block].buffer, &bound.buffers[slice.buffer]);
        recorder.copy((from, offset), (to, slice.offset), slice.bytes);
    }
    recorder.map(staging);
}

/// Records the copies of a part's downloads, the count of passes and the timestamps to staging, after which
/// the staging is mapped.
pub(super) fn record_downloads(recorder: &mut Recorder<'_>, part: &mut Part, bound: &Bound) {
    for (Transfer { slice, .. }, place) in part.downloads.iter().zip(&part.download.places) {
        let &Some((block, offset)) = place else { continue };
        let (from, to) = (&bound.buffers[slice.buffer], &part.download.blocks[block].buffer);
        recorder.download((from, slice.offset), (to, offset), slice.bytes);
    }
    part.count = recorder.stamp(&part.download);
    if let Some((timestamps, (block, offset))) = part.timestamps.as_ref().zip(part.clock_place()) {
        recorder.fetch(timestamps, (&part.download.blocks[block].buffer, offset));
    }
    recorder.map(&part.download);
}

/// Records a piece of a part's steps in as few passes as copies and clears allow. The timestamps get the time
/// at which the first pass of the part began and the time at which the last one ended.
pub(super) fn record(
    recorder: &mut Recorder<'_>,
    (all, piece): (&[Step], Range<usize>),
    bound: &Bound,
    timestamps: Option<&Timestamps>,
    kernels: &[Arc<Compiled>],
) {
    let (begins, ends) = (piece.start == 0, piece.end == all.len());
    let steps = &all[piece];
    let mut passes_left =
        steps.chunk_by(|a, b| a.is_launch() && b.is_launch()).filter(|steps| steps[0].is_launch()).count();
    let mut is_first = true;
    for steps in steps.chunk_by(|a, b| a.is_launch() && b.is_launch()) {
        match steps {
            [Step::Copy { from, to }] => {
                let (source, target) = (&bound.buffers[from.buffer], &bound.buffers[to.buffer]);
                recorder.copy((source, from.offset), (target, to.offset), from.bytes);
            }
            [Step::Clear(slice)] => {
                recorder.clear((&bound.buffers[slice.buffer], slice.offset), slice.bytes);
            }
            launches => {
                passes_left -= 1;
                let first = std::mem::take(&mut is_first) && begins;
                let last = passes_left == 0 && ends;
                let writes = timestamps.and_then(|timestamps| timestamps.writes(first, last));
                let faults = &recorder.device.faults;
                recorder.pass(writes, |pass| launch(pass, launches, bound, kernels, faults));
            }
        }
    }
}

/// Records the launches of a pass, but for one that a drill leaves out.
fn launch(
    pass: &mut wgpu::ComputePass<'_>,
    launches: &[Step],
    bound: &Bound,
    kernels: &[Arc<Compiled>],
    faults: &Faults,
) {
    let mut set = None;
    for step in launches {
        let Step::Launch { number, kernel, group, grid: [x, y, z] } = step else { continue };
        if faults.skips(*number) {
            continue;
        }
        if set.replace(*kernel) != Some(*kernel) {
            pass.set_pipeline(&kernels[*kernel].pipeline);
        }
        pass.set_bind_group(0, &bound.groups[*group], &[]);
        pass.dispatch_workgroups(*x, *y, *z);
    }
}
