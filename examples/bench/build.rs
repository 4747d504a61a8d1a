//! What it takes to build deep models: each stage from the model's code to the plan of a step. No device
//! takes part, so kernels are written but not compiled.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use unisono::graph::{Program, Run, Target, simplify};
use unisono::{
    AdamW, BatchNorm, Chain, Context, Dense, Gradient, Layer, LayerNorm, Mode, Optimizer, Relu, Residual,
    Sequential, Tanh, Tape, Type, trace_update,
};
use unisono_examples::{Error, table};

/// The features of every layer.
const WIDTH: usize = 16;

/// A kind of deep model, and what one of its layers is.
type Kind = (&'static str, fn(Sequential) -> Sequential);

const KINDS: [Kind; 3] = [
    ("dense, relu", |model| model.add(Dense::new(WIDTH)).add(Relu)),
    ("residual (layer norm, dense, tanh)", |model| {
        model.add(Residual::new(Sequential::new().add(LayerNorm::new()).add(Dense::new(WIDTH)).add(Tanh)))
    }),
    ("dense, batch norm, relu", |model| model.add(Dense::new(WIDTH)).add(BatchNorm::new()).add(Relu)),
];

/// Prints a line for each kind of model and number of layers, with the time of each stage.
pub fn measure(layers: &[u32]) -> Result<(), Error> {
    let head =
        ["layer", "layers", "nodes", "trace", "gradients", "update", "simplify", "compile", "plan", "sum"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for (name, add) in KINDS {
        for &count in layers {
            let model = (0..count).fold(Sequential::new(), |model, _| add(model));
            let (nodes, times) = stages(&model)?;
            let sum = times.iter().sum::<Duration>();
            let mut line = vec![name.to_owned(), count.to_string(), nodes.to_string()];
            line.extend(times.iter().chain([&sum]).map(|time| format!("{:.2} s", time.as_secs_f64())));
            lines.push(line);
        }
    }
    Ok(writeln!(stdout(), "{}", table(&lines))?)
}

/// Returns the nodes of a training step, and the time of each stage. Compiling begins with simplifying, which
/// is timed on its own too, so that its time counts in `simplify` alone.
fn stages(model: &Sequential) -> Result<(usize, [Duration; 6]), Error> {
    let tape = Tape::new();
    let mut cx = Context::new(&tape, Mode::Train);
    let x = tape.input("x", Type::sample(&[WIDTH]));
    let (loss, trace) = timed(|| model.forward(&mut cx, &x).square().sum(&[-1]).sum_shards());
    let parameters = cx.parameters();
    let weights: Vec<_> = parameters.iter().map(|p| p.var.clone()).collect();
    let (gradients, differentiate) = timed(|| tape.gradients(&loss, &weights));
    let optimizer: Chain = AdamW::new(1e-3).clip_norm(1.0);
    let gradients = parameters.iter().zip(gradients).map(|(parameter, gradient)| Gradient {
        name: parameter.name.clone(),
        weight: parameter.var.clone(),
        gradient,
    });
    let gradients = gradients.collect();
    let ((), update) = timed(|| trace_update(&tape, &optimizer, gradients));
    let graph = tape.finish()?;
    let (_, simplifying) = timed(|| simplify(&graph));
    let (program, compiling) = timed(|| Program::compile(&graph));
    let program = program?;
    let (plan, planning) = timed(|| program.plan(&Run::whole(&[8, 8]), &Target::default()));
    plan?;
    let compiling = compiling.saturating_sub(simplifying);
    Ok((graph.nodes.len(), [trace, differentiate, update, simplifying, compiling, planning]))
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = f();
    (result, started.elapsed())
}
