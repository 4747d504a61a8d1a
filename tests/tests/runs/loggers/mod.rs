//! What loggers write is the history, once, also after a kill and a resume, and they change no bit of a run.

mod events;
mod spans;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use events::{Run, Value, read, scalars};
use unisono::data::Loader;
use unisono::{
    Builder, CsvLog, Epoch, Evaluation, JsonLines, LoggedImage, Observer, Plot, Saving, Step, TensorBoard,
    Trainer,
};
use unisono_tests::{loader, perceptron};

/// An observer that keeps what it sees.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<Step>, Vec<String>)>>);

impl Observer for Seen {
    fn step(&mut self, step: &Step) {
        self.0.lock().unwrap().0.push(step.clone());
    }
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().1.push(text.to_owned());
    }
}

impl Seen {
    fn steps(&self) -> Vec<Step> {
        self.0.lock().unwrap().0.clone()
    }
    fn notes(&self) -> Vec<String> {
        self.0.lock().unwrap().1.clone()
    }
}

/// The samples of training, 5 steps in an epoch, and those held out.
fn data() -> [Loader; 2] {
    [loader(150, 5).unwrap(), loader(40, 6).unwrap()]
}

fn builder() -> Builder {
    perceptron(8).replicas(2).global_batch(32).shards(4)
}

/// Returns a builder with all loggers in a directory.
fn logged(dir: &Path) -> Builder {
    fs::create_dir_all(dir).unwrap();
    builder()
        .observer(TensorBoard::new(dir.join("logs")).histograms(2).hyperparameter("width", 8))
        .observer(CsvLog::new(dir.join("csv/history.csv")))
        .observer(JsonLines::new(File::create(dir.join("history.jsonl")).unwrap()))
        .observer(Plot::new(dir.join("history.svg")))
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data()[0].fields().unwrap()).unwrap()
}

/// Trains to the end of so many epochs.
fn fit(trainer: &mut Trainer, epochs: u32) -> Vec<Epoch> {
    let [train, held_out] = data();
    trainer.fit(&train, Some(&held_out), epochs).unwrap().clone()
}

/// Returns the values of a part of the history as event files have them: rounded to f32.
fn expected(
    history: &[Epoch],
    part: impl Fn(&Epoch) -> Option<&Evaluation>,
    value: impl Fn(&Evaluation) -> f64,
) -> Vec<(u64, u32)> {
    history.iter().map(|epoch| (epoch.steps, (value(part(epoch).unwrap()) as f32).to_bits())).collect()
}

/// Checks that the runs of a log directory have every epoch of a history once.
fn has_history(logs: &Path, history: &[Epoch]) {
    let (train, validation) = (read(&logs.join("train")), read(&logs.join("validation")));
    let (loss, accuracy) = (|v: &Evaluation| v.loss, |v: &Evaluation| v.metric("accuracy").unwrap());
    assert_eq!(scalars(&train, "epoch/loss"), expected(history, |e| Some(&e.train), loss));
    assert_eq!(scalars(&train, "epoch/accuracy"), expected(history, |e| Some(&e.train), accuracy));
    assert_eq!(scalars(&validation, "epoch/loss"), expected(history, |e| e.validation.as_ref(), loss));
    let expected = expected(history, |e| e.validation.as_ref(), accuracy);
    assert_eq!(scalars(&validation, "epoch/accuracy"), expected);
    assert_eq!(validation.len(), 2, "{:?}", validation.keys());
}

/// Returns what is the same in two runs with the same bits: everything but times. The hyperparameters have
/// the time at which a run began.
fn without_times(mut run: Run) -> Run {
    run.retain(|tag, _| !tag.starts_with("replica ") && !tag.starts_with("_hparams_"));
    run
}

