//! Shows what a training step is on a GPU, without one: `cargo xtask isa --model gpt --out DIR`.
//!
//! It writes the plan for a discrete GPU to DIR (`index.txt`, a `.wgsl` file a kernel) with the machine code
//! of its kernels on an AMD GPU (`isa.txt`), and prints tables. No device computes anything; the machine code
//! is that of Mesa's RADV, where it is installed. With `--chip NAME`, `cargo xtask isa` runs it where newer
//! drivers of several makers compile for chips. With `--everything` it compiles all kernels of all models and
//! reference cases for a chip and counts them.

use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use clap::Parser;
use unisono::Precision;
use unisono::gpu;
use unisono::graph::plan::Kernel;
use unisono::graph::{MAX_SHARDS, Plan};
use unisono_examples::{Error, Model, program, table};
use unisono_tests::isa::everything::{Everything, Spill};
use unisono_tests::isa::{Step, arithmetic, columns, driver, everything, index, steps, target};
use unisono_tests::vendors::Plant;

#[derive(Parser)]
#[command(about = "Counts what a training step is on a GPU, without one")]
struct Flags {
    /// Model, trained with AdamW
    #[arg(long, value_enum, required_unless_present_any = ["everything", "compile"])]
    model: Option<Model>,
    /// Compile the kernels of all models, and of the reference cases of ops, layers, losses, metrics and
    /// optimizers, which are in this directory. Print how many there are
    #[arg(long, value_name = "DIR", conflicts_with = "model", requires = "chip")]
    everything: Option<PathBuf>,
    /// Only compile the kernels of a file and print what came of each, as a process of `--everything` does
    #[arg(long, value_name = "FILE", hide = true)]
    compile: Option<PathBuf>,
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
        if let Some(file) = &flags.compile {
            return compile(file);
        }
        if let Some((chip, oracle)) = flags.chip.as_ref().zip(flags.everything.as_ref()) {
            return count(chip, oracle, &flags.out);
        }
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

/// Returns the adapter of a chip, whose driver is there.
fn adapter_of(chip: &str) -> Result<gpu::Adapter, Error> {
    let found = gpu::adapters(&[gpu::Backend::Vulkan]).into_iter().find(|own| own.kind != gpu::Kind::Cpu);
    found.ok_or_else(|| format!("{chip}: no driver lists it here: start this by cargo xtask isa").into())
}

fn show(flags: &Flags, compiles: bool) -> Result<(), Error> {
    let model = flags.model.ok_or("--model names the model")?;
    let step = Step {
        model,
        batch: flags.batch.map_or(model.batch(), usize::from),
        shards: flags.shards as usize,
        replicas: flags.replicas.into(),
        precision: flags.precision,
    };
    let target = match &flags.chip {
        Some(chip) => {
            let found = adapter_of(chip)?;
            match flags.precision {
                Precision::MatrixUnits => found.with_matrix_units()?.target(),
                Precision::F32 | Precision::Mixed => found.target(),
            }
        }
        None if flags.precision == Precision::MatrixUnits => {
            return Err("--precision mixed+units needs --chip NAME, which says what unit there is".into());
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
    let mut lines = vec![columns::HEAD.map(str::to_owned).to_vec()];
    let (mut text, mut shapes_are, mut spills) = (String::new(), String::new(), Vec::new());
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
            if number == plan.kernels.len() {
                shapes_are = columns::shapes(counts, &machine);
            }
        }
        text += &machine.text(&dir, number, &kernel.name);
        lines.push(columns::line(number, kernel, &machine));
        if machine.spilled() > 0 {
            let is_product = everything::is_product(plan, number);
            let (what, kernel) = (flags_name(flags), kernel.name.clone());
            spills.push(Spill { what, kernel, spilled: machine.spilled(), is_product });
        }
    }
    fs::write(flags.out.join(format!("k{:03}.wgsl", plan.kernels.len())), &shapes.wgsl)?;
    fs::write(flags.out.join("isa.txt"), text + "@@@ end\n")?;
    writeln!(stdout(), "{}", columns::heading(&compiler.name, &lines))?;
    writeln!(stdout(), "{}\n{shapes_are}\n", table(&lines))?;
    everything::check(flags.chip.as_deref().unwrap_or_default(), &spills).map_err(Error::from)
}

/// Compiles the kernels of a file. Prints what came of each, as JSON.
fn compile(file: &Path) -> Result<(), Error> {
    let compiler = driver::Compiler::open()?;
    let kernels = everything::from_json(&serde_json::from_slice(&fs::read(file)?)?).ok_or("no kernels")?;
    let one = |kernel: &Kernel| compiler.compile(kernel).map_err(|error| format!("{}: {error}", kernel.name));
    let machines = kernels.iter().map(one).collect::<Result<Vec<driver::Machine>, String>>()?;
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&machines)?)?)
}

/// Returns the model and the precision.
fn flags_name(flags: &Flags) -> String {
    format!("{} {}", flags.model.map_or_else(String::new, Model::flag), flags.precision)
}

/// Compiles the kernels of all models and of the reference cases for a chip. Prints how many there are, and
/// writes the same to `everything.txt`.
fn count(chip: &str, oracle: &Path, out: &Path) -> Result<(), Error> {
    fs::create_dir_all(out)?;
    let file = out.join("kernels.json");
    // A process compiles about a hundred kernels, because the libraries that stand in for the kernel's driver
    // never reuse memory.
    let compile = |kernels: &[Kernel]| {
        fs::write(&file, everything::to_json(kernels).to_string())?;
        // Without /proc, which is missing here, `current_exe` fails.
        let mut command = Command::new(env::args_os().next().unwrap_or_default());
        let output = command.args(["--chip", chip, "--out"]).arg(out).arg("--compile").arg(&file).output()?;
        match output.status.success() {
            true => {
                let machines: Vec<driver::Machine> = serde_json::from_slice(&output.stdout)?;
                Ok(machines.iter().map(driver::Machine::spilled).collect())
            }
            false => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into()),
        }
    };
    let gpu = adapter_of(chip)?;
    let mut all = Everything::new(gpu.target(), Box::new(compile));
    all.models()?;
    all.cases(oracle)?;
    all.finish()?;
    let mut lines = vec![["", "plans", "no plan", "new pipelines"].map(str::to_owned).to_vec()];
    lines.extend(all.counts.iter().map(|count| {
        let numbers = [count.plans, count.refused, count.pipelines].map(|number| number.to_string());
        [vec![count.what.clone()], numbers.to_vec()].concat()
    }));
    let mut text = format!("{chip}: {}\n\n{}\n", gpu.name, table(&lines));
    for count in &all.counts {
        if let Some(why) = &count.why {
            writeln!(text, "no plan: {}: {why}", count.what)?;
        }
    }
    for Spill { what, kernel, spilled, is_product } in &all.spills {
        let kind = if *is_product { " (a product)" } else { "" };
        writeln!(text, "spills {spilled}: {what}: {kernel}{kind}")?;
    }
    let plans: usize = all.counts.iter().map(|count| count.plans).sum();
    let (pipelines, spills) = (all.pipelines(), all.spills.len());
    writeln!(text, "{chip}: {plans} plans, {pipelines} pipelines compiled, {spills} spill")?;
    write!(stdout(), "{text}")?;
    fs::write(out.join("everything.txt"), text)?;
    fs::remove_file(&file)?;
    everything::check(chip, &all.spills).map_err(Error::from)
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
