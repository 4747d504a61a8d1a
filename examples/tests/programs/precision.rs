use crate::{csv, digits, done, err, lines, trained};

/// Each run trains twenty epochs on the digits and checks its claim of 97% by itself.
#[test]
fn mixed_precision_learns_the_digits_as_f32_does() {
    let accuracy = |precision: &str| -> f64 {
        let output = digits(["--precision", precision, "--replicas", "2", "--json"]);
        assert!(output.status.success(), "{precision}: {}", err(&output));
        let stdout = String::from_utf8(output.stdout).unwrap();
        let last = done(&stdout, "val_accuracy");
        last.as_f64().unwrap_or_else(|| panic!("no accuracy in {stdout}"))
    };
    let (full, mixed) = (accuracy("f32"), accuracy("mixed"));
    assert!((full - mixed).abs() <= 0.01, "{full} in f32, {mixed} in mixed precision");
}

#[test]
fn the_precision_belongs_to_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(100));
    let out = dir.path().join("mixed");
    let mixed = trained(&data, &out, &["--epochs", "1", "--precision", "mixed"]);
    let full = trained(&data, &dir.path().join("f32"), &["--epochs", "1"]);
    assert_ne!(done(&mixed, "state_sha256"), done(&full, "state_sha256"));
    let paths = ["--data", data.to_str().unwrap(), "--out", out.to_str().unwrap(), "--resume"];
    let other = digits(paths.iter().chain(&["--precision", "f32"]));
    assert!(
        err(&other).contains("--precision f32: the run to resume was started with mixed"),
        "{}",
        err(&other)
    );
    let resumed = digits(paths.iter().chain(&["--epochs", "2"]));
    assert!(err(&resumed).contains("mixed precision: a loss scale of"), "{}", err(&resumed));
}
