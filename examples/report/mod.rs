//! The report: which parts there are, in which order, and what each has to show.

mod inputs;
pub mod limits;
pub mod machine;
mod page;
mod parts;
mod process;
pub mod speed;
pub mod steady;
pub mod units;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use unisono::gpu::{Kind, select};
use unisono_examples::{Error, Model, program, say};

use inputs::Inputs;
use parts::{Group, Part, Report};

#[derive(Parser)]
#[command(
    name = "gpu-report",
    about = "Reports how Unisono runs on this GPU: correctness, numeric class, speed, failures"
)]
struct Flags {
    /// Report on the adapter whose name contains NAME [default: the first GPU, or the first adapter if there
    /// is no GPU]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Run only the most important parts, within two and a half minutes
    #[arg(long)]
    short: bool,
    /// Directory for the report
    #[arg(long, value_name = "DIR", default_value = "gpu-report-out")]
    out: PathBuf,
    /// Folder with the data of the parts [default: next to the program, or in the repository]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Run only the parts whose names begin with PART. Repeat the flag for several
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Start no new part after this many seconds [default: 480, with --short 150]
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Corrupt the GPU's results, to check that the report notices it: contraction, reassociation or division
    #[arg(long, value_name = "KIND", hide = true)]
    plant: Option<String>,
    /// Only print the table of GPUS.md, from the report.json files in the folders of DIR
    #[arg(long, value_name = "DIR")]
    table: Option<PathBuf>,
}

pub fn main() -> ExitCode {
    program(report)
}

fn report(flags: Flags) -> Result<(), Error> {
    if let Some(dir) = &flags.table {
        return page::table_of_reports(dir);
    }
    let adapters = select(&flags.adapter.iter().collect::<Vec<_>>())?;
    let adapter = adapters.iter().find(|adapter| adapter.kind != Kind::Cpu).or(adapters.first());
    let adapter = adapter.ok_or("no adapter found")?;
    // The name selects this adapter alone, also where another one's name contains it.
    let name = match adapter.arithmetic {
        Some(arithmetic) => format!("cpu:{}", arithmetic.name()),
        None => format!("{}:{}", adapter.backend, adapter.label()),
    };
    let limit = Duration::from_secs(flags.limit.unwrap_or(if flags.short { 150 } else { 480 }));
    let mut report = Report::new(&flags.out, &adapter.label(), flags.short, limit, flags.only)?;
    report.plant = flags.plant;
    let inputs = Inputs::find(flags.data.as_deref(), &flags.out)?;
    say!("reporting on {} to {}", adapter.label(), flags.out.display());
    every_part(&mut report, &name, &inputs)?;
    report.check_wanted()?;
    let text = page::write(&report)?;
    say!("\n{text}");
    match verdict::failed(&report).is_empty() {
        true => Ok(()),
        false => Err(format!("parts failed: see {}", flags.out.join("report.md").display()).into()),
    }
}

fn every_part(report: &mut Report, name: &str, inputs: &Inputs) -> Result<(), Error> {
    let adapter = ["--adapter", name];
    let machine = Part::new("machine", Group::Right, "machine").args(adapter).limit(60);
    if let Some(ran) = report.run(machine.says("adapter, limits and numeric class"))? {
        report.take("machine", &ran);
    }
    // The CPU that computes the same, or else the nearest.
    let same = report.facts["machine"]["cpus_of_the_same_class"][0].as_str().map(str::to_owned);
    let cpu = same.clone().unwrap_or_else(|| match report.facts["machine"]["class"]["rounding"].as_str() {
        Some("fused") => "cpu:fused".to_owned(),
        _ => "cpu:split".to_owned(),
    });
    report.facts.insert("cpu".into(), cpu.clone().into());
    units(report, name)?;
    right(report, name, &cpu, inputs)?;
    states(report, name, &cpu, inputs)?;
    trouble(report, name, inputs)?;
    fast(report, name)?;
    torch(report, inputs)
}

