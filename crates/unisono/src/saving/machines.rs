//! Checkpoints of a run on several machines, without a file system that they share: the first two ranks write
//! each to a directory of its own, and a resume takes the newest complete checkpoint that any rank has and
//! hands it round.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use unisono_world::{World, WorldError, pack, unpack};

use crate::Error;

/// The number of ranks that write checkpoints: a machine may be lost with its disk.
const WRITERS: usize = 2;
/// The bytes of a checkpoint that are handed round at once.
const PART: usize = 64 << 20;

/// Returns whether this rank writes checkpoints.
pub(crate) fn writes(world: &World) -> bool {
    world.place() < WRITERS
}

/// Returns the directory in which a rank keeps the checkpoints of a run: for rank 0 the directory itself, for
/// rank 1 the one beside it with `.rank1` at the end of its name, and so on.
pub fn dir_of_rank(dir: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return dir.into();
    }
    let mut name = OsString::from(dir);
    name.push(format!(".rank{rank}"));
    name.into()
}

/// Gives all ranks the newest complete checkpoint that any of them has, of this directory or of a directory
/// of another rank beside it. Each rank has it in its own directory then, which is returned. Where no rank
/// has one, nothing happens.
///
/// # Errors
/// A checkpoint cannot be read or written, on any rank.
pub fn share_newest(world: &World, dir: &Path) -> Result<PathBuf, Error> {
    let own = dir_of_rank(dir, world.rank());
    if world.is_alone() {
        return Ok(own);
    }
    let newest = newest_here(dir);
    let step = newest.as_ref().map_or(0, |(step, _)| step + 1);
    let steps = world.gather(&step.to_le_bytes())?;
    let step_of = |record: &[u8]| record.try_into().map_or(0, u64::from_le_bytes);
    let most = steps.iter().map(|(_, record)| step_of(record)).max().unwrap_or(0);
    let Some((holder, _)) = steps.iter().find(|(_, record)| most > 0 && step_of(record) == most) else {
        return Ok(own);
    };
    let has = unisono_checkpoint::newest(&own).ok().flatten().is_some_and(|loaded| loaded.step + 1 == most);
    if !world.any(!has)? {
        return Ok(own);
    }
    let read = match &newest {
        Some((_, path)) if *holder == world.rank() => read_files(path),
        _ => Ok(Vec::new()),
    };
    let packed = all_or_none(world, read, dir)?;
    let packed = hand_round(world, *holder, packed)?;
    let written = if has { Ok(()) } else { write_files(&own, &packed) };
    all_or_none(world, written, &own)?;
    Ok(own)
}

/// Returns the newest complete checkpoint on this machine, of whichever rank.
fn newest_here(dir: &Path) -> Option<(u64, PathBuf)> {
    let name = dir.file_name()?.to_string_lossy().into_owned();
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_of_run = |path: &PathBuf| {
        let other = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let rank = other.strip_prefix(&name).and_then(|rest| rest.strip_prefix(".rank"));
        other == name || rank.is_some_and(|rank| rank.parse::<usize>().is_ok())
    };
    let entries = fs::read_dir(parent).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut dirs: Vec<PathBuf> = entries.filter(is_of_run).collect();
    dirs.sort();
    let newest = |dir: PathBuf| unisono_checkpoint::newest(dir).ok().flatten();
    let all = dirs.into_iter().filter_map(newest).map(|loaded| (loaded.step, loaded.path));
    all.max_by_key(|(step, _)| *step)
}

/// Returns a result if all ranks have one, and otherwise the same error on all.
fn all_or_none<T>(world: &World, result: io::Result<T>, path: &Path) -> Result<T, Error> {
    let problem = result.as_ref().err().map(|error| format!("{}: {error}", path.display()));
    let records = world.gather(problem.as_deref().unwrap_or_default().as_bytes())?;
    match records.into_iter().find(|(_, record)| !record.is_empty()) {
        Some((rank, why)) => {
            let why = String::from_utf8_lossy(&why).into_owned();
            Err(WorldError::Other { rank: world.name(rank), why }.into())
        }
        None => result.map_err(|error| Error::setting("checkpoints", error.to_string())),
    }
}

/// Gives the bytes of one rank to all, a part at a time.
fn hand_round(world: &World, holder: usize, mut packed: Vec<u8>) -> Result<Vec<u8>, Error> {
    let len = world.broadcast(holder, (packed.len() as u64).to_le_bytes().to_vec())?;
    let len = len.try_into().map_or(0, u64::from_le_bytes) as usize;
    let is_holder = holder == world.rank();
    for first in (0..len).step_by(PART) {
        let part = if is_holder { packed[first..len.min(first + PART)].to_vec() } else { Vec::new() };
        let part = world.broadcast(holder, part)?;
        if !is_holder {
            packed.extend(part);
        }
    }
    Ok(packed)
}

/// Returns the files of a checkpoint, after the names of its directory and of the one above.
fn read_files(path: &Path) -> io::Result<Vec<u8>> {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    let mut parts = vec![name(path.parent()).into_bytes(), name(Some(path)).into_bytes()];
    let mut files: Vec<PathBuf> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    for file in files {
        parts.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned().into_bytes());
        parts.push(fs::read(file)?);
    }
    Ok(pack(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Writes the files of a checkpoint beside their place, and renames them into it.
fn write_files(own: &Path, packed: &[u8]) -> io::Result<()> {
    let wrong = || io::Error::other("what another rank handed round is no checkpoint");
    let parts = unpack(packed).ok_or_else(wrong)?;
    let ([above, name], files) = parts.split_first_chunk::<2>().ok_or_else(wrong)?;
    let (above, name) = safe_name(above).zip(safe_name(name)).ok_or_else(wrong)?;
    let above = own.join(above);
    let (place, beside) = (above.join(&name), above.join(format!(".tmp-coming-{name}")));
    for old in [&place, &beside] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::create_dir_all(&beside)?;
    for [name, bytes] in files.as_chunks::<2>().0 {
        let file = fs::File::create(beside.join(safe_name(name).ok_or_else(wrong)?))?;
        io::Write::write_all(&mut &file, bytes)?;
        file.sync_all()?;
    }
    fs::rename(beside, place)
}

/// Returns a name that stays in its directory.
fn safe_name(name: &[u8]) -> Option<String> {
    let name = String::from_utf8(name.to_vec()).ok()?;
    let is_plain = Path::new(&name).components().count() == 1 && !name.contains(['/', '\\']) && name != "..";
    (is_plain && !name.is_empty()).then_some(name)
}
