//! A directory that is held open: what is done in it happens there, whatever takes its place by name
//! meanwhile.
//!
//! Paths are walked from the open directory, one name at a time. A name that became a symbolic link is
//! refused where something is written, made or removed below it. So nobody who can write into a run's
//! directory can send a save elsewhere, not even by swapping directories while it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};

use crate::disk::{Disk, Sink, sink, stream_file, sync_opened};
use crate::tensors::bytes::FileBytes;
use crate::tensors::regular::{read_file, read_file_at_most, regular};

/// How deep a directory that is removed may be. Ours are two deep.
const DEEPEST: usize = 32;

/// The machine's own file system, seen from one directory.
#[derive(Debug)]
pub(crate) struct Anchored {
    base: PathBuf,
    dir: OwnedFd,
}

/// Whether a path may lead through links.
#[derive(Clone, Copy, PartialEq)]
enum Links {
    /// To what is read it may, but for the first name below the directory.
    Read,
    /// To what is changed it may not.
    Refuse,
}

impl Anchored {
    /// Opens the directory that is at the path now. The path may lead through links, and be one if it
    /// `may_be_link`.
    pub(crate) fn open(base: &Path, may_be_link: bool) -> io::Result<Self> {
        let links = if may_be_link { Links::Read } else { Links::Refuse };
        let dir = directory(CWD, base.as_os_str(), links)?;
        Ok(Self { base: base.to_owned(), dir })
    }

    /// Opens the directory that a path is in. Returns it, and the path's last name: `.` for the base itself.
    fn place<'p>(&self, path: &'p Path, links: Links) -> io::Result<(OwnedFd, &'p OsStr)> {
        let inside = match path.strip_prefix(&self.base) {
            Ok(inside) => inside,
            // The directory of a bare name is `.`, which the name does not begin with.
            Err(_) if self.base == Path::new(".") && path.is_relative() => path,
            Err(_) => {
                return Err(io::Error::new(ErrorKind::InvalidInput, "not in the directory that is open"));
            }
        };
        let mut dir = self.dir.try_clone()?;
        let mut names = inside.components().filter(|name| *name != Component::CurDir).peekable();
        let mut first = true;
        while let Some(name) = names.next() {
            let Component::Normal(name) = name else { return Err(ErrorKind::InvalidInput.into()) };
            if names.peek().is_none() {
                return Ok((dir, name));
            }
            dir = directory(dir.as_fd(), name, if first { Links::Refuse } else { links })?;
            first = false;
        }
        Ok((dir, OsStr::new(".")))
    }

    /// Opens a regular file to be read. It may be a link.
    fn file(&self, path: &Path) -> io::Result<File> {
        let (dir, name) = self.place(path, Links::Read)?;
        // This comes before the file is opened, because opening a device may have effects.
        if FileType::from_raw_mode(statat(&dir, name, AtFlags::empty())?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(ErrorKind::InvalidInput, "no regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&dir, name, flags | OFlags::NONBLOCK, Mode::empty()) {
            // Another process holds a lease, as servers of files do: opening waits until it is given back.
            Err(rustix::io::Errno::AGAIN) => openat(&dir, name, flags, Mode::empty())?,
            opened => opened?,
        };
        let file = File::from(file);
        // This comes after, because another file may have taken its place.
        regular(&file.metadata()?)?;
        Ok(file)
    }
}

/// Opens a directory in another.
fn directory(dir: BorrowedFd<'_>, name: &OsStr, links: Links) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flags = if links == Links::Refuse { flags | OFlags::NOFOLLOW } else { flags };
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// Returns what a name is, without following it.
fn kind(dir: &OwnedFd, name: &OsStr) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode))
}

/// Returns the names in a directory.
fn names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn remove(dir: &OwnedFd, name: &OsStr, depth: usize) -> io::Result<()> {
    if kind(dir, name)? != FileType::Directory {
        return Ok(unlinkat(dir, name, AtFlags::empty())?);
    }
    if depth == DEEPEST {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too deep a directory to be removed"));
    }
    let inner = directory(dir.as_fd(), name, Links::Refuse)?;
    for name in names(&inner)? {
        absent_is_fine(remove(&inner, OsStr::from_bytes(&name), depth + 1))?;
    }
    Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Disk for Anchored {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = self.place(dir, Links::Refuse)?;
        Ok(mkdirat(parent, name, Mode::from_raw_mode(0o777))?)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        let (dir, name) = self.place(file, Links::Refuse)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(sink(File::from(openat(dir, name, flags, Mode::from_raw_mode(0o666))?)))
    }

    fn lock_file(&self, file: &Path) -> io::Result<File> {
        let (dir, name) = self.place(file, Links::Refuse)?;
        let no_file = || io::Error::new(ErrorKind::InvalidInput, "no regular file");
        match kind(&dir, name) {
            Ok(FileType::RegularFile) => {}
            Ok(_) => return Err(no_file()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = flags | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(dir, name, flags, Mode::from_raw_mode(0o666))?);
        regular(&file.metadata()?)?;
        Ok(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = self.place(dir, Links::Refuse)?;
        sync_opened(&File::from(directory(parent.as_fd(), name, Links::Refuse)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (dir, old) = self.place(from, Links::Refuse)?;
        let (Some(new), true) = (to.file_name(), from.parent() == to.parent()) else {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not within one directory"));
        };
        Ok(renameat(&dir, old, &dir, new)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(self.place(path, Links::Refuse).and_then(|(dir, name)| remove(&dir, name, 0)))
    }

    fn is_dir(&self, path: &Path) -> bool {
        let found =
            self.place(path, Links::Read).and_then(|(dir, name)| directory(dir.as_fd(), name, Links::Read));
        found.is_ok()
    }

    fn is_link(&self, path: &Path) -> bool {
        let found = self.place(path, Links::Read).and_then(|(dir, name)| kind(&dir, name));
        found.is_ok_and(|kind| kind == FileType::Symlink)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let (parent, name) = self.place(dir, Links::Read)?;
        let names = names(&directory(parent.as_fd(), name, Links::Refuse)?)?;
        Ok(names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    fn size(&self, file: &Path) -> io::Result<u64> {
        Ok(self.file(file)?.metadata()?.len())
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        read_file(self.file(file)?)
    }

    fn read_at_most(&self, file: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_file_at_most(self.file(file)?, limit)
    }

    fn open(&self, file: &Path) -> io::Result<FileBytes> {
        FileBytes::map_file(&self.file(file)?)
    }

    fn stream(&self, file: &Path, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        stream_file(self.file(file)?, piece)
    }
}
