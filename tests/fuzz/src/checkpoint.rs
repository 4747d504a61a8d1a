//! The readers of the crate `unisono-checkpoint`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use flate2::Crc;
use sha2::{Digest, Sha256};
use unisono_checkpoint::{
    Export, Info, Keras, Plan, Store, Tensor, TensorDType, Tensors, export_model, inspect, list, load,
    newest, parse_keras, parse_tensors, parse_torch, read_export, read_keras, read_tensors, read_torch,
    scale_name,
};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::data::with_length;
use crate::scratch::{Scratch, flags};

pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
pub(crate) const TRAINER: &str = "trainer.json";
pub(crate) const CARRIES: &str = "carries.safetensors";

/// A safetensors file without tensors.
pub(crate) const EMPTY: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

pub(crate) fn tensors(scratch: &Scratch, bytes: &[u8]) {
    let file = with_length(bytes);
    let path = scratch.file("x", &file);
    let read = parse_tensors(&path, &file);
    assert_eq!(read.is_ok(), read_tensors(&path).is_ok());
    let shown = inspect::show(&path);
    assert_eq!(read.is_ok(), shown.is_ok());
    let Ok(read) = read else { return };
    drop(shown.map(|shown| shown.to_string()));
    assert!(inspect::diff(&path, &path).is_ok_and(|diff| diff.is_empty()));
    // What was read can be written and comes back.
    let again = scratch.path("again.safetensors");
    if export_model(&again, &read, &Export::default()).is_ok() {
        // Integers with scales come back as their products.
        let scales = read.iter().filter(|(name, tensor)| is_quantized(&read, name, tensor)).count();
        assert_eq!(read_tensors(&again).map(|again| again.len() + scales).ok(), Some(read.len()));
    }
}

/// Reads a file of PyTorch, or one whose pickle the bytes are: the archive's check sums fit it.
pub(crate) fn torch(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let file = if flags & 1 == 0 { rest.to_vec() } else { archive(rest) };
    let path = scratch.file("x", &file);
    let read = parse_torch(&path, &file);
    assert_eq!(read.is_ok(), read_torch(&path).is_ok());
}

/// Reads a file of Keras: HDF5, an archive, or one whose weights or description the bytes are.
pub(crate) fn keras(scratch: &Scratch, bytes: &[u8]) {
    const CONFIG: &[u8] = br#"{"class_name":"Dense","config":{"name":"dense"}}"#;
    const WEIGHTS: &str = "model.weights.h5";
    let (flags, rest) = flags(bytes);
    let file = match flags & 3 {
        1 => stored(&[("config.json", CONFIG), (WEIGHTS, rest)]),
        2 => stored(&[("config.json", rest), (WEIGHTS, b"\x89HDF\r\n\x1a\n")]),
        _ => rest.to_vec(),
    };
    let path = scratch.file("x", &file);
    let keras = if flags & 4 == 0 { Keras::new() } else { Keras::new().flattened("*/kernel", [1, 2, 2]) };
    let read = parse_keras(&path, &file, &keras);
    let again = read_keras(&path, &keras);
    assert_eq!(read.map_err(|error| error.to_string()), again.map_err(|error| error.to_string()));
}

/// Returns an archive of a pickle and two storages.
fn archive(pickle: &[u8]) -> Vec<u8> {
    stored(&[("x/data.pkl", pickle), ("x/data/0", &[0; 96]), ("x/data/1", &[1; 4])])
}

/// Returns an archive of files that are not packed.
fn stored(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file(*name, options).expect("memory");
        zip.write_all(bytes).expect("memory");
    }
    zip.finish().expect("memory").into_inner()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Gives a manifest the right checksum of itself, if it has a place for one.
fn seal(manifest: &[u8]) -> Vec<u8> {
    let Some(end) = manifest.strip_suffix(b"\"\n}\n").map(<[u8]>::len).filter(|&end| end >= 64) else {
        return manifest.to_vec();
    };
    let mut sealed = manifest.to_vec();
    sealed[end - 64..end].fill(b'0');
    let digits = sha256(&sealed);
    sealed[end - 64..end].copy_from_slice(digits.as_bytes());
    sealed
}

