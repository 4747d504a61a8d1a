//! Finds the first op and the first kernel by which two adapters differ.

use unisono_graph::plan::{Access, Command, Launch, Plan, Segment, Transfer};
use unisono_graph::{Graph, Lead, Node, Output, OutputKind, Program, Target};
use unisono_testkit::plan_for;

use super::{Bench, Subject, first_difference};

/// Returns the first op whose result differs when the graph ends with it.
pub(super) fn op(subject: &Subject, benches: &mut [&mut Bench; 2]) -> Result<Option<String>, String> {
    let program = Program::compile(&subject.graph).map_err(|error| error.to_string())?;
    let graph = program.graph();
    let live = graph.live();
    for (id, node) in graph.nodes.iter().enumerate().filter(|(id, _)| live[*id]) {
        if node.ty.lead == Lead::Shard || node.inputs.is_empty() {
            continue;
        }
        let part = Subject { graph: ending_with(graph, id), ..subject.clone() };
        let [own, other] = benches.each_mut().map(|bench| bench.run(&part));
        // An op that is no output by itself cannot be asked.
        let (Ok(own), Ok(other)) = (own, other) else { continue };
        if first_difference(&own, &other).is_some() {
            return Ok(Some(describe(graph, id, node)));
        }
    }
    Ok(None)
}

/// Returns the graph with one node as its only output.
fn ending_with(graph: &Graph, node: usize) -> Graph {
    let mut part = graph.clone();
    part.outputs = vec![Output { name: "y".into(), kind: OutputKind::Value, node }];
    part.updates.clear();
    part
}

fn describe(graph: &Graph, id: usize, node: &Node) -> String {
    let operands: Vec<String> =
        node.inputs.iter().map(|&input| format!("v{input} = {}", graph.describe(input))).collect();
    format!("v{id} = {}, of {}", graph.describe(id), operands.join(", "))
}

/// Returns the name and the WGSL of the kernel of the first launch after which what it wrote differs. Both
/// adapters run the plan for what they have in common.
pub(super) fn kernel(
    subject: &Subject,
    benches: &mut [&mut Bench; 2],
) -> Result<Option<(String, String)>, String> {
    let target = common(&benches[0].target(), &benches[1].target());
    let program = Program::compile(&subject.graph).map_err(|error| error.to_string())?;
    let plan = plan_for(&target, &program, &subject.feed).map_err(|error| error.to_string())?;
    for (segment, Segment { commands, .. }) in plan.segments.iter().enumerate() {
        for (at, command) in commands.iter().enumerate() {
            let Command::Launch(launch) = command else { continue };
            let part = until(&plan, segment, at, launch);
            let [own, other] =
                benches.each_mut().map(|bench| bench.download(&program, part.clone(), subject));
            if first_difference(&own?, &other?).is_some() {
                let kernel = &plan.kernels[launch.kernel];
                return Ok(Some((kernel.name.clone(), kernel.wgsl.clone())));
            }
        }
    }
    Ok(None)
}

/// Returns the plan up to a launch, with what the launch wrote as its only downloads.
fn until(plan: &Plan, segment: usize, at: usize, launch: &Launch) -> Plan {
    let mut part = plan.clone();
    part.segments.truncate(segment + 1);
    part.segments.iter_mut().for_each(|segment| segment.downloads.clear());
    if let Some(last) = part.segments.last_mut() {
        last.commands.truncate(at + 1);
        let access = &plan.kernels[launch.kernel].bindings;
        let written = launch.bindings.iter().zip(access).filter(|(_, access)| **access == Access::ReadWrite);
        let transfer = |(slot, (&slice, _))| Transfer { slot, slice };
        last.downloads = written.enumerate().map(transfer).collect();
    }
    part
}

/// Returns what two targets have in common.
fn common(a: &Target, b: &Target) -> Target {
    Target {
        machine: a.machine,
        max_binding_bytes: a.max_binding_bytes.min(b.max_binding_bytes),
        max_buffer_bytes: a.max_buffer_bytes.min(b.max_buffer_bytes),
        max_workgroups: a.max_workgroups.min(b.max_workgroups),
        max_invocations: a.max_invocations.min(b.max_invocations),
        max_workgroup_bytes: a.max_workgroup_bytes.min(b.max_workgroup_bytes),
        busy_workgroups: a.busy_workgroups.max(b.busy_workgroups),
        binding_alignment: a.binding_alignment.max(b.binding_alignment),
        storage_buffers: a.storage_buffers.min(b.storage_buffers),
        f16: a.f16 && b.f16,
        own_quotients: a.own_quotients && b.own_quotients,
        masks: a.masks || b.masks,
        shares_memory: false,
        unit: a.unit.filter(|_| a.unit == b.unit),
    }
}
