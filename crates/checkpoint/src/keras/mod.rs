//! Keras's files: what `save_weights` and `save` write.

mod classes;
mod convert;
mod file;

use std::io::Cursor;
use std::path::Path;

use crate::model::keras::Keras;
use crate::tensors::error::{Result, broken, io};
use crate::tensors::foreign;
use crate::tensors::regular::open_regular;
use crate::tensors::tensor::Tensors;
use crate::zipped;

use classes::Classes;

/// The most bytes of the text that describes a model.
const MOST_CONFIG: u64 = 64 << 20;
/// The files in a `.keras` archive.
const WEIGHTS: &str = "model.weights.h5";
const CONFIG: &str = "config.json";

/// Reads the weights of a file that Keras wrote: `.weights.h5` and `.keras` of Keras 3, and the older `.h5`
/// that `save_weights` and `save` wrote. Needs the feature `keras`.
///
/// The tensors have the shapes and names of this library's layers, behind the name of the layer in Keras:
///
/// | Keras | here |
/// |---|---|
/// | `Dense`, `Conv1D` to `Conv3D`, transposed and depthwise ones | `NAME.weight`, `NAME.bias` |
/// | `SeparableConv2D` | `NAME.depthwise.weight`, `NAME.pointwise.weight`, `NAME.pointwise.bias` |
/// | `Embedding` | `NAME.weight` |
/// | `BatchNormalization` | `NAME.weight`, `NAME.bias`, `NAME.running_mean`, `NAME.running_var` |
/// | `LayerNormalization`, `GroupNormalization`, `RMSNormalization` | `NAME.weight`, `NAME.bias` |
/// | `LSTM`, `GRU(reset_after=True)`, `SimpleRNN` | those of PyTorch: `NAME.weight_ih_l0` and so on |
/// | `Bidirectional` of these | the same, with `_reverse` behind those of the backward direction |
/// | `MultiHeadAttention` | `NAME.in_proj_weight`, `.in_proj_bias`, `.out_proj.weight`, `.out_proj.bias` |
///
/// Layers in a model within a model have its name in front: `encoder.dense.weight`. Layers that are
/// attributes of a class have the attribute's name. [`Plan::rename`](crate::Plan::rename) changes names, such
/// as those of a `Sequential`: `Plan::new().rename("dense.*", "0.*")`. Arrays of other layers keep their
/// shapes and are called `NAME.0`, `NAME.1`, ... The state of the optimizer and numbers that are not floats
/// are left out.
///
/// `keras` says what no file says: which dense layers take flattened images. Their kernels are called as in
/// Keras: `Keras::new().flattened("dense/kernel", [8, 8, 2])`.
///
/// # Errors
/// The file cannot be read, is not a file of Keras, or is broken. A layer's arrays do not fit its kind, such
/// as those of a `GRU` with `reset_after=False`. A rule of `keras` fits no kernel.
pub fn read_keras(path: impl AsRef<Path>, keras: &Keras) -> Result<Tensors> {
    let path = path.as_ref();
    let mut file = open_regular(path).map_err(io(path, "read"))?;
    let length = file.metadata().map_err(io(path, "read"))?.len();
    let bytes = zipped::all(&mut file, length).map_err(io(path, "read"))?;
    read(path, bytes, keras)
}

/// Reads the bytes of a file that Keras wrote. `path` is for the error message.
///
/// # Errors
/// Those of [`read_keras`].
pub fn parse_keras(path: &Path, file: &[u8], keras: &Keras) -> Result<Tensors> {
    let bytes = zipped::all(&mut &*file, file.len() as u64).map_err(io(path, "read"))?;
    read(path, bytes, keras)
}

fn read(path: &Path, bytes: Vec<u8>, keras: &Keras) -> Result<Tensors> {
    let wrong = |problem: String| broken(path, format!("no weights by Keras: {problem}"));
    if let Some(other) = foreign::other(&bytes[..bytes.len().min(foreign::HEAD as usize)], "read_keras") {
        return Err(wrong(format!("it is {other}")));
    }
    // Keras does not pack what it writes. What somebody packed may be some times as large.
    let most = (bytes.len() as u64).saturating_mul(16).saturating_add(1 << 20);
    let (bytes, classes) =
        if bytes.starts_with(b"PK") { unpacked(&bytes, most).map_err(wrong)? } else { (bytes, None) };
    if !file::is_hdf5(&bytes) {
        return Err(wrong("it is no HDF5 file".into()));
    }
    let layers = file::layers(bytes, classes, most).map_err(wrong)?;
    let tensors = convert::tensors(layers, keras).map_err(wrong)?;
    if tensors.is_empty() { Err(wrong("it has no weights".into())) } else { Ok(tensors) }
}

/// Returns the weights in a `.keras` archive, which may have `most` bytes, and the classes of the layers.
fn unpacked(archive: &[u8], most: u64) -> std::result::Result<(Vec<u8>, Option<Classes>), String> {
    let mut archive = zip::ZipArchive::new(Cursor::new(archive)).map_err(|error| error.to_string())?;
    if archive.index_for_name(WEIGHTS).is_none() {
        return Err(format!("the archive has no {WEIGHTS}"));
    }
    let config = zipped::entry(&mut archive, CONFIG, MOST_CONFIG.min(most))?;
    let classes = Classes::of_json(&config).map_err(|problem| format!("{CONFIG}: {problem}"))?;
    let weights = zipped::entry(&mut archive, WEIGHTS, most).map_err(|problem| {
        format!("{problem}; an archive that is packed may have weights of sixteen times its length")
    })?;
    Ok((weights, Some(classes)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// Returns the error of an archive with these two files, packed.
    fn error(config: &[u8], weights: &[u8]) -> String {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let packed = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        for (name, bytes) in [(CONFIG, config), (WEIGHTS, weights)] {
            archive.start_file(name, packed).unwrap();
            archive.write_all(bytes).unwrap();
        }
        let archive = archive.finish().unwrap().into_inner();
        parse_keras(Path::new("m.keras"), &archive, &Keras::new()).unwrap_err().to_string()
    }

    #[test]
    fn an_archive_is_not_unpacked_to_many_times_its_length() {
        let bomb = vec![0; 64 << 20];
        let weights = error(b"{}", &bomb);
        assert!(weights.contains("model.weights.h5: 67108864 bytes, more than "), "{weights}");
        let config = error(&bomb[1..], b"");
        assert!(config.contains("config.json: 67108863 bytes, more than "), "{config}");
    }

    #[test]
    fn the_description_of_a_model_keeps_to_a_budget() {
        // A small map counts for a hundred times as many bytes as its text has.
        let text = format!("[{}0]", "{\"\":0},".repeat(1 << 20));
        let problem = Classes::of_json(text.as_bytes()).unwrap_err();
        assert!(problem.contains("when it is parsed"), "{problem}");
    }
}
