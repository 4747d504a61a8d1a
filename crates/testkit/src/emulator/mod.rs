//! A device that is not there: it runs a plan's kernels from their naga IR, invocation by invocation, and
//! sees what no driver tells.
//!
//! A software adapter takes the invocations of a workgroup in one order, and workgroups one after the other.
//! So a barrier that is missing, a launch whose workgroups read what others write, or a read behind the end
//! of a buffer can go unnoticed there, and give wrong numbers on a GPU. The emulator reports these as faults:
//!
//! * two invocations touch a cell of storage or of the workgroup's memory, at least one of them writes it,
//!   and no barrier of their workgroup is between;
//! * a barrier to which not all invocations of a workgroup come;
//! * a read or write behind the end of a binding or an array;
//! * a loop that does not end, and what is not emulated.
//!
//! [`Choices`] says how the device computes where WGSL leaves it a choice. What a kernel promises to be the
//! same on all devices has the same bits whatever the choices are.

mod access;
mod arithmetic;
mod evaluate;
mod group;
mod memory;
mod module;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, BTreeSet};

use unisono_gpu::{Device, GpuError};
use unisono_graph::plan::{Buffer, Command, Launch, Role, Slice};
use unisono_graph::{
    Array, Feed, Frame, GraphError, InputKind, OutputKind, Plan, Program, Slot, Tape, Type, ops, tree,
};

pub use arithmetic::Choices;

use crate::device::{Ran, bytes, run, upload};
use group::Group;
use memory::Cells;
use module::Prepared;

/// What a step on the emulator computed.
#[derive(Clone, Debug, Default)]
pub struct Emulated {
    /// The outputs and states. They are of no use if there are faults.
    pub ran: Ran,
    /// What is wrong, each fault once: the kernel, the place in its text, and what happens there.
    pub faults: Vec<String>,
}

/// Runs all segments of a plan of all shards, on the values of an interpreter's feed.
pub fn emulate(program: &Program, plan: &Plan, feed: &Feed, choices: Choices) -> Emulated {
    let mut emulator = Emulator::new(plan, choices);
    let mut launch = |launch: &Launch, buffers: &mut [Vec<u8>]| emulator.launch(launch, buffers);
    let ran = walk((program, plan, feed), choices.unwritten(), &mut launch);
    Emulated { ran, faults: emulator.faults.into_iter().collect() }
}

/// Runs all segments of a plan as [`emulate`] does, but calls `launch` to compute each launch on the plan's
/// buffers. Each word of a buffer is `unwritten` at first.
pub fn walk(
    (program, plan, feed): (&Program, &Plan, &Feed),
    unwritten: u32,
    launch: &mut dyn FnMut(&Launch, &mut [Vec<u8>]),
) -> Ran {
    let mut buffers = buffers(plan, unwritten);
    let layout = program.state_layout();
    let place = |state: usize| {
        let slice = layout.tensors[state];
        let is_it = |buffer: &Buffer| buffer.role == Role::State(slice.buffer);
        let range = slice.offset as usize..(slice.offset + slice.bytes) as usize;
        plan.buffers.iter().position(is_it).map(|buffer| (buffer, range))
    };
    let mut ran = Ran::default();
    for (state, values) in feed.states.iter().enumerate() {
        let given = bytes(&program.states()[state].ty, &values.data);
        let first: Vec<u8> =
            floats(&given).into_iter().flat_map(|x| tree::canonical(x).to_le_bytes()).collect();
        match place(state) {
            Some((buffer, range)) => buffers[buffer][range].copy_from_slice(&first),
            // No kernel of this plan touches the state.
            None => drop(ran.states.insert(program.states()[state].name.clone(), floats(&first))),
        }
    }
    for (input, values) in program.inputs().iter().zip(&feed.inputs) {
        let InputKind::Resident(number) = input.kind else { continue };
        let is_it = |buffer: &Buffer| buffer.role == Role::Resident(number);
        if let Some(buffer) = plan.buffers.iter().position(is_it) {
            buffers[buffer].copy_from_slice(&bytes(&input.ty, &values.data));
        }
    }
    for segment in &plan.segments {
        for transfer in &segment.uploads {
            let data = upload(program, feed, transfer);
            let first = transfer.slice.offset as usize;
            buffers[transfer.slice.buffer][first..first + data.len()].copy_from_slice(&data);
        }
        for command in &segment.commands {
            match command {
                Command::Launch(own) => launch(own, &mut buffers),
                Command::Copy { from, to } => {
                    let data = buffers[from.buffer][range(from)].to_vec();
                    let first = to.offset as usize;
                    buffers[to.buffer][first..first + data.len()].copy_from_slice(&data);
                }
                Command::Clear(slice) => buffers[slice.buffer][range(slice)].fill(0),
            }
        }
        for transfer in &segment.downloads {
            let data = &buffers[transfer.slice.buffer][range(&transfer.slice)];
            if let Slot::Output(index) = Slot::decode(transfer.slot) {
                let output = &program.outputs()[index];
                let part = match output.kind {
                    OutputKind::Value => &mut ran.outputs,
                    OutputKind::Carry => &mut ran.carries,
                    OutputKind::Resident(_) => continue,
                };
                part.insert(output.name.clone(), floats(data));
            }
        }
    }
    for (index, state) in program.states().iter().enumerate() {
        if let Some((buffer, range)) = place(index) {
            ran.states.insert(state.name.clone(), floats(&buffers[buffer][range]));
        }
    }
    ran
}

