//! Replicas together compute what one GPU would compute on the whole batch. They are compared with the f64
//! interpreter.

use unisono::data::{Batch, Values};
use unisono::graph::{Array, Feed, Frame, InputKind, RandomKey, interpret};
use unisono::{LossScale, Optimizer, Precision, Scalar, Trainer};
use unisono_testkit::relative_error;
use unisono_tests::{loader, perceptron};

/// A trainer in f64: the same graph of a step, with the whole batch as one shard.
struct Twin {
    states: Vec<Array>,
    optimizer: unisono::AdamW,
    seed: u64,
}

impl Twin {
    fn of(trainer: &mut Trainer) -> Self {
        let decls = trainer.program(unisono::ProgramId::Train).states().to_vec();
        let states = decls
            .iter()
            .map(|s| {
                let values = trainer.tensor(&s.name).unwrap().unwrap();
                Array::new(&s.ty.dims, values.into_iter().map(f64::from).collect())
            })
            .collect();
        Self { states, optimizer: unisono::AdamW::new(0.01), seed: 11 }
    }

    /// Takes a step and returns the losses of the samples.
    fn step(&mut self, trainer: &Trainer, batch: &Batch, step: u64) -> Vec<f64> {
        let graph = trainer.program(unisono::ProgramId::Train).graph();
        let mut scalars = self.optimizer.scalars(step);
        if let Some(scaling) = trainer.scaling() {
            let seed = scaling.scale / 32.0;
            scalars.extend([Scalar::new("loss scale", seed), Scalar::new("1 / loss scale", 1.0 / seed)]);
        }
        let key = RandomKey { seed: self.seed, epoch: batch.epoch, position: batch.first };
        let inputs = graph.inputs.iter().map(|input| match (input.kind, batch.field(&input.name)) {
            (InputKind::Random, _) => Array::new(&[8], key.words().iter().map(|&w| f64::from(w)).collect()),
            (_, Some(field)) => Array::new(&field.shape, numbers(&field.values)),
            (_, None) => {
                let scalar = scalars.iter().find(|s| s.name == input.name).unwrap();
                Array::scalar(f64::from(scalar.value))
            }
        });
        let feed = Feed {
            frame: Frame { shards: vec![batch.len()] },
            inputs: inputs.collect(),
            states: self.states.clone(),
        };
        let outcome = interpret(graph, &feed);
        outcome.updates.into_iter().for_each(|(state, value)| self.states[state] = value);
        outcome.outputs["loss"].data.clone()
    }
}

fn numbers(values: &Values) -> Vec<f64> {
    match values {
        Values::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
        Values::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
    }
}

/// Returns the largest relative error over the states whose name ends in `suffix`.
fn worst(trainer: &mut Trainer, twin: &Twin, suffix: &str) -> f64 {
    let names: Vec<String> =
        trainer.program(unisono::ProgramId::Train).states().iter().map(|s| s.name.clone()).collect();
    let compared: Vec<f64> = names
        .iter()
        .zip(&twin.states)
        .filter(|(name, _)| name.ends_with(suffix))
        .map(|(name, expected)| relative_error(&trainer.tensor(name).unwrap().unwrap(), expected))
        .collect();
    assert_eq!(compared.len(), 2, "two layers have a {suffix}");
    compared.into_iter().fold(0.0, f64::max)
}

#[test]
fn loss_gradients_and_weights_equal_the_whole_batchs() {
    // There are 100 samples in batches of 24. The fifth batch is ragged and leaves shards empty.
    let data = loader(100, 3).unwrap().batch(24);
    let builder = perceptron(20).replicas(3).global_batch(24).shards(7);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let mut twin = Twin::of(&mut trainer);
    let batches: Vec<Batch> =
        (0..2).flat_map(|epoch| data.epoch(epoch).unwrap().map(Result::unwrap).collect::<Vec<_>>()).collect();
    assert_eq!(batches.len(), 10);
    assert_eq!(batches[4].len(), 4);
    // First comes the ragged batch alone on new weights, then the ten steps. AdamW's first average is a tenth
    // of the gradient.
    for first in [4, 0] {
        let mut fresh =
            perceptron(20).replicas(3).global_batch(24).shards(7).build(&data.fields().unwrap()).unwrap();
        let mut twin = Twin::of(&mut fresh);
        let losses = twin.step(&fresh, &batches[first], 0);
        let step = fresh.step(&batches[first]).unwrap();
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!((step.now.loss - mean).abs() <= 1e-5 * mean, "loss {} and {mean}", step.now.loss);
        for suffix in ["weight/exp_avg", "bias/exp_avg"] {
            let error = worst(&mut fresh, &twin, suffix);
            assert!(error <= 1e-5, "batch {first}, {suffix}: {error:e}");
        }
    }
    for (step, batch) in batches.iter().enumerate() {
        twin.step(&trainer, batch, step as u64);
        trainer.step(batch).unwrap();
    }
    for suffix in [".weight", ".bias"] {
        let error = worst(&mut trainer, &twin, suffix);
        assert!(error <= 2e-4, "after ten steps, {suffix}: {error:e}");
    }
}

/// The interpreter rounds to f16 too, but sums in f64 and in f32 may round to neighbouring f16 numbers.
#[test]
fn mixed_precision_is_that_of_the_whole_batch_too() {
    let data = loader(100, 3).unwrap().batch(24);
    let build = |precision| {
        let builder = perceptron(20).replicas(3).global_batch(24).shards(7).precision(precision);
        builder.loss_scale(LossScale::Fixed(4096.0)).build(&data.fields().unwrap()).unwrap()
    };
    let batches: Vec<Batch> = data.epoch(0).unwrap().map(Result::unwrap).collect();
    for first in [4, 0] {
        let mut mixed = build(Precision::Mixed);
        let mut twin = Twin::of(&mut mixed);
        let losses = twin.step(&mixed, &batches[first], 0);
        let step = mixed.step(&batches[first]).unwrap();
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!((step.now.loss - mean).abs() <= 1e-4 * mean, "loss {} and {mean}", step.now.loss);
        let mut full = build(Precision::F32);
        full.step(&batches[first]).unwrap();
        for suffix in ["weight/exp_avg", "bias/exp_avg"] {
            let (own, others) = (worst(&mut mixed, &twin, suffix), worst(&mut full, &twin, suffix));
            assert!(own <= 2e-4, "batch {first}, {suffix}: {own:e}");
            assert!(
                others > own && others < 5e-3,
                "f32 is another answer, not far away: {others:e}, {own:e}"
            );
        }
    }
}
