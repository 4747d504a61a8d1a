//! Recognising files of another format than the one that is read, so that an error names what they are.

/// The first bytes of a file that [`file_format`] looks at.
#[cfg(any(feature = "torch", feature = "keras"))]
pub(crate) const HEAD: u64 = 1 << 16;

/// Returns what a file is and how to read it, judging by its first 64 KiB, if it has a format in which people
/// keep weights. `None`: it is none of these, or it is too short to tell.
pub fn file_format(file: &[u8]) -> Option<&'static str> {
    let is_text = file.get(8).is_some_and(|byte| *byte == b'{');
    let length = file.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    let is_safetensors = is_text && length < 100 << 20;
    name(file).or(is_safetensors.then_some("a safetensors file: read it by `checkpoint::read_tensors`"))
}

/// Returns what a file is if it is not of the format that is read, whose reader is `own`.
#[cfg(any(feature = "torch", feature = "keras"))]
pub(crate) fn other(file: &[u8], own: &str) -> Option<&'static str> {
    file_format(file).filter(|format| !format.contains(own))
}

/// Returns what a file is, judging by its first bytes, if it is a format that people take for safetensors.
pub(crate) fn name(file: &[u8]) -> Option<&'static str> {
    let begins = |magic: &[u8]| file.starts_with(magic);
    // The directory of a zip file is at its end, and names the members. The local headers name them too.
    let head = &file[..file.len().min(1 << 16)];
    let holds = |text: &[u8]| head.windows(text.len()).any(|part| part == text);
    if begins(b"PK\x03\x04") || begins(b"PK\x05\x06") {
        return Some(if holds(b"/data.pkl") || holds(b"/version") || holds(b"/byteorder") {
            "a file that PyTorch's `torch.save` wrote (.pt, .pth, .bin): read it by `checkpoint::read_torch`"
        } else if holds(b"model.weights.h5") {
            "a Keras 3 model (.keras): read it by `checkpoint::read_keras`"
        } else if holds(b".npy") {
            "NumPy's archive of arrays (.npz), which `unisono::data` reads"
        } else {
            "a zip file"
        });
    }
    let known: [(&[u8], &str); 7] = [
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes (.h5): read it by `checkpoint::read_keras`"),
        (b"\x80\x02", PICKLE),
        (b"\x80\x04", PICKLE),
        (b"GGUF", "a GGUF file of llama.cpp: use the safetensors of the same model"),
        (b"\x93NUMPY", "one array of NumPy (.npy)"),
        (
            b"version https://git-lfs",
            "a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`",
        ),
        (b"\x1f\x8b", "a file packed by gzip: unpack it"),
    ];
    if let Some((_, name)) = known.into_iter().find(|(magic, _)| begins(magic)) {
        return Some(name);
    }
    // An ONNX file begins with its version, and goes on with its producer, its graph or its operator sets.
    if matches!(file, [0x08, 1..=31, 0x12 | 0x3a | 0x42, ..]) {
        return Some("an ONNX file, which is written and not read: open the safetensors file of the model");
    }
    let text = file.iter().position(|byte| !byte.is_ascii_whitespace()).map(|at| &file[at..])?;
    if !text.starts_with(b"{") {
        return None;
    }
    Some(if holds(b"\"weight_map\"") {
        "the index of a sharded model (.index.json): its shards are the safetensors files that it names"
    } else {
        "a text in JSON"
    })
}

const PICKLE: &str = "a pickle of Python, as old versions of PyTorch write (.pt or .bin): convert it to \
     safetensors in Python";

#[cfg(test)]
mod tests {
    use crate::parse_tensors;
    use std::path::Path;

    #[test]
    fn formats_are_told_by_content() {
        let safetensors = b"\x02\0\0\0\0\0\0\0{}";
        assert!(super::file_format(safetensors).unwrap().contains("checkpoint::read_tensors"));
        assert_eq!((super::file_format(b"other"), super::file_format(b"")), (None, None));
    }

    #[cfg(all(feature = "torch", feature = "keras"))]
    #[test]
    fn every_reader_names_every_other_format() {
        let path = Path::new("w");
        let torch = |file: &[u8]| crate::parse_torch(path, file).unwrap_err().to_string();
        let keras =
            |file: &[u8]| crate::parse_keras(path, file, &crate::Keras::new()).unwrap_err().to_string();
        let others: [(&[u8], &str); 5] = [
            (b"\x02\0\0\0\0\0\0\0{}", "a safetensors file"),
            (b"GGUF\x03.........", "GGUF"),
            (b"{\"weight_map\": {}}", "index of a sharded model"),
            (b"\x80\x02\x8a\n.....", "pickle"),
            (b"\x1f\x8b\x08......", "gzip"),
        ];
        for (file, kind) in others {
            let [torch, keras] = [torch(file), keras(file)];
            assert!(
                torch.starts_with("w: no file of tensors by PyTorch: it is ") && torch.contains(kind),
                "{torch}"
            );
            assert!(keras.starts_with("w: no weights by Keras: it is ") && keras.contains(kind), "{keras}");
        }
        for file in [zip_of("model.weights.h5"), b"\x89HDF\r\n\x1a\n....".to_vec()] {
            assert!(torch(&file).contains("checkpoint::read_keras"), "{}", torch(&file));
        }
        assert!(keras(&zip_of("x/data.pkl")).contains("checkpoint::read_torch"));
        assert!(keras(&zip_of("x.npy")).contains("NumPy's archive"));
    }

    /// What the start of an archive with this member looks like.
    fn zip_of(member: &str) -> Vec<u8> {
        [b"PK\x03\x04".as_slice(), &[0; 26], member.as_bytes(), &[0; 64]].concat()
    }

    #[test]
    fn files_of_other_kinds_are_named() {
        let padded = |head: &[u8]| [head, &[0; 64]].concat();
        for (file, expected) in [
            (zip_of("archive/data.pkl"), "torch.save"),
            (zip_of("model.weights.h5"), "Keras 3 model"),
            (zip_of("x.npy"), ".npz"),
            (zip_of("readme.txt"), "a zip file"),
            (padded(b"\x89HDF\r\n\x1a\n"), "HDF5"),
            (padded(b"\x80\x02\x8a\n"), "pickle"),
            (padded(b"\x80\x04\x95"), "pickle"),
            (padded(b"GGUF\x03"), "GGUF"),
            (padded(b"\x93NUMPY"), ".npy"),
            (padded(b"version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
            (padded(b"\x1f\x8b\x08"), "gzip"),
            (b"{\n \"metadata\": {}, \"weight_map\": {}}".to_vec(), "index of a sharded model"),
            (b"  {\"a\": 1}".to_vec(), "a text in JSON"),
            (b"\x08\x08\x12\x07unisono".to_vec(), "an ONNX file"),
        ] {
            let error = parse_tensors(Path::new("w"), &file).unwrap_err().to_string();
            assert!(
                error.starts_with("w: no valid safetensors: it is ") && error.contains(expected),
                "{error}"
            );
        }
        let error = parse_tensors(Path::new("w"), &[7; 64]).unwrap_err().to_string();
        assert!(error.contains("a header of"), "{error}");
    }
}
