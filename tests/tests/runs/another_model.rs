//! A run is resumed as itself only: where the learning rate, a layer without weights, a number of the
//! optimizer or the data are others, resuming is refused, and what differs is named.

use std::path::Path;

use unisono::data::{Loader, Memory};
use unisono::{
    AdamW, Chain, Dense, Dropout, Flatten, FromFn, Gru, Initializer, Layer, Lstm, Optimizer, Recompute, Relu,
    Schedule, Sequential, Sgd, SimpleRnn, Tanh, Trainer,
};

/// Returns samples whose first 15 labels are always the same.
fn data(last: f32) -> Loader {
    let pixels: Vec<f32> =
        (0..16 * 6).map(|i| if i < 16 * 6 - 1 { (i % 7) as f32 / 7.0 } else { last }).collect();
    let labels: Vec<i32> = (0..16).map(|i| i % 3).collect();
    Loader::new(Memory::labelled(pixels, [6], labels).unwrap()).shuffle(3)
}

fn model(activation: impl Layer + 'static, rate: f32) -> Sequential {
    Sequential::new().add(Dense::new(5)).add(activation).add(Dropout::new(rate)).add(Dense::new(3))
}

fn trainer(dir: &Path, model: Sequential, optimizer: impl Into<Chain>) -> Trainer {
    let builder = Trainer::builder(model).optimizer(optimizer).global_batch(8).replicas(1);
    let mut trainer = builder.build(&data(0.5).fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer
}

/// Returns why a run with the first model and optimizer is not resumed with the second.
fn refusal<A: Into<Chain>, B: Into<Chain>>(first: (Sequential, A), second: (Sequential, B)) -> String {
    let dir = tempfile::tempdir().unwrap();
    trainer(dir.path(), first.0, first.1).fit(&data(0.5), None, 1).unwrap();
    let mut other = trainer(dir.path(), second.0, second.1);
    let before = other.state_sha256().unwrap();
    let error = match other.resume() {
        Ok(_) => return "nothing is said".to_owned(),
        Err(error) => error.to_string(),
    };
    assert_eq!(other.state_sha256().unwrap(), before, "a refused resume changes nothing");
    assert!(other.force_resume().unwrap().unwrap().differs.iter().all(|differs| error.contains(differs)));
    error
}

fn same<A: Into<Chain>, B: Into<Chain>>(first: A, second: B) -> String {
    refusal((model(Relu, 0.1), first), (model(Relu, 0.1), second))
}

#[test]
fn another_learning_rate() {
    let error = same(AdamW::new(0.001), AdamW::new(0.01));
    assert!(error.ends_with("the optimizer's lr of the run is 0.001, not 0.01"), "{error}");
}

#[test]
fn other_numbers_of_the_optimizer() {
    let error = same(AdamW::new(0.1).weight_decay(0.01), AdamW::new(0.1).weight_decay(0.1));
    assert!(error.ends_with("the optimizer's weight_decay of the run is 0.01, not 0.1"), "{error}");
    let error = same(Sgd::new(0.1).momentum(0.9), Sgd::new(0.1).momentum(0.8));
    assert!(error.ends_with("the optimizer's momentum of the run is 0.9, not 0.8"), "{error}");
    let error = same(Sgd::new(0.1).clip_norm(1.0), Sgd::new(0.1).clip_norm(2.0));
    assert!(
        error.ends_with("the optimizer's transforms of the run is ClipNorm(1), not ClipNorm(2)"),
        "{error}"
    );
    let error = same(Sgd::new(Schedule::cosine(0.1, 100)), Sgd::new(Schedule::cosine(0.1, 200)));
    let schedules = "cosine from 0.1 to 0 in 100 steps, not cosine from 0.1 to 0 in 200 steps";
    assert!(error.ends_with(schedules), "{error}");
}

#[test]
fn what_functions_choose_is_in_the_training_step() {
    let weights = |name: &str| name.ends_with("weight");
    let error = same(
        AdamW::new(0.1).decay_exempt(|name| name == "0.weight"),
        AdamW::new(0.1).decay_exempt(move |name| weights(name)),
    );
    assert!(error.contains("the training step of \"adamw of 3.weight\" of the run is"), "{error}");
}

#[test]
fn another_layer_without_weights() {
    let sgd = || Sgd::new(0.1);
    let error = refusal((model(Tanh, 0.1), sgd()), (model(Relu, 0.1), sgd()));
    assert!(
        error.ends_with("the model's layer \"1.tanh\" of the run is [tanh] to [B, 5], not [relu] to [B, 5]"),
        "{error}"
    );
    let error = refusal((model(Relu, 0.1), sgd()), (model(Relu, 0.2), sgd()));
    assert!(error.contains("the model's layer \"2.dropout\" of the run is [dropout 0.1 "), "{error}");
    assert!(error.contains(" not [dropout 0.2 "), "{error}");
    let with = |start| Sequential::new().add(Dense::new(3).initializer(start));
    let error = refusal((with(Initializer::HeNormal), sgd()), (with(Initializer::Normal(0.1)), sgd()));
    assert!(error.ends_with("the start of 0.weight of the run is HeNormal, not Normal(0.1)"), "{error}");
}

#[test]
fn the_same_run_written_another_way_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    trainer(dir.path(), model(Relu, 0.1), Sgd::new(0.1)).fit(&data(0.5), None, 1).unwrap();
    let layers = Sequential::new().add(Dense::new(5).input(6)).add(Recompute::new(Relu));
    let layers = layers.add(Recompute::new(Dropout::new(0.1))).add(Recompute::new(Dense::new(3).input(5)));
    let mut again = trainer(dir.path(), layers, Sgd::new(Schedule::from(0.1)));
    assert!(again.resume().unwrap().unwrap().differs.is_empty());
    again.fit(&data(0.5), None, 2).unwrap();
}

