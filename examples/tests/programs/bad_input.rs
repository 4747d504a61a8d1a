use crate::{csv, digits, err, lines};

/// Each of these inputs is refused without a panic, with nothing on standard output and a message with the
/// given words. The exit code says that starting again does not help.
fn refused(args: &[&str], words: &[&str]) {
    ends_with(2, args, words);
}

/// As [`refused`], where a later start may find another machine.
fn fails(args: &[&str], words: &[&str]) {
    ends_with(1, args, words);
}

fn ends_with(code: i32, args: &[&str], words: &[&str]) {
    let output = digits(args.iter().chain(&["--json"]));
    let message = err(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let error = message.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    for word in words {
        assert!(error.contains(word), "{args:?}: no {word:?} in {message}");
    }
}

/// Trains on a file of data whose line `number` was changed. What is wrong in a file as it is read is
/// refused, and what is found in a batch is an error of the run.
fn wrong_data(code: i32, number: usize, change: impl Fn(&str) -> String, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = lines(80);
    lines[number - 1] = change(&lines[number - 1]);
    let path = csv(dir.path(), &lines);
    ends_with(code, &["--data", path.to_str().unwrap(), "--epochs", "1"], words);
}

/// Returns a line with another label.
fn labelled(line: &str, label: &str) -> String {
    format!("{},{label}", line.rsplit_once(',').unwrap().0)
}

#[test]
fn wrong_flags_are_named() {
    refused(&["--replicas", "0"], &["'0'", "--replicas"]);
    refused(&["--shards", "0"], &["'0'", "--shards"]);
    refused(&["--global-batch", "-1"], &["--global-batch", "-1"]);
    refused(&["--loader-threads", "many"], &["'many'", "--loader-threads"]);
    refused(&["--epochs", "0"], &["'0'", "--epochs"]);
}

/// The measurements take as many shards as a trainer does.
#[test]
fn bench_takes_as_many_shards_as_there_may_be() {
    let bench = |shards: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args(["step", "--adapter", "no such GPU", "--shards", shards]).output().unwrap()
    };
    assert!(err(&bench("65537")).contains("65537 is not in 1..=65536"), "{}", err(&bench("65537")));
    assert!(err(&bench("65536")).contains("no adapter matches"), "{}", err(&bench("65536")));
}

#[test]
fn an_unknown_adapter_lists_those_there_are() {
    let there: Vec<String> = unisono::gpu::adapters(&[]).iter().map(unisono::gpu::Adapter::label).collect();
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    fails(&["--adapter", "no such GPU"], &[&["no adapter matches \"no such GPU\""], &*there].concat());
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    fails(&["--out", below.to_str().unwrap()], &[below.to_str().unwrap()]);
    fails(&["--out", file.to_str().unwrap()], &[file.to_str().unwrap()]);
}

#[test]
fn corrupt_lines_are_named() {
    wrong_data(
        2,
        17,
        |line| line.replacen("0,", "zero,", 1),
        &["line 17", "column 1", "\"zero\" is not a number"],
    );
    wrong_data(2, 18, |line| line.replacen("0,", "NaN,", 1), &["line 18", "column 1", "NaN", "finite"]);
    wrong_data(2, 19, |line| line.replacen("0,", "", 1), &["line 19", "64 columns, expected 65"]);
    wrong_data(
        2,
        80,
        |line| labelled(line, "1.5"),
        &["line 80", "column 65", "\"1.5\" is not a whole number"],
    );
}

#[test]
fn labels_out_of_range_are_named() {
    wrong_data(1, 17, |line| labelled(line, "10"), &["sample ", "label 10 is not in 0..10"]);
    wrong_data(1, 17, |line| labelled(line, "-1"), &["sample ", "label -1 is not in 0..10"]);
}

#[test]
fn data_that_is_not_there_is_named() {
    refused(&["--data", "/no/such/file.csv"], &["/no/such/file.csv"]);
    let dir = tempfile::tempdir().unwrap();
    let empty = csv(dir.path(), &[]);
    refused(&["--data", empty.to_str().unwrap()], &["data.csv", "no samples"]);
}

