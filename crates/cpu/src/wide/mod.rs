//! Kernels of many operations and no loops, such as activations: each operation is done to many invocations
//! at once.
//!
//! Cranelift has vectors of four floats, a quarter of what AVX-512 has, so that an exponential function takes
//! it four times as long. `read` makes a graph of a kernel, `plan` makes instructions of the graph, and `run`
//! runs each instruction over up to 128 invocations, in code that Rust's compiler makes for the vectors of
//! this CPU. What the kernel says in WGSL is what it computes, to the bit.
//!
//! Between two instructions values are in memory. A kernel without such functions spends more time on that
//! than longer vectors save, so Cranelift compiles it, as it does all kernels that need more than `read`
//! knows. With AVX-512, `pass` joins instructions into passes over the words, and `machine` writes machine
//! code for them, in which values are in registers. So kernels with square roots run here too: these are the
//! updates of optimizers.

mod assembler;
mod expressions;
mod graph;
mod machine;
mod moves;
mod order;
mod own;
mod pass;
mod plan;
mod read;
mod run;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use cranelift_jit::JITModule;
use naga::Module;
use naga::valid::ModuleInfo;

use crate::native::{Bound, Rounding, Vectors};
use machine::Machine;
use plan::Plan;
use run::{BLOCK, CHUNK, Scope, WHOLE};

/// The most values of a kernel at a time: more do not stay in a core's cache.
const MOST_VALUES: u32 = 400;

thread_local! {
    /// The memory of values, which a thread keeps.
    static VALUES: RefCell<Vec<u32>> = RefCell::default();
}

/// A kernel without loops.
#[derive(Debug)]
pub(crate) struct Wide {
    plan: Plan,
    run: run::Run,
    /// The code of the plan's passes, if it has some.
    machine: Option<Machine>,
    /// The invocations of a workgroup.
    lanes: u32,
    /// Pairs of bindings that must not overlap: it loads from the first and stores to the second, and loads
    /// and stores of different bindings have no order.
    pub apart: Vec<[u32; 2]>,
}

/// Where a launch runs.
#[derive(Clone, Copy)]
struct Launch {
    bindings: *const Bound,
    short: *mut u32,
    whole: *mut u32,
    has_begun: bool,
}

impl Wide {
    /// Returns an entry point of a module, or `None` if it has loops or uses what only Cranelift's code can
    /// do, or if there is no code for these vectors. `code` returns an empty module for machine code.
    pub fn new(
        module: &Module,
        info: &ModuleInfo,
        index: usize,
        (vectors, rounding): (Vectors, Rounding),
        code: &dyn Fn() -> Option<JITModule>,
    ) -> Option<Self> {
        let run = run::code(vectors, rounding)?;
        let graph = read::read(module, info, index)?;
        // A kernel with roots is the update of an optimizer, which AVX-512 makes faster here as well.
        let pays = graph.has_functions() || vectors == Vectors::Avx512 && graph.has_roots();
        if !pays {
            return None;
        }
        let mut plan = plan::plan(&graph, vectors == Vectors::Avx512);
        let mut machine = None;
        if !plan.passes.is_empty() {
            machine = code().and_then(|code| Machine::new(&plan.passes, rounding, code));
            if machine.is_none() {
                plan = plan::plan(&graph, false);
            }
        }
        let lanes = module.entry_points[index].workgroup_size[0];
        let apart = graph.apart();
        (plan.whole <= MOST_VALUES).then_some(Self { plan, run, machine, lanes, apart })
    }

    /// Runs workgroups of a launch by their numbers.
    ///
    /// # Safety
    /// As for [`crate::compile::Program::run`].
    #[expect(unsafe_code, reason = "memory of kernels")]
    pub unsafe fn run_groups(&self, bindings: *const Bound, groups: [u32; 3], numbers: Range<u64>) {
        let [x, y, _] = groups.map(u64::from);
        let lanes = u64::from(self.lanes);
        self.with_values(bindings, |launch| {
            let mut number = numbers.start;
            while number < numbers.end {
                // Workgroups beside one another are one row of invocations.
                let column = number % x;
                let count = (x - column).min(numbers.end - number);
                let place = [number / x % y, number / (x * y)].map(|axis| axis as u32);
                let row = column * lanes..(column + count) * lanes;
                // SAFETY: what the caller promises.
                unsafe { self.row(launch, place, row) };
                number += count;
            }
        });
    }

    /// Runs some invocations of a workgroup.
    ///
    /// # Safety
    /// As for [`crate::compile::Program::run`].
    #[expect(unsafe_code, reason = "memory of kernels")]
    pub unsafe fn run_some(&self, bindings: *const Bound, group: [u32; 3], own: Range<u32>) {
        let [x, y, z] = group;
        let first = u64::from(x) * u64::from(self.lanes);
        let row = first + u64::from(own.start)..first + u64::from(own.end);
        // SAFETY: what the caller promises.
        self.with_values(bindings, |launch| unsafe { self.row(launch, [y, z], row) });
    }

    /// Calls `run` with memory for values.
    fn with_values(&self, bindings: *const Bound, run: impl FnOnce(&mut Launch)) {
        let mut values = VALUES.take();
        let words = CHUNK * (self.plan.short as usize + 1) + WHOLE * self.plan.whole as usize;
        if values.len() < words {
            values.resize(words, 0);
        }
        // A chunk begins where a line of the cache does.
        let skipped = values.as_ptr().align_offset(4 * CHUNK).min(CHUNK);
        let short = values[skipped..].as_mut_ptr();
        let whole = values[skipped + CHUNK * self.plan.short as usize..].as_mut_ptr();
        run(&mut Launch { bindings, short, whole, has_begun: false });
        VALUES.set(values);
    }

    /// Runs invocations that lie beside one another.
    ///
    /// # Safety
    /// As for [`crate::compile::Program::run`].
    #[expect(unsafe_code, reason = "memory of kernels")]
    unsafe fn row(&self, launch: &mut Launch, [y, z]: [u32; 2], row: Range<u64>) {
        for first in row.clone().step_by(BLOCK) {
            let count = (row.end - first).min(BLOCK as u64) as usize;
            // SAFETY: what the caller promises.
            unsafe { self.block(launch, [first as u32, y, z], count) };
        }
    }

    /// Runs a block of invocations.
    ///
    /// # Safety
    /// As for [`crate::compile::Program::run`].
    #[expect(unsafe_code, reason = "memory of kernels")]
    unsafe fn block(&self, launch: &mut Launch, place: [u32; 3], count: usize) {
        let mut ended = [0; BLOCK];
        let &mut Launch { bindings, short, whole, .. } = launch;
        let plan = &self.plan;
        let entries = self.machine.as_ref().map_or(&[][..], |machine| &machine.entries);
        let passes = (&plan.passes[..], entries);
        let scope = Scope { bindings, passes, place, count, short, whole, ended: ended.as_mut_ptr() };
        // SAFETY: what the caller promises. Each list is run behind those that it needs.
        unsafe {
            if !launch.has_begun {
                (self.run)(&plan.once, &scope);
            }
            (self.run)(&plan.first, &scope);
            if ended[..count].iter().any(|ended| *ended != 0) {
                for part in run::left(&ended[..count]) {
                    let own = [place[0].wrapping_add(part.start as u32), place[1], place[2]];
                    self.block(launch, own, part.len());
                }
                return;
            }
            if !launch.has_begun {
                (self.run)(&plan.late, &scope);
                launch.has_begun = true;
            }
            (self.run)(&plan.rest, &scope);
        }
    }
}