/// Writes a checkpoint whose manifest fits its files. Returns its directory.
pub(crate) fn write(scratch: &Scratch, run: &str, step: u64, files: &[(&str, &[u8])]) -> PathBuf {
    let name = format!("{run}/checkpoints/step-{step:08}");
    let mut entries = Vec::new();
    for (file, bytes) in files {
        scratch.file(&format!("{name}/{file}"), bytes);
        let (bytes, sha256) = (bytes.len(), sha256(bytes));
        entries.push(format!(r#"{{"name": "{file}", "bytes": {bytes}, "sha256": "{sha256}"}}"#));
    }
    let (files, zeros) = (entries.join(", "), "0".repeat(64));
    let head =
        format!(r#"{{"format": "unisono-checkpoint", "version": 2, "step": {step}, "files": [{files}],"#);
    let manifest = format!("{head}\n\"sha256\": \"{zeros}\"\n}}\n");
    scratch.file(&format!("{name}/manifest.json"), &seal(manifest.as_bytes()));
    scratch.path(&name)
}

/// Draws a number below 8, which an input's checksum decides.
fn drawn(input: &[u8]) -> u32 {
    let mut checksum = Crc::new();
    checksum.update(input);
    checksum.sum() % 8
}

/// Looks at a checkpoint and at its run in one of the ways that there are, or in all of them, as the checksum
/// of the input draws: an input that is looked at once costs a fifth of one that is looked at in every way.
fn look(run: &Path, checkpoint: &Path, input: &[u8]) {
    let drawn = drawn(input);
    let is = |way| drawn == way || drawn == 7;
    let whole = load(checkpoint).is_ok();
    if is(0) {
        assert_eq!(whole, inspect::show(checkpoint).is_ok());
    }
    if is(1) {
        let verified = inspect::verify(run).unwrap_or_default();
        assert!(whole || verified.iter().all(|checked| checked.problem.is_some()));
    }
    let _ = is(2).then(|| list(run));
    let _ = is(3).then(|| newest(run));
    let _ = is(4).then(|| inspect::list(run));
    let _ = is(5).then(|| inspect::model(run));
    let _ = is(6).then(|| inspect::diff(run, checkpoint));
}

pub(crate) fn manifest(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let (run, path) = (scratch.path("listed"), scratch.path("listed/checkpoints/step-00000001"));
    if !run.exists() {
        let files = [(MODEL, EMPTY), (OPTIMIZER, EMPTY), (TRAINER, b"{}"), (CARRIES, EMPTY)];
        write(scratch, "listed", 1, &files);
    }
    let manifest = if flags & 1 > 0 { seal(rest) } else { rest.to_vec() };
    fs::write(path.join("manifest.json"), manifest).expect("a file");
    look(&run, &path, bytes);
}

/// Reads files that fit their manifest. Two bytes before each are its length. What was read is saved again,
/// for one input of eight.
pub(crate) fn checkpoint(scratch: &Scratch, bytes: &[u8]) {
    let (flags, mut rest) = flags(bytes);
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for _ in 0..4 {
        let (length, after) =
            rest.split_first_chunk().map_or((0, rest), |(l, r)| (u16::from_le_bytes(*l), r));
        let (part, after) = after.split_at(usize::from(length).min(after.len()));
        parts.push(part.to_vec());
        rest = after;
    }
    let names = [MODEL, OPTIMIZER, TRAINER, CARRIES];
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(parts.iter().map(Vec::as_slice)).collect();
    scratch.remove("run");
    let path = write(scratch, "run", 1, &files[..if flags & 1 > 0 { 4 } else { 3 }]);
    look(&scratch.path("run"), &path, bytes);
    if drawn(bytes) == 7
        && let Ok((_, contents)) = load(&path)
    {
        let mut store = Store::open(scratch.path("run")).expect("a directory");
        if store.save(2, &contents).is_ok() {
            assert_eq!(newest(scratch.path("run")).ok().flatten().map(|loaded| loaded.step), Some(2));
        }
    }
}

/// The names that are planted in a run's directory.
const NAMES: [&str; 16] = [
    ".lock",
    ".tmp-probe",
    ".tmp-file-0123456789abcdef",
    "model.safetensors",
    "model.json",
    "checkpoints",
    "checkpoints/.tmp-step-00000001",
    "checkpoints/.tmp-step-00000009-0123456789abcdef",
    "checkpoints/.old-step-00000003",
    "checkpoints/.old-step-00000008",
    "checkpoints/broken-step-00000003",
    "checkpoints/step-00000003",
    "checkpoints/step-00000008",
    "checkpoints/step-00000003/manifest.json",
    "checkpoints/step-00000003/model.safetensors",
    "checkpoints/step-00000008/trainer.json",
];

/// Plants files, directories and links under names that a store uses, saves, and checks that nothing outside
/// was touched. Two bytes are a plant.
pub(crate) fn directory(scratch: &Scratch, bytes: &[u8]) {
    scratch.remove("run");
    scratch.remove("elsewhere");
    let precious = scratch.file("elsewhere/precious", b"precious");
    let run = scratch.path("run");
    let files: [(&str, &[u8]); 3] = [(MODEL, EMPTY), (OPTIMIZER, EMPTY), (TRAINER, b"{}")];
    write(scratch, "run", 3, &files);
    for plant in bytes.as_chunks::<2>().0.iter().take(12) {
        let at = run.join(NAMES[usize::from(plant[0] % 16)]);
        // What is planted must not be elsewhere itself.
        let inside = at.parent().is_some_and(|parent| parent.canonicalize().is_ok_and(|real| real == parent));
        if !inside {
            continue;
        }
        if plant[0] & 128 > 0 {
            let _ =
                if at.is_dir() && !at.is_symlink() { fs::remove_dir_all(&at) } else { fs::remove_file(&at) };
        }
        let _ = match plant[1] % 6 {
            0 if at.is_symlink() => Ok(()),
            0 => fs::write(&at, &bytes[..bytes.len().min(plant[1].into())]),
            1 => fs::create_dir_all(&at),
            2 => link(&precious, &at),
            3 => link(&scratch.path("elsewhere"), &at),
            4 => link(&scratch.path("elsewhere/absent"), &at),
            _ => {
                let from = run.join(NAMES[usize::from(plant[1] / 6 % 16)]);
                let outside = from.canonicalize().is_ok_and(|real| real != from);
                if outside { Ok(()) } else { fs::rename(from, &at) }
            }
        };
    }
    let _ = (list(&run), newest(&run), inspect::list(&run), inspect::verify(&run));
    if let Ok(mut store) = Store::open(&run) {
        let saved = store.save(4, &unisono_checkpoint::Contents::default());
        if saved.is_ok() {
            assert_eq!(newest(&run).ok().flatten().map(|loaded| loaded.step), Some(4));
        }
        let _ = store.export_model(&Tensors::new(), &Export::default().description(serde_json::json!({})));
    }
    let left = fs::read_dir(scratch.path("elsewhere")).expect("elsewhere");
    assert_eq!((left.count(), fs::read(precious).ok().as_deref()), (1, Some(&b"precious"[..])));
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(not(unix))]
fn link(_: &Path, at: &Path) -> std::io::Result<()> {
    fs::write(at, "no link")
}

/// Reads a description beside weights: the whole file, or, if the first byte is odd, what a good one holds.
pub(crate) fn export(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let path = scratch.file("m.safetensors", EMPTY);
    let text = if flags & 1 > 0 { described(rest) } else { rest.to_vec() };
    scratch.file("m.json", &text);
    let _ = read_export(path).map_err(|error| error.to_string());
}

/// Returns a model's JSON file with this description.
pub(crate) fn described(description: &[u8]) -> Vec<u8> {
    let weights =
        format!(r#"{{"name":"m.safetensors","bytes":{},"sha256":"{}"}}"#, EMPTY.len(), sha256(EMPTY));
    let head = format!(r#"{{"format":"unisono-model","version":1,"weights":{weights},"description":"#);
    [head.as_bytes(), description, b"}"].concat()
}

/// Imports tensors by a plan. Each line is a rule, a tensor of the file or a tensor of the model.
pub(crate) fn plan(_: &Scratch, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (mut plan, mut file, mut model) = (Plan::new(), Tensors::new(), BTreeMap::new());
    let mut keras: Option<Keras> = None;
    for line in text.lines().take(32) {
        let words: Vec<&str> = line.split(' ').collect();
        let shape = |from: usize| -> Vec<usize> {
            words.iter().skip(from).take(5).filter_map(|word| word.parse().ok()).collect()
        };
        match *words.as_slice() {
            ["rename", from, to] => plan = plan.rename(from, to),
            ["strip", prefix] => plan = plan.strip_prefix(prefix),
            ["only", pattern] => plan = plan.only(pattern),
            ["ignore", pattern] => plan = plan.ignore(pattern),
            ["partial"] => plan = plan.partial(),
            ["except", pattern] => plan = plan.except(pattern),
            ["transpose", pattern] => plan = plan.transpose(pattern),
            ["permute", pattern, ..] => plan = plan.permute(pattern, &shape(2)),
            ["reshape", pattern, ..] => plan = plan.reshape(pattern, &shape(2)),
            ["split", pattern, ref into @ ..] => plan = plan.split(pattern, 0, into),
            ["cut", pattern, into, ..] => {
                let parts: Vec<(&str, usize)> = shape(3).into_iter().map(|length| (into, length)).collect();
                plan = plan.split_lengths(pattern, 1, &parts);
            }
            ["merge", into, ref from @ ..] => plan = plan.merge(from, 0, into),
            ["names"] => plan = plan.keras_names(),
            ["keras"] => keras = Some(keras.unwrap_or_default()),
            ["flattened", pattern, ..] => {
                if let &[h, w, c] = shape(2).as_slice() {
                    keras = Some(keras.unwrap_or_default().flattened(pattern, [h, w, c]));
                }
            }
            ["file", name, ..] => drop(small(&shape(2)).map(|tensor| file.insert(name.into(), tensor))),
            ["i8", name, ..] => {
                drop(bytes_of(TensorDType::I8, &shape(2)).map(|t| file.insert(name.into(), t)))
            }
            ["f32", name, ..] => {
                drop(bytes_of(TensorDType::F32, &shape(2)).map(|t| file.insert(name.into(), t)))
            }
            ["model", name, ..] => drop(model.insert(name.to_owned(), Info::f32(&shape(2)))),
            _ => {}
        }
    }
    let plan = keras.into_iter().fold(plan, Plan::keras);
    match plan.take(&file, &model) {
        Ok((tensors, report)) => {
            drop(report.to_string());
            tensors.iter().for_each(|(name, tensor)| assert_eq!(Some(tensor.info()), model.get(name)));
        }
        Err(error) => drop(error.to_string()),
    }
    if let Ok(arranged) = plan.arrange(&file) {
        let shapes = file.iter().map(|(name, tensor)| (name.clone(), tensor.info().clone())).collect();
        match plan.revert(&arranged, &shapes) {
            Ok(back) => {
                let kept = back.iter().filter(|(name, _)| !is_quantized(&file, name, &file[*name]));
                kept.for_each(|(name, tensor)| assert_eq!(Some(tensor), file.get(name)));
            }
            Err(error) => drop(error.to_string()),
        }
    }
}

/// Returns a tensor of a shape, if it is small.
fn small(shape: &[usize]) -> Option<Tensor> {
    bytes_of(TensorDType::F16, shape)
}

/// Returns a tensor of a type and a shape, if it is small.
fn bytes_of(dtype: TensorDType, shape: &[usize]) -> Option<Tensor> {
    let info = Info { dtype, shape: shape.to_vec() };
    let bytes = info.bytes().filter(|&bytes| bytes <= 1 << 12)?;
    Tensor::new(dtype, shape.to_vec(), vec![0x3c; bytes]).ok()
}

/// Returns whether a tensor has integers of i8 and scales.
fn is_quantized(tensors: &Tensors, name: &str, tensor: &Tensor) -> bool {
    tensor.dtype() == TensorDType::I8 && tensors.contains_key(&scale_name(name))
}
