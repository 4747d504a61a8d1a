//! The lines of the example programs beside those of the same programs in Keras.

use std::fs;
use std::path::Path;

/// The programs that are there in both languages.
const PROGRAMS: [&str; 14] = [
    "bert",
    "export_predict",
    "fine_tune",
    "gan",
    "gpt2",
    "image_folder",
    "mobilenet",
    "resnet",
    "siamese",
    "tabular",
    "text_classify",
    "two_inputs",
    "unet",
    "vit",
];

/// Programs that do on data of their own what an example of keras.io does on published data: the program, the
/// file of that example in the folder `examples` of keras-team/keras-io, and its lines by [`of_python`]. What
/// Keras's example imports or loads is not in our program either: the rules of a game, and pictures.
///
/// The lines are those of the copy JoDeMiro/Keras-io, commit dba3c78523cacb4d6dbfa6d777d86399cca90d45 of
/// 2022-07-09. `cargo xtask lines --keras-io DIR` counts another copy.
const PUBLISHED: [(&str, &str, usize); 10] = [
    ("vae", "generative/vae.py", 110),
    ("simclr", "vision/semisupervised_simclr.py", 292),
    ("translate", "nlp/neural_machine_translation_with_transformer.py", 245),
    ("diffusion", "generative/ddim.py", 290),
    ("forecast", "timeseries/timeseries_weather_forecasting.py", 192),
    ("dqn", "rl/deep_q_network_breakout.py", 111),
    ("audio", "audio/speaker_recognition_using_cnn.py", 224),
    ("recommend", "structured_data/collaborative_filtering_movielens.py", 129),
    ("grad_cam", "vision/grad_cam.py", 65),
    ("segment", "vision/oxford_pets_image_segmentation.py", 113),
];

/// The most lines of a Rust program for each line of its Keras program.
#[cfg(test)]
const MOST: f64 = 1.5;

/// The most lines of a Rust program for each line of keras.io's example.
#[cfg(test)]
const MOST_OF_PUBLISHED: f64 = 0.7;

/// The lines of a program in both languages.
pub struct Lines {
    program: &'static str,
    rust: usize,
    keras: usize,
}

impl Lines {
    /// Returns the Rust lines for each of Keras.
    fn ratio(&self) -> f64 {
        self.rust as f64 / self.keras as f64
    }
}

/// Returns the tables of all programs: first beside their Keras twins, then beside the examples of keras.io.
/// The latter are counted in `keras_io`, a checkout of keras-team/keras-io, if there is one.
///
/// # Errors
/// A program cannot be read.
pub fn report(root: &Path, keras_io: Option<&Path>) -> Result<String, String> {
    let (twins, published) = (count(root)?, published(root, keras_io)?);
    Ok(format!("{}\nbeside keras.io's examples:\n{}", table(&twins), table(&published)))
}

/// Counts the lines of all programs that have a twin.
fn count(root: &Path) -> Result<Vec<Lines>, String> {
    let lines = |&program: &&'static str| {
        let keras = of_python(&read(&root.join(format!("docs/keras/{program}.py")))?);
        Ok(Lines { program, rust: rust(root, program)?, keras })
    };
    PROGRAMS.iter().map(lines).collect()
}

/// Counts the lines of the programs that do what an example of keras.io does.
fn published(root: &Path, keras_io: Option<&Path>) -> Result<Vec<Lines>, String> {
    let lines = |&(program, file, recorded): &(&'static str, &str, usize)| {
        let keras = match keras_io {
            Some(dir) => of_python(&read(&dir.join("examples").join(file))?),
            None => recorded,
        };
        Ok(Lines { program, rust: rust(root, program)?, keras })
    };
    PUBLISHED.iter().map(lines).collect()
}

fn rust(root: &Path, program: &str) -> Result<usize, String> {
    Ok(of_rust(&read(&root.join(format!("examples/{program}.rs")))?))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns a table.
fn table(all: &[Lines]) -> String {
    let line = |lines: &Lines| {
        let Lines { program, rust, keras } = lines;
        format!("{program:<16} {rust:>5} {keras:>6} {:>6.2}\n", lines.ratio())
    };
    let head = format!("{:<16} {:>5} {:>6} {:>6}\n", "program", "Rust", "Keras", "ratio");
    all.iter().map(line).fold(head, |table, line| table + &line)
}

/// Counts the lines that are neither blank nor comment nor import.
fn of_rust(text: &str) -> usize {
    let (mut count, mut imports) = (0, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        imports |= line.starts_with("use ") || line.starts_with("pub use ");
        count += usize::from(!imports);
        imports &= !line.ends_with(';');
    }
    count
}

/// Counts the lines that are neither blank nor comment nor import nor a string that documents.
fn of_python(text: &str) -> usize {
    const QUOTES: &str = "\"\"\"";
    let (mut count, mut inside, mut imports) = (0, false, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let ends = line.matches(QUOTES).count();
        let documents = inside || line.starts_with(QUOTES);
        inside ^= documents && ends == 1;
        let starts = line.starts_with("import ") || line.starts_with("from ");
        let is_import = imports || !documents && starts;
        imports = is_import && (imports || line.contains('(')) && !line.contains(')');
        count += usize::from(!documents && !is_import && !line.starts_with('#'));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn longer_than(most: f64, all: &[Lines]) -> Vec<&'static str> {
        all.iter().filter(|lines| lines.ratio() > most).map(|lines| lines.program).collect()
    }

    #[test]
    fn no_program_is_much_longer_than_in_keras() {
        let all = count(&root()).unwrap();
        assert!(longer_than(MOST, &all).is_empty(), "too long:\n{}", table(&all));
        assert!(all.iter().all(|lines| lines.keras > 20));
    }

    #[test]
    fn programs_are_shorter_than_the_examples_of_keras_io() {
        let all = published(&root(), None).unwrap();
        assert!(longer_than(MOST_OF_PUBLISHED, &all).is_empty(), "too long:\n{}", table(&all));
    }

    #[test]
    fn comments_blank_lines_and_imports_do_not_count() {
        assert_eq!(
            of_rust("//! a\nuse a::b;\nuse c::{\n    d, e,\n};\n\nfn a() {\n    // b\n    b()\n}\n"),
            3
        );
        assert_eq!(of_python("\"\"\"a\n\nb\n\"\"\"\n# c\nd = 1\n\"\"\"e\"\"\"\nf = \"\"\"g\"\"\"\n"), 2);
        assert_eq!(
            of_python("import a\nfrom b import (\n    c,\n)\nd = e(\n    f\n)\n\"\"\"\nfrom g\n\"\"\"\nh\n"),
            4
        );
    }
}
