//! The program `conformance`: it prints a line for each suite and a line for each failure, and exits with 1
//! if there is a failure.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use unisono_gpu::Adapter;
use unisono_graph::Precision;

use super::{Runner, Suite};

#[derive(Parser)]
#[command(about = "Checks ops, layers, losses and optimizers against another program's numbers")]
struct Flags {
    /// Directories with suites: files NAME.json and NAME.safetensors
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Test the adapters whose name contains NAME. Repeat the flag for several [default: all adapters]
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// Run this suite, such as ops. Repeat the flag for several [default: all]
    #[arg(long, value_name = "NAME")]
    suite: Vec<String>,
    /// Precision of products: f32, mixed or mixed+units. In the latter two, ops, layers and losses may be off
    /// by the rounding of f16
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::F32)]
    precision: Precision,
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    unisono_gpu::prepare_environment();
    match conform(&Flags::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all suites on all adapters. Returns the number of failures.
fn conform(flags: &Flags) -> Result<usize, String> {
    let adapters = adapters(&flags.adapter)?;
    let mut failures = 0;
    for dir in &flags.dirs {
        let wanted = |suite: &Suite| flags.suite.is_empty() || flags.suite.contains(&suite.name);
        for suite in Suite::all(dir)?.iter().filter(|suite| wanted(suite)) {
            for adapter in &adapters {
                let outcome = Runner::open_in(adapter, flags.precision)?.suite(suite);
                println!("{outcome}");
                failures += outcome.failures.len();
            }
        }
    }
    Ok(failures)
}

fn adapters(wanted: &[String]) -> Result<Vec<Adapter>, String> {
    if !wanted.is_empty() {
        return unisono_gpu::select(wanted).map_err(|e| e.to_string());
    }
    let found = unisono_testkit::adapters();
    if found.is_empty() { Err("no adapter found".into()) } else { Ok(found) }
}
