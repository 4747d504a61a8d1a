//! The flags of every program that trains.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use unisono::cluster::ClusterError;
use unisono::gpu::Arithmetic;
use unisono::{Cluster, Precision, SavedRun, Trainer};

use crate::{ClusterFlag, Error, Refused, Run, claim, held_out_metric, say};

/// The flags of every program that trains. What belongs to a run (global batch, shards, seed) is optional: a
/// resumed run takes it from its checkpoint.
#[derive(Args, Clone, Debug, Default)]
pub struct RunFlags {
    /// Train on the adapters whose label contains NAME (the program adapters lists the labels). Repeat the
    /// flag for several adapters. NAME may also be cpu, a backend such as vulkan, both (vulkan:llvmpipe), or
    /// #2 for the second of several equal GPUs [default: all GPUs, or the CPU if there is none]
    #[arg(long, value_name = "NAME")]
    pub adapter: Vec<String>,
    /// How the CPU rounds: fused (fma rounds once, as on most GPUs), split (fma rounds twice, as on software
    /// drivers and in runs from before 2026-11-26), fused-subnormals, split-subnormals, or hopper (as fused,
    /// and with --matrix-units as the tensor cores of an NVIDIA H200) [default: fused]
    #[arg(long, value_name = "ARITHMETIC")]
    pub arithmetic: Option<Arithmetic>,
    /// Let a second adapter recompute some of the steps, and compare the results byte by byte. NAME is cpu,
    /// or a name as for --adapter
    #[arg(long, value_name = "NAME")]
    pub witness: Option<String>,
    /// Number of replicas [default: one for each GPU; one on the CPU, which uses all cores; on a software
    /// driver one for each core, at most one for each shard]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1024))]
    pub replicas: Option<usize>,
    /// Machines that take part: mpi (the ranks that mpirun or srun has started), alone (only this process),
    /// or auto (mpi if a launcher has started the program)
    #[arg(
        long,
        alias = "world",
        value_name = "CLUSTER",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub cluster: ClusterFlag,
    /// End the run if a machine does not answer for this many seconds, also at the start [default: 900]
    #[arg(
        long,
        alias = "world-deadline",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub cluster_deadline: Option<u64>,
    /// Print the output of all machines, each line with its rank and host [default: only the first machine
    /// prints]
    #[arg(long)]
    pub all_ranks: bool,
    /// Shard the optimizer state across all replicas of all machines, like ZeRO stage 1. OWNERS is the number
    /// of replicas that store each tensor: with 2, losing one replica loses no state [1 if no number is
    /// given]
    #[arg(long, value_name = "OWNERS", num_args = 0..=1, default_missing_value = "1", value_parser = count(1024))]
    pub shard_optimizer: Option<usize>,
    /// Allow adapters that round differently. One replica then computes the updates, and the others receive
    /// its bytes
    #[arg(long)]
    pub mixed: bool,
    /// Device memory that a replica may use, in MiB. If its share of a step does not fit, it computes the
    /// shards one after another
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    pub memory_limit: Option<u64>,
    /// Samples in a step, over all replicas together
    #[arg(long, value_name = "SAMPLES", allow_negative_numbers = true, value_parser = count(1 << 24))]
    pub global_batch: Option<usize>,
    /// Number of parts that each batch is cut into. At most this many replicas can share the work
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1 << 16))]
    pub shards: Option<usize>,
    /// Number of epochs, counted from the start of the run
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub epochs: Option<u32>,
    /// Seed of the initial weights, dropout and the order of the data
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Numeric precision: f32, or mixed (f16 matrix products with f32 accumulation; needs an adapter with f16
    /// support) [default: f32]
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<Precision>,
    /// Multiply by the adapter's matrix unit (tensor cores), with `--precision mixed`. The result then
    /// depends on the kind of unit
    #[arg(long, requires = "precision")]
    pub matrix_units: bool,
    /// Threads that prepare batches [default: adapts to the pace of training, up to one for each core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1024))]
    pub loader_threads: Option<usize>,
    /// Stop after N epochs in a row without a lower loss, and restore the weights of the best epoch. Uses the
    /// validation loss if there is a validation set
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub early_stopping: Option<u32>,
    /// Show curves and replicas in the terminal. Needs a program that was built with the feature `dashboard`
    #[arg(long)]
    pub dashboard: bool,
    /// Directory for checkpoints and for the final model.safetensors
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Resume from the newest complete checkpoint in the directory given with --out
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Also save a checkpoint every STEPS steps [default: only at the end]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, requires = "out")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Number of most recent checkpoints to keep; 0 keeps all [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "out")]
    pub keep_last: Option<usize>,
    /// Also keep every checkpoint whose step is a multiple of STEPS
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, requires = "out")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_every: Option<u64>,
    /// Also keep the best checkpoint by `loss` or by the name of a metric: the lowest loss or error, the
    /// highest accuracy
    #[arg(long, value_name = "METRIC", requires = "out")]
    pub keep_best: Option<String>,
    /// End the run if a checkpoint cannot be written [default: warn, continue and try again]
    #[arg(long, requires = "out")]
    pub require_checkpoints: bool,
    /// Resume even if flags, data or adapters differ from those that the run was started with. The results
    /// then differ from those of the original run
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Write a timeline of each replica to FILE, in Chrome's trace format for Perfetto. After a resume, the
    /// timeline begins at the resume
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write TensorBoard events to DIR: loss and metrics by step and by epoch, the learning rate, the time of
    /// each replica
    #[arg(long, value_name = "DIR")]
    pub logdir: Option<PathBuf>,
    /// Write the history of the whole run to FILE as CSV, one line for each epoch
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the trained model to DIR as model.onnx, and its answers to some validation samples as model.json
    #[arg(long, value_name = "DIR")]
    pub onnx: Option<PathBuf>,
    /// Write the history of the whole run to standard output as JSON, one object on each line. All other
    /// output goes to standard error
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

    /// Says what [`held_out_metric`] finds.
    ///
    /// # Errors
    /// Those of [`Defaults::claim_of`].
    pub fn claim(self, trainer: &Trainer, metric: &str, least: f64) -> Result<(), Error> {
        let got = held_out_metric(trainer, metric);
        say!("validation: {metric} {:.2}%", 100.0 * got);
        self.claim_of(trainer, &format!("{metric} on the validation set"), got, least)
    }

    /// Checks what a program claims of its model.
    ///
    /// # Errors
    /// It is an error if the model reached less than `least`, unless the run was shorter than the program's
    /// own.
    pub fn claim_of(self, trainer: &Trainer, what: &str, got: f64, least: f64) -> Result<(), Error> {
        if trainer.history().len() >= self.epochs as usize { claim(what, got, least) } else { Ok(()) }
    }
}

