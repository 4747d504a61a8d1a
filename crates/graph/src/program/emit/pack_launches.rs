//! Small launches side by side: one launch does the work of several that do not depend on each other. On a
//! GPU a launch that does not fill it costs as much as one that does, and each may wait for a barrier.
//!
//! A launch is put beside others where the last one of them stands. It may wait until then if no launch in
//! between reads what it writes, or writes what it uses. Of a memory with several values, such as a bucket, a
//! launch says which elements it keeps to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unisono_shaders::{Part as Module, params_side_by_side, side_by_side};

use super::emitter::{Emitter, Part, Step};
use super::schedule::{Uses, conflicts};
use crate::fuse::{Place, Store, in_order};
use crate::plan::target::Machine;
use crate::plan::{Access, Kernel, Work};
use crate::trace::NodeId;
use crate::values::Lead;

/// The most scratch memory that launches which wait for others read and write.
const MOST_BYTES: u64 = 4 << 20;

/// The most launches side by side.
const MOST: usize = 6;

/// The most groups of launches that may wait for others at a time.
const NEAR: usize = 8;

/// The most words of params.
const MOST_WORDS: usize = 64;

/// The elements of a memory that a launch keeps to.
pub(super) type Kept = Vec<(Store, Range<usize>)>;

/// A launch that may stand beside others.
struct Candidate {
    /// The place among the steps.
    at: usize,
    /// The kernel's index in the plan.
    kernel: usize,
    /// Whether the launch does not fill the device. One of those side by side may do so.
    is_small: bool,
    /// The bytes of scratch that the launch uses.
    bytes: u64,
}

/// The bindings of launches side by side.
#[derive(Default)]
struct Bindings {
    /// All of them, those that are one buffer for several launches once.
    all: Vec<(Part, Access)>,
    /// For each launch the binding numbers of its own among these, which count from 1.
    numbers: Vec<Vec<usize>>,
}

