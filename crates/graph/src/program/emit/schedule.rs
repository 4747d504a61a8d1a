//! The order of launches on a GPU. Drivers are told about dependencies by barriers between launches, one in
//! front of each launch that reads what was written last, or writes what was used. A launch whose results go
//! to memories of their own needs none if it stands behind another one that reads the same operands, so it
//! waits for that one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::emitter::{Emitter, Part, Step, Steps};
use crate::fuse::Store;
use crate::plan::target::Machine;
use crate::plan::{Access, Kernel};

/// The number of steps that a launch waits at most. Its operands stay in memory meanwhile.
const REACH: usize = 8;

/// The memories that a step uses, each with whether it is written.
pub(super) type Uses = BTreeMap<Store, bool>;

impl Emitter<'_> {
    /// Puts the steps of each segment into an order with few barriers, and counts the lifetimes of memories
    /// anew. Software adapters know no barriers, so their steps stay as they are.
    pub(super) fn schedule(&mut self) {
        if self.target.machine != Machine::Gpu {
            return;
        }
        self.use_again();
        self.restart();
        let alone: BTreeSet<Store> = self.alone.iter().map(|&id| Store::Value(id)).collect();
        for segment in 0..self.segments.len() {
            let Steps { uploads, steps, downloads } = std::mem::take(&mut self.segments[segment]);
            uploads.iter().for_each(|(_, part)| self.touch(part.store));
            self.tick();
            let uses: Vec<Uses> = steps.iter().map(|step| step.uses(&self.kernels)).collect();
            let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
            let ordered = order(&uses, &alone, REACH).into_iter().filter_map(|at| steps[at].take()).collect();
            let ordered = self.put_side_by_side(ordered, segment + 1 == self.segments.len());
            for step in &ordered {
                step.uses(&self.kernels).into_keys().for_each(|store| self.touch(store));
                self.tick();
            }
            downloads.iter().for_each(|(_, part)| self.touch(part.store));
            self.segments[segment] = Steps { uploads, steps: ordered, downloads };
        }
        self.drop_kernels();
    }

    /// Drops the kernels that no launch has.
    fn drop_kernels(&mut self) {
        let mut launched: BTreeMap<usize, usize> = BTreeMap::new();
        let steps = self.segments.iter_mut().flat_map(|segment| &mut segment.steps);
        for step in steps {
            if let Step::Launch { kernel, .. } = step {
                let next = launched.len();
                *kernel = *launched.entry(*kernel).or_insert(next);
            }
        }
        let mut order: Vec<(usize, usize)> = launched.into_iter().map(|(old, new)| (new, old)).collect();
        order.sort_unstable();
        self.kernels = order.into_iter().map(|(_, old)| self.kernels[old].clone()).collect();
    }
}

impl Emitter<'_> {
    /// Has steps use the values that are computed a second time from there on, so that the first ones need no
    /// memory until then.
    fn use_again(&mut self) {
        for (id, from, first) in std::mem::take(&mut self.again) {
            let (old, new) = (Store::Value(id), Store::Again(id));
            let bytes = self.sizes[&old];
            self.sizes.insert(new, bytes);
            for (segment, Steps { steps, .. }) in self.segments.iter_mut().enumerate().skip(from) {
                let skipped = if segment == from { first } else { 0 };
                for step in &mut steps[skipped..] {
                    for part in step.parts().filter(|part| part.store == old) {
                        part.store = new;
                    }
                }
            }
        }
    }
}

impl Step {
    /// Returns the parts of memories that the step uses.
    fn parts(&mut self) -> impl Iterator<Item = &mut Part> {
        let (parts, other) = match self {
            Self::Launch { bindings, .. } => (&mut bindings[..], None),
            Self::Copy { from, to } => (std::slice::from_mut(from), Some(to)),
            Self::Clear(part) => (std::slice::from_mut(part), None),
        };
        parts.iter_mut().chain(other)
    }

    /// Returns what the step uses.
    pub fn uses(&self, kernels: &[Kernel]) -> Uses {
        let mut uses = Uses::new();
        let mut add = |store: Store, writes: bool| *uses.entry(store).or_insert(false) |= writes;
        match self {
            Self::Launch { kernel, bindings, .. } => {
                for (part, access) in bindings.iter().zip(&kernels[*kernel].bindings) {
                    add(part.store, *access == Access::ReadWrite);
                }
            }
            Self::Copy { from, to } => {
                add(from.store, false);
                add(to.store, true);
            }
            Self::Clear(part) => add(part.store, true),
        }
        uses
    }