impl RunFlags {
    /// Returns the precision that the flags ask for.
    fn precision(&self) -> Result<Option<Precision>, Error> {
        match self.precision {
            Some(Precision::F32) if self.matrix_units => {
                let why = "--matrix-units: needs --precision mixed, because no unit multiplies f32";
                Err(Refused(why.into()).into())
            }
            wanted => Ok(wanted.map(|wanted| if self.matrix_units { wanted.matrix_units() } else { wanted })),
        }
    }

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
        let cluster = self.cluster.connect(self.all_ranks, self.cluster_deadline.map(Duration::from_secs))?;
        self.compare(&cluster)?;
        let mut saved = None;
        if let Some(dir) = &self.out {
            if self.resume {
                saved = SavedRun::newest(&unisono::share_newest(&cluster, dir)?)?;
            } else {
                refuse_earlier(&cluster, dir)?;
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
                self.precision()?,
                saved.map(|s| s.precision),
                Precision::F32,
                self.force,
            )?,
            epochs: self.epochs.unwrap_or(defaults.epochs),
            flags: self.clone(),
            saved: Vec::new(),
            cluster,
        })
    }
}

impl RunFlags {
    /// Compares what all ranks must be given alike before anything else: flags that only some of them act on,
    /// and the folder that relative paths begin in.
    fn compare(&self, cluster: &Cluster) -> Result<(), Error> {
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
        if cluster
            .any("who has relative paths", paths.into_iter().flatten().any(|path| path.is_relative()))?
        {
            let folder = std::env::current_dir()?.display().to_string();
            own.push(("a relative path begins in the folder".to_owned(), folder));
        }
        match cluster.compare(&own) {
            Err(ClusterError::Differs(text)) if text.contains(" folder ") => {
                Err(Refused(format!("{text}: make the folder on each host, or give paths that begin with /"))
                    .into())
            }
            Err(error @ ClusterError::Differs(_)) => Err(Refused(error.to_string()).into()),
            other => Ok(other?),
        }
    }
}

