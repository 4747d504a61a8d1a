//! `mnist_cnn` on drivers of two makers: they are one run, over the loss of replicas of each, a kill,
//! and a resume on a third one.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mnist_cnn::idx;
use crate::{done, err};

/// Where Debian's `chromium-common` has the Vulkan driver SwiftShader.
const SWIFTSHADER: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";

fn mnist_cnn(data: &Path, out: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist_cnn"));
    command.arg("--data").arg(data).arg("--out").arg(out).env("VK_ADD_DRIVER_FILES", SWIFTSHADER);
    command.args(["--json", "--epochs", "1", "--global-batch", "16", "--checkpoint-every", "4"]).args(flags);
    command
}

/// Returns the last step of a complete checkpoint.
fn saved(out: &Path) -> u64 {
    unisono::checkpoint::newest(out).ok().flatten().map_or(0, |newest| newest.step)
}

#[test]
fn replicas_of_two_drivers_are_one_run_and_a_third_driver_ends_it() {
    if std::env::var_os("UNISONO_LONG").is_none() || !Path::new(SWIFTSHADER).exists() {
        crate::left_out("a run on two drivers: it is long, and needs SwiftShader");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let data = at("data");
    fs::create_dir(&data).unwrap();
    idx(&data, "train", 640);
    idx(&data, "t10k", 20);

    let finished = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        done(&String::from_utf8(output.stdout).unwrap(), "state_sha256")
    };
    let alone = ["vulkan:llvmpipe", "vulkan:SwiftShader", "gl:llvmpipe"].map(|adapter| {
        finished(mnist_cnn(
            &data,
            &at(&adapter.replace(':', "-")),
            &["--adapter", adapter, "--replicas", "1"],
        ))
    });
    assert!(alone.iter().all(|state| *state == alone[0]), "{alone:?}");

    // Replicas 0 and 2 are on one driver, 1 and 3 on the other.
    let both = ["--adapter", "vulkan:llvmpipe", "--adapter", "vulkan:SwiftShader", "--replicas", "4"];
    let (out, said) = (at("together"), at("said"));
    let mut command = mnist_cnn(&data, &out, &both);
    command.env("FAILPOINTS", "replica-0:step-3=return(lose);replica-1:step-6=return(lose)");
    let mut process = command.stdout(Stdio::null()).stderr(File::create(&said).unwrap()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(600);
    while saved(&out) < 12 && process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < patience, "nothing was saved in ten minutes");
        sleep(Duration::from_millis(5));
    }
    process.kill().unwrap();
    assert!(!process.wait().unwrap().success(), "it ended before it was killed");
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(said.matches(" left at step ").count(), 2, "{said}");
    assert!((12..40).contains(&saved(&out)), "{}", saved(&out));

    let resumed =
        finished(mnist_cnn(&data, &out, &["--resume", "--adapter", "gl:llvmpipe", "--replicas", "1"]));
    assert_eq!(resumed, alone[0]);
}