/// A recurrent layer saves its gates together, also if it is computed a second time for the gradients.
/// Neither the bits nor the identity change.
#[test]
fn a_recurrent_layer_that_is_computed_twice_is_the_same_run() {
    let model = |cell: &dyn Fn() -> Box<dyn Layer>, recomputes: bool| {
        let layers = Sequential::new().add(FromFn::new("steps", |_, x| x.reshape(&[3, 2])));
        let layers = match recomputes {
            true => layers.add(Recompute::new(cell())),
            false => layers.add(cell()),
        };
        layers.add(Flatten).add(Dense::new(3))
    };
    let cells: [&dyn Fn() -> Box<dyn Layer>; 3] =
        [&|| Box::new(Lstm::new(4)), &|| Box::new(Gru::new(4)), &|| Box::new(SimpleRnn::new(4))];
    for cell in cells {
        let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut whole = trainer(other.path(), model(cell, false), Sgd::new(0.1));
        whole.fit(&data(0.5), None, 2).unwrap();
        trainer(dir.path(), model(cell, false), Sgd::new(0.1)).fit(&data(0.5), None, 1).unwrap();
        let mut again = trainer(dir.path(), model(cell, true), Sgd::new(0.1));
        assert!(again.resume().unwrap().unwrap().differs.is_empty());
        again.fit(&data(0.5), None, 2).unwrap();
        assert_eq!(again.state_sha256().unwrap(), whole.state_sha256().unwrap());
    }
}

#[test]
fn other_data_of_the_same_kind_are_refused_before_anything_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    trainer(dir.path(), model(Relu, 0.1), Sgd::new(0.1)).fit(&Blind::new(0.5), None, 1).unwrap();
    let steps = || unisono::checkpoint::list(dir.path()).unwrap().len();
    let saved = steps();
    let mut again = trainer(dir.path(), model(Relu, 0.1), Sgd::new(0.1));
    again.resume().unwrap().unwrap();
    let error = again.fit(&Blind::new(0.75), None, 3).unwrap_err().to_string();
    assert_eq!(error, "data: the data are not those of the run: samples 15 to 15 differ");
    assert_eq!(steps(), saved);
    // Steps may have been done on the other data before it was known.
    again.resume().unwrap().unwrap();
    again.fit(&Blind::new(0.5), None, 3).unwrap();
}

/// Data whose quick fingerprint says nothing of their content, as that of a folder does.
struct Blind(Loader);

impl Blind {
    #[expect(clippy::new_ret_no_self, reason = "a loader of it is what fits take")]
    fn new(last: f32) -> Loader {
        Loader::new(Self(data(last))).shuffle(3)
    }
}

impl unisono::data::Source for Blind {
    fn len(&self) -> u64 {
        self.0.source().len()
    }
    fn fields(&self) -> &[unisono::data::FieldSpec] {
        self.0.source().fields()
    }
    fn fetch(&self, index: u64) -> Result<unisono::data::Sample, unisono::data::DataError> {
        self.0.source().fetch(index)
    }
    fn coverage(&self) -> unisono::data::Coverage {
        unisono::data::Coverage::Hashed
    }
}

#[test]
fn another_version_of_a_transform_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mixed = |version: &str| data(0.5).map_batch("mix", |_, _| Ok(())).version(version);
    trainer(dir.path(), model(Relu, 0.1), Sgd::new(0.1)).fit(&mixed("1"), None, 1).unwrap();
    let mut again = trainer(dir.path(), model(Relu, 0.1), Sgd::new(0.1));
    again.resume().unwrap().unwrap();
    let error = again.fit(&mixed("2"), None, 2).unwrap_err().to_string();
    assert!(
        error.ends_with("transforms: map_batch 'mix' version 1, not map_batch 'mix' version 2"),
        "{error}"
    );
    again.fit(&mixed("1"), None, 2).unwrap();
}
