//! The flags of every program that trains.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use unisono::gpu::Arithmetic;
use unisono::world::WorldError;
use unisono::{Precision, SavedRun, Trainer, World};

use crate::{Error, Refused, Run, WorldFlag, claim, held_out_metric, say};

/// The flags of every program that trains. What belongs to a run (global batch, shards, seed) is optional: a
/// resumed run takes it from its checkpoint.
#[derive(Args, Clone, Debug, Default)]
pub struct RunFlags {
    /// Train on adapters with NAME in their label, as the program adapters shows it; may be repeated, may be
    /// #2 for the second of equal GPUs, a backend (cpu, which is the processor, or vulkan) or both
    /// (vulkan:llvmpipe) [default: every GPU, else the processor]
    #[arg(long, value_name = "NAME")]
    pub adapter: Vec<String>,
    /// Arithmetic of the CPU: fused (fma rounds once, as on most GPUs), split (twice, as on software drivers
    /// and in checkpoints of version 0.1), fused-subnormals or split-subnormals [default: fused]
    #[arg(long, value_name = "ARITHMETIC")]
    pub arithmetic: Option<Arithmetic>,
    /// Have another adapter make sampled steps again, beside the run, and compare bytes: cpu, or NAME as for
    /// --adapter
    #[arg(long, value_name = "NAME")]
    pub witness: Option<String>,
    /// Number of replicas [default: one a GPU, and one on the processor, which has all cores; on a software
    /// driver one a core, up to the shards]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1024))]
    pub replicas: Option<usize>,
    /// The machines of the run: mpi, those that mpirun or srun has started; alone, this one; auto, whichever
    /// it is
    #[arg(long, value_name = "WORLD", value_enum, default_value_t, hide_possible_values = true)]
    pub world: WorldFlag,
    /// End the run when a machine has not answered for so many seconds, at the start too [default: 900]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub world_deadline: Option<u64>,
    /// Print the lines of all machines, each with its rank and host; otherwise the first one alone prints
    #[arg(long)]
    pub all_ranks: bool,
    /// Share what the optimizer keeps out among the replicas of all machines, with so many owners of each
    /// tensor [1 where no number is given; 2: the loss of one replica loses nothing]
    #[arg(long, value_name = "OWNERS", num_args = 0..=1, default_missing_value = "1", value_parser = count(1024))]
    pub shard_optimizer: Option<usize>,
    /// Allow adapters whose numbers differ in the last bits: one replica then updates, the others receive its
    /// bytes
    #[arg(long)]
    pub mixed: bool,
    /// Most of its device's memory that a replica may take, in MiB; it then runs its shards piece by piece
    /// where it has to
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    pub memory_limit: Option<u64>,
    /// Samples in a step, over all replicas together
    #[arg(long, value_name = "SAMPLES", allow_negative_numbers = true, value_parser = count(1 << 24))]
    pub global_batch: Option<usize>,
    /// Parts that a step is cut into: up to so many replicas share the work
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1 << 16))]
    pub shards: Option<usize>,
    /// Epochs, counted from the run's start
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub epochs: Option<u32>,
    /// Seed of initial weights, dropout and the order of the data
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Precision of products: f32, or mixed, which takes f16 numbers, adds in f32 and needs an adapter with
    /// f16
    /// [default: f32]
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<Precision>,
    /// Threads that prepare batches [default: as many as the pace asks for, up to one a core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1024))]
    pub loader_threads: Option<usize>,
    /// End the run after N epochs in a row without a lower loss, on the samples held out if there are any,
    /// and take the weights of the best one
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub early_stopping: Option<u32>,
    /// Show curves and replicas where standard error is a terminal. Needs a program that was built with the
    /// feature `dashboard`
    #[arg(long)]
    pub dashboard: bool,
    /// Where checkpoints and the final model.safetensors go
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the newest complete checkpoint in the directory given with --out
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Save a checkpoint every so many steps too, not only at the end
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, requires = "out")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// How many of the last checkpoints stay; 0 for all [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "out")]
    pub keep_last: Option<usize>,
    /// Checkpoints of every so many steps stay too
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, requires = "out")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_every: Option<u64>,
    /// The best checkpoint stays too, by `loss` or a metric after each epoch: the lowest loss or error, the
    /// highest accuracy
    #[arg(long, value_name = "METRIC", requires = "out")]
    pub keep_best: Option<String>,
    /// A checkpoint that cannot be written ends the run, which otherwise warns, goes on and tries again
    #[arg(long, requires = "out")]
    pub require_checkpoints: bool,
    /// Resume with other flags, data or adapters than the run was started with: the answer is then not the
    /// run's
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Write what each replica did with its time to FILE, in Chrome's trace format: open it in Perfetto. A
    /// resumed run writes what it did since it was resumed, a run that ends early what it did by then
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write events for TensorBoard to DIR: loss and metrics by step and by epoch, the learning rate, the
    /// replicas' time
    #[arg(long, value_name = "DIR")]
    pub logdir: Option<PathBuf>,
    /// Write the whole run's history to FILE as CSV, a line an epoch
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the trained model to DIR as model.onnx, and what it answers to some held-out samples as
    /// model.json
    #[arg(long, value_name = "DIR")]
    pub onnx: Option<PathBuf>,
    /// The whole run's history as JSON on standard output, an object a line; everything else is on standard
    /// error anyway
    #[arg(long)]
    pub json: bool,
}

