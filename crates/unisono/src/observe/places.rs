//! The files of a run's observers: no two have one place, and none replaces what is no file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use unisono_checkpoint::check_replaceable;

use crate::Error;
use crate::observe::monitor::Monitor;
use crate::observe::observer::Observer;

/// The files of a run's directory that are the run's own.
const OF_RUN: [&str; 3] = ["model.safetensors", "model.json", ".lock"];
/// The folder of checkpoints in a run's directory. No observer may write there.
const CHECKPOINTS: &str = "checkpoints";

impl Monitor {
    /// Checks the files that observers say they write ([`Observer::files`]).
    ///
    /// # Errors
    /// Two observers write one file. A file would replace a device, a pipe or a directory. An observer
    /// panics.
    pub fn check_files(&mut self) -> Result<(), Error> {
        let mut taken: BTreeMap<PathBuf, &str> = BTreeMap::new();
        let forwards = self.forwards;
        for (name, files) in self.files()? {
            for path in files {
                // On this machine nobody writes it, if another rank calls its observers.
                if !forwards {
                    check_replaceable(&path).map_err(|error| refused(format!("{name}: {error}")))?;
                }
                if let Some(other) = taken.insert(place(&path), name) {
                    return Err(both(other, name, &path));
                }
            }
        }
        Ok(())
    }

    /// Checks that no observer writes the model, the lock or the checkpoints of a run's directory.
    ///
    /// # Errors
    /// One does, or panics.
    pub fn check_files_beside(&mut self, dir: &Path) -> Result<(), Error> {
        let own = OF_RUN.map(|file| place(&dir.join(file)));
        let checkpoints = place(&dir.join(CHECKPOINTS));
        let is_own = |path: &PathBuf| {
            let path = place(path);
            own.contains(&path) || path.starts_with(&checkpoints)
        };
        for (name, files) in self.files()? {
            if let Some(path) = files.iter().find(|path| is_own(path)) {
                return Err(both("the run's directory", name, path));
            }
        }
        Ok(())
    }

    /// Returns the files of each observer, with the name of its type.
    fn files(&mut self) -> Result<Vec<(&'static str, Vec<PathBuf>)>, Error> {
        let files = |slot: &mut crate::observe::monitor::ObserverSlot| {
            let files = slot.ask(false, "files", |observer: &mut dyn Observer| observer.files());
            let files = files.map_err(|(what, message)| Error::Panic { what, message })?;
            Ok((slot.name, files.unwrap_or_default()))
        };
        self.observers.iter_mut().map(files).collect()
    }
}

fn refused(problem: String) -> Error {
    Error::setting("observer", problem)
}

fn both(one: &str, other: &str, path: &Path) -> Error {
    refused(format!("{one} and {other} both write {}: give one of them another place", path.display()))
}

/// Returns a path by which two ways to one file are equal: what exists of its directory under its real name,
/// and what does not exist without `.` and `..`. The file itself, if it is a link, is replaced and not
/// followed.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (dir, file) = (path.parent().unwrap_or(&path), path.file_name().map(OsString::from));
    let mut place = PathBuf::new();
    for part in dir.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::CurDir => {}
            part => place.push(part),
        }
        place = place.canonicalize().unwrap_or(place);
    }
    place.extend(file);
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::monitor::ObserverSlot;
    use crate::{CsvLog, Plot};

    fn problem(observers: Vec<ObserverSlot>) -> Option<String> {
        let mut monitor = Monitor { observers, ..Monitor::default() };
        monitor.check_files().err().map(|error| error.to_string())
    }

    #[test]
    fn two_observers_do_not_write_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let two = |csv: &Path, plot: &Path| {
            problem(vec![ObserverSlot::new(CsvLog::new(csv)), ObserverSlot::new(Plot::new(plot))])
        };
        assert_eq!(two(&at("a.csv"), &at("a.svg")), None);
        // Also by another way, through directories that are not there yet.
        for (csv, plot) in [("a", "a"), ("runs/a", "runs/../runs/./a"), ("a", "new/../a")] {
            let told = two(&at(csv), &at(plot)).unwrap();
            assert!(told.contains("CsvLog and ") && told.contains("Plot both write "), "{told}");
        }
        std::fs::create_dir(at("real")).unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
            assert!(two(&at("real/a"), &at("link/a")).is_some());
        }
        let told = two(&at("real"), &at("a.svg")).unwrap();
        assert!(told.contains("CsvLog: ") && told.contains("is a directory"), "{told}");
    }

    #[test]
    fn what_is_a_runs_own_is_no_observers_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["model.json", "model.safetensors", ".lock", "checkpoints/history.svg", "checkpoints"] {
            let observers = vec![ObserverSlot::new(Plot::new(dir.path().join("run").join(name)))];
            let mut monitor = Monitor { observers, ..Monitor::default() };
            monitor.check_files_beside(&dir.path().join("other")).unwrap();
            let told = monitor.check_files_beside(&dir.path().join("run")).unwrap_err().to_string();
            assert!(told.contains("the run's directory and ") && told.contains(name), "{told}");
        }
        let observers = vec![ObserverSlot::new(Plot::new(dir.path().join("run/history.svg")))];
        let mut monitor = Monitor { observers, ..Monitor::default() };
        monitor.check_files_beside(&dir.path().join("run")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused_where_the_observer_is_called() {
        let slot = || vec![ObserverSlot::new(Plot::new("/dev/full"))];
        assert!(problem(slot()).unwrap().contains("/dev/full"));
        let mut elsewhere = Monitor { observers: slot(), forwards: true, ..Monitor::default() };
        elsewhere.check_files().unwrap();
    }
}
