//! Benchmarks. Each number is printed with what it is. Nothing is asserted, because machines differ.
//!
//!     cargo xtask bench -- --replicas 1,2,4
//!     cargo xtask bench kernels --model cnn
//!     cargo xtask bench scaling
//!     cargo xtask bench uneven
//!     cargo xtask bench trust --steps 1000
//!     cargo xtask bench checkpoint
//!     cargo xtask bench peers --rounds 3
//!     cargo xtask bench build --layers 500,1000,2000
//!     cargo xtask bench known --known gpt2/ --batch 4 --length 128 --steps 10

#[path = "bench/build.rs"]
mod build;
#[path = "bench/checkpoint.rs"]
mod checkpoint;
#[path = "bench/embedding.rs"]
mod embedding;
#[path = "bench/kernels.rs"]
mod kernels;
#[path = "bench/known.rs"]
mod known;
#[path = "bench/peers.rs"]
mod peers;
#[path = "bench/scaling.rs"]
mod scaling;
#[path = "bench/taken.rs"]
mod taken;
#[path = "bench/torch.rs"]
mod torch;
#[path = "bench/trust.rs"]
mod trust;
#[path = "bench/uneven.rs"]
mod uneven;

use std::cmp::Ordering;
use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use unisono::data::{Loader, Position};
use unisono::gpu::{Adapter, Kind, select};
use unisono::graph::{MAX_SHARDS, Run};
use unisono::{AdamW, Builder, Precision, ProgramId, Trainer};
use unisono_examples::{Error, Model, Refused, bytes, program, table};

/// The number of processes that are started to measure how long the first step takes.
const STARTS: usize = 3;

#[derive(Clone, Parser)]
#[command(about = "Measures Unisono on this machine")]
struct Flags {
    /// What to measure
    #[arg(value_enum, default_value = "step")]
    what: What,
    /// Model for `step` and `kernels`. It is trained on random data
    #[arg(long, value_enum, default_value = "mlp")]
    model: Model,
    /// Samples in a step [default: depends on the model]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    /// Number of parts that each batch is cut into
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MAX_SHARDS as i64))]
    shards: u32,
    /// Maximum number of shards that a replica computes in one launch [default: all of its shards]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    shards_at_once: Option<u32>,
    /// Use the adapters whose label contains NAME, or those of a backend (cpu, vulkan). Repeat the flag for
    /// several [default: all GPUs, or the CPU if there is none]
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// Numbers of replicas to compare [default: 1, and the number of GPUs or CPU cores]
    #[arg(long, value_name = "N,...", allow_negative_numbers = true, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    replicas: Vec<u16>,
    /// Number of timed steps. The result is their median
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Number of untimed steps before them
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 10)]
    warmup: u32,
    /// Directory for `checkpoint`, on the disk to measure. It creates a directory of its own there, and
    /// removes it afterwards
    #[arg(long, value_name = "DIR", default_value = "target/bench-checkpoint")]
    dir: PathBuf,
    /// Compare `peers` with Keras instead of Burn. PYTHON is a Python that has Keras and TensorFlow
    #[arg(long, value_name = "PYTHON")]
    keras: Option<PathBuf>,
    /// Compare `peers` with PyTorch on the CPU instead of Burn. PYTHON is a Python that has PyTorch
    #[arg(long, value_name = "PYTHON", conflicts_with = "keras")]
    torch: Option<PathBuf>,
    /// Number of rounds of `checkpoint` and `peers`. The result is their median
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write a timeline of both replicas of `scaling` or `uneven` to FILE, in Chrome's trace format for
    /// Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Make the replicas of `uneven` wait: this long for each sample on the first replica, three times as
    /// long on the second. Other programs on the machine then disturb the measurement less
    #[arg(long, value_name = "MICROSECONDS")]
    sample_micros: Option<u32>,
    /// Numbers of layers that `build` compares
    #[arg(long, value_name = "N,...", allow_negative_numbers = true, value_delimiter = ',', default_value = "500,1000,2000", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Vec<u32>,
    /// Measure the gradients of embeddings with these numbers of rows in `kernels`, instead of a model
    #[arg(long, value_name = "N,...", allow_negative_numbers = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    embedding: Vec<u32>,
    /// Directory of the model for `known`, as transformers writes it: a GPT-2, BERT, ViT or ResNet
    #[arg(long, value_name = "DIR")]
    known: Option<PathBuf>,
    /// Tokens of each sample of `known`, if it is a model of texts
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    length: u16,
    /// Numeric precision of matrix products: f32, mixed, or mixed+units, which uses the adapter's matrix unit
    #[arg(long, value_name = "PRECISION", default_value = "f32")]
    precision: Precision,
    /// Train in this process: one step, then this many timed steps. Print their median as a line of JSON
    #[arg(long, value_name = "N", hide = true)]
    alone: Option<u32>,
}

