//! Tests of runs that are interrupted, of runs whose disk fails, and of resuming with other settings.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{csv, digits, err, lines, trained};

/// The number of samples of a run, for 4 steps in an epoch.
const SAMPLES: usize = 250;
/// A run that does not end by itself while a test looks at it, however slow the disk is.
const LONG: [&str; 6] = ["--epochs", "4000", "--checkpoint-every", "2", "--replicas", "2"];

/// A running process and its standard error.
struct Running {
    process: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Running {
    fn start(data: &Path, out: &Path, flags: &[&str]) -> Self {
        Self::of(Command::new(env!("CARGO_BIN_EXE_digits")), data, out, flags)
    }

    /// Starts the program from a shell, after the commands of `before`.
    fn shell(before: &str, data: &Path, out: &Path, flags: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_digits")]);
        Self::of(shell, data, out, flags)
    }

    fn of(mut command: Command, data: &Path, out: &Path, flags: &[&str]) -> Self {
        command.arg("--data").arg(data).arg("--out").arg(out).args(flags);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        Self { process, lines: Box::new(lines) }
    }

    /// Reads lines until one contains these words, and returns it.
    fn says(&mut self, words: &str) -> String {
        let found = self.lines.find(|line| line.contains(words));
        found.unwrap_or_else(|| panic!("no line contains {words:?}"))
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn code(self) -> Option<i32> {
        self.ended().1
    }

    /// Waits for the end, and returns the lines until then and the code.
    fn ended(mut self) -> (Vec<String>, Option<i32>) {
        let lines = self.lines.by_ref().collect();
        (lines, self.process.wait().unwrap().code())
    }
}

fn model(out: &Path) -> Vec<u8> {
    fs::read(out.join("model.safetensors")).unwrap()
}

fn checkpoints(out: &Path) -> Vec<(u64, PathBuf)> {
    unisono::checkpoint::list(out).unwrap()
}

#[test]
#[cfg(unix)]
fn a_signal_finishes_the_step_saves_and_exits_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let signals = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];
    for (signal, code) in
        signals.into_iter().filter(|(signal, _)| *signal != "-HUP" || !hangups_are_ignored())
    {
        let out = dir.path().join(signal);
        let mut run = Running::start(&data, &out, &LONG);
        run.says("saved ");
        run.signal(signal);
        run.says("asked to stop: step ");
        let last = run.says("interrupted after step ");
        assert_eq!(run.code(), Some(code), "{signal}");
        let step: u64 = last.split(' ').nth(3).unwrap().trim_end_matches(';').parse().unwrap();
        assert_eq!(checkpoints(&out)[0].0, step, "the step it stopped at is saved");
        assert!(!out.join("model.safetensors").exists());

        // The resumed run ends in the same state.
        let epochs = (step / 4 + 2).to_string();
        let resumed = trained(&data, &out, &["--resume", "--epochs", &epochs, "--replicas", "3"]);
        let whole = dir.path().join(format!("whole{signal}"));
        assert_eq!(resumed, trained(&data, &whole, &["--epochs", &epochs, "--replicas", "1"]));
        assert_eq!(model(&out), model(&whole));
    }
}

#[test]
#[cfg(unix)]
fn a_second_ctrl_c_stops_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let mut run = Running::start(&data, &dir.path().join("out"), &LONG);
    run.says("saved ");
    run.signal("-INT");
    run.signal("-INT");
    assert_eq!(run.code(), Some(130));
}

/// Returns whether the tests run with SIGHUP ignored, as under `nohup`: the programs that they start then
/// ignore it too.
pub(crate) fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// When a terminal closes, nobody reads the run's messages any more.
#[test]
#[cfg(unix)]
fn a_run_whose_terminal_closes_saves_too() {
    if hangups_are_ignored() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let out = dir.path().join("out");
    // Without an interval, only the end of a run is saved.
    let mut run = Running::start(&data, &out, &["--epochs", "4000", "--replicas", "2"]);
    run.says("epoch 2");
    run.lines = Box::new(std::iter::empty());
    run.signal("-HUP");
    assert_eq!(run.code(), Some(129));
    assert_eq!(checkpoints(&out).len(), 1);
}