#[test]
fn two_files_of_one_place_are_refused_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (out, file) = (path("out"), path("file"));
    std::fs::create_dir(&out).unwrap();
    let model = path("out/model.safetensors");
    refused(&["--csv", &file, "--trace", &file], &["--trace and --csv both write", &file]);
    refused(&["--out", &out, "--onnx", &out], &["--out and --onnx both write", "model.json"]);
    refused(&["--out", &out, "--csv", &model], &["--out and --csv both write", &model]);
    // What is the run's own: its lock, and all of its checkpoints.
    for name in ["out/.lock", "out/checkpoints/a.csv", "out/checkpoints/step-00000001"] {
        let own = path(name);
        refused(&["--out", &out, "--csv", &own], &["--out and --csv both write", &own]);
    }
    std::fs::write(path("text"), "").unwrap();
    refused(&["--logdir", &path("text")], &["--logdir", &path("text")]);
    // By another way to the same place.
    for other in ["out/../file", "new/../file"] {
        refused(&["--csv", &file, "--trace", &path(other)], &["both write"]);
    }
    assert!(std::fs::read_dir(&out).unwrap().next().is_none());
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_not_replaced_by_files() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let onnx = dir.path().join("onnx");
    std::fs::create_dir(&onnx).unwrap();
    std::fs::rename(&pipe, onnx.join("model.json")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (flag, path) in
        [("--trace", "/dev/full"), ("--csv", "/dev/null"), ("--trace", pipe.to_str().unwrap())]
    {
        refused(&[flag, path], &[flag, path, "which is not replaced"]);
    }
    refused(&["--onnx", onnx.to_str().unwrap()], &["--onnx", "model.json", "which is not replaced"]);
    for path in [std::path::Path::new("/dev/full"), &pipe, &onnx.join("model.json")] {
        assert!(!std::fs::symlink_metadata(path).unwrap().is_file(), "{}", path.display());
    }
}

/// A build without MPI that mpirun or Slurm has started on one of several hosts says which one it is, and
/// that starting it again is of no use.
#[test]
#[cfg(not(feature = "mpi"))]
fn a_build_without_mpi_names_its_rank() {
    for variables in [
        &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")][..],
        &[("PMI_SIZE", "2"), ("PMI_RANK", "1")],
        &[("SLURM_NTASKS", "2"), ("PMIX_RANK", "1")],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_digits"));
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.starts_with("error: rank 1 ("), "{text}");
        assert!(text.contains("): this program was built without the feature mpi: "), "{text}");
    }
}

/// A program that was copied to another machine takes its folder `data` along.
#[test]
#[cfg(unix)]
fn data_beside_the_program_are_found() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_digits"));
    let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let (copy, data) = (dir.path().join("digits"), dir.path().join("data"));
    std::fs::hard_link(program, &copy).unwrap();
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("digits.csv.gz"), "not a table\n").unwrap();
    let output = std::process::Command::new(copy).args(["--epochs", "1"]).output().unwrap();
    let place = data.canonicalize().unwrap().join("digits.csv.gz");
    assert!(err(&output).contains(place.to_str().unwrap()), "{}", err(&output));
}

/// Programs that read other files than tables exit with 2 as well, so that `relaunch` does not start them
/// again.
#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/gpt2");
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let one_class = format!("{}7\n", "0,".repeat(64)).repeat(30);
    for (program, args, words) in [
        (env!("CARGO_BIN_EXE_tiny_gpt"), ["--data".into(), file("short", "too short")], "too short to learn"),
        (env!("CARGO_BIN_EXE_text_lstm"), ["--data".into(), dir.path().join("none")], "none: "),
        (env!("CARGO_BIN_EXE_text_classify"), ["--data".into(), file("reviews", "good")], "line 1: no tab"),
        (
            env!("CARGO_BIN_EXE_siamese"),
            ["--data".into(), file("class", &one_class)],
            "rows 1 to 23 have to be digits of 64 pixels, of at least two classes",
        ),
        (
            env!("CARGO_BIN_EXE_siamese"),
            ["--data".into(), file("few", "1,2,3\n")],
            "have to be digits of 64 pixels",
        ),
        (env!("CARGO_BIN_EXE_fine_tune_text"), ["--model".into(), base.clone()], "model_type is \"gpt2\""),
        (env!("CARGO_BIN_EXE_lora"), ["--model".into(), dir.path().join("none")], "none"),
    ] {
        let output = std::process::Command::new(program).args(&args).output().unwrap();
        let said = err(&output);
        assert_eq!(output.status.code(), Some(2), "{program} {args:?}: {said}");
        assert!(said.contains(words), "{program} {args:?}: {said}");
    }
    refused(&["--precision", "f32", "--matrix-units"], &["--matrix-units: needs --precision mixed"]);
}
