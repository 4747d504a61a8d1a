//! The logger of a run's history as CSV.

mod read;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use unisono_checkpoint::{open_regular, open_to_append};

use crate::observe::csv_log::read::epochs_of;
use crate::observe::file;
use crate::observe::observer::{Observer, Start};
use crate::observe::tables;
use crate::{Epoch, Evaluation};

/// The first columns.
const FIRST: &str = "epoch,steps";

/// Writes the history as a CSV file (Keras's `CSVLogger`), with one line for each epoch. The columns are
/// `epoch` (from 1), `steps` (since the start of the run), `loss`, the metrics, `val_loss` and the metrics as
/// `val_...`. The `val` columns are empty if nothing was evaluated.
///
/// Each metric whose result is a table, such as a confusion matrix, has a file of its own with the newest
/// table. For `history.csv`, the table of the validation data is in `history.val confusion matrix.csv`, with
/// one line for each row. In the file name, characters of the metric's name other than letters, digits,
/// space, `-` and `_` become `%` and their number.
///
/// The file contains no times: equal histories give equal bytes. After a resume it has the lines of the whole
/// run, each epoch once. The directory is created. An existing file that is not such a history or table is
/// left unchanged.
///
/// ```
/// use unisono::{CsvLog, Dense, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).observer(CsvLog::new("runs/houses/history.csv"));
/// ```
#[doc(alias = "CSVLogger")]
pub struct CsvLog {
    path: PathBuf,
    epochs: Vec<Epoch>,
    /// The steps of those epochs that were read from the file.
    read: Vec<u64>,
    metrics: Vec<String>,
    /// Whether the file has the lines of all epochs but the last.
    is_current: bool,
    has_failed: bool,
    /// The files of tables that could not be written, which was told.
    failed_tables: BTreeSet<PathBuf>,
    problem: Option<String>,
}

impl CsvLog {
    /// Creates a logger that writes to the file `path`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            epochs: vec![],
            read: vec![],
            metrics: vec![],
            is_current: false,
            has_failed: false,
            failed_tables: BTreeSet::new(),
            problem: None,
        }
    }

    /// Writes the whole file, or appends the last line where that is enough.
    fn write(&mut self) {
        let known = self.metrics.len();
        for name in self.epochs.iter().flat_map(names) {
            if !self.metrics.contains(name) {
                self.metrics.push(name.clone());
            }
        }
        let last = self.epochs.last().filter(|_| self.is_current && self.metrics.len() == known);
        let appended = last.is_some_and(|last| append(&self.path, &line(last, &self.metrics)).is_ok());
        let written = if appended { Ok(()) } else { self.write_whole() };
        self.is_current = written.is_ok();
        self.keep(&self.path.clone(), written);
    }

    fn write_whole(&self) -> io::Result<()> {
        check(&self.path)?;
        let lines = self.epochs.iter().map(|epoch| line(epoch, &self.metrics));
        let text: String = std::iter::once(header(&self.metrics)).chain(lines).collect();
        file::replace(&self.path, &[text.as_bytes()])
    }

    /// Keeps the problem of a file that cannot be written. The next epoch tries again, so it is told once.
    fn keep(&mut self, path: &Path, written: io::Result<()>) {
        match written {
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                self.notify(path, &error);
            }
            Err(_) => {}
            Ok(()) => self.has_failed = false,
        }
    }

    /// Keeps a problem until it is asked for, beside those that an event brought before.
    fn notify(&mut self, path: &Path, error: &io::Error) {
        let problem = format!("{} is not written: {error}", path.display());
        self.problem = Some(match self.problem.take() {
            Some(before) => format!("{before}; {problem}"),
            None => format!("warning: {problem}"),
        });
    }

    /// Returns the file of a table.
    fn path_of(&self, part: &str, name: &str) -> PathBuf {
        let stem = self.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut escaped = String::new();
        for c in name.chars() {
            match c {
                _ if c.is_alphanumeric() || "-_ ".contains(c) => escaped.push(c),
                _ => escaped.push_str(&format!("%{:02X}", u32::from(c))),
            }
        }
        self.path.with_file_name(format!("{stem}.{part} {escaped}.csv"))
    }
}