/// Measures products and steps with and without the matrix unit. This runs first, because users of mixed
/// precision ask for it most.
fn units(report: &mut Report, name: &str) -> Result<(), Error> {
    let adapter = ["--adapter", name];
    let most = match (report.short, report.is_cpu()) {
        (false, false) => "8192",
        (true, false) => "2048",
        (_, true) => "128",
    };
    let part = Part::new("matrix units", Group::Fast, "units").args(adapter).args(["--most", most]).limit(60);
    if let Some(ran) =
        report.run(part.says("products in mixed precision, with and without the matrix unit"))?
    {
        report.take("matrix units", &ran);
    }
    let has_unit = report.facts.get("matrix units").is_some_and(|units| units["class"].is_string());
    if report.short || report.is_cpu() || !has_unit {
        return Ok(());
    }
    for precision in ["mixed", "mixed+units"] {
        let name = format!("step gpt100m {precision}");
        let step = Part::new(&name, Group::Fast, "bench").args(adapter).limit(45);
        let step = step.args(["--alone", "10", "--warmup", "3", "--replicas", "1", "--model", "gpt100m"]);
        let step = step.args(["--precision", precision]);
        if let Some(ran) = report.run(step.says("a training step in mixed precision"))? {
            report.take(&name, &ran);
        }
        let name = format!("kernels gpt100m {precision}");
        let kernels = Part::new(&name, Group::Fast, "bench").args(["kernels"]).args(adapter).limit(45);
        let kernels = kernels.args(["--model", "gpt100m", "--precision", precision]);
        if let Some(ran) = report.run(kernels.says("each launch of a step alone, in mixed precision"))? {
            report.facts.insert(name, ran.output.trim().into());
        }
    }
    Ok(())
}

/// Numbers of PyTorch, and bytes of the CPU.
fn right(report: &mut Report, name: &str, cpu: &str, inputs: &Inputs) -> Result<(), Error> {
    let oracle = inputs.oracle.display().to_string();
    let cases = Part::new("conformance", Group::Right, "conformance").args([&oracle, "--adapter", name]);
    let suites = if report.short { &["losses", "optimizers", "training"][..] } else { &[] };
    let cases = suites.iter().fold(cases, |cases, suite| cases.args(["--suite", suite]));
    report
        .run(cases.limit(120).says("ops, layers, losses, metrics and optimizers beside PyTorch's numbers"))?;
    let both = ["--adapter", cpu, "--adapter", name, "--oracle", &oracle, "--most", "20"];
    let (graphs, most) = if report.short { ("25", "3") } else { ("200", "20") };
    let random = Part::new("random graphs", Group::Right, "vendors").args(both);
    let random = random.args(["--only-fuzz", "--fuzz", graphs]);
    let random = report.plant.iter().fold(random, |random, plant| random.args(["--plant", plant]));
    report.run(random.limit(90).says("random graphs beside the CPU, byte by byte"))?;
    if !report.short {
        let kernels = Part::new("vendors", Group::Right, "vendors").args(both).args(["--fuzz", "0"]);
        report.run(kernels.limit(150).says("every op, layer and optimizer beside the CPU, byte by byte"))?;
    }
    let loose = Part::new("undecorated", Group::Told, "vendors").args(["--adapter", cpu, "--adapter", name]);
    let loose = loose.args(["--oracle", &oracle, "--only-fuzz", "--fuzz", "40", "--undecorated"]);
    let loose = loose.args(["--most", most]).limit(60);
    report.run(loose.says("whether this driver changes float operations where nothing forbids it"))?;
    Ok(())
}

