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
use unisono_graph::plan::{Command, Launch, Role, Transfer};
use unisono_graph::{
    Array, Feed, Frame, GraphError, InputKind, OutputKind, Plan, Program, Slot, Tape, Type, ops, tree,
};

pub use arithmetic::Choices;

use crate::device::{Ran, bytes, run, upload};
use group::Group;
use memory::Buffer;
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
    let layout = program.state_layout();
    let place = |state: usize| {
        let slice = layout.tensors[state];
        let is_it = |buffer: &unisono_graph::plan::Buffer| buffer.role == Role::State(slice.buffer);
        let range = slice.offset as usize..(slice.offset + slice.bytes) as usize;
        plan.buffers.iter().position(is_it).map(|buffer| (buffer, range))
    };
    let mut ran = Ran::default();
    for (state, values) in feed.states.iter().enumerate() {
        let given = bytes(&program.states()[state].ty, &values.data);
        let first: Vec<u8> =
            floats(&given).into_iter().flat_map(|x| tree::canonical(x).to_le_bytes()).collect();
        match place(state) {
            Some((buffer, range)) => emulator.buffers[buffer].bytes[range].copy_from_slice(&first),
            // No kernel of this plan touches the state.
            None => drop(ran.states.insert(program.states()[state].name.clone(), floats(&first))),
        }
    }
    for (input, values) in program.inputs().iter().zip(&feed.inputs) {
        let InputKind::Resident(number) = input.kind else { continue };
        let is_it = |buffer: &unisono_graph::plan::Buffer| buffer.role == Role::Resident(number);
        if let Some(buffer) = plan.buffers.iter().position(is_it) {
            emulator.buffers[buffer].bytes.copy_from_slice(&bytes(&input.ty, &values.data));
        }
    }
    for segment in 0..plan.segments.len() {
        emulator.run(segment, &mut |transfer| upload(program, feed, transfer), &mut |transfer, data| {
            if let Slot::Output(index) = Slot::decode(transfer.slot) {
                let output = &program.outputs()[index];
                let part = match output.kind {
                    OutputKind::Value => &mut ran.outputs,
                    OutputKind::Carry => &mut ran.carries,
                    OutputKind::Resident(_) => return,
                };
                part.insert(output.name.clone(), floats(data));
            }
        });
    }
    for (index, state) in program.states().iter().enumerate() {
        if let Some((buffer, range)) = place(index) {
            let values = floats(&emulator.buffers[buffer].bytes[range]);
            ran.states.insert(state.name.clone(), values);
        }
    }
    Emulated { ran, faults: emulator.faults.into_iter().collect() }
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

/// The buffers of a plan, and what was found so far.
struct Emulator<'a> {
    plan: &'a Plan,
    choices: Choices,
    buffers: Vec<Buffer>,
    modules: BTreeMap<usize, Result<(naga::Module, naga::valid::ModuleInfo), String>>,
    faults: BTreeSet<String>,
    launches: u32,
}

impl<'a> Emulator<'a> {
    fn new(plan: &'a Plan, choices: Choices) -> Self {
        let grain = if plan.kernels.iter().any(|kernel| kernel.wgsl.contains("f16")) { 2 } else { 4 };
        let buffer = |buffer: &unisono_graph::plan::Buffer| {
            let is_cleared = matches!(buffer.role, Role::Verdict(_) | Role::State(_) | Role::Resident(_));
            let mut found =
                Buffer::new(buffer.bytes, grain, if is_cleared { 0 } else { choices.unwritten() });
            if let Role::Table(words) = &buffer.role {
                found.bytes[..4 * words.len()].copy_from_slice(bytemuck::cast_slice(words));
            }
            found
        };
        let kernels = plan.kernels.iter().enumerate();
        Self {
            plan,
            choices,
            buffers: plan.buffers.iter().map(buffer).collect(),
            modules: kernels.map(|(id, kernel)| (id, module::parse(&kernel.wgsl))).collect(),
            faults: BTreeSet::new(),
            launches: 0,
        }
    }

    /// Runs a segment.
    fn run(
        &mut self,
        segment: usize,
        upload: &mut dyn FnMut(&Transfer) -> Vec<u8>,
        download: &mut dyn FnMut(&Transfer, &[u8]),
    ) {
        let segment = &self.plan.segments[segment];
        for transfer in &segment.uploads {
            let slice = transfer.slice;
            let data = upload(transfer);
            let first = slice.offset as usize;
            self.buffers[slice.buffer].bytes[first..first + data.len()].copy_from_slice(&data);
        }
        for command in &segment.commands {
            match command {
                Command::Launch(launch) => self.launch(launch),
                Command::Copy { from, to } => {
                    let first = from.offset as usize;
                    let data = self.buffers[from.buffer].bytes[first..first + from.bytes as usize].to_vec();
                    let first = to.offset as usize;
                    self.buffers[to.buffer].bytes[first..first + data.len()].copy_from_slice(&data);
                }
                Command::Clear(slice) => {
                    let range = slice.offset as usize..(slice.offset + slice.bytes) as usize;
                    self.buffers[slice.buffer].bytes[range].fill(0);
                }
            }
        }
        for transfer in &segment.downloads {
            let slice = transfer.slice;
            let range = slice.offset as usize..(slice.offset + slice.bytes) as usize;
            download(transfer, &self.buffers[slice.buffer].bytes[range]);
        }
    }

    fn launch(&mut self, launch: &Launch) {
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
            buffers: &mut self.buffers,
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
