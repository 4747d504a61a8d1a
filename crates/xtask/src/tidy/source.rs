//! Rules about source files.

/// The most lines of a file. A longer file does more than one thing.
const LONGEST: usize = 450;
/// The most characters of a comment line. rustfmt holds code to the same width, but leaves comments alone.
const WIDEST: usize = 110;
/// A reference to a document that the repository does not have. It is split so that this file does not
/// contain it.
const UNKNOWN_DOCUMENT: &str = concat!("DESIGN", " section");
/// What Unix says of files, which Windows says otherwise: tests that expect it fail there. Each is split, so
/// that this file does not contain it.
const OF_ONE_SYSTEM: [&str; 6] = [
    concat!("No such", " file"),
    concat!("Permission", " denied"),
    concat!("Is a", " directory"),
    concat!("Not a", " directory"),
    concat!("No space", " left"),
    concat!("(os", " error"),
];
/// The directories of the libraries' own code, which returns errors instead of panicking.
const LIBRARIES: [&str; 9] = [
    "crates/checkpoint/src/",
    "crates/cpu/src/",
    "crates/data/src/",
    "crates/gpu/src/",
    "crates/graph/src/",
    "crates/random/src/",
    "crates/replica/src/",
    "crates/unisono/src/",
    "shaders/",
];

/// Returns the violations of a Rust file.
pub fn check_rust(path: &str, text: &str) -> Vec<String> {
    let mut violations: Vec<String> = too_long(text).into_iter().chain(comments(text)).collect();
    violations.extend(words_of_one_system(text));
    let test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if LIBRARIES.iter().any(|library| path.starts_with(library)) && !test {
        violations.extend(panics(text));
    }
    violations
}

/// Returns the violations of a shader. Its first line must be a comment that says what the shader computes.
pub fn check_wgsl(text: &str) -> Vec<String> {
    let mut violations: Vec<String> = too_long(text).into_iter().chain(comments(text)).collect();
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

/// Returns comment lines that are too wide or refer to a document that the repository does not have. Two
/// kinds of line may be wider, because they cannot be broken: a single long word such as an address, and a
/// row of a table.
fn comments(text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.contains(UNKNOWN_DOCUMENT) {
            violations
                .push(format!(":{}: refers to {UNKNOWN_DOCUMENT}, which is not in the repository", i + 1));
        }
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let width = line.chars().count();
        if width > WIDEST && comment.contains(' ') && !comment.starts_with('|') {
            violations.push(format!(":{}: a comment of {width} characters, more than {WIDEST}", i + 1));
        }
    }
    violations
}

/// Returns lines of code that have what one system says of files. Comments and output in documentation may.
fn words_of_one_system(text: &str) -> Vec<String> {
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let found =
        code.filter_map(|(i, line)| Some((i, OF_ONE_SYSTEM.iter().find(|words| line.contains(**words))?)));
    found.map(|(i, words)| format!(":{}: {words:?} is one system's: take io::Error's text", i + 1)).collect()
}

/// Returns lines that can panic on purpose, before the file's tests begin. Comments and documentation may.
fn panics(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let tests = lines
        .windows(2)
        .position(|pair| is_for_tests(pair[0]) && pair[1].contains("mod ") && pair[1].ends_with('{'));
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

/// Whether a line is `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn is_for_tests(line: &str) -> bool {
    line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test,")
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
    fn what_one_system_says_is_expected_of_none() {
        let words = OF_ONE_SYSTEM[0];
        let text = format!("// {words}\nassert!(error.contains(\"a: {words} or\"));\n");
        let found = check_rust("examples/tests/a.rs", &text);
        assert_eq!(found, [format!(":2: {words:?} is one system's: take io::Error's text")]);
    }

    #[test]
    fn shaders_state_their_contract() {
        assert_eq!(check_wgsl("// sum: y = x + x.\nfn f() {}"), [""; 0]);
        assert_eq!(check_wgsl("fn f() {}\n// sum").len(), 1);
        assert_eq!(check_wgsl("").len(), 1);
    }

    #[test]
    fn comments_are_held_to_the_width_of_code() {
        let line = |marker: &str, width: usize| format!("fn f() {{}}\n{marker}{}a\n", "é ".repeat(width / 2));
        for marker in ["// ", "/// ", "    //!"] {
            let fits = line(marker, 109 - marker.len());
            assert_eq!(check_rust("tests/src/a.rs", &fits), [""; 0], "{fits}");
            let wide = line(marker, 111 - marker.len());
            assert_eq!(check_rust("tests/src/a.rs", &wide).len(), 1, "{wide}");
            assert!(check_rust("tests/src/a.rs", &wide)[0].starts_with(":2: a comment of 11"));
        }
        assert_eq!(check_wgsl(&format!("// {}", "ab ".repeat(50))).len(), 1);
    }

    #[test]
    fn what_cannot_be_broken_may_be_wide() {
        let wide = [
            format!("// https://example.org/{}", "a".repeat(120)),
            format!("//! | a | {} |", "b ".repeat(60)),
            format!("let x = \"{}\";", "c ".repeat(60)),
        ];
        for line in wide {
            assert_eq!(check_rust("tests/src/a.rs", &line), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_reference_to_a_document_that_is_not_there_is_found() {
        let text = format!("// sum: y = x + x.\n// See {UNKNOWN_DOCUMENT} 2.\n");
        let expected = format!(":2: refers to {UNKNOWN_DOCUMENT}, which is not in the repository");
        assert_eq!(check_wgsl(&text), [expected]);
        assert_eq!(check_rust("tests/src/a.rs", &text).len(), 1);
    }

    #[test]
    fn long_files_are_counted() {
        assert_eq!(check_rust("tests/src/a.rs", &"x\n".repeat(450)), [""; 0]);
        assert_eq!(check_rust("tests/src/a.rs", &"x\n".repeat(451)), [": 451 lines, more than 450"]);
    }
}