/// Refuses a new run in the directory of an earlier one, on all ranks if one has checkpoints there.
fn refuse_earlier(cluster: &Cluster, dir: &Path) -> Result<(), Error> {
    let own = unisono::dir_of_rank(dir, cluster.rank());
    let holds = !unisono::checkpoint::list(&own)?.is_empty();
    let record = if holds { own.display().to_string() } else { String::new() };
    let all = if cluster.is_alone() {
        vec![(0, record.into_bytes())]
    } else {
        cluster.gather("who has checkpoints", record.as_bytes())?
    };
    let Some((rank, held)) = all.into_iter().find(|(_, held)| !held.is_empty()) else { return Ok(()) };
    let place = String::from_utf8_lossy(&held).into_owned();
    let dir = dir.display().to_string();
    let whose = if cluster.is_alone() { String::new() } else { format!("{}: ", cluster.name(rank)) };
    let which = if place == dir { "holds".to_owned() } else { format!("{place} holds") };
    Err(Refused(format!(
        "{whose}--out {dir}: {which} the checkpoints of an earlier run; continue it with --resume, or choose another \
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
            "{flag} {given}: the run to resume was started with {saved}; omit the flag, or pass --force to change it"
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
            error(&["--precision", "f8"])
                .contains("'f8' for '--precision <PRECISION>': it is f32, mixed or mixed+units")
        );
        assert!(error(&["--resume"]).contains("--out <DIR>"));
        assert!(error(&["--checkpoint-every", "5"]).contains("--out <DIR>"));
        let parsed = Program::try_parse_from(["p", "--adapter", "a", "--adapter", "b"]).unwrap();
        assert_eq!(parsed.run.adapter, ["a", "b"]);
    }

    #[test]
    fn matrix_units_need_mixed_precision() {
        assert!(error(&["--matrix-units"]).contains("--precision <PRECISION>"));
        let precision = |precision: &str| {
            let parsed = Program::try_parse_from(["p", "--precision", precision, "--matrix-units"]);
            parsed.unwrap().run.precision().map_err(|error| error.to_string())
        };
        assert_eq!(precision("mixed"), Ok(Some(Precision::MatrixUnits)));
        assert!(precision("f32").unwrap_err().starts_with("--matrix-units: needs --precision mixed"));
    }

    /// A run that early stopping has ended is shorter as well.
    #[test]
    fn shorter_runs_are_not_held_to_a_claim() {
        let data = unisono::data::Memory::labelled(vec![0.0; 16], [2], vec![0; 8]).unwrap();
        let data = unisono::data::Loader::new(data);
        let builder = Trainer::builder(unisono::Dense::new(2)).optimizer(unisono::Sgd::new(0.1));
        let builder = builder.adapter("cpu").replicas(1).global_batch(8).shards(1);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        let of = |epochs| {
            let defaults = Defaults { epochs, global_batch: 8, shards: 1, seed: 1 };
            defaults.claim_of(&trainer, "accuracy", 0.5, 0.9)
        };
        assert!(of(3).is_ok());
        assert_eq!(of(2).unwrap_err().to_string(), "accuracy is 0.5000, less than 0.9");
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
