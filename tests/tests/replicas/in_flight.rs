//! Two steps in flight on one replica: a run that overlaps its steps has the same bytes, history, checkpoints
//! and errors as one that does not, and as one on several replicas.

use std::path::Path;
use std::sync::{Arc, Mutex};

use unisono::checkpoint::list;
use unisono::data::{Buckets, Draws, Loader, Sample, Sequences, Tokens, Width};
use unisono::{
    Audits, BatchNorm, Builder, Callback, Control, Dense, Embedding, Epoch, Error, FromFn, Influence,
    LossScale, Lstm, Observer, Optimizer, Phase, Precision, Relu, Schedule, Sequential, Sgd, Step, Trainer,
    on_step,
};
use unisono_tests::{CLASSES, loader, perceptron};

const SAMPLES: usize = 90;
/// The steps of an epoch, the last of which is ragged.
const STEPS: u64 = 6;

fn data() -> (Loader, Loader) {
    (loader(SAMPLES, 5).unwrap(), loader(20, 6).unwrap())
}

/// Makes a builder differ in how its steps are made.
fn made(builder: Builder, replicas: usize, in_flight: usize) -> Builder {
    builder.global_batch(16).replicas(replicas).steps_in_flight(in_flight)
}

/// A perceptron with dropout that is trained by AdamW with a schedule.
fn adam() -> Builder {
    perceptron(8).optimizer(unisono::AdamW::new(Schedule::cosine(0.02, 40).warm_up(5)))
}

/// A model with batch norm: a step has several cuts, and statistics that are replaced.
fn norms() -> Builder {
    let model = Sequential::new()
        .add(Dense::new(8))
        .add(BatchNorm::new())
        .add(Relu)
        .add(Dense::new(6))
        .add(BatchNorm::new())
        .add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(Sgd::new(0.1).momentum(0.9)).seed(3)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().0.fields().unwrap()).unwrap()
}

/// Keeps what it is told of steps.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<String>>>);

impl Observer for Steps {
    fn step(&mut self, step: &Step) {
        self.0.lock().unwrap().push(format!("{step:?}"));
    }
}

fn overlapped(trainer: &Trainer) -> u64 {
    trainer.reports().iter().map(|report| report.overlapped).sum()
}

#[test]
fn overlapping_steps_change_no_byte_and_nothing_that_observers_see() {
    let (train, held_out) = data();
    for model in [adam, norms] {
        let run = |replicas, in_flight, audits| {
            let steps = Steps::default();
            let builder = made(model(), replicas, in_flight).audits(audits).observer(steps.clone());
            let mut trainer = build(builder);
            trainer.fit(&train, Some(&held_out), 5).unwrap();
            let history = format!("{:?}", trainer.history());
            let steps = steps.0.lock().unwrap().clone();
            ((trainer.state_sha256().unwrap(), history, steps), overlapped(&trainer))
        };
        let (expected, none) = run(1, 1, Audits::Never);
        assert_eq!((none, expected.2.len() as u64), (0, 5 * STEPS));
        let (found, overlaps) = run(1, 2, Audits::Never);
        assert_eq!(found, expected);
        // The first step of an epoch has none before it; the last one of the run is begun alone.
        assert_eq!(overlaps, 5 * (STEPS - 1) - 1);
        assert_eq!(run(3, 2, Audits::Never), (expected.clone(), 0));
        let (found, overlaps) = run(1, 2, Audits::Every(4));
        assert_eq!(found, expected);
        assert!((1..5 * (STEPS - 1) - 1).contains(&overlaps), "{overlaps}");
    }
}

/// Returns the steps and the hashes of all checkpoints.
fn saved(dir: &Path) -> Vec<(u64, Vec<u8>)> {
    let read = |(step, path): (u64, std::path::PathBuf)| {
        let file = |name: &str| std::fs::read(path.join(name)).unwrap();
        (step, [file("model.safetensors"), file("optimizer.safetensors"), file("trainer.json")].concat())
    };
    list(dir).unwrap().into_iter().map(read).collect()
}