/// What a program says may go nowhere: the run is trained, and its result is on standard output.
#[test]
#[cfg(target_os = "linux")]
fn a_run_whose_standard_error_is_full_or_closed_ends_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let whole = trained(&data, &dir.path().join("whole"), &["--epochs", "2"]);
    for is_full in [true, false] {
        let (out, history) = (dir.path().join(format!("full-{is_full}")), dir.path().join("history"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
        command.arg("--data").arg(&data).arg("--out").arg(&out).args(["--epochs", "2", "--json"]);
        command.stdout(fs::File::create(&history).unwrap());
        match is_full {
            true => command.stderr(fs::File::options().write(true).open("/dev/full").unwrap()),
            false => command.stderr(Stdio::piped()),
        };
        let mut process = command.spawn().unwrap();
        drop(process.stderr.take());
        assert_eq!(process.wait().unwrap().code(), Some(0), "full: {is_full}");
        assert_eq!(fs::read_to_string(history).unwrap(), whole, "full: {is_full}");
    }
}

/// The trace of a run that ends early is the one that is wanted.
#[test]
#[cfg(unix)]
fn a_run_that_is_interrupted_writes_its_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (data, trace) = (csv(dir.path(), &lines(SAMPLES)), dir.path().join("t.json"));
    let flags = [&LONG[..], &["--trace", trace.to_str().unwrap()]].concat();
    let mut run = Running::start(&data, &dir.path().join("out"), &flags);
    run.says("saved ");
    run.signal("-INT");
    assert_eq!(run.code(), Some(130));
    let events: Vec<serde_json::Value> = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X" && event["name"] == "compute"), "{events:?}");
}

/// What cannot be written at the end of a run is refused at its start.
#[test]
#[cfg(unix)]
fn a_place_that_cannot_be_written_is_refused_before_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let [data, own] = [&data, dir.path()].map(|path| path.to_str().unwrap().to_owned());
    for (flag, path) in
        [("--trace", "/dev/null/t.json"), ("--trace", &own), ("--onnx", "/dev/null/model"), ("--onnx", &data)]
    {
        let output = digits(["--data", &data, "--epochs", "1", "--json", flag, path]);
        let said = err(&output);
        assert!(said.contains(&format!("error: {flag} {path}: ")) && !said.contains("epoch 1"), "{said}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no probe stays");
}

/// `nohup` starts programs with SIGHUP ignored.
#[test]
#[cfg(target_os = "linux")]
fn a_run_that_ignores_hangups_goes_on_after_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let mut run = Running::shell("trap '' HUP", &data, &dir.path().join("out"), &LONG);
    run.says("saved ");
    run.signal("-HUP");
    // A step and its checkpoint after the signal.
    (0..20).for_each(|_| drop(run.says("saved ")));
    run.signal("-TERM");
    assert_eq!(run.code(), Some(143));
}

/// No file may be longer than 32 KiB, which is less than the model, so that no checkpoint can be written from
/// the start on. The signal that comes with a longer write ends no program.
#[test]
#[cfg(target_os = "linux")]
fn a_run_whose_last_step_is_not_saved_ends_with_an_error() {
    ["trap '' XFSZ; ulimit -f 64", "ulimit -f 64"].into_iter().for_each(last_step_is_not_saved);
}

#[cfg(target_os = "linux")]
fn last_step_is_not_saved(before: &str) {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let out = dir.path().join("out");
    let flags = ["--epochs", "3", "--checkpoint-every", "2", "--replicas", "1"];
    let run = Running::shell(before, &data, &out, &flags);
    let (lines, code) = run.ended();
    // A slow disk tells of a step after later ones.
    let line =
        |words: &str| lines.iter().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{lines:?}"));
    let warning = line("warning: ");
    assert!(warning.contains("is not saved") && warning.contains("the run continues"), "{warning}");
    line("epoch 3");
    let error = line("error: ");
    for words in [out.to_str().unwrap(), "the last step, 12, is not saved", "File too large"] {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }
    assert_eq!(code, Some(1));
    assert!(checkpoints(&out).is_empty());
}

