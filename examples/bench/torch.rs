//! A comparison with PyTorch on the same cores: the same models, batches and optimizer, each program in its
//! own processes, in turns.

use std::io::{Write, stdout};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use unisono::gpu::select;
use unisono_examples::{Error, Model, say, table};

use super::{Flags, command, median, run};

/// PyTorch's program.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/torch/step.py");
/// The models that take less than a second on a CPU.
const MODELS: [Model; 8] = [
    Model::Mlp,
    Model::Wide,
    Model::Cnn,
    Model::Conv,
    Model::Lstm,
    Model::Gpt,
    Model::Resnet18,
    Model::BertMini,
];

/// Prints the median time of a step of each model, here and in PyTorch, eager and compiled.
pub fn measure(flags: &Flags, python: &Path) -> Result<(), Error> {
    let adapter = select(&flags.adapter)?.swap_remove(0);
    let cores = std::thread::available_parallelism()?;
    let mut out = stdout();
    writeln!(
        out,
        "AdamW, on {}, {cores} cores; medians of {} rounds of {} steps\n",
        adapter.label(),
        flags.rounds,
        flags.steps
    )?;
    let mut rows = vec![
        ["model", "Unisono", "PyTorch", "PyTorch, compiled", "of PyTorch's time"].map(str::to_owned).to_vec(),
    ];
    let mut version = String::new();
    for model in MODELS {
        let flags = Flags { model, ..flags.clone() };
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..flags.rounds {
            times[0].push(run(&mut command(&flags, 1, flags.steps)?)?.step_ms);
            for (times, compiled) in times[1..].iter_mut().zip([false, true]) {
                let (time, own) = torch(&flags, python, compiled, cores.get())?;
                times.push(time);
                version = own;
            }
        }
        let [own, eager, compiled] = times.map(median);
        let ms = |time: f64| if time.is_finite() { format!("{time:.2} ms") } else { "-".to_owned() };
        // The table comes after an hour.
        say!("{}: {} here, {} in PyTorch", model.flag(), ms(own), ms(eager.min(compiled)));
        rows.push(vec![
            model.flag(),
            ms(own),
            ms(eager),
            ms(compiled),
            format!("{:.2} x", own / eager.min(compiled)),
        ]);
    }
    Ok(writeln!(out, "{}\n\nPyTorch {version}; its faster way counts", table(&rows))?)
}

/// Runs PyTorch on a model. Returns the milliseconds of a step, and its version.
fn torch(flags: &Flags, python: &Path, compiled: bool, threads: usize) -> Result<(f64, String), Error> {
    let mut command = Command::new(python);
    command.args([PROGRAM, "--device", "cpu", "--model", &flags.model.flag()]);
    command.args(["--steps", &flags.steps.to_string(), "--warmup", &flags.warmup.to_string()]);
    command.args(["--threads", &threads.to_string()]).args(compiled.then_some("--compile"));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let found: Value = serde_json::from_str(line).map_err(|_| {
        format!("{} {PROGRAM} gave no times: {}", python.display(), String::from_utf8_lossy(&output.stderr))
    })?;
    match found["step_ms"].as_f64() {
        Some(time) => Ok((time, found["torch"].as_str().unwrap_or_default().to_owned())),
        // Without a C++ compiler PyTorch compiles nothing.
        None if compiled => Ok((f64::INFINITY, found["torch"].as_str().unwrap_or_default().to_owned())),
        None => Err(format!("PyTorch on {}: {}", flags.model.flag(), found["error"]).into()),
    }
}
