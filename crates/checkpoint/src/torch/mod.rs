//! PyTorch's files: what `torch.save` writes of a `state_dict`. Nothing in them is run.

mod pickle;

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use zip::ZipArchive;

use crate::tensors::error::{Error, Result, broken, io};
use crate::tensors::foreign;
use crate::tensors::regular::open_regular;
use crate::tensors::strided::places;
use crate::tensors::tensor::{Tensor, Tensors};
use crate::zipped;

use pickle::{Slice, Storage, Value};

/// The most bytes of the part that names the tensors.
const MOST_NAMES: u64 = 256 << 20;

/// Reads the tensors of a file that `torch.save` wrote (`.pt`, `.pth`, `pytorch_model.bin`; PyTorch 1.6 and
/// later). Names of nested dictionaries are joined by dots: `{"model": {"weight": ..}}` has `model.weight`,
/// which [`Plan::strip_prefix`](crate::Plan::strip_prefix) shortens. Everything else in it is passed over.
///
/// The file is read by a machine that knows the opcodes and classes of tensors. It runs no code, so a file
/// from elsewhere can do no harm. Needs the feature `torch`.
///
/// # Errors
/// The file cannot be read, is no such file or broken, or has objects of other classes; there is no memory
/// for the tensors.
pub fn read_torch(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    let file = open_regular(path).map_err(io(path, "read"))?;
    read(path, file)
}

/// Reads the bytes of a file that `torch.save` wrote. `path` is for the error message.
///
/// # Errors
/// Those of [`read_torch`].
pub fn parse_torch(path: &Path, file: &[u8]) -> Result<Tensors> {
    read(path, Cursor::new(file))
}

/// How many times as large as a file its tensors and their names may be.
const MOST_TIMES: u64 = 64;

fn read(path: &Path, mut file: impl Read + Seek) -> Result<Tensors> {
    let wrong = |problem: String| broken(path, format!("no file of tensors by PyTorch: {problem}"));
    let head = zipped::all(&mut file, foreign::HEAD).map_err(io(path, "read"))?;
    if let Some(other) = foreign::other(&head, "read_torch") {
        return Err(wrong(format!("it is {other}")));
    }
    let length = file.seek(SeekFrom::End(0)).map_err(io(path, "read"))?;
    file.rewind().map_err(io(path, "read"))?;
    // PyTorch does not pack what it writes. Several names may stand for one storage, and somebody may have
    // packed the file: what comes out of it may be some times as large.
    let mut left = length.saturating_mul(MOST_TIMES).saturating_add(1 << 20);
    let too_much = || {
        wrong(format!(
            "its tensors and names take more than {MOST_TIMES} times its {length} bytes: too many share a storage"
        ))
    };
    let mut archive = ZipArchive::new(file).map_err(|error| wrong(error.to_string()))?;
    let mut names = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned()));
    let pickle = names.find(|name| name.ends_with("/data.pkl"));
    drop(names);
    let pickle = pickle.ok_or_else(|| wrong("it has no data.pkl".into()))?;
    let folder = pickle.trim_end_matches("data.pkl").to_owned();
    let order = format!("{folder}byteorder");
    if archive.index_for_name(&order).is_some() && entry(&mut archive, path, &order, 16)? != b"little" {
        return Err(wrong("its numbers are big endian".into()));
    }
    let value = pickle::read(&entry(&mut archive, path, &pickle, MOST_NAMES.min(left))?).map_err(wrong)?;
    let mut found = Vec::new();
    flatten(String::new(), &value, &mut left, &mut found).ok_or_else(too_much)?;
    if found.is_empty() {
        return Err(wrong("it has no tensor".into()));
    }
    let mut storages: BTreeMap<&Storage, Vec<(&str, &Slice)>> = BTreeMap::new();
    for (name, slice) in &found {
        storages.entry(&slice.storage).or_default().push((name, slice));
    }
    let mut tensors = Tensors::new();
    for (storage, slices) in storages {
        let name = format!("{folder}data/{}", storage.key);
        let bytes = storage.elements.checked_mul(storage.dtype.size());
        let bytes = bytes.ok_or_else(|| wrong(format!("{name} has {} elements", storage.elements)))?;
        take(&mut left, bytes).ok_or_else(too_much)?;
        let data = entry(&mut archive, path, &name, bytes as u64)?;
        if data.len() != bytes {
            return Err(wrong(format!("{name} has {} bytes, not {bytes}", data.len())));
        }
        for (name, slice) in slices {
            let bytes = slice.shape.iter().product::<usize>() * storage.dtype.size();
            take(&mut left, bytes).ok_or_else(too_much)?;
            let tensor = tensor(path, slice, &data)?;
            if tensors.insert(name.to_owned(), tensor).is_some() {
                return Err(wrong(format!("{name:?} is there twice")));
            }
        }
    }
    Ok(tensors)
}

