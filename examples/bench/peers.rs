//! A comparison with Burn on the same adapter (beside the CPU itself: on the system's software
//! adapter), or with Keras on the same cores: the same models, batches and
//! optimizer, each in its own processes, in turns.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use unisono::gpu::{Adapter, Backend, Kind, select};
use unisono_examples::{Error, Model, table};

use super::{Alone, Flags, command, counts, median, run};

/// The directory of Burn's program, which is a workspace of its own.
const BURN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/burn");

/// Keras's program, which needs no building.
const KERAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/keras/step.py");

/// A program that trains.
struct Peer {
    name: String,
    who: Who,
}

enum Who {
    /// Unisono with so many replicas.
    Unisono(u16),
    /// Burn with all cores of an adapter that is the host's own CPUs, or with its fastest adapter.
    Burn { cpu: bool },
    /// Keras with TensorFlow on all cores, started by this Python.
    Keras(PathBuf),
}

/// What a peer measured in a round.
struct Times {
    /// The time to the first step of a process on a machine that has never run it, in seconds.
    cold: f64,
    /// The time to the first step of a process on a machine that has run it before, in seconds.
    warm: f64,
    /// The median time of a step, in milliseconds.
    step: f64,
}

/// Prints a table for each model, and how the peers compare.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let adapters = select(&flags.adapter)?;
    let other = match &flags.keras {
        Some(python) => Peer { name: "Keras".into(), who: Who::Keras(python.clone()) },
        None => {
            build()?;
            Peer { name: "Burn 0.22.1".into(), who: Who::Burn { cpu: adapters[0].kind == Kind::Cpu } }
        }
    };
    let dir = std::env::temp_dir().join(format!("unisono-peers-{}", std::process::id()));
    let ours = counts(flags, &adapters).into_iter().map(|replicas| Peer {
        name: format!("Unisono, {replicas} replica{}", if replicas == 1 { "" } else { "s" }),
        who: Who::Unisono(replicas),
    });
    let peers: Vec<Peer> = ours.chain([other]).collect();
    let result = [Model::Mlp, Model::Cnn].into_iter().try_for_each(|model| {
        let flags = Flags { model, ..flags.clone() };
        let mut times: Vec<Vec<Times>> = peers.iter().map(|_| Vec::new()).collect();
        for _ in 0..flags.rounds {
            for (peer, times) in peers.iter().zip(&mut times) {
                times.push(round(peer, &flags, &adapters[0], &dir)?);
            }
        }
        report(&flags, &adapters[0].label(), &peers, &times)
    });
    // A failure to remove the files does not hide what was measured.
    let _ = fs::remove_dir_all(&dir);
    result
}

fn build() -> Result<(), Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(BURN).join("Cargo.toml");
    let status = Command::new(cargo)
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(manifest)
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("Burn's program does not build: {status}").into()) }
}

/// Runs a process that takes one step with empty caches, those of the driver and of Burn's autotuner, and
/// then one that finds the caches filled and takes all steps.
fn round(peer: &Peer, flags: &Flags, adapter: &Adapter, dir: &PathBuf) -> Result<Times, Error> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    let process = |steps| -> Result<Alone, Error> {
        let mut command = match &peer.who {
            Who::Unisono(replicas) => command(flags, *replicas, steps)?,
            Who::Burn { cpu } => burn(flags, *cpu, steps),
            Who::Keras(python) => keras(flags, python, steps),
        };
        // Burn keeps its cache beside the nearest Cargo.toml, if there is one.
        let command = command.current_dir(dir).env("XDG_CACHE_HOME", dir).env("MESA_SHADER_CACHE_DIR", dir);
        let found = run(command)?;
        // The CPU itself is an adapter for Unisono alone. Beside it Burn has the system's software
        // adapter.
        let is_other = match &peer.who {
            Who::Unisono(_) => false,
            Who::Burn { cpu } => *cpu && adapter.backend == Backend::Cpu,
            Who::Keras(_) => true,
        };
        if found.adapter == adapter.name || is_other {
            return Ok(found);
        }
        Err(format!("{} ran on {}, not on {}", peer.name, found.adapter, adapter.name).into())
    };
    let cold = process(0)?.first_step_s;
    let found = process(flags.steps)?;
    Ok(Times { cold, warm: found.first_step_s, step: found.step_ms })
}

/// Returns Burn's command with all cores. A driver on the host's CPUs uses threads of its own by
/// default; for Unisono this is turned off, for Burn it is not.
fn burn(flags: &Flags, cpu: bool, steps: u32) -> Command {
    let mut command = Command::new(Path::new(BURN).join("target/release/burn-peer"));
    command.env_remove("LP_NUM_THREADS");
    command.args(["--model", &flags.model.flag(), "--steps", &steps.to_string()]);
    command.args(["--warmup", &flags.warmup.to_string()]).args(cpu.then_some("--cpu"));
    command
}

/// Returns Keras's command.
fn keras(flags: &Flags, python: &Path, steps: u32) -> Command {
    let mut command = Command::new(python);
    command.args([KERAS, "--model", &flags.model.flag(), "--steps", &steps.to_string()]);
    command.args(["--warmup", &flags.warmup.to_string()]).env("TF_CPP_MIN_LOG_LEVEL", "3");
    command
}

fn report(flags: &Flags, adapter: &str, peers: &[Peer], times: &[Vec<Times>]) -> Result<(), Error> {
    let (model, batch) = (flags.model.name(), flags.batch());
    let mut out = stdout();
    writeln!(out, "{model}, batch {batch}, AdamW, on {adapter}; medians of {} rounds\n", flags.rounds)?;
    let other = peers.last().map_or("", |peer| &peer.name);
    let against = format!("against {other}: rate");
    let head =
        ["", "first step, cold", "first step, warm", "step", "samples a second", &against, "cold", "warm"];
    let columns: [fn(&Times) -> f64; 3] = [|times| times.cold, |times| times.warm, |times| times.step];
    let medians: Vec<[f64; 3]> =
        times.iter().map(|times| columns.map(|column| median(times.iter().map(column).collect()))).collect();
    let last = *medians.last().ok_or("nobody to compare with")?;
    let row = |(peer, own): (&Peer, &[f64; 3])| {
        let [cold, warm, step] = *own;
        vec![
            peer.name.clone(),
            format!("{cold:.2} s"),
            format!("{warm:.2} s"),
            format!("{step:.1} ms"),
            format!("{:.0}", 1e3 * batch as f64 / step),
            format!("{:.2} x", last[2] / step),
            format!("{:.1} %", 100.0 * cold / last[0]),
            format!("{:.1} %", 100.0 * warm / last[1]),
        ]
    };
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(peers.iter().zip(&medians).map(row));
    Ok(writeln!(out, "{}\n", table(&rows))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keras and Burn print no estimate of memory.
    #[test]
    fn lines_of_all_programs_are_read() {
        let keras = r#"{"adapter": "TensorFlow", "first_step_s": 3.5, "step_ms": 6.75}"#;
        let burn = r#"{"adapter":"llvmpipe","first_step_s":3.5,"step_ms":6.75,"loss":[2.5,0.5]}"#;
        for line in [keras, burn] {
            let found: Alone = serde_json::from_str(line).unwrap();
            assert_eq!((found.first_step_s, found.step_ms, found.promised_bytes), (3.5, 6.75, 0));
            assert!(found.taken.is_none());
        }
    }
}
