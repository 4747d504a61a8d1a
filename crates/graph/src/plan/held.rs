//! Plans for devices that hold a part of the state.

use std::collections::BTreeSet;

use super::{Access, BufferId, Command, Kernel, Plan, Role, Slice};

impl Plan {
    /// Leaves out of the last segment what updates the tensors in `foreign`, which another device updates.
    /// The tensors in `absent` are some of those: the plan then touches them nowhere, and the device need not
    /// have them. Each tensor must have a buffer of its own.
    ///
    /// Launches that only read and write scratch memory stay, unless they read what a launch that is left out
    /// would have written.
    ///
    /// # Errors
    /// What still needs a tensor that is absent, or updates one of `foreign` together with another tensor, or
    /// reads what is not computed any more.
    pub fn hold_some(&mut self, foreign: &BTreeSet<usize>, absent: &BTreeSet<usize>) -> Result<(), String> {
        self.leave_out(foreign)?;
        let state_of = |slice: &Slice| match self.buffers[slice.buffer].role {
            Role::State(state) => Some(state),
            _ => None,
        };
        for (at, segment) in self.segments.iter().enumerate() {
            let transfers = segment.uploads.iter().chain(&segment.downloads);
            let moved = transfers.filter_map(|transfer| state_of(&transfer.slice));
            let touched = segment.commands.iter().flat_map(|command| {
                let (read, written) = slices(command, &self.kernels);
                read.into_iter().chain(written).filter_map(|slice| state_of(&slice))
            });
            if let Some(state) = touched.chain(moved).find(|state| absent.contains(state)) {
                return Err(format!("segment {at} needs state {state}, which this device does not have"));
            }
        }
        for buffer in &mut self.buffers {
            if matches!(buffer.role, Role::State(state) if absent.contains(&state)) {
                (buffer.role, buffer.bytes) = (Role::Scratch, 4);
            }
        }
        Ok(())
    }

    /// Leaves out of the last segment the commands that touch a tensor of `foreign`, and those that read what
    /// these would have written.
    fn leave_out(&mut self, foreign: &BTreeSet<usize>) -> Result<(), String> {
        let Self { kernels, buffers, segments } = self;
        let Some(last) = segments.last_mut() else { return Ok(()) };
        // Launches add to a flag that is cleared before them. One that is left out adds nothing.
        let downloaded: BTreeSet<BufferId> = last.downloads.iter().map(|down| down.slice.buffer).collect();
        let cleared = last.commands.iter().filter_map(|command| match command {
            Command::Clear(slice) => Some(slice.buffer),
            _ => None,
        });
        let flags: BTreeSet<BufferId> = cleared.filter(|buffer| downloaded.contains(buffer)).collect();
        // The buffers that do not hold what the commands behind expect there.
        let mut stale: BTreeSet<BufferId> = BTreeSet::new();
        let mut mixed = None;
        last.commands.retain(|command| {
            let (read, written) = slices(command, kernels);
            let is_foreign = |slice: &Slice| {
                matches!(buffers[slice.buffer].role, Role::State(state) if foreign.contains(&state))
            };
            let is_left_out = read.iter().chain(&written).any(is_foreign)
                || read.iter().any(|slice| stale.contains(&slice.buffer));
            for slice in written {
                match buffers[slice.buffer].role {
                    Role::State(state) if is_left_out && !foreign.contains(&state) => {
                        mixed.get_or_insert(state);
                    }
                    Role::State(_) => {}
                    _ if !is_left_out => drop(stale.remove(&slice.buffer)),
                    _ if !flags.contains(&slice.buffer) => drop(stale.insert(slice.buffer)),
                    _ => {}
                }
            }
            !is_left_out
        });
        if let Some(state) = mixed {
            return Err(format!("state {state} is updated together with one of another device"));
        }
        match last.downloads.iter().find(|down| stale.contains(&down.slice.buffer)) {
            Some(down) => Err(format!("what is downloaded as {} is computed by another device", down.slot)),
            None => Ok(()),
        }
    }
}

/// Returns the slices that a command only reads, and those that it may write.
fn slices(command: &Command, kernels: &[Kernel]) -> (Vec<Slice>, Vec<Slice>) {
    match command {
        Command::Launch(launch) => {
            let both = launch.bindings.iter().copied().zip(&kernels[launch.kernel].bindings);
            let (read, written): (Vec<_>, Vec<_>) = both.partition(|(_, access)| **access == Access::Read);
            let all = |slices: Vec<(Slice, &Access)>| slices.into_iter().map(|(slice, _)| slice).collect();
            (all(read), all(written))
        }
        Command::Copy { from, to } => (vec![*from], vec![*to]),
        Command::Clear(slice) => (vec![], vec![*slice]),
    }
}
