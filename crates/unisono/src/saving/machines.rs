//! Checkpoints of a run on several machines, without a file system that they share: the first two remaining
//! ranks write each to a directory of its own, and a resume takes the newest complete checkpoint that any
//! rank has and hands it round.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use unisono_checkpoint::{Disk, Loaded, StdDisk, create_dirs, newest_with};
use unisono_cluster::{Cluster, ClusterError, pack, unpack};

use crate::Error;

/// The number of ranks that write checkpoints: a machine may be lost with its disk.
const WRITERS: usize = 2;
/// The bytes of a checkpoint that are handed round at once.
const PART: usize = 64 << 20;

/// Returns whether this rank writes checkpoints.
pub(crate) fn writes(cluster: &Cluster) -> bool {
    cluster.place() < WRITERS
}

/// Returns the directory in which a rank stores the checkpoints of a run. For rank 0 it is the directory
/// itself. For rank 1 it is the one next to it with `.rank1` at the end of its name, and so on. A slash at
/// the end of the path has no effect. For `.`, the name of the current directory is used.
pub fn dir_of_rank(dir: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return dir.into();
    }
    let mut name = OsString::from(plain(dir));
    name.push(format!(".rank{rank}"));
    name.into()
}

/// Returns whether a directory has a name, so that there can be others beside it.
pub(crate) fn has_name(dir: &Path) -> bool {
    plain(dir).file_name().is_some()
}

/// Returns a path that ends in the name of its directory, as far as it has one.
fn plain(dir: &Path) -> PathBuf {
    let plain: PathBuf = dir.components().collect();
    if plain.file_name().is_some() {
        return plain;
    }
    fs::canonicalize(&plain).or_else(|_| std::path::absolute(&plain)).unwrap_or(plain)
}

/// Copies the newest complete checkpoint that any rank has to all ranks: from this directory, or from that of
/// another rank next to it. Each rank then has it in its own directory, which is returned. If no rank has a
/// checkpoint, nothing happens. A process that is alone takes the newest of its machine, because it may be
/// the rest of a run on several machines.
///
/// # Errors
/// A checkpoint cannot be read or written, on any rank.
pub fn share_newest(cluster: &Cluster, dir: &Path) -> Result<PathBuf, Error> {
    share_newest_on(&StdDisk, cluster, dir)
}

/// Does [`share_newest`] on another file system.
pub(crate) fn share_newest_on(disk: &dyn Disk, cluster: &Cluster, dir: &Path) -> Result<PathBuf, Error> {
    let own = dir_of_rank(dir, cluster.rank());
    if cluster.is_alone() {
        let failed = |error: io::Error| match error.downcast() {
            Ok(error) => error,
            Err(reason) => {
                let action = "take the newest checkpoint of the directories beside it";
                unisono_checkpoint::Error::Io { path: dir.into(), action, reason }
            }
        };
        take_from_other_ranks(disk, dir).map_err(failed)?;
        return Ok(own);
    }
    let newest = all_or_error(cluster, newest_here(disk, dir), dir, true)?;
    let step = newest.as_ref().map_or(0, |(step, _)| step + 1);
    let steps = cluster.gather("the newest checkpoints", &step.to_le_bytes())?;
    let step_of = |record: &[u8]| record.try_into().map_or(0, u64::from_le_bytes);
    let most = steps.iter().map(|(_, record)| step_of(record)).max().unwrap_or(0);
    let Some((holder, _)) = steps.iter().find(|(_, record)| most > 0 && step_of(record) == most) else {
        return Ok(own);
    };
    let has = newest_in(disk, &own).is_ok_and(|own| own.is_some_and(|loaded| loaded.step + 1 == most));
    if !cluster.any("who lacks the newest checkpoint", !has)? {
        return Ok(own);
    }
    let read = match &newest {
        Some((_, path)) if *holder == cluster.rank() => read_files(disk, path),
        _ => Ok(Vec::new()),
    };
    let packed = all_or_none(cluster, read, dir)?;
    let packed = hand_round(cluster, *holder, packed)?;
    let written = if has { Ok(()) } else { write_files(disk, &own, &packed) };
    all_or_none(cluster, written, &own)?;
    Ok(own)
}

/// Copies the newest complete checkpoint of the other ranks' directories beside this one into it, if it is
/// newer than those here.
fn take_from_other_ranks(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    // Most runs were never on several machines.
    if dirs_of_other_ranks(disk, dir).is_empty() {
        return Ok(());
    }
    let step = newest_in(disk, dir)?.map(|loaded| loaded.step);
    match newest_here(disk, dir)?.filter(|(newest, _)| Some(*newest) > step) {
        Some((_, path)) => write_files(disk, dir, &read_files(disk, &path)?),
        None => Ok(()),
    }
}