impl Observer for CsvLog {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn started(&mut self, start: &Start<'_>) {
        self.metrics = start.metrics.to_vec();
        // Checkpoints of earlier versions have no epochs of a loop of your own; the file does, if it is this
        // run's.
        if start.step > 0 && self.epochs.is_empty() {
            self.epochs = epochs_of(&self.path, start.history);
            self.read = self.epochs.iter().map(|epoch| epoch.steps).collect();
        }
        self.epochs = start.epochs(std::mem::take(&mut self.epochs));
        self.is_current = false;
        self.write();
    }

    fn epoch(&mut self, epoch: &Epoch) {
        // An epoch that had ended behind what was resumed ends again, and a loop of your own may end one
        // again.
        let known = self.epochs.len();
        let is_same = |old: &Epoch| (old.epoch, old.steps) == (epoch.epoch, epoch.steps);
        let is_read = |old: &Epoch| old.steps >= epoch.steps && self.read.contains(&old.steps);
        self.epochs.retain(|old| !is_same(old) && !is_read(old));
        self.is_current &= self.epochs.len() == known;
        self.epochs.push(epoch.clone().without_tables());
        self.write();
        // A file that is no history, which is left alone, gets no tables beside it.
        if !self.has_failed {
            for (part, name, table) in tables::of_epoch(epoch) {
                let path = self.path_of(part, name);
                let written = check_table(&path);
                let written = written.and_then(|()| file::replace(&path, &[tables::csv(table).as_bytes()]));
                match written {
                    Err(error) if self.failed_tables.insert(path.clone()) => self.notify(&path, &error),
                    Err(_) => {}
                    Ok(()) => drop(self.failed_tables.remove(&path)),
                }
            }
        }
    }

    fn rolled_back(&mut self, step: u64) {
        self.epochs.retain(|epoch| epoch.steps <= step);
        self.is_current = false;
        self.write();
    }

    fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }
}

/// Returns the names of an epoch's metrics.
fn names(epoch: &Epoch) -> impl Iterator<Item = &String> {
    let evaluations = std::iter::once(&epoch.train).chain(&epoch.validation);
    evaluations.flat_map(|evaluation| evaluation.metrics.iter().map(|(name, _)| name))
}

/// Checks that a file that is there is a history.
///
/// # Errors
/// It is something else, or cannot be read.
fn check(path: &Path) -> io::Result<()> {
    let first = format!("{FIRST},loss,");
    let found = beginning(path, first.len() as u64)?;
    // A killed process may have left a part of the first line.
    let is_torn = found.is_empty() || found.len() >= FIRST.len();
    if is_torn && first.as_bytes().starts_with(&found) {
        return Ok(());
    }
    let problem = format!("the existing file is not such a history (it does not begin with {first:?})");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, problem))
}

/// The most bytes of a table that are looked at before it is replaced.
const MOST_LOOKED_AT: u64 = 1 << 16;

/// Checks that a file that is there may be a table.
///
/// # Errors
/// It is something else, or cannot be read.
fn check_table(path: &Path) -> io::Result<()> {
    let found = beginning(path, MOST_LOOKED_AT)?;
    if found.iter().all(|byte| b"0123456789+-.,eEinfNa\n".contains(byte)) {
        return Ok(());
    }
    let problem = "the existing file is not a table of numbers";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, problem))
}

/// Returns the first bytes of a file, at most so many. A file that is not there has none.
fn beginning(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(file) => _ = file.take(most).read_to_end(&mut found)?,
    }
    Ok(found)
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    open_to_append(path)?.write_all(line.as_bytes())
}

fn header(metrics: &[String]) -> String {
    let columns = |prefix: &str| -> String {
        let names = std::iter::once("loss").chain(metrics.iter().map(String::as_str));
        names.map(|name| format!(",{}", quoted(&format!("{prefix}{name}")))).collect()
    };
    format!("{FIRST}{}{}\n", columns(""), columns("val_"))
}