    /// Returns the elements that the step keeps to in memories that hold several values.
    pub fn kept(&self) -> &[(Store, Range<usize>)] {
        if let Self::Launch { kept, .. } = self { kept } else { &[] }
    }

    /// Returns the number of workgroups along the first dimension of a launch.
    pub fn groups(&self) -> u32 {
        if let Self::Launch { grid, .. } = self { grid[0] } else { 0 }
    }
}

/// Returns the steps in the order in which they run. A step that writes nothing but memories of `alone` waits
/// until others have read what it reads, for at most `reach` steps.
fn order(uses: &[Uses], alone: &BTreeSet<Store>, reach: usize) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(uses.len());
    let mut waiting: Vec<usize> = Vec::new();
    // The memories that were written and not read since.
    let mut fresh: BTreeSet<Store> = BTreeSet::new();
    for (at, own) in uses.iter().enumerate() {
        let is_due = |waiter: &usize| at - waiter >= reach || conflicts(&uses[*waiter], own).next().is_some();
        let (due, rest): (Vec<usize>, Vec<usize>) = waiting.into_iter().partition(is_due);
        waiting = rest;
        for step in due {
            run(step, &uses[step], &mut order, &mut fresh);
        }
        let may_wait = own.iter().all(|(store, writes)| !writes || alone.contains(store));
        if may_wait && own.keys().any(|store| fresh.contains(store)) {
            waiting.push(at);
            continue;
        }
        run(at, own, &mut order, &mut fresh);
        let is_ready = |waiter: &usize| uses[*waiter].keys().all(|store| !fresh.contains(store));
        let (ready, rest): (Vec<usize>, Vec<usize>) = waiting.into_iter().partition(is_ready);
        waiting = rest;
        for step in ready {
            run(step, &uses[step], &mut order, &mut fresh);
        }
    }
    order.extend(waiting);
    order
}

/// Notes that a step runs now.
fn run(at: usize, own: &Uses, order: &mut Vec<usize>, fresh: &mut BTreeSet<Store>) {
    order.push(at);
    for (store, writes) in own {
        if *writes {
            fresh.insert(*store);
        } else {
            fresh.remove(store);
        }
    }
}

/// Returns the memories that one of two steps writes and the other one uses.
pub(super) fn conflicts(a: &Uses, b: &Uses) -> impl Iterator<Item = Store> {
    let meet = |(store, writes): (&Store, &bool)| b.get(store).is_some_and(|other| *writes || *other);
    a.iter().filter(move |own| meet(*own)).map(|(store, _)| *store)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads steps such as `b = a c`, which write what is in front of `=`. Capitals are memories of their
    /// own. Returns the results of the steps in order.
    fn ordered(text: &str, reach: usize) -> String {
        let store = |name: &str| Store::Value(name.bytes().next().unwrap_or_default().into());
        let lines: Vec<(&str, &str)> = text.split(';').map(|line| line.split_once('=').unwrap()).collect();
        let step = |(written, read): &(&str, &str)| {
            let mut uses: Uses = read.split_whitespace().map(|name| (store(name), false)).collect();
            uses.extend(written.split_whitespace().map(|name| (store(name), true)));
            uses
        };
        let alone = ('A'..='Z').map(|name| store(&name.to_string())).collect();
        let order = order(&lines.iter().map(step).collect::<Vec<_>>(), &alone, reach);
        order.into_iter().map(|at| lines[at].0.trim()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_sum_waits_until_its_operand_was_read() {
        assert_eq!(ordered("a = x; S = a; b = a; c = b", 8), "a b S c");
        // All operands have to be.
        assert_eq!(ordered("a = x; b = x; S = a b; c = a; d = b", 8), "a b c d S");
        // What was read already, or came from elsewhere, is no reason to wait.
        assert_eq!(ordered("a = x; b = a; S = a x; c = b", 8), "a b S c");
    }

    #[test]
    fn a_sum_runs_before_it_is_read_and_before_its_operand_is_gone() {
        assert_eq!(ordered("a = x; S = a; t = S; b = a", 8), "a S t b");
        assert_eq!(ordered("a = x; S = a; a = y; b = a", 8), "a S a b");
    }

    #[test]
    fn a_sum_does_not_wait_long_and_nothing_else_waits() {
        assert_eq!(ordered("a = x; S = a; b = x; c = x; d = a", 2), "a b S c d");
        assert_eq!(ordered("a = x; s = a; b = a", 8), "a s b");
        assert_eq!(ordered("a = x; S = a", 8), "a S");
    }
}
