//! Plans for devices that hold a part of the state.

use std::collections::BTreeSet;

use super::{Access, Command, Plan, Role, Slice};

impl Plan {
    /// Leaves out of the last segment what updates the tensors in `foreign`, which another device updates.
    /// The tensors in `absent` are some of those: the plan then touches them nowhere, and the device need not
    /// have them. Each tensor must have a buffer of its own.
    ///
    /// Launches that only read and write scratch memory stay, because nothing else reads what they make of
    /// tensors that are not updated here.
    ///
    /// # Errors
    /// What still needs a tensor that is absent, or updates one of `foreign` together with another tensor.
    pub fn hold_some(&mut self, foreign: &BTreeSet<usize>, absent: &BTreeSet<usize>) -> Result<(), String> {
        let state_of = |slice: &Slice| match self.buffers[slice.buffer].role {
            Role::State(state) => Some(state),
            _ => None,
        };
        let mut mixed = None;
        if let Some(last) = self.segments.last_mut() {
            last.commands.retain(|command| {
                let (touched, written) = states(command, &self.kernels, &state_of);
                let is_foreign = touched.iter().any(|state| foreign.contains(state));
                if let (true, Some(own)) = (is_foreign, written.iter().find(|state| !foreign.contains(state)))
                {
                    mixed.get_or_insert(*own);
                }
                !is_foreign
            });
        }
        if let Some(state) = mixed {
            return Err(format!("state {state} is updated together with one of another device"));
        }
        for (at, segment) in self.segments.iter().enumerate() {
            let transfers = segment.uploads.iter().chain(&segment.downloads);
            let moved = transfers.filter_map(|transfer| state_of(&transfer.slice));
            let touched =
                segment.commands.iter().flat_map(|command| states(command, &self.kernels, &state_of).0);
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
}

/// Returns the states that a command touches, and those that it may write.
fn states(
    command: &Command,
    kernels: &[super::Kernel],
    state_of: &dyn Fn(&Slice) -> Option<usize>,
) -> (Vec<usize>, Vec<usize>) {
    let (mut touched, mut written) = (Vec::new(), Vec::new());
    let mut add = |slice: &Slice, writes: bool| {
        touched.extend(state_of(slice));
        written.extend(state_of(slice).filter(|_| writes));
    };
    match command {
        Command::Launch(launch) => {
            let accesses = kernels[launch.kernel].bindings.iter();
            let both = launch.bindings.iter().zip(accesses);
            both.for_each(|(slice, access)| add(slice, *access == Access::ReadWrite));
        }
        Command::Copy { from, to } => {
            add(from, false);
            add(to, true);
        }
        Command::Clear(slice) => add(slice, true),
    }
    (touched, written)
}
