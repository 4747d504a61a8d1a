//! Recognising files that are not safetensors, so that an error names what they are.

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
            "a Keras 3 model (.keras): convert its weights to safetensors in Python"
        } else if holds(b".npy") {
            "NumPy's archive of arrays (.npz), which `unisono::data` reads"
        } else {
            "a zip file"
        });
    }
    let known: [(&[u8], &str); 7] = [
        (
            b"\x89HDF\r\n\x1a\n",
            "an HDF5 file, as Keras writes (.h5): convert its weights to safetensors in Python",
        ),
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
    fn files_of_other_kinds_are_named() {
        let zip = |member: &str| [b"PK\x03\x04".as_slice(), &[0; 26], member.as_bytes(), &[0; 64]].concat();
        let padded = |head: &[u8]| [head, &[0; 64]].concat();
        for (file, expected) in [
            (zip("archive/data.pkl"), "torch.save"),
            (zip("model.weights.h5"), "Keras 3 model"),
            (zip("x.npy"), ".npz"),
            (zip("readme.txt"), "a zip file"),
            (padded(b"\x89HDF\r\n\x1a\n"), "HDF5"),
            (padded(b"\x80\x02\x8a\n"), "pickle"),
            (padded(b"\x80\x04\x95"), "pickle"),
            (padded(b"GGUF\x03"), "GGUF"),
            (padded(b"\x93NUMPY"), ".npy"),
            (padded(b"version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
            (padded(b"\x1f\x8b\x08"), "gzip"),
            (b"{\n \"metadata\": {}, \"weight_map\": {}}".to_vec(), "index of a sharded model"),
            (b"  {\"a\": 1}".to_vec(), "a text in JSON"),
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