#[test]
fn checkpoints_are_those_of_the_same_steps_and_resume() {
    let (train, held_out) = data();
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let save = |dir: &Path| unisono::Saving::new(dir).every(4).keep_every(4);
    for (dir, (replicas, in_flight)) in dirs.iter().zip([(1, 1), (1, 2), (1, 2)]) {
        let mut trainer = build(made(adam(), replicas, in_flight).audits(Audits::Never));
        trainer.save_to(save(dir.path())).unwrap();
        let epochs = if dir.path() == dirs[2].path() { 2 } else { 4 };
        trainer.fit(&train, Some(&held_out), epochs).unwrap();
        assert_eq!(overlapped(&trainer) > 0, in_flight > 1);
    }
    let mut resumed = build(made(adam(), 1, 2).audits(Audits::Never));
    resumed.save_to(save(dirs[2].path())).unwrap();
    assert_eq!(resumed.resume().unwrap().unwrap().step, 2 * STEPS);
    resumed.fit(&train, Some(&held_out), 4).unwrap();
    let expected = saved(dirs[0].path());
    assert_eq!(expected.len(), 6);
    let [one, two, again] = [0, 1, 2].map(|at| saved(dirs[at].path()));
    assert_eq!(
        one.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        two.iter().map(|(step, _)| *step).collect::<Vec<_>>()
    );
    assert!(one == two, "checkpoints differ");
    assert!(one.first() == again.first(), "the resumed run differs");
}

/// Makes one sample of the data bad.
fn with_bad_sample(at: u64) -> Loader {
    let spoil = move |sample: &mut Sample, draws: &mut Draws| {
        let _ = draws;
        if let Some(x) = sample.f32_mut("x")
            && x[0].to_bits() as u64 % SAMPLES as u64 == at
        {
            x[0] = f32::MAX;
            x[1] = f32::MAX;
        }
    };
    data().0.map("spoil", spoil)
}

#[test]
fn errors_name_the_same_step_sample_and_tensor() {
    let mut errors = 0;
    for at in 0..5 {
        let train = with_bad_sample(at);
        let run = |replicas, in_flight| {
            let mut trainer = build(made(norms(), replicas, in_flight));
            let result = trainer.fit(&train, None, 2).map(drop).map_err(|error| error.to_string());
            (result, trainer.steps(), trainer.state_sha256().map_err(|error| error.to_string()))
        };
        let expected = run(1, 1);
        errors += usize::from(expected.0.is_err());
        assert_eq!(run(1, 2), expected);
        assert_eq!(run(3, 1), expected);
    }
    assert!(errors > 0, "no sample was bad");
}

/// Sets the learning rate by the losses, and nothing else after a step.
struct Ahead {
    asks: fn(&mut Control<'_>) -> Result<(), Error>,
}

impl Callback for Ahead {
    fn name(&self) -> &str {
        "ahead"
    }

    fn influence(&self) -> Influence {
        Influence::By("version 1".into())
    }

    fn awaits_steps(&self) -> bool {
        false
    }

    fn step_ended(&mut self, step: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        if step.step % 3 == 1 {
            (self.asks)(run)
        } else {
            run.set_learning_rate(0.05 + step.now.loss.fract() / 9.0)
        }
    }

