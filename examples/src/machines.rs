//! The machines of a run: how a program finds them, and which of them print.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use unisono::Cluster;
use unisono::cluster::Problem;

use crate::Error;
#[cfg(not(feature = "mpi"))]
use crate::Refused;

/// The machines of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClusterFlag {
    /// All that mpirun or srun has started, or this one if nobody has.
    #[default]
    Auto,
    /// All that mpirun or srun has started.
    Mpi,
    /// This machine alone, whoever started it.
    Alone,
}

/// How this process prints. It is global because standard error belongs to the process.
static PRINTS: OnceLock<Prints> = OnceLock::new();

/// The machines of this process's run, until it ends. It is global because the process's exit code belongs to
/// all of them: where one refuses to run, the others are to end with the same code.
static CLUSTER: Mutex<Option<Cluster>> = Mutex::new(None);

struct Prints {
    /// What each line begins with.
    label: String,
    /// Whether this process prints anything but its error.
    lines: AtomicBool,
}

impl ClusterFlag {
    /// Returns the machines of the run. With `all`, the lines of each are printed, each with its machine.
    /// `deadline` is the longest time to wait for another machine, from the start on.
    ///
    /// # Errors
    /// There is no MPI, it cannot be initialised, or the machines do not reach each other.
    pub fn connect(self, all: bool, deadline: Option<Duration>) -> Result<Cluster, Error> {
        let cluster = self.open(deadline)?;
        if let Some(deadline) = deadline {
            cluster.set_deadline(deadline);
        }
        if !cluster.is_alone() {
            let (first, name) = (cluster.is_first(), cluster.name(cluster.rank()));
            let label = if all || !first { format!("{name}: ") } else { String::new() };
            let _ = PRINTS.set(Prints { label, lines: AtomicBool::new(all || first) });
            *CLUSTER.lock().unwrap_or_else(PoisonError::into_inner) = Some(cluster.clone());
            note_launch(&cluster);
        }
        Ok(cluster)
    }

    #[cfg(feature = "mpi")]
    fn open(self, deadline: Option<Duration>) -> Result<Cluster, Error> {
        if self == Self::Alone || self == Self::Auto && !unisono::mpi::is_launched() {
            return Ok(Cluster::alone());
        }
        let cluster = match deadline {
            Some(deadline) => unisono::mpi::connect_within(deadline)?,
            None => unisono::mpi::connect()?,
        };
        Ok(cluster)
    }

    #[cfg(not(feature = "mpi"))]
    fn open(self, _: Option<Duration>) -> Result<Cluster, Error> {
        let of = |name: &str| std::env::var(name).ok();
        // Slurm's PMIx gives the rank alone, and Slurm the number of tasks.
        let slurm = || of("PMIX_RANK").and_then(|_| of("SLURM_NTASKS"));
        let launched = of("OMPI_COMM_WORLD_SIZE").or_else(|| of("PMI_SIZE")).or_else(slurm);
        let several = launched.is_some_and(|size| size != "1");
        if self == Self::Mpi || self == Self::Auto && several {
            return Err(Refused(format!(
                "{}this program was built without the feature mpi: build it with --features mpi, or let each process train \
                 on its own with --cluster alone",
                rank_before_mpi()
            ))
            .into());
        }
        Ok(Cluster::alone())
    }
}

/// Says of how mpirun has started the run what would make it slow.
#[cfg(feature = "mpi")]
fn note_launch(cluster: &Cluster) {
    use unisono::mpi;
    if cluster.is_first() && mpi::is_bound() {
        crate::say!("note: mpirun binds each rank to one core: start it with --bind-to none");
    }
    let idle = mpi::idle_hosts(&mpi::given_hosts(), &cluster.hosts()).join(", ");
    if !idle.is_empty() {
        let text = format!(
            "note: no rank is on {idle}: Open MPI counts the cores of a host without slots= in the hostfile, and \
             fills the first hosts; write slots=1 behind each host, or start it with --map-by ppr:1:node\n"
        );
        // Of the ranks whose machine mpirun runs on, the first one says it: another rank may be the first.
        if cluster.local().0 == 0 {
            let _ = stderr().write_all(text.as_bytes());
        }
    }
}

#[cfg(not(feature = "mpi"))]
fn note_launch(_: &Cluster) {}

/// Names this rank as launchers do, for a program without MPI: `rank 1 (hostb): `, or nothing if nobody has
/// launched it.
#[cfg(not(feature = "mpi"))]
fn rank_before_mpi() -> String {
    let ranks = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    let Some(rank) = ranks.iter().find_map(|name| std::env::var(name).ok()) else { return String::new() };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("rank {rank} ({}): ", host.trim())
}

/// Ends this process's part of the run. If it refuses to run, the other machines hear the reason.
pub(crate) fn leave(refusal: Option<String>) {
    let cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((cluster, why)) = cluster.zip(refusal) {
        cluster.leave(Problem { why, is_refusal: true });
    }
}

/// Returns what this process's lines begin with.
pub(crate) fn label() -> &'static str {
    PRINTS.get().map_or("", |prints| prints.label.as_str())
}

/// Lets this process print from now on, if it is the first one of those that are left.
pub(crate) fn follow(cluster: &Cluster) {
    if let Some(prints) = PRINTS.get().filter(|_| cluster.is_first()) {
        prints.lines.store(true, Ordering::Relaxed);
    }
}

/// Prints a line on standard error, see [`say!`](crate::say). A full or closed standard error is no reason to
/// stop a run.
pub fn print_line(text: Arguments<'_>) {
    if PRINTS.get().is_none_or(|prints| prints.lines.load(Ordering::Relaxed)) {
        let text = text.to_string();
        for line in text.lines() {
            let _ = stderr().write_all(format!("{}{line}\n", label()).as_bytes());
        }
    }
}
