//! The part `units`: times matrix products in mixed precision with and without the adapter's matrix unit, and
//! prints JSON. If kernels can use no unit, it prints the reason.

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};
use unisono::gpu::{Adapter, Backend, Device, Options, select};
use unisono_examples::{Error, program};

use super::speed::{LONG, product};

#[derive(Parser)]
pub struct Flags {
    /// The adapter
    #[arg(long, value_name = "NAME")]
    adapter: String,
    /// The rows of the largest product. The smallest has an eighth of them
    #[arg(long, value_name = "N", default_value_t = 8192)]
    most: usize,
}

pub fn main() -> ExitCode {
    program(measure)
}

fn measure(flags: Flags) -> Result<(), Error> {
    let adapter = select(&[flags.adapter])?.swap_remove(0);
    if adapter.backend == Backend::Cpu {
        let lacks =
            "the CPU has no matrix unit; it only computes a unit's results in software, to check them";
        return Ok(writeln!(stdout(), "{}", json!({ "lacks": lacks }))?);
    }
    let facts = match adapter.with_matrix_units() {
        // The probe compares the unit's results with exact ones before anything is timed.
        Ok(by_unit) => {
            let class = unisono::probe(&by_unit)?.to_string();
            let cpus: Vec<String> =
                unisono::cpus_of(&class).into_iter().map(|cpu| format!("cpu:{cpu}")).collect();
            let products = products(&adapter, &by_unit, flags.most)?;
            json!({ "class": class, "cpus_of_the_same_class": cpus, "products": products })
        }
        Err(error) => json!({ "lacks": error.to_string() }),
    };
    Ok(writeln!(stdout(), "{facts}")?)
}

/// Returns the times of products of n x n matrices, without the unit and with it.
fn products(plain: &Adapter, by_unit: &Adapter, most: usize) -> Result<Vec<Value>, Error> {
    let open = |adapter| Device::open_with(adapter, Options::default().with(|options| options.f16 = true));
    let mut devices = [open(plain)?, open(by_unit)?];
    let mut all = Vec::new();
    let mut n = most / 8;
    while n <= most {
        let [mixed, units] = &mut devices;
        let [mixed, units] = [product(mixed, n, true)?, product(units, n, true)?];
        let tera = 2.0 * (n as f64).powi(3) / units.as_secs_f64() / 1e12;
        let [mixed_ms, units_ms] = [mixed, units].map(|took| 1e3 * took.as_secs_f64());
        all.push(json!({ "what": format!("{n} x {n} x {n}"), "mixed_ms": mixed_ms, "units_ms": units_ms,
            "times": mixed_ms / units_ms, "units_tflop_per_s": tera }));
        if mixed.max(units) > LONG {
            break;
        }
        n *= 2;
    }
    Ok(all)
}