/// If the directory is replaced by something else, the run prints a warning and continues to train. It saves
/// again as soon as it can.
#[test]
#[cfg(unix)]
fn a_directory_that_vanishes_stops_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let (out, whole) = (dir.path().join("out"), dir.path().join("whole"));
    // Its devices are slow: a slow disk has the time to save, and to fail, long before the last step.
    let mut slow = Command::new(env!("CARGO_BIN_EXE_digits"));
    slow.env("FAILPOINTS", "replica-0=return(sample:500);replica-1=return(sample:500)");
    let mut run = Running::of(slow, &data, &out, &LONG);
    run.says("saved ");
    fs::rename(&out, dir.path().join("elsewhere")).unwrap();
    // The run may create the directory first.
    let in_the_way = fs::write(&out, "in the way").is_ok();
    if in_the_way {
        let warning = run.says("warning: step ");
        assert!(
            warning.contains("is not saved: ") && warning.contains("the next save tries again"),
            "{warning}"
        );
        fs::remove_file(&out).unwrap();
    }
    run.says("was gone and was made anew");
    run.says("saved ");
    run.signal("-INT");
    let last = run.says("interrupted after step ");
    assert_eq!(run.code(), Some(130));
    let step: u64 = last.split(' ').nth(3).unwrap().trim_end_matches(';').parse().unwrap();
    assert_eq!(checkpoints(&out)[0].0, step);
    let epochs = (step / 4 + 2).to_string();
    let flags = ["--epochs", &*epochs, "--replicas", "2"];
    let resumed = trained(&data, &out, &[&flags[..], &["--resume"]].concat());
    assert_eq!(resumed, trained(&data, &whole, &flags));
    assert_eq!(model(&out), model(&whole));
}

#[test]
fn a_run_that_requires_its_checkpoints_ends_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let out = dir.path().join("out");
    let mut run = Running::start(&data, &out, &[&LONG[..], &["--require-checkpoints"]].concat());
    run.says("saved ");
    // The directory itself is not removed, because it would be created again.
    let checkpoints = out.join("checkpoints");
    while fs::rename(&checkpoints, dir.path().join("elsewhere")).is_err()
        || fs::write(&checkpoints, "").is_err()
    {
        let _ = fs::remove_dir_all(dir.path().join("elsewhere"));
    }
    let error = run.says("error: ");
    assert!(error.contains("checkpoints"), "{error}");
    assert_eq!(run.code(), Some(1));
}

#[test]
fn two_runs_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let out = dir.path().join("out");
    let mut run = Running::start(&data, &out, &LONG);
    run.says("saved ");
    let args = ["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap(), "--resume"];
    let second = digits(args);
    assert_eq!(second.status.code(), Some(1));
    assert!(err(&second).contains("in use by another trainer"), "{}", err(&second));
    // The lock is released when its owner ends.
    run.process.kill().unwrap();
    run.code();
    assert!(digits(args.iter().chain(&["--epochs", "1"])).status.success());
}

#[test]
fn the_last_the_milestones_and_the_best_stay() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(SAMPLES));
    let out = dir.path().join("out");
    let flags = ["--epochs", "6", "--keep-last", "1", "--keep-every", "8", "--keep-best", "accuracy"];
    trained(&data, &out, &flags);
    let listed = unisono::checkpoint::inspect::list(&out).unwrap();
    let steps: Vec<u64> = listed.iter().map(|listed| listed.step).collect();
    let best = listed.iter().max_by(|a, b| a.metric.unwrap().total_cmp(&b.metric.unwrap())).unwrap();
    assert!(steps.contains(&24) && steps.contains(&16) && steps.contains(&8), "{steps:?}");
    assert!(steps.len() <= 4, "{steps:?}");
    // The kept checkpoint is that of the best epoch. If several are equally good, it is that of the earliest.
    let history = unisono::SavedRun::newest(&out).unwrap().unwrap().history().clone();
    let accuracy = |epoch: &unisono::Epoch| epoch.validation.as_ref().unwrap().metric("accuracy").unwrap();
    let most = history.iter().map(accuracy).fold(0.0, f64::max);
    assert_eq!(best.metric, Some(most));
    let first = history.iter().find(|epoch| accuracy(epoch) == most).unwrap().steps;
    assert!(steps.contains(&first), "{steps:?}: step {first} was the first of the best");

    let output = digits(["--out", dir.path().join("new").to_str().unwrap(), "--keep-best", "f1"]);
    assert!(err(&output).contains("nothing is called \"f1\"; there is loss, accuracy"), "{}", err(&output));
}