/// The states that short runs end in.
fn states(report: &mut Report, name: &str, cpu: &str, inputs: &Inputs) -> Result<(), Error> {
    let digits = inputs.digits.display().to_string();
    let digits = ["--data", &digits, "--epochs", if report.short { "4" } else { "20" }];
    for (how, adapters, replicas) in [
        ("CPU", vec![cpu], "1"),
        ("1 replica", vec![name], "1"),
        ("2 replicas", vec![name], "2"),
        ("3 replicas", vec![name], "3"),
        ("with the CPU", vec![name, cpu], "2"),
    ] {
        let part = Part::new(&format!("digits, {how}"), Group::Right, "digits").args(digits).limit(60);
        let part = part.adapters(&adapters).args(["--replicas", replicas]);
        // Adapters of several classes are refused in one run.
        let is_refused = how == "with the CPU" && !report.is_class_of_cpu();
        report.state("digits", how, if is_refused { part.fails() } else { part })?;
    }
    let lost = Part::new("digits, a replica lost", Group::Right, "digits").args(digits).limit(60);
    let lost = lost.adapters(&[name]).args(["--replicas", "2"]);
    let lost = lost.env("FAILPOINTS", "replica-1:step-30=return(lose)");
    report.state("digits", "a replica of 2 lost in step 30", lost)?;
    killed(report, name, &digits)?;
    states_by_unit(report, name, inputs)?;
    if report.short {
        return Ok(());
    }
    let [images, text] = [&inputs.images, &inputs.text].map(|path| path.display().to_string());
    let characters = ["--data", &text, "--train-characters", "30000"];
    for (program, args) in [
        ("mnist_cnn", vec!["--data", &images, "--epochs", "1"]),
        ("text_lstm", characters.to_vec()),
        ("tiny_gpt", characters.to_vec()),
    ] {
        for (how, adapter, replicas) in
            [("CPU", cpu, "1"), ("1 replica", name, "1"), ("2 replicas", name, "2")]
        {
            let part = Part::new(&format!("{program}, {how}"), Group::Right, program).args(&args);
            report.state(program, how, part.adapters(&[adapter]).args(["--replicas", replicas]).limit(60))?;
        }
    }
    Ok(())
}

/// The state of a short run by the matrix unit, where the CPU computes what the unit does.
fn states_by_unit(report: &mut Report, name: &str, inputs: &Inputs) -> Result<(), Error> {
    let units = report.facts.get("matrix units");
    let Some(cpu) = units.and_then(|units| units["cpus_of_the_same_class"][0].as_str()).map(str::to_owned)
    else {
        return Ok(());
    };
    let digits = inputs.digits.display().to_string();
    for (how, adapter, replicas) in
        [("CPU", &cpu[..], "1"), ("1 replica", name, "1"), ("2 replicas", name, "2")]
    {
        let part = Part::new(&format!("digits by unit, {how}"), Group::Right, "digits").adapters(&[adapter]);
        let part = part.args(["--data", &digits, "--epochs", "4", "--precision", "mixed", "--matrix-units"]);
        report.state("digits, mixed+units", how, part.args(["--replicas", replicas]).limit(60))?;
    }
    Ok(())
}

/// The part that goes on from the checkpoint of the part before it.
const RESUMED: &str = "digits, resumed";

/// A run that is killed in a step, and goes on from its last checkpoint.
fn killed(report: &mut Report, name: &str, digits: &[&str]) -> Result<(), Error> {
    let dir = report.dir.join("killed");
    let out = dir.display().to_string();
    let args = ["--out", &out, "--checkpoint-every", "20", "--replicas", "1"];
    let killed = Part::new("digits, killed", Group::Right, "digits").args(digits).args(args).limit(60);
    // Samples take a while, so that checkpoints are on the disk before the end.
    let faults = "replica-0=return(sample:300);replica-0:step-70=return(abort)";
    let killed = killed.adapters(&[name]).env("FAILPOINTS", faults).fails();
    // A report that was made here before has left its own checkpoints.
    let killed = killed.needed_by(RESUMED).writes_to(&dir);
    report.run(killed.says("a run that ends as if it were killed, in step 70"))?;
    let resumed = Part::new(RESUMED, Group::Right, "digits").args(digits).args(args).limit(60);
    report.state("digits", "killed in step 70 and resumed", resumed.adapters(&[name]).args(["--resume"]))
}

