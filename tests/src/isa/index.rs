//! The files of a plan: `index.txt`, a line for each kernel, transfer and command, and `kNNN.wgsl`, a kernel
//! each.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use unisono::graph::Plan;
use unisono::graph::plan::{Access, Command, Launch, Segment, Transfer};
use unisono_examples::Error;

use super::Step;

/// Writes the files of a plan to a directory, which exists.
///
/// # Errors
/// Those of the file system.
pub fn write(dir: &Path, step: &Step, (plan, state): (&Plan, u64)) -> Result<(), Error> {
    fs::write(dir.join("index.txt"), text(step, plan, state))?;
    for (number, kernel) in plan.kernels.iter().enumerate() {
        fs::write(dir.join(format!("k{number:03}.wgsl")), &kernel.wgsl)?;
    }
    Ok(())
}

/// Returns the text of `index.txt`:
///
/// - `K number accesses name`: a kernel, with a letter `r` or `w` for each binding after the uniform;
/// - `S segment up BYTES (N transfers) down BYTES (N transfers)`: what a segment exchanges with the host;
/// - `B segment kernel [(access, buffer), ...]`: the buffers of the launch in the next line;
/// - `L segment kernel [grid] [params] [(access, bytes), ...]`: a launch, with the bytes that it binds;
/// - `F segment kernel kind flops bytes`: what that launch computes, see [`unisono::graph::plan::Work`];
/// - `C segment copy|clear BYTES`: a copy or a clear.
pub fn text(step: &Step, plan: &Plan, state: u64) -> String {
    let mut text = format!(
        "# model {:?} batch {} shards {} replicas {} scratch {} state {state}\n",
        step.model,
        step.batch,
        step.shards,
        step.replicas,
        plan.scratch_bytes()
    );
    for (number, kernel) in plan.kernels.iter().enumerate() {
        let accesses: String = kernel.bindings.iter().map(|&access| letter(access)).collect();
        let _ = writeln!(text, "K {number} {accesses} {}", one_word(&kernel.name));
    }
    for (segment, commands) in plan.segments.iter().enumerate() {
        write_segment(&mut text, segment, commands, plan);
    }
    text
}

/// Returns a kernel's name without spaces.
pub fn one_word(name: &str) -> String {
    name.replace(", ", ",").replace(' ', "_")
}

fn letter(access: Access) -> char {
    if access == Access::Read { 'r' } else { 'w' }
}

fn write_segment(text: &mut String, segment: usize, commands: &Segment, plan: &Plan) {
    let moved = |transfers: &[Transfer]| -> String {
        let bytes: u64 = transfers.iter().map(|transfer| transfer.slice.bytes).sum();
        format!("{bytes} ({} transfers)", transfers.len())
    };
    let (up, down) = (moved(&commands.uploads), moved(&commands.downloads));
    let _ = writeln!(text, "S {segment} up {up} down {down}");
    for command in &commands.commands {
        let _ = match command {
            Command::Launch(launch) => write_launch(text, segment, launch, plan),
            Command::Copy { to, .. } => writeln!(text, "C {segment} copy {}", to.bytes),
            Command::Clear(slice) => writeln!(text, "C {segment} clear {}", slice.bytes),
        };
    }
}

fn write_launch(text: &mut String, segment: usize, launch: &Launch, plan: &Plan) -> std::fmt::Result {
    let Launch { kernel, bindings, params, grid, work } = launch;
    let accesses = &plan.kernels[*kernel].bindings;
    let list = |value: &dyn Fn(usize) -> u64| -> String {
        let pair = |(at, &access): (usize, &Access)| format!("('{}', {})", letter(access), value(at));
        accesses.iter().enumerate().map(pair).collect::<Vec<_>>().join(", ")
    };
    writeln!(text, "B {segment} {kernel} [{}]", list(&|at| bindings[at].buffer as u64))?;
    writeln!(text, "L {segment} {kernel} {grid:?} {params:?} [{}]", list(&|at| bindings[at].bytes))?;
    writeln!(text, "F {segment} {kernel} {} {} {}", work.kind, work.flops, work.bytes)
}
