//! Every op of the registry is checked on every adapter against its f64 reference, and its gradient against
//! central differences.

use unisono_gpu::Device;
use unisono_graph::ops::{Entry, REGISTRY};
use unisono_graph::{Program, interpret};
use unisono_testkit::{adapters, check_gradients, prepare, relative_error, run};

/// The sizes of the shards. They are ragged, and one of them has more than one chunk of a sum.
const SHARDS: [usize; 3] = [3, 2, 1];
const TOLERANCE: f64 = 1e-5;
/// The relative distance of neighbouring f16.
const HALF_ULP: f64 = 1.0 / 1024.0;

fn entries() -> impl Iterator<Item = &'static Entry> {
    REGISTRY.iter().flat_map(|part| part.iter())
}

#[test]
fn every_op_equals_its_reference_on_every_adapter() {
    let adapters = adapters();
    assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
    for adapter in adapters {
        let mut device = Device::open(&adapter).unwrap();
        let mut failures = Vec::new();
        for entry in entries() {
            for (i, case) in (entry.cases)().iter().enumerate() {
                let name = format!("{}/{i} {:?} on {}", entry.name, case.op, adapter.label());
                let prepared = prepare(case, &SHARDS).unwrap_or_else(|e| panic!("{name}: {e}"));
                let expected = &interpret(&prepared.graph, &prepared.feed).outputs["y"];
                let program = Program::compile(&prepared.graph).unwrap();
                let ran =
                    run(&mut device, &program, &prepared.feed).unwrap_or_else(|e| panic!("{name}: {e}"));
                let error = relative_error(&ran.outputs["y"], expected);
                // A sum that is almost halfway between two f16 may round to either.
                let rounds = entry.name == "matmul_half";
                if error > if rounds { HALF_ULP } else { TOLERANCE } {
                    failures.push(format!("{name}: relative error {error:e}"));
                }
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
fn every_gradient_equals_central_differences() {
    // These ops are constant almost everywhere, or no functions of floats.
    let flat =
        ["batch_row", "detach", "eq", "greater", "iota", "matmul_half", "round_half", "to_f32", "to_i32"];
    let mut failures = Vec::new();
    for entry in entries().filter(|e| !flat.contains(&e.name)) {
        for (i, case) in (entry.cases)().iter().enumerate() {
            let elements: usize = case.types.iter().map(|t| t.count()).sum();
            if elements > 20_000 {
                continue;
            }
            match check_gradients(case, &SHARDS) {
                Ok(error) if error < 1e-6 => {}
                Ok(error) => failures.push(format!("{}/{i} {:?}: {error:e}", entry.name, case.op)),
                Err(e) => failures.push(format!("{}/{i} {:?}: {e}", entry.name, case.op)),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
