//! The machines of a run: how a program finds them, and which of them print.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use unisono::World;
use unisono::world::Problem;

use crate::Error;

/// The machines of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorldFlag {
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
static WORLD: Mutex<Option<World>> = Mutex::new(None);

struct Prints {
    /// What each line begins with.
    label: String,
    /// Whether this process prints anything but its error.
    lines: AtomicBool,
}

impl WorldFlag {
    /// Returns the machines of the run. With `all`, the lines of each are printed, each with its machine.
    /// `deadline` is the longest time to wait for another machine, from the start on.
    ///
    /// # Errors
    /// There is no MPI, it cannot be initialised, or the machines do not reach each other.
    pub fn connect(self, all: bool, deadline: Option<Duration>) -> Result<World, Error> {
        let world = self.open(deadline)?;
        if let Some(deadline) = deadline {
            world.set_deadline(deadline);
        }
        if !world.is_alone() {
            let (first, name) = (world.is_first(), world.name(world.rank()));
            let label = if all || !first { format!("{name}: ") } else { String::new() };
            let _ = PRINTS.set(Prints { label, lines: AtomicBool::new(all || first) });
            *WORLD.lock().unwrap_or_else(PoisonError::into_inner) = Some(world.clone());
        }
        Ok(world)
    }

    #[cfg(feature = "mpi")]
    fn open(self, deadline: Option<Duration>) -> Result<World, Error> {
        if self == Self::Alone || self == Self::Auto && !unisono::mpi::is_launched() {
            return Ok(World::alone());
        }
        let world = match deadline {
            Some(deadline) => unisono::mpi::connect_within(deadline)?,
            None => unisono::mpi::connect()?,
        };
        if world.is_first() && unisono::mpi::is_bound() {
            crate::say!("note: mpirun binds each rank to one core: start it with --bind-to none");
        }
        Ok(world)
    }

    #[cfg(not(feature = "mpi"))]
    fn open(self, _: Option<Duration>) -> Result<World, Error> {
        let launched = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().find_map(|name| std::env::var(name).ok());
        let several = launched.is_some_and(|size| size != "1");
        if self == Self::Mpi || self == Self::Auto && several {
            return Err("this program was built without the feature mpi: build it with --features mpi, or let each process train \
                        on its own with --world alone"
                .into());
        }
        Ok(World::alone())
    }
}

/// Ends this process's part of the run. If it refuses to run, the other machines hear the reason.
pub(crate) fn leave(refusal: Option<String>) {
    let world = WORLD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((world, why)) = world.zip(refusal) {
        world.leave(Problem { why, is_refusal: true });
    }
}

/// Returns what this process's lines begin with.
pub(crate) fn label() -> &'static str {
    PRINTS.get().map_or("", |prints| prints.label.as_str())
}

/// Lets this process print from now on, if it is the first one of those that are left.
pub(crate) fn follow(world: &World) {
    if let Some(prints) = PRINTS.get().filter(|_| world.is_first()) {
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