impl Flags {
    fn batch(&self) -> usize {
        self.batch.map_or(self.model.batch(), usize::from)
    }

    fn noise(&self) -> Result<Loader, Error> {
        self.model.noise(self.batch())
    }

    /// Refuses flags that the other programs of `peers` cannot follow, so that all of them do the same work.
    fn check(&self) -> Result<(), Error> {
        let others = match (self.what, &self.torch) {
            (What::Peers, Some(_)) => "PyTorch's program",
            (What::Peers, None) => "the program that is compared with",
            _ => return Ok(()),
        };
        let given = [
            ("--batch", self.batch.is_some()),
            ("--precision", self.precision != Precision::F32),
            ("--replicas", self.torch.is_some() && !self.replicas.is_empty()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Refused(format!("{flag}: {others} cannot follow it: omit it")).into()),
            None => Ok(()),
        }
    }

    /// Returns an adapter as a trainer uses it in this precision.
    fn in_precision(&self, adapter: &Adapter) -> Result<Adapter, Error> {
        match self.precision {
            Precision::MatrixUnits => Ok(adapter.with_matrix_units()?),
            Precision::F32 | Precision::Mixed => Ok(adapter.clone()),
        }
    }
}

/// What a process that trains alone measured, as it prints it in JSON.
#[derive(Serialize, Deserialize)]
struct Alone {
    /// The name of the adapter.
    adapter: String,
    /// The time from the start of the process to the end of its first step, in seconds.
    first_step_s: f64,
    /// The median time of a step after the warm-up, in milliseconds.
    step_ms: f64,
    /// The bytes of device memory that a step was estimated to take, before it ran. Other programs do
    /// not print it.
    #[serde(default)]
    promised_bytes: u64,
    /// The bytes of device memory that training took, and who says so.
    taken: Option<taken::Taken>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Time to the first step, time of later steps, launches and memory
    Step,
    /// Time of each launch of a step
    Kernels,
    /// Two replicas compared with one, on the model `wide`
    Scaling,
    /// Two replicas of which one is slowed to a third, compared with each of them alone; 32 shards
    Uneven,
    /// Cost of the default audits, compared with no audits. Use 1000 steps or more
    Trust,
    /// Cost of saving a 50 MB model every 20 steps, and its speed compared with the disk's
    Checkpoint,
    /// Time to trace, differentiate, compile and plan deep models. Needs no device
    Build,
    /// Memory and time of a published model: what is promised and what is taken
    Known,
    /// `mlp` and `cnn` compared with Burn on the same adapter, in turns. Builds Burn first
    Peers,
}

pub(crate) fn main() -> ExitCode {
    let started = Instant::now();
    program(|flags: Flags| {
        flags.check()?;
        match flags.what {
            _ if flags.alone.is_some() => alone(&flags, started),
            What::Step => step(&flags),
            What::Kernels => kernels(&flags),
            What::Scaling => scaling::measure(&flags),
            What::Uneven => uneven::measure(&flags),
            What::Trust => trust::measure(&flags),
            What::Checkpoint => checkpoint::run(&flags),
            What::Build => build::measure(&flags.layers),
            What::Known => known::measure(&flags),
            What::Peers => match flags.torch.clone() {
                Some(python) => torch::measure(&flags, &python),
                None => peers::measure(&flags),
            },
        }
    })
}

