//! The program `vendors`: it runs every op with its gradient, every layer, loss, metric and optimizer of the
//! oracle's suites, models of one layer, and random graphs, on all adapters at once, and compares the first
//! one with the others. For each difference it prints the first op and the first kernel that differ, with the
//! kernel's WGSL. It exits with 1 if there is one.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use unisono_gpu::{Adapter, Options};
use unisono_replica::Rounding;

use super::{Bench, Fleet, Plant, Tally, cost, digests, fuzz, models, ops, steps, suites};

/// The number of subjects that run between two lines of output.
const CHUNK: usize = 250;

#[derive(Parser)]
#[command(about = "Compares the bytes that all adapters of this machine give")]
struct Flags {
    /// Compare the adapters whose name contains NAME. Repeat the flag for several [default: all adapters]
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// Number of random graphs
    #[arg(long, default_value_t = 300)]
    fuzz: u64,
    /// Number of the first random graph
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Compare random graphs only
    #[arg(long)]
    only_fuzz: bool,
    /// Allow Vulkan drivers to contract and reorder float operations
    #[arg(long)]
    undecorated: bool,
    /// Change the arithmetic of the second adapter, to check that this is found: contraction, reassociation
    /// or division
    #[arg(long, value_parser = plant)]
    plant: Option<Plant>,
    /// Instead of comparing, measure what flushing and barriers cost on the first adapter, in this many turns
    #[arg(long, value_name = "TURNS")]
    cost: Option<usize>,
    /// Instead of comparing, print a digest of the first adapter's results for every EVERY-th subject (1:
    /// all)
    #[arg(long, value_name = "EVERY")]
    digests: Option<usize>,
    /// Stop after this many differences
    #[arg(long, default_value_t = 5)]
    most: usize,
    /// Directory with the suites of the oracle
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../oracle"))]
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

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
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

/// Compares the adapters that were asked for with the first of them, or without any all those of this machine
/// whose `fma` rounds alike. Returns the number of differences.
fn run(flags: &Flags) -> Result<usize, String> {
    if flags.adapter.is_empty() {
        let alike = alike(unisono_testkit::adapters())?;
        return alike.iter().map(|adapters| compared(flags, adapters)).sum();
    }
    compared(flags, &unisono_gpu::select(&flags.adapter).map_err(|error| error.to_string())?)
}

/// Returns the adapters in groups whose `fma` rounds alike, the group of the first one first.
fn alike(adapters: Vec<Adapter>) -> Result<Vec<Vec<Adapter>>, String> {
    let mut groups: Vec<(Rounding, Vec<Adapter>)> = Vec::new();
    for adapter in adapters {
        let rounding = unisono_replica::probe(&adapter).map_err(|error| error.to_string())?.rounding;
        match groups.iter_mut().find(|(known, _)| *known == rounding) {
            Some((_, group)) => group.push(adapter),
            None => groups.push((rounding, vec![adapter])),
        }
    }
    Ok(groups.into_iter().map(|(_, group)| group).collect())
}

/// Compares adapters with the first one. Returns the number of differences.
fn compared(flags: &Flags, adapters: &[Adapter]) -> Result<usize, String> {
    if let (Some(turns), Some(first)) = (flags.cost, adapters.first()) {
        return costs(first, turns);
    }
    if let (Some(every), Some(first)) = (flags.digests, adapters.first()) {
        digests(first, &flags.oracle, flags.fuzz, every.max(1), &mut |line| println!("{line}"))?;
        return Ok(0);
    }
    let labels: Vec<String> = adapters.iter().map(Adapter::label).collect();
    if adapters.len() < 2 {
        println!("nothing to compare: {} is the only adapter", labels.join(""));
        return Ok(0);
    }
    println!("adapters: {}", labels.join(", "));
    let options = Options::default().with(|options| options.decorate = !flags.undecorated);
    let mut fleet = Fleet::open(adapters, &options, flags.plant)?;
    let mut differences = 0;
    if !flags.only_fuzz {
        differences += fixed(flags, &mut fleet)?;
        differences += trained(flags, adapters);
    }
    if differences < flags.most {
        differences += random(flags, &mut fleet)?;
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

/// Runs the ops, layers, losses, metrics and optimizers. Returns the number of differences.
fn fixed(flags: &Flags, fleet: &mut Fleet) -> Result<usize, String> {
    let mut all = ops()?;
    all.extend(suites(&flags.oracle)?);
    let mut tally = Tally::default();
    for part in all.chunks(CHUNK) {
        tally.add(shown(fleet.run(part)));
        if tally.faults() >= flags.most {
            break;
        }
    }
    let (ran, faults) = (tally.ran, tally.faults());
    println!(
        "{ran} cases of ops, layers, losses, metrics and optimizers: {faults} differences; {} of {} with a \
         NaN differ",
        tally.follow_nan, tally.with_nan
    );
    Ok(faults)
}

/// Runs random graphs. Returns the number of differences.
fn random(flags: &Flags, fleet: &mut Fleet) -> Result<usize, String> {
    let mut tally = Tally::default();
    let (mut seed, end) = (flags.seed, flags.seed + flags.fuzz);
    while seed < end && tally.faults() < flags.most {
        let next = end.min(seed + CHUNK as u64);
        let graphs = (seed..next).map(fuzz).collect::<Result<Vec<_>, _>>()?;
        tally.add(shown(fleet.run(&graphs)));
        seed = next;
        println!(
            "random graphs of seeds {}..{seed}: {} ran on all, {} differences; {} of {} with a NaN differ",
            flags.seed,
            tally.ran,
            tally.faults(),
            tally.follow_nan,
            tally.with_nan
        );
        // Devices keep the kernels of all graphs that they ran.
        fleet.forget()?;
    }
    Ok(tally.faults())
}

/// Trains models of one layer or one optimizer for four steps on each adapter. Returns the number of
/// differences.
fn trained(flags: &Flags, adapters: &[Adapter]) -> usize {
    let (mut differences, mut ran) = (0, 0);
    for model in models() {
        let found = adapters.iter().map(|adapter| model.train(adapter)).collect::<Result<Vec<_>, _>>();
        ran += 1;
        match found {
            Err(error) => {
                println!("cannot be compared: {error}");
                differences += 1;
            }
            Ok(found) => {
                for (adapter, other) in adapters.iter().zip(&found).skip(1) {
                    if let Some(((name, _), _)) = found[0].iter().zip(other).find(|(own, other)| own != other)
                    {
                        println!(
                            "model {}: {name} differs after training on {}",
                            model.name,
                            adapter.label()
                        );
                        differences += 1;
                    }
                }
            }
        }
        if differences >= flags.most {
            break;
        }
    }
    println!("{ran} models of one layer or one optimizer, trained for four steps: {differences} differences");
    differences
}

/// Prints the differences and failures of a part.
fn shown(tally: Tally) -> Tally {
    tally.differences.iter().for_each(|difference| println!("{difference}"));
    tally.failures.iter().for_each(|error| println!("cannot be compared: {error}"));
    tally
}