/// Returns a parser of numbers from 1 to `most`.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// The settings of a program whose flags are not given.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// The number of epochs.
    pub epochs: u32,
    /// The number of samples in a step, over all replicas together.
    pub global_batch: usize,
    /// The number of shards that a step is cut into.
    pub shards: usize,
    /// The seed of initial weights, dropout and the order of the data.
    pub seed: u64,
}

impl Defaults {
    /// Returns the line that a program's help shows.
    pub fn help(self) -> String {
        let Self { epochs, global_batch, shards, seed } = self;
        format!("Defaults: --epochs {epochs} --global-batch {global_batch} --shards {shards} --seed {seed}")
    }

    /// Says what a metric of the held-out samples is after the last epoch.
    ///
    /// # Errors
    /// It is an error if it is less than `least` and the run was not shorter than the program's own.
    pub fn claim(self, trainer: &Trainer, metric: &str, least: f64) -> Result<(), Error> {
        let got = held_out_metric(trainer, metric);
        say!("held out: {metric} {:.2}%", 100.0 * got);
        let whole = trainer.history().len() >= self.epochs as usize;
        if whole { claim(&format!("{metric} on the held-out part"), got, least) } else { Ok(()) }
    }
}

impl RunFlags {
    /// Returns the settings of a run: of each the flag, or else the checkpoint's value if a run is resumed,
    /// or else the program's default.
    ///
    /// A new run refuses a directory that contains checkpoints of an earlier run. Checkpoints of two runs are
    /// never mixed, and running a program never removes them.
    ///
    /// # Errors
    /// It is an error if the directory belongs to an earlier run, if a flag differs from what the run to be
    /// resumed was started with, or if a checkpoint cannot be read.
    pub fn settle(&self, defaults: Defaults) -> Result<Run, Error> {
        let world = self.world.connect(self.all_ranks, self.world_deadline.map(Duration::from_secs))?;
        self.compare(&world)?;
        let mut saved = None;
        if let Some(dir) = &self.out {
            if self.resume {
                saved = SavedRun::newest(&unisono::share_newest(&world, dir)?)?;
            } else {
                refuse_earlier(&world, dir)?;
            }
        }
        let saved = saved.as_ref().map(SavedRun::settings);
        Ok(Run {
            global_batch: settle(
                "--global-batch",
                self.global_batch,
                saved.map(|s| s.global_batch),
                defaults.global_batch,
                self.force,
            )?,
            shards: settle("--shards", self.shards, saved.map(|s| s.shards), defaults.shards, self.force)?,
            seed: settle("--seed", self.seed, saved.map(|s| s.seed), defaults.seed, self.force)?,
            precision: settle(
                "--precision",
                self.precision,
                saved.map(|s| s.precision),
                Precision::F32,
                self.force,
            )?,
            epochs: self.epochs.unwrap_or(defaults.epochs),
            flags: self.clone(),
            world,
        })
    }
}

impl RunFlags {
    /// Compares what all ranks must be given alike before anything else: flags that only some of them act on,
    /// and the folder that relative paths begin in.
    fn compare(&self, world: &World) -> Result<(), Error> {
        let is_given = |given: bool| if given { "is given" } else { "is not given" }.to_owned();
        let number = |every: Option<u64>| every.map_or_else(|| is_given(false), |every| every.to_string());
        let mut own: Vec<(String, String)> = [
            ("--out", is_given(self.out.is_some())),
            ("--resume", is_given(self.resume)),
            ("--force", is_given(self.force)),
            ("--checkpoint-every", number(self.checkpoint_every)),
            ("--require-checkpoints", is_given(self.require_checkpoints)),
            ("--keep-best", is_given(self.keep_best.is_some())),
            ("--trace", is_given(self.trace.is_some())),
            ("--onnx", is_given(self.onnx.is_some())),
        ]
        .map(|(flag, value)| (flag.to_owned(), value))
        .into();
        // mpirun starts a rank in the home folder if its host lacks the folder that mpirun runs in.
        let paths = [&self.out, &self.trace, &self.onnx, &self.csv, &self.logdir];
        if world.any("who has relative paths", paths.into_iter().flatten().any(|path| path.is_relative()))? {
            let folder = std::env::current_dir()?.display().to_string();
            own.push(("a relative path begins in the folder".to_owned(), folder));
        }
        match world.compare(&own) {
            Err(WorldError::Differs(text)) if text.contains(" folder ") => {
                Err(Refused(format!("{text}: make the folder on each host, or give paths that begin with /"))
                    .into())
            }
            Err(error @ WorldError::Differs(_)) => Err(Refused(error.to_string()).into()),
            other => Ok(other?),
        }
    }
}

