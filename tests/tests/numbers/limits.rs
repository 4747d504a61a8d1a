//! Plans keep to the limits of the device that they are made for, or planning says which limit stands against
//! them. The limits are those that drivers report of 18 chips, and the ten sets to which wgpu-core 30 rounds
//! the limits of all adapters (`limits/adapters.tsv`). No device is opened, and nothing is compiled: what a
//! kernel takes is read from the naga IR of its text.

use std::collections::BTreeMap;

use clap::ValueEnum;
use unisono::data::{Loader, Memory};
use unisono::gpu::{Adapter, Backend, Features, Kind, Limits};
use unisono::graph::plan::{Command, Plan};
use unisono::graph::{GraphError, Program, Run, Target};
use unisono::{AdamW, BatchNorm, Conv2d, Dense, Flatten, Precision, Relu, Sequential, Trainer};
use unisono_examples::Model;
use unisono_graph::ops::REGISTRY;
use unisono_testkit::{Needs, needs, prepare};
use unisono_tests::isa::Step;

/// Returns the adapters of the table.
fn adapters() -> Vec<Adapter> {
    let mut lines = include_str!("limits/adapters.tsv").lines();
    let names: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let adapter = |line: &str| {
        let row: BTreeMap<&str, &str> = names.iter().copied().zip(line.split('\t')).collect();
        let number = |name: &str| row[name].parse::<u64>().unwrap();
        let small = |name: &str| number(name) as u32;
        let kind = match row["kind"] {
            "discrete" => Kind::Discrete,
            "integrated" => Kind::Integrated,
            "cpu" => Kind::Cpu,
            _ => Kind::Other,
        };
        Adapter {
            name: row["name"].to_owned(),
            backend: match row["backend"] {
                "metal" => Backend::Metal,
                "dx12" => Backend::Dx12,
                _ => Backend::Vulkan,
            },
            kind,
            driver: String::new(),
            driver_info: String::new(),
            vendor: 0,
            device: 0,
            pci_bus: String::new(),
            arithmetic: None,
            twin: 0,
            limits: Limits {
                buffer_bytes: number("buffer_bytes"),
                storage_binding_bytes: number("storage_binding_bytes"),
                storage_buffers: small("storage_buffers"),
                workgroups: small("workgroups"),
                invocations: small("invocations"),
                workgroup_bytes: small("workgroup_bytes"),
                storage_alignment: small("storage_alignment"),
                uniform_alignment: small("uniform_alignment"),
                subgroup: (small("subgroup_min"), small("subgroup_max")),
            },
            features: Features {
                f16: row["f16"] == "y",
                timestamps: true,
                subgroups: true,
                mappable: kind == Kind::Cpu,
            },
            matrix_sizes: Vec::new(),
            unit: None,
        }
    };
    lines.map(adapter).collect()
}

/// The kernels that were looked at, each with whether the target that it is for has f16.
#[derive(Default)]
struct Checker(BTreeMap<(String, bool), Needs>);

impl Checker {
    /// Checks that a plan keeps to all limits of an adapter.
    fn check(&mut self, what: &str, plan: &Plan, adapter: &Adapter) {
        let (limits, target) = (&adapter.limits, adapter.target());
        for kernel in &plan.kernels {
            let key = (kernel.wgsl.clone(), target.f16);
            let own = *self.0.entry(key).or_insert_with(|| {
                let found = needs(&kernel.wgsl, &target);
                found.unwrap_or_else(|error| panic!("{what}: {}: {error}", kernel.name))
            });
            let read = kernel.workgroup().map(|own| (own.invocations, own.bytes));
            assert_eq!(read, Some((own.invocations, own.workgroup_bytes)), "{what}: {}", kernel.name);
            assert_eq!(own.storage_buffers, kernel.bindings.len(), "{what}: {}", kernel.name);
            for (needs, allows) in [
                (own.storage_buffers as u64, limits.storage_buffers),
                (own.invocations, limits.invocations),
                (own.workgroup_bytes, limits.workgroup_bytes),
            ] {
                assert!(needs <= u64::from(allows), "{what}: {}: {own:?}, {limits:?}", kernel.name);
            }
        }
        let largest = plan.buffers.iter().map(|buffer| buffer.bytes).max().unwrap_or(0);
        assert!(largest <= limits.buffer_bytes, "{what}: a buffer of {largest} bytes");
        let alignment = u64::from(limits.storage_alignment.max(limits.uniform_alignment));
        for command in plan.segments.iter().flat_map(|segment| &segment.commands) {
            let Command::Launch(launch) = command else { continue };
            let name = &plan.kernels[launch.kernel].name;
            assert!(launch.grid.iter().all(|n| *n <= limits.workgroups), "{what}: {name}: {:?}", launch.grid);
            for slice in &launch.bindings {
                assert!(slice.bytes <= limits.storage_binding_bytes, "{what}: {name}: {slice:?}");
                assert!(slice.offset.is_multiple_of(alignment), "{what}: {name}: {slice:?}");
            }
        }
    }
}

