//! All kernels of ops, layers, losses, metrics, optimizers and models compile for AArch64, and for CPUs
//! of x86-64 without AVX-512, AVX2, AVX, SSE4 and SSSE3. Nothing is run here: see `cargo xtask arm` for that.

use std::collections::BTreeSet;
use std::path::Path;

use unisono_cpu::targets::ALL;
use unisono_gpu::{Backend, Device};
use unisono_graph::{Program, Run, Target};
use unisono_tests::vendors::{models, ops, suites};

/// Adds the kernels of a program, for short shards and for long ones.
fn add(all: &mut BTreeSet<String>, program: &Program, target: &Target) {
    for sizes in [vec![3, 2], vec![700, 600, 1]] {
        let plan = program.plan(&Run::whole(&sizes), target).unwrap();
        all.extend(plan.kernels.into_iter().map(|kernel| kernel.wgsl));
    }
}

/// Returns the kernels of everything, for the CPU.
fn kernels() -> BTreeSet<String> {
    let adapter = unisono_gpu::adapters(&[Backend::Cpu]).remove(0);
    let target = Device::open(&adapter).unwrap().target();
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let mut all = BTreeSet::new();
    for subject in ops().unwrap().into_iter().chain(suites(&oracle).unwrap()) {
        add(&mut all, &Program::compile(&subject.graph).unwrap(), &target);
    }
    for model in models() {
        model.trainer(&adapter).unwrap().programs().for_each(|(_, program)| add(&mut all, program, &target));
    }
    all
}

#[test]
fn all_kernels_compile_for_all_cpus() {
    let is_long = std::env::var_os("UNISONO_LONG").is_some();
    let all: Vec<String> = kernels().into_iter().collect();
    assert!(all.len() > 500, "{} kernels", all.len());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for part in all.chunks(all.len().div_ceil(threads)) {
            scope.spawn(move || {
                for kernel in part {
                    let few = ALL.iter().filter(|target| is_long || target.has_least());
                    for target in few {
                        if let Err(error) = target.compile(kernel, false) {
                            panic!("{}: {error}\n{kernel}", target.name);
                        }
                    }
                }
            });
        }
    });
    println!("{} kernels", all.len());
}