#[test]
fn loggers_write_the_history_and_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Seen::default();
    let mut plain = build(builder());
    fit(&mut plain, 4);
    let mut trainer = build(logged(dir.path()).observer(seen.clone()));
    let history = fit(&mut trainer, 4);
    assert_eq!(trainer.state_sha256().unwrap(), plain.state_sha256().unwrap());
    assert_eq!(seen.notes(), [""; 0]);

    has_history(&dir.path().join("logs"), &history);
    let train = read(&dir.path().join("logs/train"));
    let steps = seen.steps();
    let bits = |of: &dyn Fn(&Step) -> f64| -> Vec<(u64, u32)> {
        steps.iter().map(|step| (step.step + 1, (of(step) as f32).to_bits())).collect()
    };
    assert_eq!(steps.len(), 20);
    assert_eq!(scalars(&train, "step/loss"), bits(&|step| step.now.loss));
    assert_eq!(scalars(&train, "step/accuracy"), bits(&|step| step.now.metric("accuracy").unwrap()));
    assert_eq!(scalars(&train, "step/learning_rate"), bits(&|_| 0.01));
    for replica in 0..2 {
        let busy = scalars(&train, &format!("replica {replica}/busy"));
        assert!(busy.len() == 4 && busy.iter().any(|(_, bits)| f32::from_bits(*bits) > 0.0), "{busy:?}");
    }
    // Histograms after epochs 2 and 4, of all 6 * 8 weights.
    let weights = &train["weights/0.weight"];
    assert_eq!(weights.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 20]);
    assert_eq!(weights[0].1, Value::Histogram { count: 48.0, in_buckets: 48.0 });
    let tensor = |tag: &str| match &train[tag][..] {
        [(0, Value::Tensor { plugin, text })] => (plugin.clone(), text.clone()),
        other => panic!("{tag}: {other:?}"),
    };
    assert!(tensor("model").0 == "text" && tensor("model").1.contains("dense"), "{:?}", tensor("model"));
    let (plugin, hyperparameters) = tensor("_hparams_/session_start_info");
    assert!(plugin == "hparams" && hyperparameters.contains("width"), "{hyperparameters}");

    let svg = fs::read_to_string(dir.path().join("history.svg")).unwrap();
    assert_eq!(svg, Plot::svg(&history));
    read_by_python(dir.path());
}

#[test]
fn a_killed_run_that_is_resumed_has_every_step_once() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let history = fit(&mut build(logged(&whole)), 4);

    // A run that goes on after its last checkpoint, and is killed while it writes.
    let mut first = build(logged(&parts));
    // Checkpoints that stay for good are written however slow the disk is.
    first.save_to(Saving::new(parts.join("out")).every(7).keep_every(7)).unwrap();
    fit(&mut first, 3);
    drop(first);
    for (step, path) in unisono::checkpoint::list(parts.join("out")).unwrap() {
        if step > 7 {
            fs::remove_dir_all(path).unwrap();
        }
    }
    for run in ["logs/train", "logs/validation"] {
        let path = fs::read_dir(parts.join(run)).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    }
    fs::write(parts.join("csv/history.csv"), "epoch,steps,lo").unwrap();

    let mut resumed = build(logged(&parts));
    resumed.save_to(Saving::new(parts.join("out"))).unwrap();
    assert_eq!(resumed.resume().unwrap().unwrap().step, 7);
    assert_eq!(fit(&mut resumed, 4), history);

    for run in ["train", "validation"] {
        let [whole, parts] = [&whole, &parts].map(|dir| without_times(read(&dir.join("logs").join(run))));
        assert_eq!(whole, parts, "{run}");
    }
    has_history(&parts.join("logs"), &history);
    for file in ["csv/history.csv", "history.jsonl", "history.svg"] {
        let [whole, parts] = [&whole, &parts].map(|dir| fs::read_to_string(dir.join(file)).unwrap());
        assert_eq!(whole, parts, "{file}");
    }
    read_by_python(&parts);
}

