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

/// The most lines of a Rust program for each line of its Keras program.
#[cfg(test)]
const MOST: f64 = 1.5;

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

/// Counts the lines of all programs.
///
/// # Errors
/// A program cannot be read.
pub fn count(root: &Path) -> Result<Vec<Lines>, String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let lines = |&program: &&'static str| {
        let rust = of_rust(&read(&root.join(format!("examples/{program}.rs")))?);
        let keras = of_python(&read(&root.join(format!("docs/keras/{program}.py")))?);
        Ok(Lines { program, rust, keras })
    };
    PROGRAMS.iter().map(lines).collect()
}

/// Returns the table.
pub fn table(all: &[Lines]) -> String {
    let line = |lines: &Lines| {
        let Lines { program, rust, keras } = lines;
        format!("{program:<16} {rust:>5} {keras:>6} {:>6.2}\n", lines.ratio())
    };
    let head = format!("{:<16} {:>5} {:>6} {:>6}\n", "program", "Rust", "Keras", "ratio");
    all.iter().map(line).fold(head, |table, line| table + &line)
}

/// Counts the lines that are neither blank nor comment.
fn of_rust(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Counts the lines that are neither blank nor comment nor a string that documents.
fn of_python(text: &str) -> usize {
    const QUOTES: &str = "\"\"\"";
    let (mut count, mut inside) = (0, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let ends = line.matches(QUOTES).count();
        let documents = inside || line.starts_with(QUOTES);
        inside ^= documents && ends == 1;
        count += usize::from(!documents && !line.starts_with('#'));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_is_much_longer_than_in_keras() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let all = count(&root).unwrap();
        let long: Vec<&str> = all.iter().filter(|lines| lines.ratio() > MOST).map(|l| l.program).collect();
        assert!(long.is_empty(), "{long:?} are too long:\n{}", table(&all));
        assert!(all.iter().all(|lines| lines.keras > 20));
    }

    #[test]
    fn comments_and_blank_lines_do_not_count() {
        assert_eq!(of_rust("//! a\n\nfn a() {\n    // b\n    b()\n}\n"), 3);
        assert_eq!(of_python("\"\"\"a\n\nb\n\"\"\"\n# c\nd = 1\n\"\"\"e\"\"\"\nf = \"\"\"g\"\"\"\n"), 2);
    }
}