/// Returns the line of an epoch. Numbers are the shortest that read as the same f64.
fn line(epoch: &Epoch, metrics: &[String]) -> String {
    let columns = |evaluation: Option<&Evaluation>| -> String {
        let loss = evaluation.map(|evaluation| evaluation.loss);
        let values = metrics.iter().map(|name| evaluation?.metric(name));
        let values = std::iter::once(loss).chain(values);
        values.map(|value| value.map_or(",".to_owned(), |value| format!(",{value:?}"))).collect()
    };
    let (train, validation) = (columns(Some(&epoch.train)), columns(epoch.validation.as_ref()));
    format!("{},{}{train}{validation}\n", u64::from(epoch.epoch) + 1, epoch.steps)
}

/// Returns a field in quotes where CSV needs them.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::read::metrics_of;
    use super::*;

    fn epoch(number: u32, loss: f64) -> Epoch {
        let train = Evaluation {
            loss,
            metrics: vec![("f1, macro".into(), 0.5)],
            samples: 4,
            ..Evaluation::default()
        };
        Epoch { epoch: number, steps: u64::from(number + 1) * 3, validation: None, train }
    }

    #[test]
    fn lines_are_appended_and_steps_that_are_made_again_replace_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/history.csv");
        let mut log = CsvLog::new(&path);
        let mut last = epoch(1, f64::NAN);
        last.validation = Some(Evaluation { loss: 1e-30, ..last.train.clone() });
        [epoch(0, 2.0), last, epoch(2, 0.1)].iter().for_each(|epoch| log.epoch(epoch));
        let header = "epoch,steps,loss,\"f1, macro\",val_loss,\"val_f1, macro\"\n";
        let first = format!("{header}1,3,2.0,0.5,,\n2,6,NaN,0.5,1e-30,0.5\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{first}3,9,0.1,0.5,,\n"));
        log.rolled_back(8);
        assert_eq!(fs::read_to_string(&path).unwrap(), first);
        log.epoch(&epoch(2, 0.2));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{first}3,9,0.2,0.5,,\n"));
        assert_eq!(log.take_problem(), None);
    }

    #[test]
    fn tables_are_in_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = CsvLog::new(dir.path().join("history.csv"));
        let other = dir.path().join("history.train own.csv");
        fs::write(&other, "precious").unwrap();
        fs::create_dir(dir.path().join("history.train way.csv")).unwrap();
        for count in [1.0, 2.0] {
            let mut epoch = epoch(0, count);
            let table = |count| crate::Table::new(2, vec![count, 0.0, 0.5, 3.0]);
            for (name, count) in
                [("a/b matrix", count), ("a_b matrix", 7.0), ("a:b matrix", 8.0), ("own", 9.0), ("way", 9.0)]
            {
                epoch.train.tables.push((name.into(), table(count)));
            }
            log.epoch(&epoch);
        }
        // Each has a file of its own.
        for (name, count) in [("a%2Fb matrix", 2.0), ("a_b matrix", 7.0), ("a%3Ab matrix", 8.0)] {
            let text = fs::read_to_string(dir.path().join(format!("history.train {name}.csv"))).unwrap();
            assert_eq!(text, format!("{count},0\n0.5,3\n"), "{name}");
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        let problem = log.take_problem().unwrap();
        assert!(problem.contains("own.csv is not written: the existing file is"), "{problem}");
        assert!(problem.contains("way.csv is not written: "), "{problem}");
        let mut epoch = epoch(1, 0.5);
        for name in ["own", "way"] {
            epoch.train.tables.push((name.into(), crate::Table::new(1, vec![1.0])));
        }
        log.epoch(&epoch);
        assert_eq!(log.take_problem(), None, "it is told once");
        // An epoch that ends again has one line.
        assert_eq!(fs::read_to_string(dir.path().join("history.csv")).unwrap().lines().count(), 3);
    }

    #[test]
    fn epochs_come_back_from_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.csv");
        let names = ["f1, macro", "say \"x\"", "\"", "plain"].map(String::from);
        for metrics in [&names[..], &names[3..], &[]] {
            assert_eq!(metrics_of(header(metrics).trim_end()).as_deref(), Some(metrics));
        }
        assert_eq!(metrics_of("epoch,steps"), None);
        let mut epochs = [epoch(0, f64::INFINITY), epoch(1, 0.1 + 0.2), epoch(2, 1e-300)];
        epochs[1].validation =
            Some(Evaluation { loss: 3.0, metrics: vec![("late".into(), 0.25)], ..Evaluation::default() });
        let mut log = CsvLog::new(&path);
        epochs.iter().for_each(|epoch| log.epoch(epoch));
        let found = epochs_of(&path, &[]);
        let metrics = ["f1, macro", "late"].map(String::from);
        let lines = |epochs: &[Epoch]| epochs.iter().map(|epoch| line(epoch, &metrics)).collect::<Vec<_>>();
        assert_eq!(lines(&found), lines(&epochs));
        // A history that is not in it is that of another run.
        assert_eq!(epochs_of(&path, &epochs[..2]).len(), 3);
        assert!(epochs_of(&path, &[epoch(0, 0.5), epoch(1, 0.5)]).is_empty());
    }

    /// Comparing each epoch with each line would take an hour.
    #[test]
    fn a_long_history_is_found_in_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = CsvLog::new(dir.path().join("history.csv"));
        log.epochs = (0..30_000).map(|number| epoch(number, f64::from(number))).collect();
        log.write();
        assert_eq!(epochs_of(&log.path, &log.epochs).len(), 30_000);
    }

    #[test]
    fn another_file_is_left_alone_and_the_problem_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.csv");
        fs::write(&path, "1,2,3\n").unwrap();
        let mut log = CsvLog::new(&path);
        log.epoch(&epoch(0, 2.0));
        assert!(log.take_problem().unwrap().contains("is not such a history"));
        // A table of your own may have columns of these names.
        let other = dir.path().join("own.csv");
        fs::write(&other, "epoch,steps_per_second\n").unwrap();
        CsvLog::new(&other).epoch(&epoch(0, 2.0));
        assert_eq!(fs::read_to_string(&other).unwrap(), "epoch,steps_per_second\n");
        log.epoch(&epoch(1, 2.0));
        assert_eq!((log.take_problem(), fs::read_to_string(&path).unwrap()), (None, "1,2,3\n".to_owned()));
        // Once there is room, all epochs are written.
        fs::remove_file(&path).unwrap();
        log.epoch(&epoch(2, 2.0));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_pipes_are_neither_followed_nor_waited_for() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let [path, outside] = ["history.csv", "outside"].map(|name| dir.path().join(name));
        let is_untouched = || assert_eq!(fs::read_to_string(&outside).unwrap(), "precious");
        fs::write(&outside, "precious").unwrap();
        // The name of a temporary file that earlier versions wrote.
        let guessed = format!("history.csv.{}.tmp", std::process::id());
        symlink(&outside, dir.path().join(guessed)).unwrap();
        let mut log = CsvLog::new(&path);
        log.epoch(&epoch(0, 2.0));
        is_untouched();
        assert!(!path.is_symlink() && log.take_problem().is_none());
        for plant in [symlink::<&Path, &Path>, |from, to| fs::hard_link(from, to)] {
            // What is appended must not reach another file.
            fs::remove_file(&path).unwrap();
            plant(&outside, &path).unwrap();
            log.epoch(&epoch(1, 2.0));
            is_untouched();
            assert!(log.take_problem().unwrap().contains("is not such a history"));
            fs::remove_file(&path).unwrap();
            log.epoch(&epoch(2, 2.0));
        }
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut log = CsvLog::new(&path);
        log.epoch(&epoch(0, 2.0));
        assert!(log.take_problem().unwrap().contains("no regular file"));
    }
}
