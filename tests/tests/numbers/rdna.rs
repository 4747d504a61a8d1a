//! What an AMD GPU would compute is what the CPU computes, to the bit: the machine code that RADV makes of
//! the kernels is run instruction by instruction (`unisono_rdna`). Where RADV is not installed, nothing is
//! compared.

mod families;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::slice;

use families::FAMILIES;
use unisono_examples::Model;
use unisono_gpu::{Adapter, Arithmetic, Device};
use unisono_graph::plan::{Kernel, Slice};
use unisono_graph::{Feed, Plan, Program};
use unisono_rdna::{Bound, Code, Group, Launch, Mode};
use unisono_testkit::emulator::walk;
use unisono_testkit::{Ran, install, left_out, plan_for, run};
use unisono_tests::isa::driver::{self, Machine};
use unisono_tests::isa::everything::to_json;
use unisono_tests::isa::target;
use unisono_tests::vendors::{Subject, fuzz, ops};

/// The emulated GPU: the chip of a Radeon RX 7900.
const FAMILY: &str = "gfx1100";

/// How the chip may compute where there is a choice.
const MODES: [Mode; 2] = [Mode { flushes: true, seed: 0x5eed }, Mode { flushes: false, seed: 0 }];

fn long() -> bool {
    std::env::var_os("UNISONO_LONG").is_some()
}

/// The initial value of all memory: a NaN.
const UNWRITTEN: u32 = 0x7fa5_a5a5;

/// A program with its plan for a GPU, and values.
struct Step {
    name: String,
    program: Program,
    plan: Plan,
    feed: Feed,
}

impl Step {
    fn new(name: &str, (program, feed): (Program, Feed)) -> Self {
        let plan = plan_for(&target(), &program, &feed).unwrap();
        Self { name: name.to_owned(), program, plan, feed }
    }

    fn of(Subject { name, graph, feed }: Subject) -> Self {
        Self::new(&name, (Program::compile(&graph).unwrap(), feed))
    }

    /// Runs the step by machine code. Returns what it gives, and the number of instructions of its waves.
    fn run(&self, codes: &BTreeMap<String, Code>, mode: Mode) -> Result<(Ran, u64), String> {
        let (mut taken, mut failed) = (0, None);
        let ran = walk((&self.program, &self.plan, &self.feed), UNWRITTEN, &mut |launch, buffers| {
            let kernel = &self.plan.kernels[launch.kernel];
            let bound = |slice: &Slice| {
                let (offset, bytes) = (slice.offset as usize, slice.bytes.try_into().unwrap());
                Bound { buffer: slice.buffer, offset, bytes }
            };
            let bindings: Vec<Bound> = launch.bindings.iter().map(bound).collect();
            let launch = Launch { grid: launch.grid, params: &launch.params, bindings: &bindings };
            match codes[&kernel.wgsl].run(launch, buffers, mode) {
                Ok(count) => taken += count,
                Err(error) => failed = failed.take().or(Some(format!("{}: {error}", kernel.name))),
            }
        });
        failed.map_or(Ok((ran, taken)), Err)
    }

    /// Runs the step by machine code and on the CPU. Returns the number of instructions, what the CPU gave,
    /// and the first difference, if there is one.
    fn compare(&self, codes: &BTreeMap<String, Code>, mode: Mode) -> (u64, Ran, Option<String>) {
        let arithmetic = Arithmetic { subnormals: !mode.flushes, ..Arithmetic::default() };
        let mut device = Device::open(&Adapter::cpu(arithmetic).unwrap()).unwrap();
        let expected = run(&mut device, &self.program, &self.feed).unwrap();
        let (found, taken) = self.run(codes, mode).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let difference = difference(&found, &expected);
        (taken, expected, difference.map(|shown| format!("{}, {mode:?}: {shown}", self.name)))
    }
}

