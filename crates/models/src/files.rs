//! The files of a model's directory.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::checkpoint::{Tensors, open_regular, read_tensors, read_torch};

use crate::error::Error;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The file that says how texts are generated, where there is one.
pub(crate) const GENERATION: &str = "generation_config.json";
#[cfg(feature = "tokenizers")]
const TOKENIZER: &str = "tokenizer.json";
/// The files beside weights and config that belong to a model which was trained further, too.
pub(crate) const BESIDE: [&str; 14] = [
    GENERATION,
    "preprocessor_config.json",
    "processor_config.json",
    "normalizer.json",
    "chat_template.jinja",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
];
const INDEX: &str = "model.safetensors.index.json";
const TORCH: &str = "pytorch_model.bin";

/// The part of an index that says where each tensor is.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads a whole regular file. A pipe would be waited for, and a device may never end: they are refused.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let read = open_regular(path).and_then(|file| {
        let mut bytes = Vec::new();
        let length = file.metadata()?.len();
        file.take(length).read_to_end(&mut bytes).map(|_| bytes)
    });
    read.map_err(|reason| Error::Io { path: path.to_owned(), reason })
}

/// Opens the tokenizer of a directory.
#[cfg(feature = "tokenizers")]
pub(crate) fn tokenizer(dir: &Path) -> Result<unisono::data::Tokenizer, Error> {
    let path = dir.join(TOKENIZER);
    if path.exists() {
        return Ok(unisono::data::Tokenizer::open(path).map_err(unisono::Error::from)?);
    }
    Err(Error::broken(
        dir,
        format!("has no {TOKENIZER}: write it by `tokenizer.save_pretrained(dir)` in transformers"),
    ))
}

/// Reads all weights of a directory: `model.safetensors`, or the shards that its index names, or
/// `pytorch_model.bin`, or its only file of weights. It may also be that file.
pub(crate) fn weights(dir: &Path) -> Result<Tensors, Error> {
    if dir.is_file() {
        return one_file(dir);
    }
    let whole = dir.join(WEIGHTS);
    if whole.exists() {
        return Ok(read_tensors(whole)?);
    }
    let path = dir.join(INDEX);
    let torch = dir.join(TORCH);
    if !path.exists() && torch.exists() {
        return Ok(read_torch(torch)?);
    }
    if !path.exists()
        && let Some(only) = only(dir)
    {
        return one_file(&only);
    }
    if !path.exists() {
        return Err(Error::broken(dir, nothing(dir)));
    }
    let index: Index = serde_json::from_slice(&read(&path)?)
        .map_err(|error| Error::broken(&path, format!("no index of a sharded model: {error}")))?;
    shards(dir, &path, &index)
}

/// Reads a file of weights of any name: PyTorch's, which is a zip archive, or safetensors.
fn one_file(path: &Path) -> Result<Tensors, Error> {
    match format(path) {
        Some(format) if format.contains("read_torch") => Ok(read_torch(path)?),
        Some(format) if !format.contains("read_tensors") => Err(Error::broken(path, file_in_place(path))),
        _ => Ok(read_tensors(path)?),
    }
}

/// Returns what a file is, judging by its content, if it has a format in which people keep weights.
fn format(path: &Path) -> Option<&'static str> {
    let mut head = Vec::new();
    let file = unisono::checkpoint::open_regular(path).ok()?;
    file.take(1 << 16).read_to_end(&mut head).ok()?;
    unisono::checkpoint::file_format(&head)
}

/// Returns the file of weights of a directory that has no more than one, whatever it is called.
fn only(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let is_weights = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        end.is_some_and(|end| ["safetensors", "pt", "pth"].contains(&end))
    };
    let mut found = entries.filter(is_weights);
    found.next().filter(|_| found.next().is_none())
}

/// Reads the shards of an index, and checks that they hold what it says, and nothing else.
fn shards(dir: &Path, path: &Path, index: &Index) -> Result<Tensors, Error> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, file) in &index.weight_map {
        files.entry(file).or_default().push(name);
    }
    let mut all = Tensors::new();
    for (file, names) in files {
        if Path::new(file).file_name().and_then(|name| name.to_str()) != Some(file) {
            return Err(Error::broken(path, format!("{file:?} is not the name of a file in this directory")));
        }
        let shard: PathBuf = dir.join(file);
        let mut tensors = read_tensors(&shard)?;
        for name in names {
            let tensor = tensors.remove(name);
            let missing = || Error::broken(&shard, format!("lacks {name}, which {INDEX} says is here"));
            all.insert(name.to_owned(), tensor.ok_or_else(missing)?);
        }
        if let Some(name) = tensors.keys().next() {
            return Err(Error::broken(&shard, format!("has the tensor {name}, which {INDEX} does not list")));
        }
    }
    Ok(all)
}

/// Says what a directory without weights has instead.
fn nothing(dir: &Path) -> String {
    const KNOWN: [(&str, &str); 6] = [
        (".pt", "PyTorch's format"),
        (".h5", "Keras's format"),
        (".keras", "Keras's format"),
        (".msgpack", "Flax's format"),
        (".onnx", "ONNX's format"),
        (".gguf", "llama.cpp's format"),
    ];
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.sort();
    let found = names
        .iter()
        .find_map(|name| KNOWN.iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| (name, kind)));
    // The content tells where the name does not.
    let text = [".json", ".txt", ".md"];
    let mut others = names.iter().filter(|name| !text.iter().any(|end| name.ends_with(end)));
    let known = others.find_map(|name| Some((name, format(&dir.join(name))?)));
    if let (None, Some((name, format))) = (found, known) {
        return format!("has neither {WEIGHTS} nor {INDEX} nor {TORCH}; {name} is {format}");
    }
    let other = found.map(|(name, kind)| {
        format!(
            "; {name} has {kind}: save the model again by `save_pretrained(dir, safe_serialization=True)`"
        )
    });
    format!("has neither {WEIGHTS} nor {INDEX} nor {TORCH}{}", other.unwrap_or_default())
}

/// Says what a file is that was given in place of a directory.
pub(crate) fn file_in_place(path: &Path) -> String {
    let format = format(path).map(|format| format!("; it is {format}")).unwrap_or_default();
    format!("is a file, and the directory with {CONFIG} is opened{format}")
}
