use std::process::Command;

fn adapters(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_adapters")).args(args).output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn adapters_are_listed_with_kind_and_limits() {
    let (fine, shown) = adapters(&[]);
    assert!(fine, "{shown}");
    assert!(shown.starts_with("adapter"), "{shown}");
    assert!(shown.contains("kind") && shown.contains("binding") && shown.contains("workgroups"), "{shown}");
}

/// Returns the class of each adapter whose name has `name`, as `adapters --probe` shows it.
fn classes(name: &str, backend: &str, unprotected: bool) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adapters"));
    command.args(["--probe", "--backend", backend]);
    if unprotected {
        command.env("UNISONO_UNPROTECTED", "1");
    }
    let output = command.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let (_, table) = shown.split_once("numeric class").unwrap_or_default();
    let own = table.lines().filter(|line| line.contains(name));
    own.filter_map(|line| Some(line.split_once("]")?.1.trim().to_owned())).collect()
}

/// Mesa merges constants and factors sums where nothing forbids it: the probe tells, and the class says that
/// it is no other machine's.
#[test]
fn without_protection_a_class_is_another_and_not_portable() {
    for backend in ["vulkan", "gl"] {
        let [own, loose] = [false, true].map(|unprotected| classes("llvmpipe", backend, unprotected));
        let (_, listed) = adapters(&["--backend", backend]);
        // The first of two tables.
        let table = listed.lines().take_while(|line| !line.is_empty());
        let there = table.filter(|line| line.contains("llvmpipe")).count();
        assert_eq!([own.len(), loose.len()], [there; 2], "{backend}: {listed}");
        for (own, loose) in own.iter().zip(&loose) {
            let digits = |class: &str| class.split([' ', ',']).nth(1).unwrap().to_owned();
            assert_ne!(digits(own), digits(loose), "{backend}");
            assert!(!own.contains("not portable") && loose.contains("not portable"), "{own} and {loose}");
        }
    }
    let data = tempfile::tempdir().unwrap();
    let data = crate::csv(data.path(), &crate::lines(60));
    let flags = ["--epochs", "1", "--replicas", "1", "--data", data.to_str().unwrap()];
    let digits = |unprotected: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
        crate::err(&command.args(flags).env("UNISONO_UNPROTECTED", unprotected).output().unwrap())
    };
    let (own, loose) = (digits("0"), digits("1"));
    assert!(!own.contains("not portable") && loose.contains("numeric class is not portable"), "{loose}");
}

/// The table has every adapter, also after one that cannot be used, and the exit code is that of an error.
#[test]
fn a_probe_that_an_adapter_fails_is_no_success() {
    let probe = |faults: &str| {
        let cache = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_adapters"));
        command.args(["--probe", "--backend", "cpu"]).env("UNISONO_CACHE", cache.path());
        let output = command.env("FAILPOINTS", faults).output().unwrap();
        let said = crate::err(&output);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let (code, shown, said) = probe("");
    assert_eq!((code, &said[..]), (Some(0), ""), "{shown}");
    let (code, shown, said) = probe("probe:replica-0:step-0=return(lose)");
    assert_eq!(code, Some(1), "{shown}{said}");
    assert!(shown.contains("device lost: on purpose"), "{shown}");
    assert!(said.starts_with("error: 1 of 1 adapters cannot be used: CPU"), "{said}");
}

#[test]
fn a_backend_that_is_asked_for_is_listed() {
    let (_, all) = adapters(&["--backend", "all"]);
    for backend in ["vulkan", "metal", "dx12", "gl", "cpu"] {
        let (fine, shown) = adapters(&["--backend", backend]);
        assert_eq!(fine, all.contains(&format!("[{backend}]")), "{backend}: {shown}");
        assert!(
            fine || shown == "error: no adapter found; `--backend all` lists those of every backend\n",
            "{shown}"
        );
    }
}
