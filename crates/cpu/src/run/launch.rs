//! A kernel with what it is launched on.

use std::ops::Range;
use std::sync::Arc;

use crate::compile::{Bound, Kind, Program};

use super::group::{self, Place, Stacks};
use super::memory::{Memory, Owner};

/// What a launch has bound: the buffers by number, and the memory in which each of them lies.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    pub bounds: Vec<Bound>,
    memories: Vec<Option<Arc<Memory>>>,
}

impl Bindings {
    /// Binds a buffer, which lies in this memory.
    pub fn bind(&mut self, number: u32, bound: Bound, memory: Arc<Memory>) {
        let at = number as usize;
        if self.bounds.len() <= at {
            self.bounds.resize(at + 1, Bound { start: std::ptr::null_mut(), bytes: 0 });
            self.memories.resize(at + 1, None);
        }
        self.bounds[at] = bound;
        self.memories[at] = Some(memory);
    }

    /// Returns who owns the memories: the device if all of them are the device's.
    pub fn owner(&self) -> Owner {
        self.memories.iter().flatten().fold(Owner::Device, |owner, memory| owner.and(memory.owner()))
    }

    /// Returns what is wrong with the bindings, if something is. A kernel's code takes a buffer that it only
    /// reads as constant. A kernel that computes many invocations at once has bindings that must not overlap.
    pub fn clash(&self, program: &Program) -> Option<String> {
        for written in program.bindings.iter().filter(|binding| binding.kind == Kind::Written) {
            for read in program.bindings.iter().filter(|binding| binding.kind != Kind::Written) {
                let [written, read] = [written.number, read.number];
                if self.is_one_memory([written, read]) {
                    return Some(format!(
                        "bindings {written} and {read}: one buffer for writing and for reading"
                    ));
                }
            }
        }
        for &[read, written] in program.as_wide().map_or(&[][..], |wide| &wide.apart) {
            if self.is_one_memory([read, written]) && self.overlap([read, written]) {
                return Some(format!(
                    "bindings {read} and {written}: the kernel reads and writes the same bytes"
                ));
            }
        }
        None
    }

    fn is_one_memory(&self, numbers: [u32; 2]) -> bool {
        let memory = |number: u32| self.memories.get(number as usize)?.as_ref();
        match numbers.map(memory) {
            [Some(one), Some(other)] => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns whether two bindings have bytes in common.
    fn overlap(&self, numbers: [u32; 2]) -> bool {
        let [one, other] = numbers.map(|number| {
            let Bound { start, bytes } = self.bounds[number as usize];
            let start = start.addr() as u64;
            start..start.saturating_add(bytes)
        });
        one.start < other.end && other.start < one.end
    }
}

// SAFETY: the addresses are those of the memories beside them.
#[expect(unsafe_code, reason = "addresses of memory that several threads use in turn")]
unsafe impl Send for Bindings {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "addresses of memory that several threads use in turn")]
unsafe impl Sync for Bindings {}

/// A kernel that is launched.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub program: Arc<Program>,
    pub bindings: Arc<Bindings>,
    pub groups: [u32; 3],
    /// Whether shared memory begins as zeros.
    pub clears: bool,
}

impl Launch {
    /// Returns the number of workgroups.
    pub fn total(&self) -> u64 {
        self.groups.iter().map(|&groups| u64::from(groups)).product()
    }

    /// Runs workgroups. Returns whether there was memory for their stacks; if not, none of them ran.
    #[expect(unsafe_code, reason = "machine code runs")]
    pub fn run(&self, numbers: Range<u64>, stacks: &Stacks) -> bool {
        if let Some(wide) = self.program.as_wide() {
            // SAFETY: as below.
            unsafe { wide.run_groups(self.bindings.bounds.as_ptr(), self.groups, numbers) };
            return true;
        }
        let Some(mut own) = stacks.take(&self.program) else { return false };
        let [x, y, _] = self.groups.map(u64::from);
        for number in numbers {
            let group = [number % x, number / x % y, number / (x * y)].map(|axis| axis as u32);
            let place = Place { group, groups: self.groups };
            // SAFETY: `Pass::dispatch_workgroups` has checked what is bound, the timeline runs one launch at
            // a time, and each workgroup is run once.
            unsafe { group::run(&self.program, &self.bindings.bounds, place, self.clears, &mut own) };
        }
        stacks.give(own);
        true
    }
}
