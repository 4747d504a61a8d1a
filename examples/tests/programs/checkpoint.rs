use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use unisono::checkpoint::Store;

use crate::{csv, lines, trained};

/// Runs the program. Returns its exit code, its standard output and its standard error.
fn checkpoint<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_checkpoint")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_run_is_listed_shown_verified_compared_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(100));
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    trained(&data, &one, &["--epochs", "2", "--keep-best", "loss"]);
    trained(&data, &two, &["--epochs", "2", "--keep-best", "loss", "--seed", "9"]);
    let path = |name: &str| dir.path().join(name).into_os_string();

    let (code, shown, _) = checkpoint(["list".into(), path("one")]);
    assert_eq!((code, shown.lines().count()), (Some(0), 2), "{shown}");
    assert!(shown.starts_with("step        4  ") && shown.contains("  metric "), "{shown}");
    // The last step of a fit is audited.
    assert!(shown.lines().all(|line| line.ends_with("  trusted")), "{shown}");

    let (code, shown, _) = checkpoint(["show".into(), path("one")]);
    assert_eq!(code, Some(0));
    for words in ["model.safetensors\n  0.bias", "  6.weight", "F32[10, 64]", "norm ", "\"global_batch\": 64"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }

    let (code, shown, _) = checkpoint(["diff".into(), path("one"), path("two")]);
    assert_eq!(code, Some(1));
    assert!(shown.contains("differs     model.safetensors: 0.weight F32[128, 64]: "), "{shown}");
    assert!(shown.contains("trainer.json: sections.settings.value.seed: 42, 9\n"), "{shown}");
    let (code, shown, _) = checkpoint(["diff".into(), path("one"), path("one/model.safetensors")]);
    assert_eq!((code, &*shown), (Some(0), "6 tensors equal, 0 differ\n"));

    let half = path("half.safetensors");
    let (code, _, complaint) = checkpoint(["convert".into(), "--f16".into(), path("one"), half.clone()]);
    assert_eq!((code, &*complaint), (Some(0), ""));
    let (_, shown, _) = checkpoint(["show".into(), half]);
    assert!(shown.contains("F16[128, 64]"), "{shown}");

    #[cfg(target_os = "linux")]
    for command in ["list", "show", "verify"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_checkpoint"));
        let output = process.arg(command).arg(path("one")).stdout(full).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
        assert!(complaint.starts_with("standard output: "), "{complaint}");
    }

    assert_eq!(checkpoint(["verify".into(), path("one")]).0, Some(0));
    let model = one.join("checkpoints/step-00000004/model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();
    let (code, shown, _) = checkpoint(["verify".into(), path("one")]);
    assert_eq!(code, Some(1));
    assert!(shown.contains("broken  ") && shown.contains("SHA-256") && shown.contains("ok      "), "{shown}");

    let mut store = Store::open(dir.path().join("one")).unwrap();
    let suspects = store.distrust(0).unwrap();
    fs::write(one.join("checkpoints/trusted.json"), "{").unwrap();
    let (code, shown, complaint) = checkpoint(["list".into(), path("one")]);
    assert_eq!((code, shown.lines().count()), (Some(0), suspects.len()), "{shown}");
    assert!(shown.lines().all(|line| line.contains("  suspect: ")), "{shown}");
    assert!(
        complaint.starts_with("no checkpoint is trusted: ") && complaint.contains("no valid record"),
        "{complaint}"
    );
}

#[test]
fn what_cannot_be_looked_at_is_named() {
    for (command, words) in
        [("show", "cannot read"), ("verify", "cannot read"), ("list", "is no directory of a run")]
    {
        let (code, shown, complaint) = checkpoint([command, "/no/such/run"]);
        let complaint = if command == "verify" { shown } else { complaint };
        assert_eq!(code, Some(if command == "verify" { 1 } else { 2 }), "{command}");
        assert!(complaint.contains("/no/such/run: ") && complaint.contains(words), "{complaint}");
    }
}
