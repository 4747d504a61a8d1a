//! Trains on handwritten digits, exports the model, and predicts with it as another program would: whole
//! arrays, and single rows of many threads.
//!
//!     cargo run --release -p unisono-examples --bin export_predict -- --replicas 2

use std::process::ExitCode;
use std::time::Duration;

use unisono::checkpoint::WeightPrecision;
use unisono::data::{Column, Csv, Field, Sample};
use unisono::{Accuracy, AdamW, Dense, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, Scratch, accuracy, data, say};

const DEFAULTS: Defaults = Defaults { epochs: 10, global_batch: 64, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program("Trains, exports and predicts", export_predict)
}

fn export_predict(run: Run) -> Result<(), Error> {
    let digits = Csv::new(data(None, "digits.csv.gz")).label(Column::Last).read()?;
    let (train, held_out) = run.loader(digits).shuffle(run.seed).validation_split(0.2)?;
    let model = Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(2e-3)).metric(Accuracy);
    let mut trainer = run.train(builder, &train, &held_out)?;
    let expected = trainer.predict(&held_out)?;
    let dir = Scratch::new("export")?;
    let path = dir.join("digits.safetensors");
    trainer.export(&path, WeightPrecision::F32)?;
    let claimed = DEFAULTS.claim_of(&trainer, "accuracy on the validation set", accuracy(&trainer), 0.94);
    drop(trainer);

    // From here on it could be another program.
    let mut predictor = run.predictor().replicas(2).batch(128).open(&path)?;
    let all = predictor.predict(&held_out)?;
    let logits = &all.get("output").ok_or("the model has no output")?.values;
    if *logits != expected {
        return Err("the exported model predicts otherwise than the trainer".into());
    }
    say!("{}", predictor.report());

    let server = predictor.serve(Duration::from_millis(5))?;
    let rows = held_out.clone().batch(1).epoch(0)?.take(64).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        let ask = |(row, expected): (&unisono::data::Batch, &[f32])| {
            let sample = Sample::new().with("x", Field::f32([64], row.f32("x")?));
            let (client, expected) = (server.client(), expected.to_vec());
            Ok::<_, Error>(
                scope.spawn(move || client.predict(sample).is_ok_and(|row| row.values() == expected)),
            )
        };
        let asked = rows.iter().zip(logits.chunks(10)).map(ask).collect::<Result<Vec<_>, _>>()?;
        let right = asked.into_iter().all(|thread| thread.join().unwrap_or(false));
        if right { Ok(()) } else { Err(Error::from("a single row is predicted otherwise than in its batch")) }
    })?;
    say!("{}", server.stop()?.report());
    claimed
}