/// Returns the newest complete checkpoint of a directory. What cannot be read counts as none, except where it
/// may be a suspect.
fn newest_in(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Loaded>> {
    match newest_with(disk, dir) {
        Err(error @ unisono_checkpoint::Error::Record { .. }) => Err(io::Error::other(error)),
        newest => Ok(newest.ok().flatten()),
    }
}

/// Returns the newest complete checkpoint on this machine, of whichever rank.
fn newest_here(disk: &dyn Disk, dir: &Path) -> io::Result<Option<(u64, PathBuf)>> {
    let mut newest: Option<Loaded> = None;
    for dir in std::iter::once(dir.to_owned()).chain(dirs_of_other_ranks(disk, dir)) {
        let found = newest_in(disk, &dir)?;
        newest = newest.into_iter().chain(found).max_by_key(|loaded| loaded.step);
    }
    Ok(newest.map(|loaded| (loaded.step, loaded.path)))
}

/// Returns the directories of other ranks beside the run's, in the order of their names.
pub(crate) fn dirs_of_other_ranks(disk: &dyn Disk, dir: &Path) -> Vec<PathBuf> {
    let dir = plain(dir);
    let Some(name) = dir.file_name().map(|name| name.to_string_lossy().into_owned()) else {
        return Vec::new();
    };
    let parent = dir.parent().unwrap_or(Path::new(""));
    let listed = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let is_of_rank = |other: &String| {
        let rank = other.strip_prefix(&name).and_then(|rest| rest.strip_prefix(".rank"));
        rank.is_some_and(|rank| rank.parse::<usize>().is_ok())
    };
    let mut names: Vec<String> = disk.list(listed).unwrap_or_default();
    names.retain(is_of_rank);
    names.sort();
    names.into_iter().map(|name| parent.join(name)).collect()
}

/// Returns a result if all ranks have one, and otherwise the same error on all.
pub(crate) fn all_or_none<T>(cluster: &Cluster, result: io::Result<T>, path: &Path) -> Result<T, Error> {
    all_or_error(cluster, result, path, false)
}

/// Does [`all_or_none`]. The error may be one that is the same at the next start.
fn all_or_error<T>(
    cluster: &Cluster,
    result: io::Result<T>,
    path: &Path,
    is_refusal: bool,
) -> Result<T, Error> {
    let problem = result.as_ref().err().map(|error| format!("{}: {error}", path.display()));
    let records = cluster
        .gather("what went wrong with a checkpoint", problem.as_deref().unwrap_or_default().as_bytes())?;
    match records.into_iter().find(|(_, record)| !record.is_empty()) {
        Some((rank, why)) => {
            let why = String::from_utf8_lossy(&why).into_owned();
            Err(ClusterError::Other { rank: cluster.name(rank), why, is_refusal }.into())
        }
        None => result.map_err(|error| Error::setting("checkpoints", error.to_string())),
    }
}

/// Gives the bytes of one rank to all, a part at a time.
pub(crate) fn hand_round(cluster: &Cluster, holder: usize, mut packed: Vec<u8>) -> Result<Vec<u8>, Error> {
    let len = cluster.broadcast(
        "the length of a checkpoint",
        holder,
        (packed.len() as u64).to_le_bytes().to_vec(),
    )?;
    let len = len.try_into().map_or(0, u64::from_le_bytes) as usize;
    let is_holder = holder == cluster.rank();
    for first in (0..len).step_by(PART) {
        let part = if is_holder { packed[first..len.min(first + PART)].to_vec() } else { Vec::new() };
        let part = cluster.broadcast("a part of a checkpoint", holder, part)?;
        if !is_holder {
            packed.extend(part);
        }
    }
    Ok(packed)
}

/// Returns the files of a checkpoint, after the names of its directory and of the one above.
fn read_files(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    let mut parts = vec![name(path.parent()).into_bytes(), name(Some(path)).into_bytes()];
    let mut files = disk.list(path)?;
    files.sort();
    for file in files {
        parts.push(file.as_bytes().to_vec());
        parts.push(disk.read(&path.join(file))?);
    }
    Ok(pack(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Writes the files of a checkpoint beside their place, and renames them into it.
fn write_files(disk: &dyn Disk, own: &Path, packed: &[u8]) -> io::Result<()> {
    let wrong = || io::Error::other("another rank sent something that is not a checkpoint");
    let parts = unpack(packed).ok_or_else(wrong)?;
    let ([above, name], files) = parts.split_first_chunk::<2>().ok_or_else(wrong)?;
    let (above, name) = safe_name(above).zip(safe_name(name)).ok_or_else(wrong)?;
    let above = own.join(above);
    let (place, beside) = (above.join(&name), above.join(format!(".tmp-coming-{name}")));
    disk.remove(&place)?;
    disk.remove(&beside)?;
    create_dirs(disk, &beside).map_err(io::Error::other)?;
    for [name, bytes] in files.as_chunks::<2>().0 {
        let mut file = disk.create(&beside.join(safe_name(name).ok_or_else(wrong)?))?;
        file.write_all(bytes)?;
        file.sync().wait()?;
    }
    disk.sync_dir(&beside)?;
    disk.rename(&beside, &place)?;
    disk.sync_dir(&above)
}

/// Returns a name that stays in its directory.
fn safe_name(name: &[u8]) -> Option<String> {
    let name = String::from_utf8(name.to_vec()).ok()?;
    let is_plain = Path::new(&name).components().count() == 1 && !name.contains(['/', '\\']) && name != "..";
    (is_plain && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_other_ranks_are_beside_the_runs() {
        let rank1 = |dir: &str| dir_of_rank(Path::new(dir), 1);
        for dir in ["runs/a", "runs/a/", "runs/a/."] {
            assert_eq!(rank1(dir), Path::new("runs/a.rank1"));
        }
        assert_eq!(dir_of_rank(Path::new("runs/a/"), 0), Path::new("runs/a/"));
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let mut beside = here.clone().into_os_string();
        beside.push(".rank1");
        assert_eq!(rank1("."), Path::new(&beside));
        assert_eq!(rank1("src/.."), Path::new(&beside));
        assert!(has_name(Path::new(".")) && !has_name(Path::new("/")));
    }
}