/// Reads an entry. One of more than `most` bytes is an error.
fn entry(archive: &mut ZipArchive<impl Read + Seek>, path: &Path, name: &str, most: u64) -> Result<Vec<u8>> {
    let wrong = |problem: String| broken(path, format!("no file of tensors by PyTorch: {problem}"));
    zipped::entry(archive, name, most).map_err(wrong)
}

/// Takes bytes from those that are left.
fn take(left: &mut u64, bytes: usize) -> Option<()> {
    *left = left.checked_sub(bytes as u64)?;
    Some(())
}

/// Lists the tensors in a value by name. `None`: the names are longer than what is left.
fn flatten<'a>(
    name: String,
    value: &'a Value,
    left: &mut u64,
    found: &mut Vec<(String, &'a Slice)>,
) -> Option<()> {
    // A name is made only for what may have a tensor: many names may repeat a long text.
    let mut inside = |key: &str, value: &'a Value| {
        if !matches!(value, Value::Tensor(_) | Value::Dict(..) | Value::List(..)) {
            return Some(());
        }
        take(left, name.len() + 1 + key.len())?;
        let name = if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        flatten(name, value, left, found)
    };
    match value {
        Value::Tensor(slice) => found.push((name, slice)),
        Value::Dict(pairs, _) => {
            for (key, value) in pairs {
                match key {
                    Value::Text(key) => inside(key, value)?,
                    Value::Int(key) => inside(&key.to_string(), value)?,
                    _ => {}
                }
            }
        }
        Value::List(values, _) => {
            for (at, value) in values.iter().enumerate() {
                inside(&at.to_string(), value)?;
            }
        }
        _ => {}
    }
    Some(())
}

/// Copies a tensor out of its storage, row by row.
fn tensor(path: &Path, slice: &Slice, data: &[u8]) -> Result<Tensor> {
    let Slice { storage, offset, shape, strides } = slice;
    let (size, count) = (storage.dtype.size(), shape.iter().product::<usize>());
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count * size).map_err(|error| io(path, "read")(error.into()))?;
    if count == 0 {
        // Its offset may be anything.
    } else if is_contiguous(shape, strides) {
        bytes.extend_from_slice(data.get(offset * size..(offset + count) * size).unwrap_or_default());
    } else {
        for at in places(shape.iter().copied().zip(strides.iter().copied()).collect()) {
            let at = offset + at;
            bytes.extend_from_slice(data.get(at * size..(at + 1) * size).unwrap_or_default());
        }
    }
    Tensor::new(storage.dtype, shape.clone(), bytes).map_err(|error: Error| broken(path, error.to_string()))
}

fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == expected;
        expected *= extent;
        fits
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The check sums of an archive shield what is in it: this changes the pickle itself.
    #[test]
    fn changed_pickles_are_errors_or_values() {
        for name in ["checkpoint.pt", "weights.pt"] {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name);
            let mut archive = ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
            let entry_name = format!("{}/data.pkl", name.trim_end_matches(".pt"));
            let whole = entry(&mut archive, &path, &entry_name, MOST_NAMES).unwrap();
            assert!(pickle::read(&whole).is_ok());
            let mut state = 1_u64;
            let mut draw = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let (mut fine, mut wrong) = (0, 0);
            for _ in 0..10_000 {
                let mut changed = whole.clone();
                for _ in 0..=draw(3) {
                    let at = draw(changed.len());
                    match draw(4) {
                        0 => changed[at] = draw(256) as u8,
                        1 => drop(changed.remove(at)),
                        2 => changed.insert(at, draw(256) as u8),
                        _ => changed[at] = whole[draw(whole.len())],
                    }
                }
                match pickle::read(&changed) {
                    Ok(value) => {
                        flatten(String::new(), &value, &mut (1 << 30), &mut Vec::new());
                        fine += 1;
                    }
                    Err(_) => wrong += 1,
                }
            }
            assert!(fine > 20 && wrong > 2_000, "{name}: {fine} {wrong}");
        }
    }

    /// Returns the error of a file of 2^18 numbers and a pickle that puts a dictionary of tensors together.
    /// `entries` is the dictionary's, where the tensor is kept as 0 and a long text as 1.
    fn error(entries: &[u8]) -> String {
        use std::io::Write;
        let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let count = [b"J", &(1_u32 << 18).to_le_bytes()[..]].concat();
        let class = |name: &str| [b"c", name.as_bytes(), b"\n"].concat();
        let storage = [text("storage"), class("torch\nFloatStorage"), text("0"), text("cpu"), count.clone()];
        let tensor = [
            class("torch._utils\n_rebuild_tensor_v2"),
            [b"((", &*storage.concat(), b"tQK\x00(", &count, b"t(K\x01ttRq\x00"].concat(),
        ];
        let long = text(&"x".repeat(1 << 16));
        let pickle =
            [b"\x80\x02}(K\xff", &*tensor.concat(), b"K\xfe", &long, b"q\x01", entries, b"u."].concat();
        let mut archive = zip::write::ZipWriter::new(Cursor::new(Vec::new()));
        let stored = zip::write::SimpleFileOptions::default();
        let stored = stored.compression_method(zip::CompressionMethod::Stored);
        for (name, bytes) in [("m/data.pkl", pickle), ("m/data/0", vec![0; 4 << 18])] {
            archive.start_file(name, stored).unwrap();
            archive.write_all(&bytes).unwrap();
        }
        let archive = archive.finish().unwrap().into_inner();
        parse_torch(Path::new("m.pt"), &archive)
            .map_or_else(|error| error.to_string(), |found| format!("{} tensors", found.len()))
    }

    #[test]
    fn what_a_file_has_is_not_many_times_as_large_as_the_file() {
        let many = |count: u32| -> Vec<u8> {
            (0..count).flat_map(|key| [b"J", &key.to_le_bytes()[..], b"h\x00"].concat()).collect()
        };
        assert_eq!(error(&many(40)), "41 tensors");
        let tied = error(&many(1000));
        assert!(tied.contains("its tensors and names take more than 64 times its "), "{tied}");
        // The text is the name of a dictionary in which lists have no tensor.
        let lists = (0..2000_u32).flat_map(|key| [b"J", &key.to_le_bytes()[..], b"]"].concat());
        let named = error(&[b"h\x01}(", &*lists.collect::<Vec<u8>>(), b"u"].concat());
        assert!(named.contains("its tensors and names take more than 64 times its "), "{named}");
    }

    #[test]
    fn no_pickle_grows_or_nests_without_bound() {
        let problem = |bytes: &[u8]| pickle::read(bytes).unwrap_err();
        let deep = [&b"\x80\x02N"[..], &[0x85; 100_000], b"."].concat();
        assert!(problem(&deep).contains("nested more than 64 deep"), "{}", problem(&deep));
        assert!(problem(b"\x80\x02cposix\nsystem\n.").contains("it contains posix.system"));
        assert!(problem(b"\x80\x02X\xff\xff\xff\x7fab.").contains("ends early"));
        assert!(problem(b"\x80\x02}q\x00h\x00.").contains("is there twice"));
        assert!(problem(b"\x80\x02.").contains("takes a value that is not there"));
        for op in [b'N', b'('] {
            let many = problem(&[&b"\x80\x02"[..], &vec![op; pickle::MOST_VALUES + 2], b"."].concat());
            assert!(many.contains("more than 4194304 values"), "{many}");
        }
        let axes = [b"(", &b"K\x01".repeat(65)[..], b"t"].concat();
        let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000NK\x01tQK\x00";
        let deep = [b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], &axes, &axes, b"tR."];
        assert!(problem(&deep.concat()).contains("65 axes"), "{}", problem(&deep.concat()));
        // Twice itself, 60 times: shared, not copied.
        let doubled = [&b"\x80\x02N"[..], b"q\x00h\x00\x86"].concat();
        let doubled = (1..60).fold(doubled, |all, at| [&all[..], &[b'q', at, b'h', at, 0x86]].concat());
        assert!(pickle::read(&[&doubled[..], b"."].concat()).is_ok());
    }
}