/// Refuses a new run in the directory of an earlier one, on all ranks if one has checkpoints there.
fn refuse_earlier(world: &World, dir: &Path) -> Result<(), Error> {
    let own = unisono::dir_of_rank(dir, world.rank());
    let holds = !unisono::checkpoint::list(&own)?.is_empty();
    let record = if holds { own.display().to_string() } else { String::new() };
    let all = if world.is_alone() {
        vec![(0, record.into_bytes())]
    } else {
        world.gather("who has checkpoints", record.as_bytes())?
    };
    let Some((rank, held)) = all.into_iter().find(|(_, held)| !held.is_empty()) else { return Ok(()) };
    let place = String::from_utf8_lossy(&held).into_owned();
    let dir = dir.display().to_string();
    let whose = if world.is_alone() { String::new() } else { format!("{}: ", world.name(rank)) };
    let which = if place == dir { "holds".to_owned() } else { format!("{place} holds") };
    Err(Refused(format!(
        "{whose}--out {dir}: {which} the checkpoints of an earlier run; go on with it with --resume, or choose another \
         directory"
    ))
    .into())
}

/// Returns the value of the run if it has one, else the flag's, else the default. A flag that differs from
/// the run's value is an error; if `force` is set, the flag's value is returned instead.
fn settle<T: PartialEq + std::fmt::Display>(
    flag: &str,
    given: Option<T>,
    saved: Option<T>,
    default: T,
    force: bool,
) -> Result<T, Error> {
    match (given, saved) {
        (Some(given), _) if force => Ok(given),
        (Some(given), Some(saved)) if given != saved => Err(Refused(format!(
            "{flag} {given}: the run to resume was started with {saved}, which cannot change; leave the flag out, or \
             --force it"
        ))
        .into()),
        (given, saved) => Ok(saved.or(given).unwrap_or(default)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        run: RunFlags,
    }

    fn error(args: &[&str]) -> String {
        let args = std::iter::once("program").chain(args.iter().copied());
        Program::try_parse_from(args).err().map_or_else(String::new, |e| e.to_string())
    }

    #[test]
    fn wrong_values_name_their_flag() {
        Program::command().debug_assert();
        assert!(error(&["--replicas", "0"]).contains("invalid value '0' for '--replicas <N>'"));
        assert!(error(&["--global-batch", "0"]).contains("--global-batch"));
        assert!(error(&["--epochs", "x"]).contains("--epochs"));
        assert!(
            error(&["--precision", "f8"]).contains("'f8' for '--precision <PRECISION>': it is f32 or mixed")
        );
        assert!(error(&["--resume"]).contains("--out <DIR>"));
        assert!(error(&["--checkpoint-every", "5"]).contains("--out <DIR>"));
        let parsed = Program::try_parse_from(["p", "--adapter", "a", "--adapter", "b"]).unwrap();
        assert_eq!(parsed.run.adapter, ["a", "b"]);
    }

    #[test]
    fn the_checkpoints_value_wins_and_another_flag_is_an_error() {
        assert_eq!(settle("--seed", None, None, 1, false).unwrap(), 1);
        assert_eq!(settle("--seed", Some(2), None, 1, false).unwrap(), 2);
        assert_eq!(settle("--seed", None, Some(3), 1, false).unwrap(), 3);
        assert_eq!(settle("--seed", Some(3), Some(3), 1, false).unwrap(), 3);
        assert_eq!(settle("--seed", Some(2), Some(3), 1, true).unwrap(), 2);
        assert_eq!(settle("--seed", None, Some(3), 1, true).unwrap(), 3);
        let error = settle("--seed", Some(2), Some(3), 1, false).unwrap_err().to_string();
        assert!(error.starts_with("--seed 2: the run to resume was started with 3"), "{error}");
    }
}