fn range(slice: &Slice) -> std::ops::Range<usize> {
    slice.offset as usize..(slice.offset + slice.bytes) as usize
}

/// Returns the buffers of a plan before its first command.
fn buffers(plan: &Plan, unwritten: u32) -> Vec<Vec<u8>> {
    let buffer = |buffer: &Buffer| {
        let is_cleared = matches!(buffer.role, Role::Verdict(_) | Role::State(_) | Role::Resident(_));
        let word = if is_cleared { 0 } else { unwritten };
        let mut bytes =
            word.to_le_bytes().repeat(usize::try_from(buffer.bytes.div_ceil(4)).unwrap_or(usize::MAX));
        if let Role::Table(words) = &buffer.role {
            bytes[..4 * words.len()].copy_from_slice(bytemuck::cast_slice(words));
        }
        bytes
    };
    plan.buffers.iter().map(buffer).collect()
}

/// Returns whether a device's `fma` rounds once.
///
/// # Errors
/// As [`crate::run`].
pub fn fuses(device: &mut Device) -> Result<bool, GpuError> {
    let plan_error = |error: GraphError| GpuError::Plan { what: "fma".into(), message: error.to_string() };
    let tape = Tape::new();
    let x = tape.input("x", Type::global(&[1]));
    // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, or 0 if the square is rounded.
    let rest = x.zip(ops::Fma, &[&x, &(&x * -2.0 + 1.0)]);
    tape.output("rest", &rest);
    let program = Program::compile(&tape.finish().map_err(plan_error)?).map_err(plan_error)?;
    let inputs = vec![Array::generate(&[1], |_| 1.0 + 1.0 / 4096.0)];
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs, states: Vec::new() };
    Ok(run(device, &program, &feed)?.outputs["rest"] != [0.0])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// The kernels of a plan, and what was found so far.
struct Emulator<'a> {
    plan: &'a Plan,
    choices: Choices,
    cells: Vec<Cells>,
    modules: BTreeMap<usize, Result<(naga::Module, naga::valid::ModuleInfo), String>>,
    faults: BTreeSet<String>,
    launches: u32,
}

impl<'a> Emulator<'a> {
    fn new(plan: &'a Plan, choices: Choices) -> Self {
        let kernels = plan.kernels.iter().enumerate();
        let modules = kernels.map(|(id, kernel)| (id, module::parse(&kernel.wgsl))).collect();
        let grain = if plan.kernels.iter().any(|kernel| kernel.wgsl.contains("f16")) { 2 } else { 4 };
        let cells = |buffer: &Buffer| Cells::new(4 * buffer.bytes.div_ceil(4) as usize, grain);
        let cells = plan.buffers.iter().map(cells).collect();
        Self { plan, choices, cells, modules, faults: BTreeSet::new(), launches: 0 }
    }

    fn launch(&mut self, launch: &Launch, buffers: &mut [Vec<u8>]) {
        let kernel = &self.plan.kernels[launch.kernel];
        let code = match &self.modules[&launch.kernel] {
            Ok((module, info)) => Prepared::new(module, info),
            Err(error) => Err(error.clone()),
        };
        let code = match code {
            Ok(code) => code,
            Err(error) => {
                self.faults.insert(format!("{}: {error}", kernel.name));
                return;
            }
        };
        self.launches += 1;
        let mut own = group::Launch {
            code: &code,
            name: &kernel.name,
            wgsl: &kernel.wgsl,
            choices: self.choices,
            number: self.launches,
            grid: launch.grid,
            params: bytemuck::cast_slice(&launch.params),
            bindings: &launch.bindings,
            buffers,
            cells: &mut self.cells,
            faults: &mut self.faults,
        };
        let [width, height, depth] = launch.grid;
        for z in 0..depth {
            for y in 0..height {
                for x in 0..width {
                    Group::run(&mut own, [x, y, z]);
                }
            }
        }
    }
}
