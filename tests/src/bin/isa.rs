//! Shows what a training step is on a GPU, without one: `cargo xtask isa --model gpt --out DIR`.
//!
//! It writes the plan for a discrete GPU to DIR (`index.txt`, a `.wgsl` file a kernel) with the machine code
//! of its kernels on an AMD GPU (`isa.txt`), and prints tables. No device computes anything; the machine code
//! is that of Mesa's RADV, where it is installed. With `--chip NAME`, `cargo xtask isa` runs it where newer
//! drivers of several makers compile for chips.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

use clap::Parser;
use unisono::Precision;
use unisono::gpu;
use unisono::graph::plan::Kernel;
use unisono::graph::{MAX_SHARDS, Plan};
use unisono_examples::{Error, Model, program, table};
use unisono_tests::isa::{Step, arithmetic, driver, index, slab, steps, target};
use unisono_tests::vendors::Plant;

#[derive(Parser)]
#[command(about = "Counts what a training step is on a GPU, without one")]
struct Flags {
    /// Model, trained with AdamW
    #[arg(long, value_enum)]
    model: Model,
    /// Samples in a step [default: depends on the model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    /// Number of parts that each batch is cut into
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MAX_SHARDS as i64))]
    shards: u32,
    /// Number of replicas. The plan is that of the replica with the most shards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    replicas: u16,
    /// Numeric precision of matrix products: f32, mixed, or mixed+units, by the matrix unit of a `--chip`
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// AMD GPU whose machine code is shown, by RADV's name: gfx1100, navi21, vega10, ...; `none` shows none
    #[arg(long, value_name = "NAME", default_value = "gfx1100")]
    family: String,
    /// Chip whose machine code is shown, with a plan for the limits that its driver reports.
    /// `cargo xtask isa` runs the program with that driver
    #[arg(long, value_name = "NAME", conflicts_with = "family")]
    chip: Option<String>,
    /// Compile kernels without protection of float operations and without flushing, to compare with the
    /// arithmetic of docs/NUMERICS.md
    #[arg(long)]
    unprotected: bool,
    /// Directory for the output. It is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn main() -> ExitCode {
    program(|flags: Flags| {
        if flags.chip.is_some() {
            return show(&flags, true);
        }
        if flags.family == "none" {
            return show(&flags, false);
        }
        match driver::environment(&flags.family) {
            None => {
                writeln!(stdout(), "no machine code: Mesa's RADV is not installed\n")?;
                show(&flags, false)
            }
            Some(wanted) if wanted.iter().all(|(name, value)| env::var(name).as_ref() == Ok(value)) => {
                show(&flags, true)
            }
            // The driver reads the environment of the process that it is loaded into.
            Some(wanted) => {
                let status =
                    Command::new(env::current_exe()?).args(env::args_os().skip(1)).envs(wanted).status()?;
                if status.success() { Ok(()) } else { Err(format!("compiling for a GPU: {status}").into()) }
            }
        }
    })
}

fn show(flags: &Flags, compiles: bool) -> Result<(), Error> {
    let step = Step {
        model: flags.model,
        batch: flags.batch.map_or(flags.model.batch(), usize::from),
        shards: flags.shards as usize,
        replicas: flags.replicas.into(),
        precision: flags.precision,
    };
    let target = match &flags.chip {
        Some(chip) => {
            let found =
                gpu::adapters(&[gpu::Backend::Vulkan]).into_iter().find(|own| own.kind != gpu::Kind::Cpu);
            let found = found
                .ok_or_else(|| format!("{chip}: no driver lists it here: start this by cargo xtask isa"))?;
            match flags.precision {
                Precision::MatrixUnits => found.with_matrix_units()?.target(),
                Precision::F32 | Precision::Mixed => found.target(),
            }
        }
        None => target(),
    };
    let (plan, state) = step.plan(&target)?;
    fs::create_dir_all(&flags.out)?;
    index::write(&flags.out, &step, (&plan, state))?;
    writeln!(
        stdout(),
        "{}, batch {} in {} shards, replica 1 of {}, {}, AdamW, planned for {}\n",
        step.model.name(),
        step.batch,
        step.shards,
        step.replicas,
        step.precision,
        flags.chip.as_deref().unwrap_or("a discrete GPU")
    )?;
    if compiles {
        kernels(flags, &plan)?;
    } else {
        let stale = flags.out.join("isa.txt");
        if stale.exists() {
            fs::remove_file(stale)?;
        }
    }
    writeln!(stdout(), "{}\n", kinds(&plan))?;
    writeln!(
        stdout(),
        "{} launches, {} barriers, scratch {:.2} GB, state {:.2} GB",
        plan.launches(),
        steps::barriers(&plan),
        plan.scratch_bytes() as f64 / 1e9,
        state as f64 / 1e9
    )?;
    Ok(())
}

