//! A 64-bit hash that tells data sets apart.

use crate::{FieldDType, FieldSpec, Values};

/// A hash of all that identifies a data set.
///
/// Each step is FNV-1a's over 64-bit words instead of bytes, followed by folding the high half into the low
/// one (which multiplication alone never does). Text is hashed as its bytes, one a word, after its length,
/// and f32 values by their bits. It finds accidents, not forgery.
#[derive(Clone, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Returns the hash of nothing.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a number.
    #[must_use]
    pub const fn word(self, word: u64) -> Self {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        Self(mixed ^ mixed >> 32)
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        text.bytes().fold(self.word(text.len() as u64), |hash, byte| hash.word(byte.into()))
    }

    /// Adds a source's length and fields.
    #[must_use]
    pub fn source(self, len: u64, fields: &[FieldSpec]) -> Self {
        fields.iter().fold(self.word(len).word(fields.len() as u64), |hash, spec| {
            let hash = hash.text(&spec.name).dtype(spec.dtype).word(spec.shape.len() as u64);
            spec.shape.iter().fold(hash, |hash, &extent| hash.word(extent as u64))
        })
    }

    /// Adds values: their type, number and bits, two values a word.
    #[must_use]
    pub fn values(self, values: &Values) -> Self {
        fn pairs<T: Copy>(hash: Fingerprint, values: &[T], bits: impl Fn(T) -> u32) -> Fingerprint {
            values.chunks(2).fold(hash, |hash, pair| {
                let high = pair.get(1).map_or(0, |&value| bits(value));
                hash.word(u64::from(bits(pair[0])) | u64::from(high) << 32)
            })
        }
        let hash = self.dtype(values.dtype()).word(values.len() as u64);
        match values {
            Values::F32(values) => pairs(hash, values, f32::to_bits),
            Values::I32(values) => pairs(hash, values, |value| value as u32),
        }
    }

    /// Returns the 64 bits.
    pub const fn finish(&self) -> u64 {
        self.0
    }

    const fn dtype(self, dtype: FieldDType) -> Self {
        self.word(match dtype {
            FieldDType::F32 => 1,
            FieldDType::I32 => 2,
        })
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::new()
    }
}