    fn epoch_ended(&mut self, _: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        run.tensor("0.weight").unwrap().map(drop)
    }
}

#[test]
fn callbacks_for_which_no_step_waits_steer_a_run_alike() {
    let (train, held_out) = data();
    let run = |replicas, in_flight| {
        let ahead = Ahead { asks: |run| run.scale_learning_rate(0.99) };
        let mut trainer = build(made(norms(), replicas, in_flight).callback(ahead).audits(Audits::Never));
        trainer.fit(&train, Some(&held_out), 4).unwrap();
        (trainer.state_sha256().unwrap(), overlapped(&trainer))
    };
    let (expected, _) = run(1, 1);
    let (found, overlaps) = run(1, 2);
    assert!(found == expected && overlaps > 0, "{overlaps}");
    assert_eq!(run(3, 1), (expected, 0));
}

/// What a callback asks of a run.
type Ask = fn(&mut Control<'_>) -> Result<(), Error>;

#[test]
fn what_needs_the_step_to_be_over_is_an_error_there() {
    let (train, _) = data();
    let asks: [Ask; 5] = [
        |run| run.tensor("0.weight").unwrap().map(drop),
        |run| {
            run.stop("enough");
            Ok(())
        },
        |run| {
            run.save();
            Ok(())
        },
        |run| run.keep_weights(),
        |run| run.adopt_average_weights().map(drop),
    ];
    for ask in asks {
        let mut seen = Vec::new();
        for (replicas, in_flight) in [(1, 1), (1, 2), (2, 1)] {
            let mut trainer = build(made(norms(), replicas, in_flight).callback(Ahead { asks: ask }));
            let error = trainer.fit(&train, None, 2).unwrap_err().to_string();
            assert!(error.contains("ahead") && error.contains("steps do not wait"), "{error}");
            assert!(trainer.stopped().is_none());
            seen.push(error);
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    }
}

/// A callback that looks at the weights after a step sees those of that step.
#[test]
fn callbacks_see_the_weights_of_their_step() {
    let (train, _) = data();
    let run = |in_flight| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = seen.clone();
        let looks = on_step("looks", Influence::None, move |step, run| {
            sees.lock().unwrap().push((step.step, run.tensor("0.weight").unwrap()?));
            Ok(())
        });
        let mut trainer = build(made(norms(), 1, in_flight).callback(looks));
        trainer.fit(&train, None, 1).unwrap();
        assert_eq!(overlapped(&trainer), 0);
        seen.lock().unwrap().clone()
    };
    let expected = run(1);
    assert_eq!(expected.len() as u64, STEPS);
    assert_eq!(run(2), expected);
}

/// A step whose weights are all 0 changes nothing and is not counted by the optimizer: neither by Adam's
/// corrections nor by a schedule nor by an average, which begins with the first step that counts.
#[test]
fn steps_without_weights_are_not_counted() {
    let weigh = |sample: &mut Sample, _: &mut Draws| {
        let x = sample.f32_mut("x").map_or(0.0, |x| x[0]);
        sample.set("w", unisono::data::Field::f32([], [if x < 0.0 { 0.0 } else { 1.0 }]));
    };
    let (train, held_out) = data();
    let (train, held_out) = (train.map("weigh", weigh), held_out.map("weigh", weigh));
    // In batches of one many have no weight.
    let train = train.limit_batches(40);
    let run = |in_flight| {
        let optimizer = unisono::AdamW::new(Schedule::cosine(0.02, 40).warm_up(5)).average_weights(0.9);
        let steps = Steps::default();
        let builder = perceptron(8).optimizer(optimizer).use_average_weights().observer(steps.clone());
        let builder = builder.global_batch(1).shards(1).replicas(1).steps_in_flight(in_flight);
        let mut trainer = builder.audits(Audits::Never).build(&train.fields().unwrap()).unwrap();
        trainer.fit(&train, Some(&held_out), 1).unwrap();
        let steps = steps.0.lock().unwrap().clone();
        let history = format!("{:?}", trainer.history());
        ((trainer.state_sha256().unwrap(), history, steps), overlapped(&trainer))
    };
    let (expected, none) = run(1);
    let committed = expected.2.iter().filter(|step| step.contains("committed: true")).count();
    assert!(none == 0 && (5..35).contains(&committed), "{committed}");
    let (found, overlaps) = run(2);
    assert_eq!(found, expected);
    assert!(overlaps > 0);
}

/// Fails once after a step for which no later one waits.
struct Fails(Option<u64>);

impl Callback for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    fn influence(&self) -> Influence {
        Influence::None
    }

    fn awaits_steps(&self) -> bool {
        false
    }

    fn step_ended(&mut self, step: &Step, _: &mut Control<'_>) -> Result<(), Error> {
        if self.0.take_if(|at| *at == step.step).is_some() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// A step that is in flight while a callback fails is told to callbacks, and the epoch that it completes
/// ends.
#[test]
fn a_step_in_flight_beside_an_error_is_a_step_like_others() {
    let (train, held_out) = data();
    let run = |in_flight, fails| {
        let builder = made(norms(), 1, in_flight).callback(Fails(fails)).callback(Ahead { asks: |_| Ok(()) });
        let mut trainer = build(builder.audits(Audits::Never));
        trainer.fit(&train, Some(&held_out), 3).unwrap();
        let steps = trainer.steps();
        trainer.fit(&train, Some(&held_out), 3).unwrap();
        assert_eq!(overlapped(&trainer) > 0, in_flight > 1);
        (steps, trainer.state_sha256().unwrap(), trainer.history().clone())
    };
    let (.., history) = run(1, None);
    for at in [STEPS - 3, STEPS - 2, STEPS - 1, STEPS] {
        let (steps, found, same) = run(2, Some(at));
        // The callback behind it has missed the step of the error, and no other.
        assert!((at + 1..=at + 2).contains(&steps), "{steps}");
        let samples = |history: &unisono::History| -> Vec<u64> {
            history.iter().map(|epoch| epoch.train.samples).collect()
        };
        assert_eq!(samples(&same), samples(&history), "step {at}");
        let (_, alone, _) = run(1, Some(at));
        assert_eq!(found, alone, "step {at}");
    }
}

/// A head alone and the whole model take turns. Each optimizer needs a learning rate and nothing else.
fn phases() -> (Builder, Loader) {
    let model = Sequential::new().add(Dense::new(8)).add(Relu).add(Dense::new(CLASSES));
    let head = Phase::new("head").trains(|name| name.starts_with("2.")).optimizer(Sgd::new(0.2));
    let all = Phase::new("all").optimizer(Sgd::new(0.05));
    (Trainer::builder(model).phase(head).phase(all), data().0)
}

/// Mixed precision with a loss scale that grows until a step overflows, several times.
fn scaled() -> (Builder, Loader) {
    let scale = LossScale::Dynamic {
        initial: 2f32.powi(30),
        growth: 2.0,
        backoff: 0.125,
        interval: 2,
        least: 1.0,
        most: 2f32.powi(40),
    };
    (perceptron(8).precision(Precision::Mixed).loss_scale(scale), data().0)
}

/// A recurrent layer that goes on from batch to batch.
fn carried() -> (Builder, Loader) {
    let tokens = (0..=16 * 4 * STEPS as usize).map(|i| ((i * i + i / 5) % 7) as u8).collect();
    let text = Tokens::in_memory("text", tokens, Width::U8, 4).unwrap();
    let model = Sequential::new().add(Embedding::new(7, 5)).add(Lstm::new(6).stateful()).add(Dense::new(7));
    (Trainer::builder(model), Loader::new(text).lanes().threads(1))
}

/// Sequences of three lengths, each of which has a program of its own.
fn buckets() -> (Builder, Loader) {
    let texts: Vec<Vec<i32>> = (0..SAMPLES).map(|at| vec![(at * 5 % 9) as i32; 1 + at * 7 % 12]).collect();
    let labels: Vec<i32> = (0..SAMPLES).map(|at| (at % CLASSES) as i32).collect();
    let texts = Sequences::labelled(texts, labels, 9).unwrap();
    let cut = Buckets::new(&texts.lengths(), [4, 8, 12], &["x"]).unwrap();
    let mean = FromFn::new("mean", |_, x| x.mean(&[1]));
    let model = Sequential::new().add(Embedding::new(10, 6)).add(mean).add(Dense::new(CLASSES));
    (Trainer::builder(model), Loader::new(texts).shuffle(4).threads(1).buckets(cut))
}

/// A step waits for the one before it in phases, with a loss scale and with carries. Batches of other lengths
/// do not.
#[test]
fn runs_of_every_kind_have_the_same_bytes_with_two_steps_in_flight() {
    type Kind = (&'static str, fn() -> (Builder, Loader), bool);
    let kinds: [Kind; 4] = [
        ("phases", phases, false),
        ("loss scale", scaled, false),
        ("carries", carried, false),
        ("buckets", buckets, true),
    ];
    for (name, kind, overlaps) in kinds {
        let run = |replicas, in_flight| {
            let (builder, train) = kind();
            let builder = made(builder, replicas, in_flight).audits(Audits::Never);
            let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
            trainer.fit(&train, None, 3).unwrap();
            let skipped = trainer.scaling().map_or(0, |scaling| scaling.skipped);
            let ends = (trainer.state_sha256().unwrap(), trainer.history().clone(), skipped);
            (ends, overlapped(&trainer), trainer.steps())
        };
        let (expected, none, steps) = run(1, 1);
        assert_eq!((none, expected.2 > 1), (0, name == "loss scale"), "{name}: {}", expected.2);
        let (found, overlapped, _) = run(1, 2);
        assert_eq!(found, expected, "{name}");
        // Those of all lengths overlap, except the first of each length and of each epoch.
        let right = if overlaps { 2 * overlapped >= steps } else { overlapped == 0 };
        assert!(right, "{name}: {overlapped} of {steps}");
        assert_eq!(run(3, 1), (expected, 0, steps), "{name}");
    }
}