/// Compiles every kernel, writes `isa.txt` and prints a line for each kernel.
fn kernels(flags: &Flags, plan: &Plan) -> Result<(), Error> {
    let compiler = driver::Compiler::open()?;
    let dir = flags.out.to_string_lossy().replace(char::is_whitespace, "_");
    let (mut amd, mut others) = (vec![AMD.map(str::to_owned).to_vec()], vec![head_of_others()]);
    let mut text = String::new();
    let shapes = arithmetic::shapes();
    for (number, kernel) in plan.kernels.iter().chain([&shapes]).enumerate() {
        let named = |error: String| format!("kernel {number} {}: {error}", kernel.name);
        let counts = arithmetic::of_kernel(kernel).map_err(named)?;
        let mut machine = match flags.unprotected {
            true => {
                let plain = Plant::Unguarded.spoil(&kernel.wgsl);
                compiler.compile_unprotected(&Kernel { wgsl: plain, ..kernel.clone() })
            }
            false => compiler.compile(kernel),
        }
        .map_err(named)?;
        if let Some(counts) = counts {
            machine.stats.push(("text_fused".into(), counts.fused.into()));
            machine.stats.push(("text_separate".into(), counts.separate.into()));
        }
        text += &machine.text(&dir, number, &kernel.name);
        let name = [number.to_string(), shortened(&index::one_word(&kernel.name))];
        if machine.tells("VGPRs") {
            amd.push(line_of_amd(name, kernel, &machine));
        } else {
            others.push(line_of_others(name, &machine));
        }
    }
    fs::write(flags.out.join(format!("k{:03}.wgsl", plan.kernels.len())), &shapes.wgsl)?;
    fs::write(flags.out.join("isa.txt"), text + "@@@ end\n")?;
    if amd.len() > 1 {
        writeln!(
            stdout(),
            "Machine code for {}: the instructions of one turn of the main loop, the part that\n\
             are multiply-adds of f32, and the bytes that a lane loads for each of these (without any: a turn).\n\
             m: products of a matrix unit, and the part that are these or loads of 16 bytes.\n",
            compiler.name
        )?;
        writeln!(stdout(), "{}\n", table(&amd))?;
    }
    if others.len() > 1 {
        writeln!(stdout(), "Machine code for {}, as its driver counts it.\n", compiler.name)?;
        writeln!(stdout(), "{}\n", table(&others))?;
    }
    Ok(())
}

/// The columns for an AMD GPU, whose machine code is read.
const AMD: [&str; 11] = [
    "",
    "kernel",
    "steps",
    "FMA",
    "LDS B/FMA",
    "global B/FMA",
    "VGPRs",
    "spilled",
    "scratch",
    "LDS",
    "waves",
];

fn line_of_amd([number, name]: [String; 2], kernel: &Kernel, machine: &driver::Machine) -> Vec<String> {
    let mix = slab::turn(slab::Tile::of(kernel), &machine.assembly);
    let ratio =
        |bytes: u32| if mix.fmas == 0 { format!("({bytes})") } else { format!("{:.3}", mix.per_fma(bytes)) };
    vec![
        number,
        name,
        mix.instructions.to_string(),
        match mix.matrices {
            0 => format!("{:.0} %", 100.0 * mix.fma_part()),
            count => format!("{count} m, {:.0} %", 100.0 * mix.matrix_part()),
        },
        ratio(mix.workgroup_bytes),
        ratio(mix.global_bytes),
        machine.stat("VGPRs").to_string(),
        (machine.stat("Spilled_VGPRs") + machine.stat("Spilled_SGPRs")).to_string(),
        machine.stat("Scratch_size").to_string(),
        machine.stat("LDS_size").to_string(),
        machine.stat("Subgroups_per_SIMD").to_string(),
    ]
}

/// The columns for GPUs of other makers, each with what the drivers NVK, Turnip and Honeykrisp call it.
const OTHERS: [(&str, [&str; 3]); 4] = [
    ("instructions", ["Instruction_count", "Instruction_Count", "Instructions"]),
    ("registers", ["Number_of_GPRs", "Registers_used", "GPRs"]),
    ("spills", ["Spills_to_memory", "STP_Count", "Spills"]),
    ("scratch", ["SLM_size", "", "Scratch"]),
];

fn head_of_others() -> Vec<String> {
    ["", "kernel"].into_iter().chain(OTHERS.map(|(column, _)| column)).map(str::to_owned).collect()
}

fn line_of_others(name: [String; 2], machine: &driver::Machine) -> Vec<String> {
    let value = |(_, names): (&str, [&str; 3])| {
        let told = names.into_iter().find(|name| machine.tells(name));
        told.map_or_else(|| "-".to_owned(), |name| machine.stat(name).to_string())
    };
    name.into_iter().chain(OTHERS.map(value)).collect()
}

fn shortened(name: &str) -> String {
    const LONGEST: usize = 44;
    if name.chars().count() <= LONGEST {
        name.to_owned()
    } else {
        name.chars().take(LONGEST - 2).chain("..".chars()).collect()
    }
}

/// Returns the table of the step by kind.
fn kinds(plan: &Plan) -> String {
    let mut lines = vec![["kind", "launches", "GB", "GFLOP"].map(str::to_owned).to_vec()];
    let counts = steps::by_kind(plan);
    let line = |name: &str, count: &steps::Count| {
        let giga = |n: u64| format!("{:.3}", n as f64 / 1e9);
        vec![name.to_owned(), count.launches.to_string(), giga(count.bytes), giga(count.flops)]
    };
    lines.extend(counts.iter().map(|(name, count)| line(name, count)));
    let all = counts.values().fold(steps::Count::default(), |all, count| steps::Count {
        launches: all.launches + count.launches,
        bytes: all.bytes + count.bytes,
        flops: all.flops + count.flops,
    });
    lines.push(line("all", &all));
    table(&lines)
}
