//! Compares the adapters of this machine byte by byte: `cargo xtask vendors`.
//!
//! It runs every op with its gradient, every layer, loss, metric and optimizer of the oracle's suites, models
//! of one layer, and random graphs, on the first adapter and on each of the others. For each difference it
//! prints the first op and the first kernel that differ, with the kernel's WGSL. It exits with 1 if there is
//! one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use unisono_gpu::{Adapter, Options};
use unisono_tests::vendors::{
    Bench, Difference, Plant, Subject, compare, cost, fuzz, models, ops, steps, suites,
};

#[derive(Parser)]
#[command(about = "Compares the bytes that all adapters of this machine give")]
struct Flags {
    /// Part of an adapter's name; may be repeated [default: every adapter]
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// The number of random graphs
    #[arg(long, default_value_t = 300)]
    fuzz: u64,
    /// The first random graph
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only the random graphs
    #[arg(long)]
    only_fuzz: bool,
    /// Hand kernels to Vulkan drivers as they may be contracted and reordered
    #[arg(long)]
    undecorated: bool,
    /// Spoil the second adapter: contraction, reassociation or division
    #[arg(long, value_parser = plant)]
    plant: Option<Plant>,
    /// Measure what flushing and barriers cost on the first adapter, in so many turns, and compare nothing
    #[arg(long, value_name = "TURNS")]
    cost: Option<usize>,
    /// Stop after so many differences
    #[arg(long, default_value_t = 5)]
    most: usize,
    /// The directory with the oracle's suites
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/oracle"))]
    oracle: PathBuf,
}

fn plant(text: &str) -> Result<Plant, String> {
    match text {
        "contraction" => Ok(Plant::Contraction),
        "reassociation" => Ok(Plant::Reassociation),
        "division" => Ok(Plant::Division),
        other => Err(format!("{other}: not contraction, reassociation or division")),
    }
}

fn main() -> ExitCode {
    unisono_gpu::prepare_environment();
    match run(&Flags::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compares all adapters with the first one. Returns the number of differences.
fn run(flags: &Flags) -> Result<usize, String> {
    let adapters = match flags.adapter.is_empty() {
        true => unisono_testkit::adapters(),
        false => unisono_gpu::select(&flags.adapter).map_err(|error| error.to_string())?,
    };
    if let (Some(turns), Some(first)) = (flags.cost, adapters.first()) {
        return costs(first, turns);
    }
    let Some((first, others)) = adapters.split_first().filter(|(_, others)| !others.is_empty()) else {
        let labels: Vec<String> = adapters.iter().map(Adapter::label).collect();
        println!("nothing to compare: {} is the only adapter", labels.join(""));
        return Ok(0);
    };
    let fixed = if flags.only_fuzz { Vec::new() } else { subjects(&flags.oracle)? };
    let mut differences = 0;
    for other in others {
        println!("{} beside {}", other.label(), first.label());
        differences += pair(flags, [first, other], &fixed)?;
        if !flags.only_fuzz {
            differences += trained(flags, [first, other])?;
        }
    }
    println!("{differences} differences");
    Ok(differences)
}

/// Prints what the arithmetic costs on an adapter.
fn costs(adapter: &Adapter, turns: usize) -> Result<usize, String> {
    for subject in steps()? {
        let [mut guarded, mut plain] = [true, false]
            .map(|decorate| Bench::open(adapter, Options::default().with(|o| o.decorate = decorate)));
        let times = match (&mut guarded, &mut plain) {
            (Ok(guarded), Ok(plain)) => cost(&subject, guarded, plain, turns)?,
            (Err(error), _) | (_, Err(error)) => return Err(error.clone()),
        };
        let ratio = times.guarded.as_secs_f64() / times.plain.as_secs_f64();
        println!("{}: {:.2?}, without {:.2?}: {ratio:.3} x", subject.name, times.guarded, times.plain);
    }
    Ok(0)
}

fn subjects(oracle: &Path) -> Result<Vec<Subject>, String> {
    let mut all = ops()?;
    all.extend(suites(oracle)?);
    Ok(all)
}

/// Compares two adapters on the subjects, and on random graphs.
fn pair(flags: &Flags, adapters: [&Adapter; 2], fixed: &[Subject]) -> Result<usize, String> {
    let options = || Options::default().with(|options| options.decorate = !flags.undecorated);
    let [first, second] = adapters;
    let mut benches = [Bench::open(first, options())?, Bench::open(second, options())?.with(flags.plant)];
    let mut differences = 0;
    for subject in fixed {
        differences += match compare(subject, &mut benches) {
            Ok(difference) => shown(difference),
            Err(error) => failed(&error),
        };
        if differences >= flags.most {
            return Ok(differences);
        }
    }
    println!("  {} cases of ops, layers, losses, metrics and optimizers", fixed.len());
    let mut skipped = 0;
    for seed in flags.seed..flags.seed + flags.fuzz {
        // A long run would keep the kernels of all graphs.
        if seed % 500 == 499 {
            println!("  {} random graphs, {differences} differences", seed + 1 - flags.seed);
            benches = [Bench::open(first, options())?, Bench::open(second, options())?.with(flags.plant)];
        }
        match compare(&fuzz(seed)?, &mut benches)? {
            Some(difference) if difference.follows_nan => skipped += 1,
            difference => differences += shown(difference),
        }
        if differences >= flags.most {
            return Ok(differences);
        }
    }
    println!("  {} random graphs; {skipped} differ where a NaN came first", flags.fuzz);
    Ok(differences)
}

/// Compares two adapters on models that are trained for a few steps.
fn trained(flags: &Flags, adapters: [&Adapter; 2]) -> Result<usize, String> {
    let mut differences = 0;
    let models = models();
    for model in &models {
        let (own, other) = match adapters.map(|adapter| model.train(adapter)) {
            [Ok(own), Ok(other)] => (own, other),
            [Err(error), _] | [_, Err(error)] => {
                differences += failed(&error);
                continue;
            }
        };
        if let Some(((name, _), _)) = own.iter().zip(&other).find(|(own, other)| own != other) {
            println!("model {}: {name} differs after training", model.name);
            differences += 1;
        }
        if differences >= flags.most {
            return Ok(differences);
        }
    }
    println!("  {} models of one layer or one optimizer", models.len());
    Ok(differences)
}

fn failed(error: &str) -> usize {
    println!("cannot be compared: {error}");
    1
}

fn shown(difference: Option<Difference>) -> usize {
    let Some(difference) = difference else { return 0 };
    println!("{difference}");
    1
}