#[test]
fn a_run_that_is_forced_goes_on_with_other_settings() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(60));
    let out = dir.path().join("out");
    trained(&data, &out, &["--epochs", "1", "--seed", "7"]);
    let data = csv(dir.path(), &lines(61));
    let paths = ["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap(), "--resume"];
    let run = |flags: &[&str]| digits(paths.iter().chain(flags));
    let refused = run(&["--epochs", "2", "--global-batch", "16"]);
    assert!(err(&refused).contains("or pass --force to change it"), "{}", err(&refused));
    let forced = run(&["--epochs", "2", "--force", "--global-batch", "16", "--shards", "4", "--seed", "8"]);
    assert!(forced.status.success(), "{}", err(&forced));
    for words in [
        "warning: the global batch of the run is 64, not 16",
        "warning: the number of shards of the run is 8, not 4",
        "warning: the seed of the run is 7, not 8",
        "warning: the run was on data with fingerprint ",
    ] {
        assert!(err(&forced).contains(words), "{words}: {}", err(&forced));
    }
    // From here on the run has the new settings.
    let run = unisono::SavedRun::newest(&out).unwrap().unwrap();
    let settings = run.settings();
    let epoch = run.position().epoch;
    assert_eq!((settings.global_batch, settings.shards, settings.seed, epoch), (16, 4, 8, 2));
}

#[test]
fn a_run_of_another_numeric_class_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(60));
    let out = dir.path().join("out");
    trained(&data, &out, &["--epochs", "1"]);
    let (step, path) = checkpoints(&out).remove(0);
    let (_, contents) = unisono::checkpoint::load(&path).unwrap();
    let class = contents.trainer["sections"]["classes"]["value"]["class"].clone();
    assert_eq!(class[0]["probe"].as_str().unwrap().len(), 16, "{class}");
    let rewrite = |class: serde_json::Value| {
        let mut contents = contents.clone();
        contents.trainer["sections"]["classes"]["value"]["class"] = class;
        unisono::checkpoint::Store::open(&out).unwrap().save(step, &contents).unwrap();
    };
    let paths =
        ["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap(), "--resume", "--epochs", "2"];
    // The adapter is the same, but its numeric class differs.
    let mut other = class.clone();
    other[0]["probe"] = "0123456789abcdef".into();
    rewrite(other);
    let refused = err(&digits(paths));
    assert!(
        refused.contains(" (0123456789abcdef), not ") && refused.contains("the numeric class"),
        "{refused}"
    );
    // The checkpoint is that of another driver, written by an older version, which did not probe.
    rewrite(serde_json::json!(["GeForce [vulkan, NVIDIA 600]"]));
    let refused = digits(paths);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("the numeric class of the run is GeForce [vulkan, NVIDIA 600], not "));
    assert!(digits(paths.iter().chain(&["--force"])).status.success());
    // A checkpoint of an older version on this adapter is resumed, with a note about what was not compared.
    fs::remove_dir_all(out.join("checkpoints")).unwrap();
    rewrite(serde_json::json!([class[0]["machine"]]));
    let resumed = digits(paths);
    assert!(resumed.status.success(), "{}", err(&resumed));
    assert!(
        err(&resumed).contains("note: the checkpoint names its adapters but not what a probe of them gave")
    );
}
