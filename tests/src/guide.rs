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
}