/// Plans a run for an adapter, and checks the plan. Returns the error's text if there is none, after checking
/// that it says what it is about.
fn planned(
    checker: &mut Checker,
    (what, program): (&str, &Program),
    run: &Run,
    adapter: &Adapter,
) -> Result<(), String> {
    let limits = &adapter.limits;
    let what = format!("{what} on {}", adapter.name);
    match program.plan(run, &adapter.target()) {
        Ok(plan) => {
            checker.check(&what, &plan, adapter);
            Ok(())
        }
        Err(error) => {
            let (needs, allows) = match error {
                GraphError::Limit { needs, adapter_allows, .. }
                | GraphError::Grid { needs, adapter_allows, .. }
                | GraphError::Kernel { needs, adapter_allows, .. } => (needs, adapter_allows),
                GraphError::NoF16 { .. } if !adapter.features.f16 => return Err(error.to_string()),
                other => panic!("{what}: {other}"),
            };
            let own = [limits.buffer_bytes, limits.storage_binding_bytes];
            let small =
                [limits.workgroups, limits.invocations, limits.workgroup_bytes, limits.storage_buffers];
            let is_own = own.contains(&allows) || small.map(u64::from).contains(&allows);
            assert!(needs > allows && (is_own || allows == adapter.target().max_binding_bytes), "{error}");
            let text = error.to_string();
            let says = [needs, allows].iter().all(|number| text.contains(&number.to_string()));
            assert!(says, "{what}: {text}");
            Err(text)
        }
    }
}

fn step(model: Model, precision: Precision) -> Step {
    Step { model, batch: model.batch(), shards: 8, replicas: 1, precision }
}

/// Returns the adapters with different targets, each with the number of those in the table that are like it.
fn distinct() -> Vec<(Adapter, usize)> {
    let mut found: Vec<(Adapter, usize)> = Vec::new();
    for adapter in adapters() {
        match found.iter_mut().find(|(other, _)| {
            (other.target(), other.limits, other.features)
                == (adapter.target(), adapter.limits, adapter.features)
        }) {
            Some((_, count)) => *count += 1,
            None => found.push((adapter, 1)),
        }
    }
    found
}

/// Without f16 nothing is planned in mixed precision, and values of 256 MiB do not fit bindings of 128 MiB.
/// Everything else has a plan.
#[test]
fn every_model_is_planned_for_every_adapter() {
    assert_eq!(adapters().len(), 28);
    let (mut checker, mut plans) = (Checker::default(), 0);
    for &model in Model::value_variants() {
        for precision in [Precision::F32, Precision::Mixed] {
            let step = step(model, precision);
            let program = step.program().unwrap();
            let whole = step.run();
            let one = Run { sizes: whole.sizes[..1].to_vec(), ..whole.clone() };
            let name = format!("{} in {precision}", model.flag());
            for (adapter, count) in distinct() {
                let lacks_f16 = precision == Precision::Mixed && !adapter.features.f16;
                let is_small = adapter.limits.storage_binding_bytes <= 128 << 20;
                for run in [&whole, &one] {
                    match planned(&mut checker, (&name, &program), run, &adapter) {
                        Ok(()) => plans += count,
                        Err(text) if lacks_f16 => assert!(text.contains("shader-f16"), "{text}"),
                        Err(text) => {
                            let is_large =
                                matches!(model, Model::Gpt100m | Model::BertMini) && run.sizes.len() > 1;
                            assert!(is_large && is_small, "{name} on {}: {text}", adapter.name);
                        }
                    }
                }
            }
        }
    }
    println!("{plans} plans with {} kernels", checker.0.len());
}