/// What goes wrong, and what must not.
fn trouble(report: &mut Report, name: &str, inputs: &Inputs) -> Result<(), Error> {
    let adapter = ["--adapter", name];
    let limits = Part::new("limits", Group::Steady, "limits").args(adapter).limit(60);
    if let Some(ran) =
        report.run(limits.says("a device that takes too long, and a model that is too large"))?
    {
        report.take("limits", &ran);
    }
    // A CPU takes a minute and more for what a GPU does in seconds.
    let steps = if report.short || report.is_cpu() { "200" } else { "2000" };
    let steady = Part::new("steady", Group::Steady, "steady").args(adapter).args(["--steps", steps]);
    if let Some(ran) = report.run(steady.limit(60).says("memory stays the same"))? {
        report.take("steady", &ran);
    }
    if !report.short {
        let digits = inputs.digits.display().to_string();
        let mixed = Part::new("mixed precision", Group::Steady, "digits").adapters(&[name]).limit(60);
        let mixed = mixed.args(["--data", &digits, "--epochs", "3", "--precision", "mixed"]);
        let mixed = mixed.args(["--replicas", "1"]);
        report.run(match report.has_f16() {
            true => mixed.says("mixed precision"),
            false => mixed.fails().says("mixed precision, which is refused without f16"),
        })?;
    }
    Ok(())
}

/// How fast it is.
fn fast(report: &mut Report, name: &str) -> Result<(), Error> {
    let adapter = ["--adapter", name];
    let short = report.short.then_some("--short");
    let speed = Part::new("speed", Group::Fast, "speed").args(adapter).args(short).limit(90);
    if let Some(ran) = report.run(speed.says("launches, copies, transfers, products"))? {
        report.take("speed", &ran);
    }
    // What a GPU computes in milliseconds takes a CPU minutes.
    let models: &[Model] = match (report.short, report.is_cpu()) {
        (true, _) => &[Model::Mlp, Model::Gpt],
        (false, true) => &[Model::Mlp, Model::Wide, Model::Cnn, Model::Lstm, Model::Gpt],
        (false, false) => &Model::REPORTED,
    };
    let (steps, warmup) = if report.short { ("5", "2") } else { ("30", "5") };
    for model in models.iter().map(|model| model.flag()) {
        let step = Part::new(&format!("step {model}"), Group::Fast, "bench").args(adapter).limit(45);
        let step = step.args(["--alone", steps, "--warmup", warmup, "--replicas", "1", "--model", &model]);
        if let Some(ran) = report.run(step.says("a training step"))? {
            report.take(&format!("step {model}"), &ran);
        }
        let kernels = Part::new(&format!("kernels {model}"), Group::Fast, "bench").args(["kernels"]);
        let kernels = kernels.args(adapter).args(["--model", &model]).limit(45);
        if report.short {
            continue;
        }
        if let Some(ran) = report.run(kernels.says("each launch of a step alone"))? {
            report.facts.insert(format!("kernels {model}"), ran.output.trim().into());
        }
    }
    Ok(())
}

/// PyTorch's steps, where it is there and sees a GPU.
fn torch(report: &mut Report, inputs: &Inputs) -> Result<(), Error> {
    if report.short {
        return Ok(());
    }
    let steps = inputs.torch.display().to_string();
    for (how, args) in [
        ("f32", &[][..]),
        ("TF32", &["--tf32"]),
        ("mixed", &["--amp"]),
        ("TF32, compiled", &["--tf32", "--compile"]),
    ] {
        let part = Part::new(&format!("torch {how}"), Group::Told, "").python(&steps).limit(90);
        let part = part.args(["--device", "cuda", "--steps", "20", "--warmup", "5"]).args(args);
        if let Some(ran) = report.run(part.says("the same models in PyTorch"))? {
            let lines = ran.output.lines().filter_map(|line| serde_json::from_str(line).ok());
            report.facts.insert(format!("torch {how}"), serde_json::Value::Array(lines.collect()));
        }
    }
    Ok(())
}
