//! Compiles and runs the snippets of the guide, and compiles that of the README.

/// Makes a doc test of each chapter.
macro_rules! chapters {
    ($($name:ident: $file:literal;)+) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../docs/guide/src/", $file))]
            struct $name;
        )+

        /// The files of the chapters.
        #[cfg(test)]
        const FILES: &[&str] = &[$($file),+];
    };
}

chapters! {
    Install: "install.md";
    FirstModel: "first_model.md";
    Data: "data.md";
    Pictures: "pictures.md";
    Text: "text.md";
    Optimizers: "optimizers.md";
    Several: "several.md";
    Metrics: "metrics.md";
    Callbacks: "callbacks.md";
    Resume: "resume.md";
    ClassWeights: "class_weights.md";
    Lengths: "lengths.md";
    KnownModel: "known_model.md";
    Transfer: "transfer.md";
    Phases: "phases.md";
    Predict: "predict.md";
    OwnLoop: "own_loop.md";
    OwnParts: "own_parts.md";
    Gpus: "gpus.md";
    Debugging: "debugging.md";
}

/// The program of the repository's front page, which is only compiled: its data file is elsewhere.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// A chapter that is not in the list, or a snippet that is not run, would be checked by nobody.
    #[test]
    fn every_snippet_is_run() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/src");
        let mut snippets = 0;
        for entry in fs::read_dir(guide).unwrap() {
            let path = entry.unwrap().path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let Ok(text) = fs::read_to_string(&path) else { continue };
            for fence in text.lines().filter(|line| line.starts_with("```rust")) {
                assert_eq!(fence, "```rust", "{name} has a snippet that is not run");
                assert!(super::FILES.contains(&name), "{name} is in no list");
                snippets += 1;
            }
        }
        assert!(snippets >= super::FILES.len(), "{snippets} snippets");
    }

    /// The files of the examples in CONTRIBUTING.md, in its order. They are modules of tests of their crates,
    /// since they use what is private there.
    const CONTRIBUTING: [&str; 4] = [
        "crates/graph/src/ops/tests/softsign.rs",
        "crates/unisono/src/model/layers/tests/scale.rs",
        "crates/unisono/src/model/layers/tests/snake.rs",
        "crates/unisono/src/optimizers/tests/sign_sgd.rs",
    ];

    #[test]
    fn every_example_of_the_contributing_guide_is_a_file_that_is_compiled() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let guide = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
        let mut lines = guide.lines();
        let mut examples: Vec<String> = Vec::new();
        while let Some(fence) = lines.find(|line| line.trim_start().starts_with("```rust")) {
            let indent = fence.len() - fence.trim_start().len();
            let example = lines.by_ref().take_while(|line| line.trim_start() != "```");
            examples.push(example.map(|line| format!("{}\n", line.get(indent..).unwrap_or(""))).collect());
        }
        let files = CONTRIBUTING.map(|path| fs::read_to_string(root.join(path)).unwrap());
        for ((example, file), path) in examples.iter().zip(&files).zip(CONTRIBUTING) {
            assert_eq!(example, file, "CONTRIBUTING.md does not show what is in {path}");
        }
        assert_eq!(examples.len(), CONTRIBUTING.len(), "an example that is not compiled, or a file too many");
    }
}