/// Large batches of an op may need more than a binding has. Small ones have a plan wherever f16 is, if they
/// take it.
#[test]
fn every_op_is_planned_for_every_adapter() {
    let mut checker = Checker::default();
    for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
        for case in (entry.cases)() {
            let program = Program::compile(&prepare(&case, &[3, 2]).unwrap().graph).unwrap();
            for (adapter, _) in distinct() {
                let mut plan =
                    |sizes| planned(&mut checker, (entry.name, &program), &Run::whole(sizes), &adapter);
                let small = plan(&[3, 2]);
                let is_right = small.is_ok() || !adapter.features.f16;
                assert!(is_right, "{} on {}: {small:?}", entry.name, adapter.name);
                plan(&[700, 600, 1]).ok();
            }
        }
    }
}

/// Returns the least adapter of the table with other limits.
fn least(change: impl Fn(&mut Limits)) -> Adapter {
    let mut adapter = adapters().into_iter().find(|adapter| adapter.name == "default").unwrap();
    change(&mut adapter.limits);
    adapter
}

/// The products and attentions of these models take all that WebGPU guarantees of a workgroup. OpenGL ES
/// guarantees fewer invocations, and wgpu's own least limits 32 bytes less.
#[test]
fn a_small_workgroup_gets_kernels_that_fit() {
    let mut checker = Checker::default();
    let programs = [Model::Mlp, Model::Cnn, Model::Gpt, Model::Wide].map(|model| {
        let step = step(model, Precision::F32);
        (model.flag(), step.program().unwrap(), step.run())
    });
    for (invocations, bytes) in [(128, 32 << 10), (256, 16_352), (64, 9_000), (64, 16)] {
        let adapter = least(|limits| (limits.invocations, limits.workgroup_bytes) = (invocations, bytes));
        for (name, program, run) in &programs {
            let planned = planned(&mut checker, (name, program), run, &adapter);
            assert_eq!(planned, Ok(()), "{name} with {invocations} invocations and {bytes} bytes");
        }
    }
    // Without the choice by limits these plans would have larger workgroups.
    let own = Adapter::target(&least(|_| ()));
    let needs = |target: &Target| {
        let plans = programs.iter().map(|(_, program, run)| program.plan(run, target).unwrap());
        let kernels: Vec<_> = plans.flat_map(|plan| plan.kernels).collect();
        let all = kernels.iter().map(|kernel| kernel.workgroup().unwrap());
        all.fold((0, 0), |most, own| (own.invocations.max(most.0), own.bytes.max(most.1)))
    };
    assert_eq!(needs(&Target { busy_workgroups: 1, ..own.clone() }), (256, 16 << 10));
}

/// Behind batch norm the updates of later layers come before the last segment, where a new value does not
/// take the place of the old one.
#[test]
fn eight_storage_buffers_are_enough_for_batch_norm_and_adamw() {
    let data = Memory::labelled(vec![0.0; 72], [1, 6, 6], vec![0; 2]).unwrap();
    let fields = Loader::new(data).fields().unwrap();
    let mut checker = Checker::default();
    let mut adapter = least(|limits| limits.storage_buffers = 8);
    adapter.features.f16 = true;
    for precision in [Precision::F32, Precision::Mixed] {
        let layers = || (Conv2d::new(8, 3).padding(1), BatchNorm::new());
        let (first, second) = (layers(), layers());
        let model = Sequential::new().add(first.0).add(first.1).add(Relu).add(second.0).add(second.1);
        let model = model.add(Flatten).add(Dense::new(64)).add(Relu).add(Dense::new(5));
        let builder = Trainer::builder(model).optimizer(AdamW::new(1e-3)).precision(precision);
        for (name, program) in builder.replicas(1).build(&fields).unwrap().programs() {
            let name = format!("{name:?} in {precision}");
            assert_eq!(planned(&mut checker, (&name, program), &Run::whole(&[3, 2]), &adapter), Ok(()));
        }
    }
}

#[test]
fn an_error_names_the_kernel_and_the_limit() {
    let step = step(Model::Gpt, Precision::F32);
    let (program, run) = (step.program().unwrap(), step.run());
    let error = |change: fn(&mut Limits)| {
        planned(&mut Checker::default(), ("gpt", &program), &run, &least(change)).unwrap_err()
    };
    for (found, limit) in [
        (
            error(|limits| limits.invocations = 32),
            "needs 64 invocations a workgroup; the adapter's limit is 32",
        ),
        (error(|limits| limits.storage_buffers = 2), "storage buffers; the adapter's limit is 2"),
        (error(|limits| limits.storage_binding_bytes = 4096), "the adapter's limit is 4096"),
        (error(|limits| limits.workgroups = 1), "workgroups along an axis; the adapter's limit is 1"),
    ] {
        assert!(found.contains(limit), "{found}");
    }
}