/// Prints the times of steps, with a column for each number of replicas.
fn step(flags: &Flags) -> Result<(), Error> {
    let adapters = select(&flags.adapter)?;
    heading(flags, &adapters)?;
    let names = [
        "replicas".to_owned(),
        format!("first step, from process start (median of {STARTS} processes)"),
        "the same, without the driver's cache of compiled shaders".to_owned(),
        format!("step (median of {}, input ready)", flags.steps),
        "samples a second".to_owned(),
        "launches a step (busiest replica)".to_owned(),
        "scratch memory planned (busiest replica)".to_owned(),
        "the same, if every tensor had its own".to_owned(),
    ];
    let (data, mut columns) = (flags.noise()?, vec![names.to_vec()]);
    let target = flags.in_precision(&adapters[0])?.target();
    for replicas in counts(flags, &adapters) {
        let first = |cache| -> Result<String, Error> {
            let times = (0..STARTS).map(|_| start(flags, replicas, cache)).collect::<Result<_, _>>()?;
            Ok(format!("{:.2} s", median(times).as_secs_f64()))
        };
        let (cached, fresh) = (first(true)?, first(false)?);
        let mut trainer = trainer(flags, replicas, &data)?;
        let step = median(steps(&mut trainer, flags, &data)?);
        let run = busiest(flags, replicas);
        let plan = trainer.program(ProgramId::Train).plan(&run, &target)?;
        columns.push(vec![
            replicas.to_string(),
            cached,
            fresh,
            format!("{:.2} ms", 1e3 * step.as_secs_f64()),
            format!("{:.0}", flags.batch() as f64 / step.as_secs_f64()),
            plan.launches().to_string(),
            bytes(plan.scratch_bytes()),
            bytes(trainer.program(ProgramId::Train).tensor_bytes(&run)),
        ]);
    }
    let row = |i: usize| columns.iter().map(|column| column[i].clone()).collect::<Vec<_>>();
    Ok(writeln!(stdout(), "{}", table(&(0..names.len()).map(row).collect::<Vec<_>>()))?)
}

/// Prints a line for each launch of a step of one replica, or of the replica with the most shards if there
/// are several.
fn kernels(flags: &Flags) -> Result<(), Error> {
    let adapters = select(&flags.adapter)?;
    if !flags.embedding.is_empty() {
        return embedding::measure(&flags.embedding, &adapters[0]);
    }
    heading(flags, &adapters[..1])?;
    let trainer = trainer(flags, 1, &flags.noise()?)?;
    let train = trainer.program(ProgramId::Train);
    let run = busiest(flags, flags.replicas.first().copied().unwrap_or(1));
    kernels::measure(train, &run, &flags.in_precision(&adapters[0])?)
}

fn heading(flags: &Flags, adapters: &[Adapter]) -> Result<(), Error> {
    let labels: Vec<String> = adapters.iter().map(Adapter::label).collect();
    let (model, batch, shards) = (flags.model.name(), flags.batch(), flags.shards);
    let (labels, precision) = (labels.join(", "), flags.precision);
    Ok(writeln!(stdout(), "{model}, batch {batch} in {shards} shards, {precision}, AdamW, on {labels}\n")?)
}

fn alone(flags: &Flags, started: Instant) -> Result<(), Error> {
    let began = Instant::now();
    let memory = taken::Watch::begin();
    // Looking at the memory is no part of the first step.
    let started = started + began.elapsed();
    let data = flags.noise()?;
    let mut trainer = trainer(flags, flags.replicas.first().copied().unwrap_or(1), &data)?;
    if let Some(batch) = data.epoch(0)?.next() {
        trainer.step(&batch?)?;
    }
    let first_step_s = started.elapsed().as_secs_f64();
    let mut step_ms = 0.0;
    if let Some(count @ 1..) = flags.alone {
        let flags = Flags { steps: count, ..flags.clone() };
        step_ms = 1e3 * median(steps(&mut trainer, &flags, &data)?).as_secs_f64();
    }
    let promised_bytes = trainer.summary().memory.map_or(0, |memory| memory.total());
    let adapter = select(&flags.adapter)?.swap_remove(0);
    let (taken, adapter) = (memory.end(&adapter), adapter.name);
    let alone = Alone { adapter, first_step_s, step_ms, promised_bytes, taken };
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&alone)?)?)
}

