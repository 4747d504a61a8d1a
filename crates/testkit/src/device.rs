//! Runs a graph's step on a device without worker threads, as one run of all shards.

use std::collections::BTreeMap;

use unisono_gpu::{Device, Executable, GpuError};
use unisono_graph::plan::Transfer;
use unisono_graph::{
    DType, Feed, InputKind, OutputKind, Plan, Program, RandomKey, Run, Slot, Target, Type, tree,
};

/// Tensors by name.
pub type Tensors = BTreeMap<String, Vec<f32>>;

/// What a step computed. The names within each part are unique, but a carry may be called like an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// The outputs of [`OutputKind::Value`].
    pub outputs: Tensors,
    /// The outputs of [`OutputKind::Carry`].
    pub carries: Tensors,
    /// The states after the commit.
    pub states: Tensors,
}

/// Runs all segments of a step on the values of an interpreter's feed.
pub fn run(device: &mut Device, program: &Program, feed: &Feed) -> Result<Ran, GpuError> {
    let target = device.target();
    run_for(device, &target, program, feed)
}

/// Runs a step as [`run`] does, with a plan for another target than the device's.
pub fn run_for(
    device: &mut Device,
    target: &Target,
    program: &Program,
    feed: &Feed,
) -> Result<Ran, GpuError> {
    let plan = plan_for(target, program, feed)?;
    let mut ran = Ran::default();
    run_plan(device, program, &plan, feed, &mut |transfer, data| {
        if let Slot::Output(i) = Slot::decode(transfer.slot) {
            let output = &program.outputs()[i];
            let part = match output.kind {
                OutputKind::Value => &mut ran.outputs,
                OutputKind::Carry => &mut ran.carries,
                OutputKind::Resident(_) => return,
            };
            part.insert(output.name.clone(), bytemuck::pod_collect_to_vec(data));
        }
    })?;
    for (index, state) in program.states().iter().enumerate() {
        let values = bytemuck::pod_collect_to_vec(&device.read_state(index)?);
        ran.states.insert(state.name.clone(), values);
    }
    Ok(ran)
}

/// Returns the plan of a step on the values of an interpreter's feed.
pub fn plan_for(target: &Target, program: &Program, feed: &Feed) -> Result<Plan, GpuError> {
    let whole = Run::whole(&feed.frame.shards);
    program
        .plan(&whole, target)
        .map_err(|e| GpuError::Plan { what: "the program".into(), message: e.to_string() })
}

/// Runs all segments of a plan of a program, on the values of an interpreter's feed. `download` is given what
/// the plan downloads.
pub fn run_plan(
    device: &mut Device,
    program: &Program,
    plan: &Plan,
    feed: &Feed,
    download: &mut dyn FnMut(&Transfer, &[u8]),
) -> Result<(), GpuError> {
    let mut executable = load_plan(device, program, plan, feed)?;
    run_loaded(device, &mut executable, program, feed, download)
}

/// Makes a plan of a program ready, with the states of an interpreter's feed.
pub fn load_plan(
    device: &mut Device,
    program: &Program,
    plan: &Plan,
    feed: &Feed,
) -> Result<Executable, GpuError> {
    device.create_state(program.state_layout())?;
    for (index, state) in feed.states.iter().enumerate() {
        let bytes = bytes(&program.states()[index].ty, &state.data);
        let what = || format!("the state {}", program.states()[index].name);
        let refused = |_| GpuError::OutOfMemory { what: what(), bytes: bytes.len() as u64 };
        device.write_state(index, &tree::canonical_bytes(&bytes).map_err(refused)?)?;
    }
    device.load(plan)
}

/// Runs all segments of a plan that was made ready.
pub fn run_loaded(
    device: &Device,
    executable: &mut Executable,
    program: &Program,
    feed: &Feed,
    download: &mut dyn FnMut(&Transfer, &[u8]),
) -> Result<(), GpuError> {
    for segment in 0..executable.segments() {
        device.run(
            executable,
            segment,
            &mut |transfer, writer| writer.write(&upload(program, feed, transfer)),
            download,
        )?;
    }
    Ok(())
}

/// Returns what a plan of all shards uploads.
pub(crate) fn upload(program: &Program, feed: &Feed, transfer: &Transfer) -> Vec<u8> {
    let scalar = |&input: &usize| (feed.inputs[input].data[0] as f32).to_le_bytes();
    match Slot::decode(transfer.slot) {
        Slot::Scalars => program.scalars().iter().flat_map(scalar).collect(),
        Slot::Input(i) if program.inputs()[i].kind == InputKind::Random => {
            bytemuck::cast_slice(&words(&feed.inputs[i].data)).to_vec()
        }
        Slot::Input(i) => bytes(&program.inputs()[i].ty, &feed.inputs[i].data),
        // No earlier step is in flight.
        Slot::Chained => vec![0; 4],
        other => unreachable!("a plan of all shards uploads no {other:?}"),
    }
}

/// Returns values as a device holds them.
pub(crate) fn bytes(ty: &Type, data: &[f64]) -> Vec<u8> {
    match ty.dtype {
        DType::F32 => data.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        DType::I32 => data.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        DType::U32 => data.iter().flat_map(|&x| (x as u32).to_le_bytes()).collect(),
    }
}

fn words(data: &[f64]) -> [u32; 8] {
    let mut words = RandomKey::default().words();
    words.iter_mut().zip(data).for_each(|(w, &x)| *w = x as u32);
    words
}
