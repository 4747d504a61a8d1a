//! Shows what a training step is on a GPU, without one: `cargo xtask isa --model gpt --out DIR`.
//!
//! It writes the plan for a discrete GPU to DIR (`index.txt`, a `.wgsl` file a kernel) with the machine code
//! of its kernels on an AMD GPU (`isa.txt`), and prints tables. No device is opened; the machine code is that
//! of Mesa's RADV, where it is installed.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

use clap::Parser;
use unisono::Precision;
use unisono::graph::plan::Kernel;
use unisono::graph::{MAX_SHARDS, Plan};
use unisono_examples::{Error, Model, program, table};
use unisono_tests::isa::{Step, arithmetic, index, radv, slab, steps, target};
use unisono_tests::vendors::Plant;

#[derive(Parser)]
#[command(about = "Counts what a training step is on a GPU, without one")]
struct Flags {
    /// The model, trained with AdamW
    #[arg(long, value_enum)]
    model: Model,
    /// Samples of a step [default: as the model says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    /// Parts that a batch is cut into
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MAX_SHARDS as i64))]
    shards: u32,
    /// Replicas, of which the one with the most shards is planned
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    replicas: u16,
    /// The precision of products: f32 or mixed
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// The AMD GPU whose machine code is shown, by RADV's name: gfx1100, navi21, vega10, ...; `none` for no
    /// machine code
    #[arg(long, value_name = "NAME", default_value = "gfx1100")]
    family: String,
    /// Compile kernels without what keeps compilers from changing float operations, and without flushing:
    /// what the arithmetic of docs/NUMERICS.md is compared with
    #[arg(long)]
    unprotected: bool,
    /// The directory to write to; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn main() -> ExitCode {
    program(|flags: Flags| {
        if flags.family == "none" {
            return show(&flags, false);
        }
        match radv::environment(&flags.family) {
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
    let (plan, state) = step.plan(&target())?;
    fs::create_dir_all(&flags.out)?;
    index::write(&flags.out, &step, (&plan, state))?;
    writeln!(
        stdout(),
        "{}, batch {} in {} shards, replica 1 of {}, {}, AdamW, planned for a discrete GPU\n",
        step.model.name(),
        step.batch,
        step.shards,
        step.replicas,
        step.precision
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
    let compiler = radv::Compiler::open()?;
    let dir = flags.out.to_string_lossy().replace(char::is_whitespace, "_");
    let head = [
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
    let mut lines = vec![head.map(str::to_owned).to_vec()];
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
        let mix = slab::turn(slab::Tile::of(kernel), &machine.assembly);
        let ratio = |bytes: u32| {
            if mix.fmas == 0 { format!("({bytes})") } else { format!("{:.3}", mix.per_fma(bytes)) }
        };
        lines.push(vec![
            number.to_string(),
            shortened(&index::one_word(&kernel.name)),
            mix.instructions.to_string(),
            format!("{:.0} %", 100.0 * mix.fma_part()),
            ratio(mix.workgroup_bytes),
            ratio(mix.global_bytes),
            machine.stat("VGPRs").to_string(),
            (machine.stat("Spilled_VGPRs") + machine.stat("Spilled_SGPRs")).to_string(),
            machine.stat("Scratch_size").to_string(),
            machine.stat("LDS_size").to_string(),
            machine.stat("Subgroups_per_SIMD").to_string(),
        ]);
    }
    fs::write(flags.out.join(format!("k{:03}.wgsl", plan.kernels.len())), &shapes.wgsl)?;
    fs::write(flags.out.join("isa.txt"), text + "@@@ end\n")?;
    writeln!(
        stdout(),
        "Machine code for {}: the instructions of one turn of the main loop, the part that",
        compiler.name
    )?;
    writeln!(
        stdout(),
        "are multiply-adds of f32, and the bytes that a lane loads for each of these (without any: a turn).\n"
    )?;
    writeln!(stdout(), "{}\n", table(&lines))?;
    Ok(())
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