/// Compiles the kernels of steps, each once.
fn compile(name: &str, steps: &[Step]) -> Vec<(Kernel, Machine)> {
    let kernels = steps.iter().flat_map(|step| &step.plan.kernels);
    let all: BTreeMap<&str, &Kernel> = kernels.map(|kernel| (kernel.wgsl.as_str(), kernel)).collect();
    let kernels: Vec<Kernel> = all.into_values().cloned().collect();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("rdna-{name}.json"));
    fs::write(&file, to_json(&kernels).to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_isa"))
        .arg("--compile")
        .arg(&file)
        .arg("--out")
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .envs(driver::environment(FAMILY).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let machines: Vec<Machine> = serde_json::from_slice(&output.stdout).unwrap();
    kernels.into_iter().zip(machines).collect()
}

/// Returns the size of a kernel's workgroups, and which components of their numbers it reads.
fn group(kernel: &Kernel) -> Group {
    // All kernels number their invocations along one axis.
    let invocations = [kernel.workgroup().unwrap().invocations as u32, 1, 1];
    let names = ["@builtin(workgroup_id) ", "@builtin(global_invocation_id) "].map(|builtin| {
        let (_, rest) = kernel.wgsl.split_once(builtin)?;
        rest.split(':').next()
    });
    let is_read = |axis| names.iter().flatten().any(|name| has_word(&kernel.wgsl, &format!("{name}.{axis}")));
    Group { invocations, reads: ['x', 'y', 'z'].map(is_read) }
}

/// Returns whether a text contains a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let goes_on =
        |other: Option<char>| other.is_some_and(|other| other.is_alphanumeric() || "_.".contains(other));
    text.match_indices(word).any(|(at, _)| {
        let (before, behind) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !goes_on(before) && !goes_on(behind)
    })
}

