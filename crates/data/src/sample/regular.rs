//! Opening regular files, and nothing else: a pipe would be waited for, and a device may never end. Writing
//! files as a whole.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::DataError;

/// Opens a file for reading.
///
/// # Errors
/// The file cannot be opened, or is not a regular file: a device may have no end, and a pipe that nobody
/// writes to would never open.
pub(crate) fn open_regular(path: &Path) -> Result<File, DataError> {
    // This comes before the file is opened, because opening a device may have effects.
    let found = std::fs::metadata(path).map_err(|cause| DataError::Io { path: path.into(), cause })?;
    if found.is_file() { open_if_regular(path) } else { Err(refused(path)) }
}

/// Opens whatever is at the path, without waiting for the writer of a pipe, and refuses it if it is not a
/// regular file: another file may have been put there since it was looked at.
fn open_if_regular(path: &Path) -> Result<File, DataError> {
    let io = |cause| DataError::Io { path: path.into(), cause };
    let file = match without_waiting(File::options().read(true)).open(path) {
        // Another process holds a lease, as servers of files do: opening waits until the lease is given back.
        Err(error) if error.kind() == ErrorKind::WouldBlock => File::open(path),
        // A socket, or a device without a driver.
        Err(error) if is_no_file(&error) => return Err(refused(path)),
        opened => opened,
    };
    let file = file.map_err(io)?;
    if file.metadata().map_err(io)?.is_file() { Ok(file) } else { Err(refused(path)) }
}

/// Writes a file by a rename, so that it is never there in part. A link in its place is replaced, not written
/// through.
///
/// # Errors
/// Those of [`check_replaceable`]; the system refuses it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    check_replaceable(path)?;
    let io = |cause| DataError::Io { path: path.into(), cause };
    let mut partial = path.as_os_str().to_owned();
    // Nobody can guess this name and plant a link there.
    partial.push(format!(".partial-{:016x}", RandomState::new().build_hasher().finish()));
    let mut file = File::create_new(&partial).map_err(io)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    if let Err(cause) = written.and_then(|()| std::fs::rename(&partial, path)) {
        // The error that is reported is that of writing.
        let _ = std::fs::remove_file(&partial);
        return Err(io(cause));
    }
    Ok(())
}

/// Checks that a file may be written at a path: that nothing is there, or a regular file or a link, which is
/// replaced.
///
/// # Errors
/// A directory, a device, a pipe or a socket is there, which stays as it is.
pub(crate) fn check_replaceable(path: &Path) -> Result<(), DataError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() || found.is_symlink() => Ok(()),
        Ok(found) if found.is_dir() => {
            Err(DataError::format(path, "is a directory, not a file to be replaced"))
        }
        Ok(_) => {
            Err(DataError::format(path, "is a device, a pipe or a socket, which is not replaced by a file"))
        }
        // What keeps it from being looked at keeps it from being written.
        Err(_) => Ok(()),
    }
}

/// Returns the error of what is not a regular file.
fn refused(path: &Path) -> DataError {
    DataError::format(path, "not a regular file")
}

/// Sets what keeps opening from waiting for a pipe. Reading a regular file is not changed by it.
#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt as _;
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
}

/// Sets nothing: the checks before and after opening are all that there is.
#[cfg(not(unix))]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn is_no_file(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

#[cfg(not(unix))]
fn is_no_file(_error: &io::Error) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_pipe_that_takes_the_place_of_a_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (give, taken) = channel();
        // It is opened as it would be if it had been a file a moment ago.
        std::thread::spawn(move || give.send(open_if_regular(&pipe).unwrap_err().to_string()));
        let problem = taken.recv_timeout(Duration::from_secs(60)).expect("opening waits for a writer");
        assert!(problem.ends_with("not a regular file"), "{problem}");
    }

    #[test]
    fn a_file_is_opened_and_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "all of it").unwrap();
        assert_eq!(io::read_to_string(open_regular(&path).unwrap()).unwrap(), "all of it");
        assert!(open_regular(dir.path()).unwrap_err().to_string().ends_with("not a regular file"));
    }
}
