//! Checkpoints of a run on several machines, without a file system that they share: the first two remaining
//! ranks write each to a directory of its own, and a resume takes the newest complete checkpoint that any
//! rank has and hands it round.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use unisono_checkpoint::{Disk, Error as CheckpointError, Loaded, Saved, StdDisk, Store, newest_with};
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
/// A checkpoint cannot be read or written, on any rank, or a directory that lacks it is in use by another
/// run.
pub fn share_newest(cluster: &Cluster, dir: &Path) -> Result<PathBuf, Error> {
    let own = dir_of_rank(dir, cluster.rank());
    share_newest_on(&StdDisk, cluster, dir, &mut |files| Store::open(&own)?.save_copy(files))
}

/// Saves the files of a checkpoint, each with its name, in this rank's own directory.
pub(crate) type SaveCopy<'a> = dyn FnMut(&[(&str, &[u8])]) -> unisono_checkpoint::Result<Saved> + 'a;

/// Does [`share_newest`] on another file system.
pub(crate) fn share_newest_on(
    disk: &dyn Disk,
    cluster: &Cluster,
    dir: &Path,
    save: &mut SaveCopy<'_>,
) -> Result<PathBuf, Error> {
    let own = dir_of_rank(dir, cluster.rank());
    if cluster.is_alone() {
        take_from_other_ranks(disk, dir, save)?;
        return Ok(own);
    }
    // Another rank of this machine may still remove its checkpoints, to begin anew.
    cluster.any("who looks for checkpoints", true)?;
    let is_refusal = |error: &CheckpointError| matches!(error, CheckpointError::Record { .. });
    let here = all_or_error(cluster, newest_here(disk, dir, &own), dir, is_refusal)?;
    let step = here.newest.as_ref().map_or(0, |(step, _)| step + 1);
    let steps = cluster.gather("the newest checkpoints", &step.to_le_bytes())?;
    let step_of = |record: &[u8]| record.try_into().map_or(0, u64::from_le_bytes);
    let most = steps.iter().map(|(_, record)| step_of(record)).max().unwrap_or(0);
    let Some((holder, _)) = steps.iter().find(|(_, record)| most > 0 && step_of(record) == most) else {
        return Ok(own);
    };
    let has = here.own.is_some_and(|step| step + 1 == most);
    if !cluster.any("who lacks the newest checkpoint", !has)? {
        return Ok(own);
    }
    let read = match &here.newest {
        Some((_, path)) if *holder == cluster.rank() => read_files(disk, path),
        _ => Ok(Vec::new()),
    };
    let packed = all_or_none(cluster, read, dir)?;
    let packed = hand_round(cluster, *holder, packed)?;
    let written = if has { Ok(()) } else { save_files(save, &own, &packed) };
    all_or_none(cluster, written, &own)?;
    Ok(own)
}

/// Copies the newest complete checkpoint of the other ranks' directories beside this one into it, if it is
/// newer than those here.
fn take_from_other_ranks(
    disk: &dyn Disk,
    dir: &Path,
    save: &mut SaveCopy<'_>,
) -> unisono_checkpoint::Result<()> {
    // Most runs were never on several machines.
    if dirs_of_other_ranks(disk, dir).is_empty() {
        return Ok(());
    }
    let here = newest_here(disk, dir, dir)?;
    match here.newest.filter(|(newest, _)| Some(*newest) > here.own) {
        Some((_, path)) => save_files(save, dir, &read_files(disk, &path)?),
        None => Ok(()),
    }
}

/// The newest complete checkpoints on this machine.
struct Here {
    /// Step and directory of the newest one, of whichever rank.
    newest: Option<(u64, PathBuf)>,
    /// The step of the newest one in this rank's own directory.
    own: Option<u64>,
}

/// Returns the newest complete checkpoints on this machine. A directory in which none is complete has none,
/// because there may be one elsewhere.
fn newest_here(disk: &dyn Disk, dir: &Path, own: &Path) -> unisono_checkpoint::Result<Here> {
    let mut dirs = vec![dir.to_owned()];
    dirs.extend(dirs_of_other_ranks(disk, dir));
    if !dirs.iter().any(|dir| dir == own) {
        dirs.push(own.to_owned());
    }
    let (mut newest, mut of_own): (Option<Loaded>, _) = (None, None);
    for dir in dirs {
        let found = match newest_with(disk, &dir) {
            Err(CheckpointError::NoneComplete { .. }) => None,
            // What has such a name need not be a directory of this run.
            Err(CheckpointError::Io { reason, .. })
                if dir != own
                    && matches!(reason.kind(), ErrorKind::NotADirectory | ErrorKind::PermissionDenied) =>
            {
                None
            }
            found => found?,
        };
        if dir == own {
            of_own = found.as_ref().map(|loaded| loaded.step);
        }
        newest = newest.into_iter().chain(found).max_by_key(|loaded| loaded.step);
    }
    Ok(Here { newest: newest.map(|loaded| (loaded.step, loaded.path)), own: of_own })
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
pub(crate) fn all_or_none<T, E: Display>(
    cluster: &Cluster,
    result: Result<T, E>,
    path: &Path,
) -> Result<T, Error> {
    all_or_error(cluster, result, path, |_| false)
}

/// Does [`all_or_none`]. `is_refusal` says of an error whether it is the same at the next start.
fn all_or_error<T, E: Display>(
    cluster: &Cluster,
    result: Result<T, E>,
    path: &Path,
    is_refusal: impl Fn(&E) -> bool,
) -> Result<T, Error> {
    let own = result.as_ref().err().map(|error| {
        let text = format!("{}: {error}", path.display());
        [&[u8::from(is_refusal(error))], text.as_bytes()].concat()
    });
    let records = cluster.gather("what went wrong with a checkpoint", own.as_deref().unwrap_or_default())?;
    for (rank, record) in records {
        if let Some((is_refusal, why)) = record.split_first() {
            let why = String::from_utf8_lossy(why).into_owned();
            let is_refusal = *is_refusal != 0;
            return Err(ClusterError::Other { rank: cluster.name(rank), why, is_refusal }.into());
        }
    }
    result.map_err(|error| Error::setting("checkpoints", error.to_string()))
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

/// Returns the files of a checkpoint, each after its name.
fn read_files(disk: &dyn Disk, path: &Path) -> unisono_checkpoint::Result<Vec<u8>> {
    let failed = |path: &Path, action| {
        let path = path.to_owned();
        move |reason| CheckpointError::Io { path, action, reason }
    };
    let mut parts = Vec::new();
    let mut files = disk.list(path).map_err(failed(path, "list"))?;
    files.sort();
    for file in files {
        let from = path.join(&file);
        let bytes = disk.read(&from).map_err(failed(&from, "read"))?;
        parts.extend([file.into_bytes(), bytes]);
    }
    Ok(pack(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Saves the files that [`read_files`] has read, perhaps on another rank.
fn save_files(save: &mut SaveCopy<'_>, own: &Path, packed: &[u8]) -> unisono_checkpoint::Result<()> {
    let wrong = || CheckpointError::Broken {
        path: own.to_owned(),
        reason: "another rank sent something that is not a checkpoint".into(),
    };
    let parts = unpack(packed).ok_or_else(wrong)?;
    let mut files = Vec::new();
    for [name, bytes] in parts.as_chunks::<2>().0 {
        files.push((std::str::from_utf8(name).map_err(|_| wrong())?, *bytes));
    }
    save(&files).map(drop)
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
