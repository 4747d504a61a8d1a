//! Runs reference cases on every adapter found: `cargo run --release -p unisono-tests --bin conformance -- DIR...`
//!
//! Prints a line a suite and a line a failure; exits with 1 on any failure.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use unisono_gpu::Adapter;
use unisono_tests::conformance::{Runner, Suite};

#[derive(Parser)]
#[command(about = "Holds ops, layers, losses and optimizers to another program's numbers")]
struct Flags {
    /// Directories with suites: NAME.json and NAME.safetensors
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Part of an adapter's name, repeatable; every adapter unless told
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
}

fn main() -> ExitCode {
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

/// The number of failures.
fn conform(flags: &Flags) -> Result<usize, String> {
    let adapters = adapters(&flags.adapter)?;
    let mut failures = 0;
    for dir in &flags.dirs {
        for suite in Suite::all(dir)? {
            for adapter in &adapters {
                failures += run(&suite, adapter)?;
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

fn run(suite: &Suite, adapter: &Adapter) -> Result<usize, String> {
    let mut runner = Runner::open(adapter)?;
    let (mut passed, mut worst, mut failures) = (0, 0.0f64, Vec::new());
    for case in &suite.cases {
        match runner.run(case) {
            Ok(error) if error <= 1.0 => {
                passed += 1;
                worst = worst.max(error);
            }
            Ok(error) => failures
                .push(format!("{}: {error:.2} times its tolerance of {:e}", case.name, case.tolerance)),
            Err(problem) => failures.push(format!("{}: {problem}", case.name)),
        }
    }
    println!(
        "{} on {}: {} cases, {passed} passed, worst error {worst:.2} of its tolerance",
        suite.name,
        adapter.label(),
        suite.cases.len()
    );
    failures.iter().for_each(|f| println!("  FAILED {f}"));
    Ok(failures.len())
}
