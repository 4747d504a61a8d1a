//! The digest of a whole state.

use sha2::{Digest, Sha256};

use crate::tensors::tensor::Tensors;

/// The layout's name and version. It changes whenever the layout does.
const TAG: &[u8; 16] = b"unisono state 1\n";

/// Returns the SHA-256 of named sections of tensors and of some extra bytes (the position), as 64 lowercase
/// hex digits.
///
/// Sections are taken in order of their names and tensors in order of theirs, so the caller's order does not
/// matter. Every count and length is a little-endian u64; a string or block is its length and then its bytes:
///
/// ```text
/// state   = "unisono state 1\n"  section-count  section*  extra-block
/// section = name-string  tensor-count  tensor*
/// tensor  = name-string  dtype-string  rank  size*  bytes-block        dtype as in safetensors: "F32"
/// ```
///
/// No two states share an encoding, because each part is preceded by its length. Bytes are hashed as they
/// are, so -0 and +0 differ, and so do two NaNs.
pub fn state_sha256(sections: &[(&str, &Tensors)], extra: &[u8]) -> String {
    let mut sections = sections.to_vec();
    sections.sort_by_key(|section| section.0);
    let mut state = State(Sha256::new_with_prefix(TAG));
    state.number(sections.len());
    for (name, tensors) in sections {
        state.block(name.as_bytes());
        state.number(tensors.len());
        for (name, tensor) in tensors {
            state.block(name.as_bytes());
            state.block(tensor.dtype().name().as_bytes());
            state.number(tensor.shape().len());
            tensor.shape().iter().for_each(|&size| state.number(size));
            state.block(tensor.bytes());
        }
    }
    state.block(extra);
    hex(&state.0.finalize())
}

struct State(Sha256);

impl State {
    fn number(&mut self, n: usize) {
        self.0.update((n as u64).to_le_bytes());
    }

    fn block(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }
}

/// Returns bytes as lowercase hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|b| [b >> 4, b & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Returns the SHA-256 of a file's bytes, as a manifest has it.
#[cfg(test)]
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::tensor::Tensor;

    fn tensors(list: &[(&str, Tensor)]) -> Tensors {
        list.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let model = tensors(&[("w", Tensor::u32(&[2], &[1, 2]).unwrap())]);
        let mut bytes = b"unisono state 1\n".to_vec();
        for part in [
            &1u64.to_le_bytes()[..],
            &[5, 0, 0, 0, 0, 0, 0, 0],
            b"model",
            &1u64.to_le_bytes(),
            &[1, 0, 0, 0, 0, 0, 0, 0, b'w'],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            b"U32",
            &1u64.to_le_bytes(),
            &2u64.to_le_bytes(),
            &8u64.to_le_bytes(),
            &[1, 0, 0, 0, 2, 0, 0, 0],
            &2u64.to_le_bytes(),
            b"p0",
        ] {
            bytes.extend(part);
        }
        assert_eq!(state_sha256(&[("model", &model)], b"p0"), sha256(&bytes));
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn every_part_of_a_state_shows() {
        let base = tensors(&[("w", Tensor::f32(&[2, 1], &[1.0, 0.0]).unwrap())]);
        let changed = [
            tensors(&[("v", Tensor::f32(&[2, 1], &[1.0, 0.0]).unwrap())]),
            tensors(&[("w", Tensor::f32(&[1, 2], &[1.0, 0.0]).unwrap())]),
            tensors(&[("w", Tensor::f32(&[2, 1], &[1.0, -0.0]).unwrap())]),
            tensors(&[("w", Tensor::u32(&[2, 1], &[0x3f80_0000, 0]).unwrap())]),
        ];
        let digest = state_sha256(&[("a", &base)], b"0");
        for other in &changed {
            assert_ne!(state_sha256(&[("a", other)], b"0"), digest);
        }
        assert_ne!(state_sha256(&[("a", &base)], b"1"), digest);
        assert_ne!(state_sha256(&[("b", &base)], b"0"), digest);
        let one_way = state_sha256(&[("a", &base), ("b", &changed[0])], b"");
        assert_eq!(state_sha256(&[("b", &changed[0]), ("a", &base)], b""), one_way);
        assert_ne!(state_sha256(&[("a", &changed[0]), ("b", &base)], b""), one_way);
    }
}
