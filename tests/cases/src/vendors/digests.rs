//! What one adapter gives as lines of text, so that machines of several kinds can be compared: one of them
//! may be emulated.

use std::path::Path;

use unisono_gpu::{Adapter, Options};
use unisono_replica::probe_now;

use super::{Bench, Values, fuzz, has_nan, models, ops, suites};

/// After so many subjects the device's kernels are dropped.
const CHUNK: usize = 250;

/// Calls `line` with the class of an adapter, and with a digest and the name of each op with its gradient,
/// each case of the oracle's suites, each model, and so many random graphs. Of `every` subjects one is run. A
/// subject that makes a NaN has no digest: what follows from one is not promised.
///
/// # Errors
/// The adapter does not open, or does not run a subject.
pub fn digests(
    adapter: &Adapter,
    oracle: &Path,
    graphs: u64,
    every: usize,
    line: &mut dyn FnMut(String),
) -> Result<(), String> {
    let class = probe_now(adapter).map_err(|error| error.to_string())?;
    line(format!("{:.16} class", class.digest.to_string()));
    for model in models().iter().step_by(every) {
        line(of(&format!("model {}", model.name), &model.train(adapter)?));
    }
    let mut subjects = ops()?;
    subjects.extend(suites(oracle)?);
    for seed in 0..graphs {
        subjects.push(fuzz(seed)?);
    }
    let mut bench = Bench::open(adapter, Options::default())?;
    for (number, subject) in subjects.iter().step_by(every).enumerate() {
        if number % CHUNK == CHUNK - 1 {
            bench.forget()?;
        }
        line(of(&subject.name, &bench.run(subject)?));
    }
    Ok(())
}

/// Returns the line of a subject.
fn of(name: &str, values: &Values) -> String {
    if has_nan(values) {
        return format!("-------- NaN -- {name}");
    }
    // FNV-1a.
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for byte in values
        .iter()
        .flat_map(|(name, bits)| name.bytes().chain(bits.iter().flat_map(|bits| bits.to_le_bytes())))
    {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{digest:016x} {name}")
}