/// Returns machine code by the WGSL of its kernel. Fails with a list of all unknown instructions.
fn read(machines: &[(Kernel, Machine)]) -> BTreeMap<String, Code> {
    let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
    let mut codes = BTreeMap::new();
    for (kernel, machine) in machines {
        match Code::read(&machine.assembly, group(kernel)) {
            Ok(code) => _ = codes.insert(kernel.wgsl.clone(), code),
            Err(error) => *unknown.entry(error).or_default() += 1,
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    codes
}

/// Returns whether RADV is there, or says that nothing is compared.
fn is_there() -> bool {
    let is_there = driver::environment(FAMILY).is_some();
    if !is_there {
        left_out(&format!(
            "no machine code is run: Mesa's RADV is not there{}",
            install("mesa-vulkan-drivers")
        ));
    }
    is_there
}

/// Returns the first difference between what machine code gave and what the CPU did. All NaN are one.
fn difference(found: &Ran, expected: &Ran) -> Option<String> {
    let parts = [
        (&found.outputs, &expected.outputs),
        (&found.carries, &expected.carries),
        (&found.states, &expected.states),
    ];
    parts.iter().find_map(|(found, expected)| {
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        found.iter().zip(expected.values()).find_map(|((name, own), expected)| {
            assert_eq!(own.len(), expected.len(), "{name}");
            let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
            let at = own.iter().zip(expected).position(differ)?;
            Some(format!("{name}[{at}]: {:e}, not {:e}", own[at], expected[at]))
        })
    })
}

/// Returns all results of a step.
fn values(ran: &Ran) -> impl Iterator<Item = &f32> {
    ran.outputs.values().chain(ran.carries.values()).chain(ran.states.values()).flatten()
}

#[test]
fn ops_and_random_graphs_have_the_cpus_bits() {
    if !is_there() {
        return;
    }
    let every = if long() { 1 } else { 7 };
    let random = (0..if long() { 200 } else { 10 }).map(|seed| fuzz(seed).unwrap());
    let steps: Vec<Step> = ops().unwrap().into_iter().step_by(every).chain(random).map(Step::of).collect();
    let codes = read(&compile("ops", &steps));
    let (mut all, mut compared) = (0, 0);
    for mode in MODES {
        for step in &steps {
            let (taken, expected, difference) = step.compare(&codes, mode);
            all += taken;
            // What follows a NaN in a random graph is not promised.
            if step.name.starts_with("fuzz") && values(&expected).any(|x| x.is_nan()) {
                continue;
            }
            assert!(difference.is_none(), "{}", difference.unwrap());
            compared += 1;
        }
    }
    println!("{} steps in {} modes, {compared} compared, {all} instructions", steps.len(), MODES.len());
    assert!(all > 100_000 && 10 * compared > 9 * 2 * steps.len(), "{compared} of {} compared", steps.len());
}

#[test]
fn a_million_operands_of_each_family_have_the_cpus_bits() {
    if !is_there() {
        return;
    }
    // A short run has the mode that RADV asks for.
    let modes = &MODES[..if long() { 2 } else { 1 }];
    for family in FAMILIES {
        let step = Step::new(family.0, families::step(family));
        let operands = families::operands(&step.feed);
        assert!(operands >= 1_000_000, "{}: {operands} operands", family.0);
        let codes = read(&compile(&family.0.replace(' ', "-"), slice::from_ref(&step)));
        for &mode in modes {
            let (taken, expected, difference) = step.compare(&codes, mode);
            assert!(difference.is_none(), "{}", difference.unwrap());
            let [all, tell] = [|_: &&f32| true, |x: &&f32| x.is_normal()]
                .map(|counts| expected.outputs.values().flatten().filter(counts).count());
            assert!(2 * tell > all, "{}: {tell} of {all} results are normal numbers", family.0);
            println!("{}, {mode:?}: {operands} operands, {taken} instructions", family.0);
        }
    }
}

#[test]
fn training_steps_have_the_cpus_bits() {
    if !is_there() {
        return;
    }
    let all = [(Model::Cnn, 4), (Model::Gpt, 2), (Model::Mlp, 8), (Model::Lstm, 4), (Model::Resnet18, 2)];
    for (model, batch) in all.into_iter().take(if long() { all.len() } else { 2 }) {
        let step = Step::new(model.name(), families::training(model, batch));
        let codes = read(&compile(&model.flag(), slice::from_ref(&step)));
        for mode in MODES {
            let (taken, expected, difference) = step.compare(&codes, mode);
            assert!(difference.is_none(), "{}", difference.unwrap());
            assert!(values(&expected).all(|x| x.is_finite()), "{}: not finite", step.name);
            // The step has changed its states.
            for (state, first) in step.program.states().iter().zip(&step.feed.states) {
                let last = expected.states[&state.name].iter();
                let same = last.zip(&first.data).filter(|(last, first)| f64::from(**last) == **first).count();
                assert!(2 * same < first.data.len() + 2, "{}: {} has not changed", step.name, state.name);
            }
            println!("{}, {mode:?}: {taken} instructions", step.name);
        }
    }
}

/// In each kernel with multiply-adds, one becomes a product and a sum, which rounds twice.
#[test]
fn a_second_rounding_is_found() {
    if !is_there() {
        return;
    }
    let step = Step::new("products", families::step(FAMILIES[2]));
    let machines = compile("planted", slice::from_ref(&step));
    let (name, apart) = ("v_fmac_f32_e32 ", "v_mul_f32_e32 v250, ");
    let mut found = 0;
    for at in 0..machines.len() {
        let mut planted = machines.clone();
        let assembly = &mut planted[at].1.assembly;
        let Some(from) = assembly.find(name) else { continue };
        let line = assembly[from..].lines().next().unwrap().to_owned();
        let (to, operands) = line[name.len()..].split_once(", ").unwrap();
        let operands = operands.split(';').next().unwrap();
        let line_apart = format!("{apart}{operands}\n\tv_add_f32_e32 {to}, v250, {to}");
        *assembly = assembly.replacen(&line, &line_apart, 1);
        let (_, _, difference) = step.compare(&read(&planted), MODES[1]);
        assert!(difference.is_some(), "kernel {}: two roundings are not found", planted[at].0.name);
        found += 1;
    }
    assert!(found >= 3, "{found} kernels with a multiply-add");
}
