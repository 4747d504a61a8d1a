//! Lists, verifies, shows, compares and converts checkpoints.
//!
//!     cargo run -p unisono-examples --bin checkpoint -- show target/demo
//!
//! It exits with 1 if something is broken (`verify`) or differs (`diff`), and with 2 if something cannot be
//! read or printed.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use unisono::checkpoint::{Export, WeightPrecision, export_model, inspect};
use unisono_examples::{Error, say};

/// Lists, verifies, shows, compares and converts checkpoints. A path is the directory of a run (then its
/// newest complete checkpoint is used), the directory of a checkpoint, or a safetensors file.
#[derive(Parser)]
#[command(name = "checkpoint", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the checkpoints of a run, newest first, and whether they are trusted. Then lists the suspects of
    /// a failed audit.
    List { run: PathBuf },
    /// Reads all files and compares them with their hashes.
    Verify { path: PathBuf },
    /// Shows the names, shapes and norms of all tensors, and the state and settings of the trainer.
    Show { path: PathBuf },
    /// Shows the differences between two checkpoints, tensor by tensor.
    Diff { left: PathBuf, right: PathBuf },
    /// Writes the model as a plain safetensors file.
    Convert {
        from: PathBuf,
        to: PathBuf,
        /// Round the weights to f16.
        #[arg(long)]
        f16: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command. Returns false if something is broken or differs.
fn run(command: Command) -> Result<bool, Error> {
    match command {
        Command::List { run } => {
            print(inspect::list(&run)?)?;
            let audited = inspect::audited(run)?;
            print(audited.suspects)?;
            if let Some(problem) = audited.problem {
                say!("no checkpoint is trusted: {}", problem.reason);
            }
            Ok(true)
        }
        Command::Verify { path } => {
            let checked = inspect::verify(path)?;
            print(&checked)?;
            Ok(checked.iter().all(|checked| checked.problem.is_none()))
        }
        Command::Show { path } => {
            print([inspect::show(path)?])?;
            Ok(true)
        }
        Command::Diff { left, right } => {
            let diff = inspect::diff(left, right)?;
            print([&diff])?;
            Ok(diff.is_empty())
        }
        Command::Convert { from, to, f16 } => {
            let precision = if f16 { WeightPrecision::F16 } else { WeightPrecision::F32 };
            let done = export_model(to, &inspect::model(from)?, &Export::default().precision(precision))?;
            for (name, count) in done.overflowed {
                say!("{name}: {count} values are too large for f16 and are infinite now");
            }
            print([done.weights.display()])?;
            Ok(true)
        }
    }
}

/// Prints lines until the reader closes the pipe.
///
/// # Errors
/// Standard output cannot take them, such as a file on a full disk.
fn print(lines: impl IntoIterator<Item = impl Display>) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let printed = lines.into_iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(()),
    }
}