#[test]
fn a_new_run_in_an_old_directory_replaces_what_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    fit(&mut build(logged(dir.path())), 3);
    let mut trainer = build(logged(dir.path()).seed(12));
    let history = fit(&mut trainer, 1);
    // A second fit goes on.
    let history = [history, fit(&mut trainer, 2)[1..].to_vec()].concat();
    has_history(&dir.path().join("logs"), &history);
    assert_eq!(read(&dir.path().join("logs/train"))["model"].len(), 1);
    let csv = fs::read_to_string(dir.path().join("csv/history.csv")).unwrap();
    let first = csv.lines().nth(1).unwrap().split(',').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(csv.lines().next(), Some("epoch,steps,loss,accuracy,val_loss,val_accuracy"));
    assert_eq!((csv.lines().count(), first[2].parse()), (3, Ok(history[0].train.loss)));
}

#[test]
fn a_logger_that_cannot_write_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    // Where directories would be, there are files.
    for name in ["logs", "csv"] {
        fs::write(dir.path().join(name), "in the way").unwrap();
    }
    let seen = Seen::default();
    let mut trainer = build(logged(dir.path()).observer(seen.clone()));
    fit(&mut trainer, 2);
    let mut plain = build(builder());
    fit(&mut plain, 2);
    assert_eq!(trainer.state_sha256().unwrap(), plain.state_sha256().unwrap());
    let notes = seen.notes();
    let told = |what: &str| notes.iter().filter(|note| note.contains(what)).count();
    assert_eq!(
        (told("logs/train: "), told("logs/validation: "), told("history.csv is not written")),
        (1, 1, 1)
    );
    assert_eq!(notes.len(), 3, "{notes:?}");
}

#[test]
fn what_a_program_logs_is_in_the_events() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(builder().observer(TensorBoard::new(dir.path()).every(0)));
    trainer.log("before", 0.5);
    fit(&mut trainer, 1);
    trainer.log("gap", 0.25);
    trainer.log("sample", "to be or not to be");
    trainer.log("picture", LoggedImage::new(2, 1, 1, vec![0, 255]).unwrap());
    drop(trainer);
    let run = read(&dir.path().join("train"));
    assert!(!run.contains_key("step/loss"));
    assert_eq!(scalars(&run, "before"), [(0, 0.5_f32.to_bits())]);
    assert_eq!(scalars(&run, "gap"), [(5, 0.25_f32.to_bits())]);
    let text = Value::Tensor { plugin: "text".into(), text: "to be or not to be".into() };
    assert_eq!(run["sample"], [(5, text)]);
    let [(5, Value::Image { width: 2, height: 1, png })] = &run["picture"][..] else {
        panic!("{:?}", run["picture"])
    };
    assert!(png.starts_with(b"\x89PNG"));
}

/// Makes an epoch in a loop of one's own. Each step logs its number before observers are told of it.
fn own_epoch(trainer: &mut Trainer, epoch: u32) {
    let mut last = None;
    for batch in data()[0].clone().batch(32).epoch(epoch).unwrap() {
        let step = trainer.step(&batch.unwrap()).unwrap();
        trainer.log("own", step.step as f64);
        trainer.notify_step(&step);
        last = Some(step);
    }
    trainer.notify_epoch_ended(&last.unwrap(), None).unwrap();
}

#[test]
fn loops_of_ones_own_keep_what_was_told_and_logged() {
    let dir = tempfile::tempdir().unwrap();
    let [run, logs, csv] = ["run", "logs", "history.csv"].map(|name| dir.path().join(name));
    let start = || {
        let loggers = builder().observer(TensorBoard::new(&logs)).observer(CsvLog::new(&csv));
        let mut trainer = build(loggers.observer(Plot::new(dir.path().join("history.svg"))));
        trainer.checkpoints(&run, 0).unwrap();
        trainer.resume().unwrap();
        trainer
    };
    let mut trainer = start();
    (0..3).for_each(|epoch| own_epoch(&mut trainer, epoch));
    trainer.notify_ended();
    own_epoch(&mut trainer, 3);
    trainer.notify_ended();
    trainer.save_behind().unwrap();
    trainer.finish_saves().unwrap();
    // What is told behind the checkpoint is made again.
    own_epoch(&mut trainer, 4);
    drop(trainer);
    let lines = || fs::read_to_string(&csv).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let whole = lines();
    assert_eq!(whole.len(), 6, "{whole:?}");
    let mut resumed = start();
    own_epoch(&mut resumed, 4);
    assert_eq!(lines(), whole);
    // A fit's epochs stand behind them.
    resumed.notify_ended();
    fit(&mut resumed, 6);
    assert_eq!(lines()[..6], whole);
    drop(resumed);
    // They stay when that fit is resumed.
    let (before, mut resumed) = (lines(), start());
    fit(&mut resumed, 7);
    assert_eq!((&lines()[..7], lines().len()), (&*before, 8));
    drop(resumed);
    let own = scalars(&read(&logs.join("train")), "own");
    assert_eq!(own, (0..25).map(|at| (at + 1, (at as f32).to_bits())).collect::<Vec<_>>());
}