impl Emitter<'_> {
    /// Returns the elements that these units keep to in the memories that hold many values. On a software
    /// adapter nobody asks.
    pub(super) fn kept_by(&self, units: impl Iterator<Item = usize>) -> Kept {
        let program = self.program;
        if self.target.machine != Machine::Gpu {
            return Kept::new();
        }
        let mut values: BTreeSet<NodeId> = BTreeSet::new();
        for at in units {
            for &root in &program.fusion.units[at].roots {
                values.extend(program.fusion.reads(&program.graph, root).into_keys().chain([root]));
            }
        }
        // Kernels set the flag of the states by an atomic operation, in whatever order.
        let mut kept = vec![(Store::StateFlag, 0..0)];
        for id in values {
            let Place { store, inside, runs } =
                program.stores.place(in_order(&program.graph, &program.fusion, id));
            let ty = &program.graph.nodes[id].ty;
            let is_shared = matches!(store, Store::Partial(_) | Store::Sums(_) | Store::State(_));
            if is_shared && ty.lead != Lead::Sample {
                // What shards have of a bucket lies in the same run of each shard's part.
                let is_one_run = runs.is_none_or(|runs| runs.len == ty.count());
                let end = if is_one_run { inside + ty.count() } else { usize::MAX };
                kept.push((store, inside..end));
            }
        }
        kept
    }

    /// Puts small launches of a segment beside each other. Where tensors of the state are apart, devices may
    /// leave out updates of some of them ([`crate::plan::Plan::hold_some`]), so that in the last segment each
    /// launch that touches them stays as it is, and so does each that reads what such a launch writes.
    pub(super) fn put_side_by_side(&mut self, steps: Vec<Step>, is_last: bool) -> Vec<Step> {
        let program = self.program;
        let keeps_states = is_last && !program.graph.updates.is_empty() && program.stores.states.is_apart();
        let mut modules: BTreeMap<usize, Option<Module>> = BTreeMap::new();
        let uses: Vec<Uses> = steps.iter().map(|step| step.uses(&self.kernels)).collect();
        let conflict = |a: usize, b: usize| conflict((&steps[a], &uses[a]), (&steps[b], &uses[b]));
        let mut groups: Vec<Vec<Candidate>> = Vec::new();
        // The groups whose launches may still wait.
        let mut open: Vec<usize> = Vec::new();
        // What launches write that a device may leave out.
        let mut may_be_absent: BTreeSet<Store> = BTreeSet::new();
        for (at, step) in steps.iter().enumerate() {
            open.retain(|&group| !groups[group].iter().any(|member| conflict(member.at, at)));
            let needs_states = uses[at].iter().any(|(store, writes)| {
                matches!(store, Store::State(_)) || !writes && may_be_absent.contains(store)
            });
            if keeps_states && needs_states {
                may_be_absent.extend(uses[at].iter().filter(|(_, writes)| **writes).map(|(store, _)| *store));
                continue;
            }
            let Some(candidate) = self.candidate(at, step, &mut modules) else { continue };
            let fits = |group: &usize| self.fits(&groups[*group], &candidate, &steps, &modules);
            if let Some(group) = open.iter().copied().find(fits) {
                groups[group].push(candidate);
            } else {
                if open.len() == NEAR {
                    open.remove(0);
                }
                open.push(groups.len());
                groups.push(vec![candidate]);
            }
        }
        let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
        for group in groups.into_iter().filter(|group| group.len() > 1) {
            let of = |member: &Candidate| modules.get(&member.kernel)?.as_ref();
            let parts: Vec<&Module> = group.iter().filter_map(of).collect();
            let launches: Vec<Step> = group.iter().filter_map(|member| steps[member.at].take()).collect();
            if let Some(last) = group.last() {
                steps[last.at] = Some(self.as_one(&launches, &parts));
            }
        }
        steps.into_iter().flatten().collect()
    }

    /// Returns a launch that may stand beside others, if this step is one.
    fn candidate(
        &self,
        at: usize,
        step: &Step,
        modules: &mut BTreeMap<usize, Option<Module>>,
    ) -> Option<Candidate> {
        let &Step::Launch { kernel, ref bindings, grid: [groups, 1, 1], .. } = step else { return None };
        let module = modules.entry(kernel).or_insert_with(|| Module::read(&self.kernels[kernel].wgsl));
        let is_alike = module.as_ref()?.buffers.len() == bindings.len();
        // Buckets are in memory until the end of the segment in any case.
        let is_scratch = |part: &&Part| {
            !matches!(part.store, Store::Partial(_) | Store::Sums(_)) && self.own_role(part.store).is_none()
        };
        let bytes = bindings.iter().filter(is_scratch).map(|part| part.bytes).sum();
        let is_small = groups <= self.target.busy_workgroups;
        is_alike.then_some(Candidate { at, kernel, is_small, bytes })
    }

    /// Returns whether a launch may stand beside those of a group.
    fn fits(
        &self,
        group: &[Candidate],
        candidate: &Candidate,
        steps: &[Step],
        modules: &BTreeMap<usize, Option<Module>>,
    ) -> bool {
        let all = || group.iter().chain([candidate]);
        let of = |member: &Candidate| modules.get(&member.kernel)?.as_ref();
        let (Some(first), Some(own)) = (of(&group[0]), of(candidate)) else { return false };
        let parts: Vec<&Module> = all().filter_map(of).collect();
        let launches: Vec<&Step> = all().map(|member| &steps[member.at]).collect();
        let words: usize = parts.iter().map(|part| part.words.next_multiple_of(4)).sum();
        let waiting: u64 = group.iter().map(|member| member.bytes).sum();
        let groups: u32 = launches.iter().map(|step| step.groups()).sum();
        // What modules have alike is there once.
        let memory: BTreeMap<&String, u64> =
            parts.iter().flat_map(|part| &part.memory).map(|(name, bytes)| (name, *bytes)).collect();
        let has_room = || {
            let bindings = self.bindings(&launches, &parts);
            bindings.is_some_and(|own| own.all.len() <= self.target.storage_buffers as usize)
        };
        first.workgroup == own.workgroup
            && all().filter(|member| !member.is_small).count() <= 1
            && parts.len() <= MOST
            && words + MOST.next_multiple_of(4) <= MOST_WORDS
            && waiting <= MOST_BYTES
            && groups <= self.target.max_workgroups
            && memory.values().sum::<u64>() <= self.target.max_workgroup_bytes.into()
            && has_room()
    }

    /// Returns the bindings of launches side by side. Returns `None` if one of them reads a memory that
    /// another one writes.
    fn bindings(&self, launches: &[impl std::borrow::Borrow<Step>], parts: &[&Module]) -> Option<Bindings> {
        let mut all: Vec<(Part, Access, &str)> = Vec::new();
        let mut numbers = Vec::new();
        for (step, part) in launches.iter().zip(parts) {
            let Step::Launch { kernel, bindings, .. } = step.borrow() else { return None };
            let accesses = &self.kernels[*kernel].bindings;
            let mut own = Vec::new();
            for ((&bound, &access), declared) in bindings.iter().zip(accesses).zip(&part.buffers) {
                if all.iter().any(|(other, theirs, _)| other.store == bound.store && *theirs != access) {
                    return None;
                }
                let is_same = |(other, _, theirs): &(Part, Access, &str)| {
                    (other.store, other.offset, other.bytes) == (bound.store, bound.offset, bound.bytes)
                        && theirs == declared
                };
                let known = all.iter().position(is_same);
                if known.is_none() {
                    all.push((bound, access, declared));
                }
                own.push(known.unwrap_or(all.len() - 1) + 1);
            }
            numbers.push(own);
        }
        let all = all.into_iter().map(|(part, access, _)| (part, access)).collect();
        Some(Bindings { all, numbers })
    }

    /// Returns launches as one.
    fn as_one(&mut self, launches: &[Step], parts: &[&Module]) -> Step {
        let Bindings { all: bindings, numbers } = self.bindings(launches, parts).unwrap_or_default();
        let (mut own, mut kept, mut groups, mut names) = (Vec::new(), Kept::new(), 0, Vec::new());
        let mut all = Work::default();
        for step in launches {
            let Step::Launch { kernel, params, grid, work, kept: theirs, .. } = step else { continue };
            own.push((&**params, grid[0]));
            groups += grid[0];
            kept.extend(theirs.iter().cloned());
            names.push(&*self.kernels[*kernel].name);
            let kind = if work.bytes > all.bytes || own.len() == 1 { work.kind } else { all.kind };
            all = Work { kind, flops: all.flops + work.flops, bytes: all.bytes + work.bytes };
        }
        let (bindings, accesses) = bindings.into_iter().unzip();
        let kernel = Kernel {
            name: format!("beside[{}]", names.join(", ")),
            wgsl: side_by_side(parts, &numbers),
            bindings: accesses,
        };
        let params = params_side_by_side(&own);
        let kernel = self.distinct(&kernel);
        Step::Launch { kernel, bindings, params, grid: [groups, 1, 1], work: all, kept }
    }
}

/// Returns whether one of two steps, each with what it uses, writes elements that the other one uses.
fn conflict((a, uses): (&Step, &Uses), (b, others): (&Step, &Uses)) -> bool {
    conflicts(uses, others).any(|store| !keep_apart(a.kept(), b.kept(), store))
}

/// Returns whether two launches keep to elements of a memory that are not the same.
fn keep_apart(a: &[(Store, Range<usize>)], b: &[(Store, Range<usize>)], store: Store) -> bool {
    let of = |kept: &[(Store, Range<usize>)]| -> Vec<Range<usize>> {
        kept.iter().filter(|(own, _)| *own == store).map(|(_, range)| range.clone()).collect()
    };
    let (a, b) = (of(a), of(b));
    let meet = |a: &Range<usize>| b.iter().any(|b| a.start < b.end && b.start < a.end);
    !a.is_empty() && !b.is_empty() && !a.iter().any(meet)
}
