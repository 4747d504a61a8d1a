//! Measures what a model of `unisono-models` takes: the memory that is promised and the memory that is taken,
//! and the time of a step.

use std::io::{Write, stdout};
use std::path::Path;

use unisono::data::{Loader, Memory, Values};
use unisono::gpu::{Kind, select};
use unisono::graph::DType;
use unisono::{AdamW, Trainer};
use unisono_examples::{Error, Refused, bytes, ids, numbers, table};
use unisono_models::{Architecture, Bert, Gpt2, Pretrained, ResNet, Vit, model_type};

use super::taken::Watch;
use super::{Flags, median, steps};

/// The fits of one epoch after which the memory is measured: the first audit and one that has a trusted state
/// behind it.
const FITS: u32 = 2;

/// Prints, for the model of a directory, the memory and the time of a step with AdamW on random data.
pub fn measure(flags: &Flags) -> Result<(), Error> {
    let dir = flags
        .known
        .as_deref()
        .ok_or_else(|| Refused("`known` needs --known DIR, a directory as transformers writes it".into()))?;
    match &*model_type(dir)? {
        "gpt2" => of::<Gpt2>(flags, dir),
        "bert" => of::<Bert>(flags, dir),
        "vit" => of::<Vit>(flags, dir),
        "resnet" => of::<ResNet>(flags, dir),
        other => Err(Refused(format!("{other:?} is not measured: gpt2, bert, vit, resnet")).into()),
    }
}

fn of<M: Architecture>(flags: &Flags, dir: &Path) -> Result<(), Error> {
    let base = Pretrained::<M>::open(dir)?;
    let batch = flags.batch.map_or(8, usize::from);
    let data = noise(&base, batch, flags.length as usize)?;
    // From here on the process takes what training takes.
    let memory = Watch::begin();
    let builder = Trainer::builder(base.model()).optimizer(AdamW::new(1e-4)).global_batch(batch);
    let builder = builder.shards(flags.shards as usize).replicas(1).precision(flags.precision);
    let builder = flags.adapter.iter().fold(builder, |builder, name| builder.adapter(name));
    let mut trainer = builder.build(&data.fields()?)?;
    base.load(&mut trainer)?;
    let promised = trainer.summary().memory.unwrap_or_default();
    for epochs in 1..=FITS {
        trainer.fit(&data, None, epochs)?;
    }
    let adapter = select(&flags.adapter)?.swap_remove(0);
    let taken = memory.end(&adapter);
    // An audit keeps the state before its step beside the trusted one. Both are in the host's memory, which
    // is the CPU's own.
    let on_host = if adapter.kind == Kind::Cpu { 2 * promised.audits } else { 0 };
    let all = promised.total() + on_host;
    let taken = taken.map_or_else(
        || "not told".to_owned(),
        |taken| format!("{} ({:.1} %)", bytes(taken.bytes), 100.0 * taken.bytes as f64 / all as f64),
    );
    let step = median(steps(&mut trainer, flags, &data)?);
    let rows = [
        ("state promised", bytes(promised.state)),
        ("scratch promised", bytes(promised.scratch)),
        ("audits promised, twice during an audit", bytes(promised.audits)),
        ("promised in all, on the adapter", bytes(all)),
        ("memory taken beyond the model and the data, at most", taken),
        ("step (median, input ready)", format!("{:.1} ms", 1e3 * step.as_secs_f64())),
    ];
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    Ok(writeln!(stdout(), "{}, batch {batch}, {}\n\n{}", M::MODEL_TYPE, flags.precision, table(&rows))?)
}

/// Makes two batches of random samples. Labels are 0 or 1, for each token if the model has an output for
/// each, or else for each sample.
fn noise<M: Architecture>(base: &Pretrained<M>, batch: usize, length: usize) -> Result<Loader, Error> {
    let (samples, input) = (2 * batch, base.architecture().input());
    let number = |at: usize| at.wrapping_mul(2_654_435_761) >> 7;
    let is_ids = input.dtype == DType::I32;
    let shape = if is_ids { vec![length] } else { input.dims };
    let count = samples * shape.iter().product::<usize>();
    let words = vocabulary(base.dir())?.min(1000);
    let x = match is_ids {
        true => Values::I32((0..count).map(|at| (number(at) % words) as i32).collect()),
        false => Values::F32((0..count).map(|at| (number(at) % 2001) as f32 / 1000.0 - 1.0).collect()),
    };
    let x_field = if is_ids { ids("x", &shape) } else { numbers("x", &shape) };
    // The loss takes labels with the axes of the output, which is traced without a device.
    let of_tokens = [x_field, ids("y", &[length])];
    let each_token = is_ids && Trainer::builder(base.model()).count_parameters(&of_tokens).is_ok();
    let labels = if each_token { vec![length] } else { vec![] };
    let y = (0..samples * labels.iter().product::<usize>()).map(|at| (number(at) % 2) as i32).collect();
    Ok(Loader::new(Memory::new("x", &shape[..], x)?.with("y", &labels[..], Values::I32(y))?).batch(batch))
}

/// Returns the number of ids that the model of a directory knows. Models of pictures have none.
fn vocabulary(dir: &Path) -> Result<usize, Error> {
    let text = std::fs::read(dir.join("config.json")).unwrap_or_else(|_| b"{}".to_vec());
    let config: serde_json::Value = serde_json::from_slice(&text)?;
    Ok(config["vocab_size"].as_u64().map_or(usize::MAX, |words| words.max(1) as usize))
}