/// A fit that ends before its first step is followed by another start at step 0.
#[test]
fn what_a_program_logs_before_a_fit_that_fails_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(builder().observer(TensorBoard::new(dir.path())));
    trainer.log("config", "a text");
    trainer.fit(&data()[0], None, 0).unwrap();
    fit(&mut trainer, 1);
    drop(trainer);
    let run = read(&dir.path().join("train"));
    assert_eq!((run["config"].len(), run["model"].len()), (1, 1));
}

/// A loop that logs and tells of nothing has each step once, too.
#[test]
fn steps_that_a_loop_logs_alone_are_there_once_after_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let mut trainer = build(builder().observer(TensorBoard::new(dir.path().join("logs"))));
        trainer.checkpoints(&dir.path().join("run"), 0).unwrap();
        trainer.resume().unwrap();
        trainer
    };
    let own_steps = |trainer: &mut Trainer, epochs: std::ops::Range<u32>| {
        for epoch in epochs {
            for batch in data()[0].clone().batch(32).epoch(epoch).unwrap() {
                let step = trainer.step(&batch.unwrap()).unwrap();
                trainer.log("own", step.step as f64);
            }
        }
    };
    let mut trainer = start();
    own_steps(&mut trainer, 0..2);
    trainer.save().unwrap();
    own_steps(&mut trainer, 2..3);
    let steps = trainer.steps();
    drop(trainer);
    own_steps(&mut start(), 2..4);
    let own = scalars(&read(&dir.path().join("logs/train")), "own");
    let expected: Vec<_> = (0..steps / 3 * 4).map(|at| (at + 1, (at as f32).to_bits())).collect();
    assert_eq!(own, expected);
}

/// Steps that are made again because replicas were wrong replace those that were made first.
#[test]
fn steps_that_are_made_again_replace_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut logger = TensorBoard::new(dir.path());
    let step = |number: u64, loss: f64| {
        let mut now = Evaluation::default();
        now.loss = loss;
        let so_far = now.clone();
        Step {
            step: number,
            epoch: 0,
            epochs: 1,
            done: 0,
            of: 0,
            samples: 1,
            learning_rate: None,
            now,
            so_far,
            committed: true,
        }
    };
    (0..5).for_each(|i| logger.step(&step(i, 1.0)));
    logger.rolled_back(2);
    (2..5).for_each(|i| logger.step(&step(i, 2.0)));
    // What was logged is there if the process is killed now.
    let losses = scalars(&read(&dir.path().join("train")), "step/loss");
    let losses: Vec<(u64, f32)> =
        losses.into_iter().map(|(step, bits)| (step, f32::from_bits(bits))).collect();
    assert_eq!(losses, [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]);
}

/// Lets TensorBoard's own loader compare the events of a directory with the lines of its history, where
/// Python has it. `UNISONO_PYTHON` names another Python than `python3`.
fn read_by_python(dir: &Path) {
    let python = std::env::var("UNISONO_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import tensorboard.backend"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        let install = "(install: pip install tensorboard)";
        unisono_testkit::left_out(&format!(
            "TensorBoard's loader: {python} has no package tensorboard {install}"
        ));
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("events/compare.py");
    let compared =
        Command::new(&python).arg(script).args([dir.join("logs"), dir.join("history.jsonl")]).output();
    let compared = compared.unwrap();
    let shown = [compared.stdout, compared.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(compared.status.success(), "{}", shown.concat());
}
