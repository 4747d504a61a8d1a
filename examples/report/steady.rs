//! The part `steady`: memory stays the same over 2,000 steps.

use std::fs;
use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use unisono::data::Position;
use unisono::{AdamW, Trainer};
use unisono_examples::{Error, Model, program};

#[derive(Parser)]
pub struct Flags {
    /// The adapter
    #[arg(long, value_name = "NAME")]
    adapter: String,
    /// The number of steps
    #[arg(long, value_name = "N", default_value_t = 2000)]
    steps: usize,
}

/// The growth of the process that nothing is wrong with: allocators keep some.
const FLAT: u64 = 32 << 20;

pub fn main() -> ExitCode {
    program(measure)
}

fn measure(flags: Flags) -> Result<(), Error> {
    let data = Model::Cnn.noise(32)?;
    let builder = Trainer::builder(Model::Cnn.layers()).optimizer(AdamW::new(1e-3)).global_batch(32);
    let mut trainer = builder.adapter(&flags.adapter).replicas(1).build(&data.fields()?)?;
    let warm = flags.steps / 5;
    let (mut before, mut steps) = (0, 0);
    for batch in data.epochs_from(Position::default())?.take(flags.steps) {
        trainer.step(&batch?)?;
        steps += 1;
        if steps == warm {
            before = resident()?;
        }
    }
    let after = resident()?;
    writeln!(stdout(), "{}", json!({ "steps": steps, "resident_before": before, "resident_after": after }))?;
    if after > before + FLAT {
        return Err(format!("memory grew from {before} to {after} bytes in {} steps", steps - warm).into());
    }
    Ok(())
}

/// Returns the bytes of this process that are in memory; 0 on other systems than Linux.
fn resident() -> Result<u64, Error> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).map_or(Ok(0), str::parse::<u64>);
    Ok(1024 * number?)
}
