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

#[test]
fn a_backend_that_is_asked_for_is_listed() {
    let (_, all) = adapters(&["--backend", "all"]);
    for backend in ["vulkan", "metal", "dx12", "gl"] {
        let (fine, shown) = adapters(&["--backend", backend]);
        assert_eq!(fine, all.contains(&format!("[{backend}]")), "{backend}: {shown}");
        assert!(
            fine || shown == "error: no adapter found; `cargo xtask demo` installs a software one\n",
            "{shown}"
        );
    }
}