/// Returns the command of a process that trains alone.
fn command(flags: &Flags, replicas: u16, steps: u32) -> Result<Command, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    let model = flags.model.flag();
    command.args(["--alone", &steps.to_string(), "--model", &model, "--shards", &flags.shards.to_string()]);
    command.args(["--replicas", &replicas.to_string(), "--warmup", &flags.warmup.to_string()]);
    command.args(["--batch", &flags.batch().to_string(), "--precision", &flags.precision.to_string()]);
    command.args(flags.shards_at_once.iter().flat_map(|n| ["--shards-at-once".to_owned(), n.to_string()]));
    command.args(flags.adapter.iter().flat_map(|name| ["--adapter", name]));
    Ok(command)
}

/// Runs the command of a process that trains alone, and returns what it measured.
fn run(command: &mut Command) -> Result<Alone, Error> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: ").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the time to the first step of a new process. Without the driver's cache it is the time on a
/// machine that has never run the program.
fn start(flags: &Flags, replicas: u16, cache: bool) -> Result<Duration, Error> {
    let mut command = command(flags, replicas, 0)?;
    if !cache {
        command.envs([("MESA_SHADER_CACHE_DISABLE", "true"), ("__GL_SHADER_DISK_CACHE", "0")]);
    }
    Ok(Duration::from_secs_f64(run(&mut command)?.first_step_s))
}

fn trainer(flags: &Flags, replicas: u16, data: &Loader) -> Result<Trainer, Error> {
    Ok(builder(flags).replicas(replicas.into()).build(&data.fields()?)?)
}

/// Returns the builder of a trainer as the flags describe it.
fn builder(flags: &Flags) -> Builder {
    let builder = Trainer::builder(flags.model.layers()).optimizer(AdamW::new(1e-3));
    let builder =
        builder.global_batch(flags.batch()).shards(flags.shards as usize).precision(flags.precision);
    let builder = flags.adapter.iter().fold(builder, |builder, name| builder.adapter(name));
    let builder = if flags.trace.is_some() { builder.timeline() } else { builder };
    flags.shards_at_once.into_iter().fold(builder, |builder, n| builder.shards_at_once(n as usize))
}

/// Returns the time of each step. A step begins with its batch in memory.
fn steps(trainer: &mut Trainer, flags: &Flags, data: &Loader) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    for batch in data.epochs_from(Position::default())?.take((flags.warmup + flags.steps) as usize) {
        let batch = batch?;
        let started = Instant::now();
        trainer.step(&batch)?;
        times.push(started.elapsed());
    }
    Ok(times.split_off(flags.warmup as usize))
}

/// Returns the number of shards of the replica that has the most.
fn busiest(flags: &Flags, replicas: u16) -> Run {
    let shards = (flags.shards as usize).min(flags.batch());
    Run { first: 0, sizes: vec![flags.batch().div_ceil(shards); shards.div_ceil(replicas.into())], shards }
}

fn counts(flags: &Flags, adapters: &[Adapter]) -> Vec<u16> {
    if !flags.replicas.is_empty() {
        return flags.replicas.clone();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let own =
        |adapter: &Adapter| if adapter.kind == Kind::Cpu { cores.min(flags.shards as usize) } else { 1 };
    let all = adapters.iter().map(own).sum::<usize>() as u16;
    if all > 1 { vec![1, all] } else { vec![1] }
}

fn median<T: PartialOrd + Copy + Default>(mut all: Vec<T>) -> T {
    all.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Returns how long this process has run on the host's CPUs, in ticks of the system. On other systems
/// than Linux it is 0.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, field 2, may contain any character, so fields are counted behind its closing parenthesis.
    // User and system time are fields 14 and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
