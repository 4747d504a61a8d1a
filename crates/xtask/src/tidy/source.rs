//! Rules about source files.

/// A file that is longer does more than one thing.
const LONGEST: usize = 450;
/// Where the libraries' own code is: these return errors.
const LIBRARIES: [&str; 8] = [
    "crates/checkpoint/src/",
    "crates/data/src/",
    "crates/gpu/src/",
    "crates/graph/src/",
    "crates/random/src/",
    "crates/replica/src/",
    "crates/unisono/src/",
    "shaders/",
];

/// The violations of a Rust file.
pub fn check_rust(path: &str, text: &str) -> Vec<String> {
    let mut violations: Vec<String> = too_long(text).into_iter().collect();
    let test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if LIBRARIES.iter().any(|library| path.starts_with(library)) && !test {
        violations.extend(panics(text));
    }
    violations
}

/// The violations of a shader: it begins with a comment that says what it computes.
pub fn check_wgsl(text: &str) -> Vec<String> {
    let mut violations: Vec<String> = too_long(text).into_iter().collect();
    let contract = text.lines().next().and_then(|line| line.strip_prefix("//"));
    if contract.is_none_or(|contract| contract.trim().is_empty()) {
        violations.push(
            ":1: does not begin with its contract (a comment: what it computes, shapes, grid)".to_owned(),
        );
    }
    violations
}

fn too_long(text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > LONGEST).then(|| format!(": {lines} lines, more than {LONGEST}"))
}

/// Lines that can panic on purpose, before the file's tests begin. Comments and documentation may.
fn panics(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{'));
    let mut violations = Vec::new();
    for (i, line) in lines[..tests.unwrap_or(lines.len())].iter().enumerate() {
        let code = if line.starts_with("//") { "" } else { line.split(" // ").next().unwrap_or_default() };
        for call in [".unwrap()", "panic!("] {
            if code.contains(call) {
                violations.push(format!(":{}: {call} in a library: return an error", i + 1));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_do_not_panic_outside_tests() {
        let text = "//! a.unwrap()\nfn f() {\n    a.unwrap(); // why\n    b() // not panic!()\n}\n\
            #[cfg(test)]\nuse x;\nfn g() { panic!(\"no\") }\n#[cfg(test)]\nmod tests {\n    a.unwrap();\n}\n";
        let found = check_rust("crates/graph/src/a.rs", text);
        assert_eq!(
            found,
            [":3: .unwrap() in a library: return an error", ":8: panic!( in a library: return an error"]
        );
        for elsewhere in ["examples/src/a.rs", "crates/graph/tests/a.rs", "crates/graph/src/ops/tests.rs"] {
            assert_eq!(check_rust(elsewhere, text), [""; 0]);
        }
    }

    #[test]
    fn shaders_state_their_contract() {
        assert_eq!(check_wgsl("// sum: y = x + x.\nfn f() {}"), [""; 0]);
        assert_eq!(check_wgsl("fn f() {}\n// sum").len(), 1);
        assert_eq!(check_wgsl("").len(), 1);
    }

    #[test]
    fn long_files_are_counted() {
        assert_eq!(check_rust("tests/src/a.rs", &"x\n".repeat(450)), [""; 0]);
        assert_eq!(check_rust("tests/src/a.rs", &"x\n".repeat(451)), [": 451 lines, more than 450"]);
    }
}
