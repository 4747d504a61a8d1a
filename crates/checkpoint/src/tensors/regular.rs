//! Opening regular files, and nothing else: a pipe would be waited for, and a device may never end.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file to be read. Links are followed.
///
/// # Errors
/// The file cannot be opened, or is not a regular file, such as a pipe, which is not waited for.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // This comes before the file is opened, because opening a device may have effects.
    regular(&fs::metadata(path)?)?;
    let file = match flags(File::options().read(true), false).open(path) {
        // Another process holds a lease, as servers of files do: opening waits until the lease is given back.
        Err(error) if error.kind() == ErrorKind::WouldBlock => File::open(path)?,
        opened => opened?,
    };
    // This comes after, because another file may have taken its place.
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file that is there, to append to it.
///
/// # Errors
/// The file is not there or cannot be opened; it is not a regular file, or is a link, be it symbolic or one
/// of several names of a file (Unix), so that nothing is written to a file of another place.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    regular(&fs::symlink_metadata(path)?)?;
    let file = flags(File::options().append(true), true).open(path)?;
    let found = file.metadata()?;
    regular(&found)?;
    if has_other_names(&found) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the file has other names"));
    }
    Ok(file)
}

/// Opens a file to be locked, and makes it if nothing has the name. Links are not followed.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) => regular(&found)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = File::options();
    let file = flags(options.read(true).write(true).create(true).truncate(false), true).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Whether an open file is the one that has a path now.
pub(crate) fn is_at(held: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |found: Metadata| (found.dev(), found.ino());
        let held = held.metadata().map(identity);
        matches!((held, fs::symlink_metadata(path).map(identity)), (Ok(held), Ok(found)) if held == found)
    }
    // On other systems an open file cannot be removed.
    #[cfg(not(unix))]
    {
        let _ = held;
        path.exists()
    }
}

/// Reads a regular file of at most so many bytes. The limit holds for what is read, too: there are files that
/// have no length and do not end.
pub(crate) fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_file_at_most(open_regular(path)?, limit)
}

/// Reads an open file as [`read_at_most`] does.
pub(crate) fn read_file_at_most(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > limit {
        return Err(too_long(limit));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).map_err(|_| ErrorKind::OutOfMemory)?)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_long(limit)) } else { Ok(bytes) }
}

/// Reads a whole open file. What is appended while it is read is left out: no writer of ours appends.
pub(crate) fn read_file(file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).map_err(|_| ErrorKind::OutOfMemory)?)?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the error of a file that is longer than it may be.
pub(crate) fn too_long(limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("longer than the {limit} bytes that it may have"))
}

/// Refuses what is not a regular file.
pub(crate) fn regular(found: &Metadata) -> io::Result<()> {
    let wrong = |what| Err(io::Error::new(ErrorKind::InvalidInput, what));
    match found {
        _ if found.is_file() => Ok(()),
        _ if found.is_dir() => wrong("a directory, and no regular file"),
        _ => wrong("no regular file"),
    }
}

/// Whether a file has more than one name. It is known on Unix alone.
#[cfg(unix)]
fn has_other_names(found: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(found) > 1
}

#[cfg(not(unix))]
fn has_other_names(_found: &Metadata) -> bool {
    false
}

/// Sets what keeps opening from waiting for a pipe and, where asked, from following a link.
#[cfg(unix)]
fn flags(options: &mut OpenOptions, no_links: bool) -> &mut OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt as _;
    let links = if no_links { OFlags::NOFOLLOW } else { OFlags::empty() };
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | links).bits() as i32)
}

/// Sets nothing: the checks before and after opening are all that there is.
#[cfg(not(unix))]
fn flags(options: &mut OpenOptions, _no_links: bool) -> &mut OpenOptions {
    options
}
