//! Checks a plan against itself and against the adapter before anything is made, so that every error names
//! its kernel or buffer, and nothing is left about which wgpu could panic.

use unisono_graph::plan::{Access, Command, Launch, Plan, Role, Segment, Slice};

use crate::{Adapter, GpuError};

/// The most words that a uniform may hold.
const MAX_PARAMS: usize = 64;

/// Checks a plan for a device whose buffers may have so many bytes.
pub(crate) fn check(plan: &Plan, adapter: &Adapter, most_bytes: u64) -> Result<(), GpuError> {
    let limits = &adapter.limits;
    for kernel in &plan.kernels {
        let what = || format!("kernel {}: storage buffers", kernel.name);
        within(what, kernel.bindings.len() as u64, u64::from(limits.storage_buffers))?;
        if let Some(workgroup) = kernel.workgroup() {
            let what = || format!("kernel {}: invocations a workgroup", kernel.name);
            within(what, workgroup.invocations, u64::from(limits.invocations))?;
            let what = || format!("kernel {}: bytes of workgroup memory", kernel.name);
            within(what, workgroup.bytes, u64::from(limits.workgroup_bytes))?;
        }
    }
    (0..plan.buffers.len()).try_for_each(|id| check_buffer(plan, id, most_bytes))?;
    for (number, segment) in plan.segments.iter().enumerate() {
        let written = check_segment(plan, number, segment, adapter)?;
        let is_state =
            |slice: &&&Slice| matches!(plan.buffers[slice.buffer].role, Role::State(_) | Role::Resident(_));
        if number + 1 < plan.segments.len()
            && let Some(state) = written.iter().find(is_state)
        {
            let message = format!("{} changes before the last segment", name(plan, state.buffer));
            return Err(GpuError::plan(format!("segment {number}"), message));
        }
    }
    Ok(())
}

fn check_buffer(plan: &Plan, id: usize, allows: u64) -> Result<(), GpuError> {
    let buffer = &plan.buffers[id];
    within(|| format!("{}: bytes of a buffer", name(plan, id)), buffer.bytes, allows)?;
    if buffer.bytes < 4 || !buffer.bytes.is_multiple_of(4) {
        return Err(GpuError::plan(name(plan, id), format!("{} bytes: not a multiple of 4", buffer.bytes)));
    }
    match &buffer.role {
        Role::Table(words) if words.len() as u64 * 4 != buffer.bytes => {
            Err(GpuError::plan(name(plan, id), format!("{} words in {} bytes", words.len(), buffer.bytes)))
        }
        _ => Ok(()),
    }
}

/// Checks a segment's transfers and commands. Returns the slices that it may write.
fn check_segment<'a>(
    plan: &Plan,
    number: usize,
    segment: &'a Segment,
    adapter: &Adapter,
) -> Result<Vec<&'a Slice>, GpuError> {
    let here = || format!("segment {number}");
    for transfer in segment.uploads.iter().chain(&segment.downloads) {
        slice(plan, &transfer.slice, || format!("segment {number}, slot {}", transfer.slot))?;
    }
    let mut written: Vec<&Slice> = segment.uploads.iter().map(|transfer| &transfer.slice).collect();
    for command in &segment.commands {
        match command {
            Command::Launch(launch) => written.extend(check_launch(plan, launch, adapter)?),
            Command::Clear(cleared) => {
                slice(plan, cleared, here)?;
                written.push(cleared);
            }
            Command::Copy { from, to } => {
                slice(plan, from, here)?;
                slice(plan, to, here)?;
                if from.buffer == to.buffer || from.bytes != to.bytes {
                    return Err(GpuError::plan(here(), "a copy needs two buffers and one length"));
                }
                written.push(to);
            }
        }
    }
    Ok(written)
}

/// Checks a launch. Returns the slices that it may write.
fn check_launch<'a>(plan: &Plan, launch: &'a Launch, adapter: &Adapter) -> Result<Vec<&'a Slice>, GpuError> {
    let kernel = plan
        .kernels
        .get(launch.kernel)
        .ok_or_else(|| GpuError::plan("a launch", format!("no kernel {}", launch.kernel)))?;
    let here = || format!("kernel {}", kernel.name);
    let wrong = |message: String| Err(GpuError::plan(here(), message));
    if launch.bindings.len() != kernel.bindings.len() {
        return wrong(format!(
            "{} bindings given, {} declared",
            launch.bindings.len(),
            kernel.bindings.len()
        ));
    }
    if launch.params.len() > MAX_PARAMS {
        return wrong(format!("{} params, {MAX_PARAMS} at most", launch.params.len()));
    }
    if launch.grid.contains(&0) {
        return wrong(format!("an empty grid {:?}", launch.grid));
    }
    let groups = launch.grid.into_iter().max().unwrap_or(0);
    within(
        || format!("{}: workgroups in a dimension", here()),
        u64::from(groups),
        u64::from(adapter.limits.workgroups),
    )?;
    let target = adapter.target();
    let mut written = Vec::new();
    for (bound, access) in launch.bindings.iter().zip(&kernel.bindings) {
        slice(plan, bound, here)?;
        within(|| format!("{}: bytes of a binding", here()), bound.bytes, target.max_binding_bytes)?;
        if !bound.offset.is_multiple_of(target.binding_alignment) {
            return wrong(format!(
                "offset {} is not a multiple of {}",
                bound.offset, target.binding_alignment
            ));
        }
        if *access == Access::ReadWrite {
            written.push(bound);
        }
    }
    for (bound, access) in launch.bindings.iter().zip(&kernel.bindings) {
        if *access == Access::Read && written.iter().any(|other| other.buffer == bound.buffer) {
            return wrong(format!("{} is bound for reading and for writing", name(plan, bound.buffer)));
        }
    }
    Ok(written)
}

fn slice(plan: &Plan, slice: &Slice, what: impl Fn() -> String) -> Result<(), GpuError> {
    let Some(buffer) = plan.buffers.get(slice.buffer) else {
        return Err(GpuError::plan(what(), format!("no buffer {}", slice.buffer)));
    };
    let inside = slice.offset.checked_add(slice.bytes).is_some_and(|end| end <= buffer.bytes);
    if !inside || slice.bytes == 0 || !(slice.bytes | slice.offset).is_multiple_of(4) {
        let Slice { offset, bytes, .. } = slice;
        let message =
            format!("bytes {offset}+{bytes} of {} with {} bytes", name(plan, slice.buffer), buffer.bytes);
        return Err(GpuError::plan(what(), message));
    }
    Ok(())
}

fn within(what: impl Fn() -> String, needs: u64, allows: u64) -> Result<(), GpuError> {
    if needs > allows { Err(GpuError::Limit { what: what(), needs, allows }) } else { Ok(()) }
}

/// Returns a buffer's name for messages.
pub(crate) fn name(plan: &Plan, id: usize) -> String {
    match plan.buffers[id].role {
        Role::Scratch => format!("scratch buffer {id}"),
        Role::Shared => format!("shared buffer {id}"),
        Role::State(index) => format!("state {index} (buffer {id})"),
        Role::Resident(number) => format!("resident memory {number} (buffer {id})"),
        Role::Verdict(word) => format!("verdict {word} (buffer {id})"),
        Role::Table(_) => format!("table (buffer {id})"),
    }
}
