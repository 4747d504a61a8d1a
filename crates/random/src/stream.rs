//! Streams of random words: one for each purpose and path, addressed by epoch, position and element.

use crate::philox4x32;

/// The random words of one seed and one stream (see the crate's layout table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    key: [u32; 2],
}

impl Stream {
    /// Returns the words of `seed` for a stream made by [`stream`].
    pub const fn new(seed: u64, stream: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32 ^ stream] }
    }

    /// Returns the Philox key, which a shader is given as `key`.
    pub const fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Returns block `block` at a position: elements `4 * block .. 4 * block + 4`.
    pub const fn block(&self, epoch: u32, position: u64, block: u32) -> [u32; 4] {
        philox4x32([block, position as u32, epoch, (position >> 32) as u32], self.key)
    }

    /// Returns the word at an address. Elements go up to 2^34; beyond, they repeat.
    pub const fn word(&self, epoch: u32, position: u64, element: u64) -> u32 {
        self.block(epoch, position, (element / 4) as u32)[(element % 4) as usize]
    }
}

/// Returns the stream of a purpose ("dropout", "init", "map") and a path ("2.dropout"): the 32-bit FNV-1a
/// hash of the purpose's bytes, one zero byte, and the path's bytes.
///
/// The zero byte keeps `("ab", "c")` and `("a", "bc")` apart. With 32 bits, two of a run's n streams are
/// equal with a probability of about n^2 / 2^33. Equal streams make two layers draw alike, and break nothing
/// else.
pub const fn stream(purpose: &str, path: &str) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    let hash = hash_on(OFFSET_BASIS, purpose.as_bytes());
    let hash = hash_on(hash, &[0]);
    hash_on(hash, path.as_bytes())
}

const fn hash_on(mut hash: u32, bytes: &[u8]) -> u32 {
    const PRIME: u32 = 0x0100_0193;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(PRIME);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks published FNV-1a 32 values: "" is the basis, "a" and "foobar" are in the authors' test suite.
    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(hash_on(0x811c_9dc5, b""), 0x811c_9dc5);
        assert_eq!(hash_on(0x811c_9dc5, b"a"), 0xe40c_292c);
        assert_eq!(hash_on(0x811c_9dc5, b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn purpose_and_path_do_not_run_together() {
        assert_ne!(stream("ab", "c"), stream("a", "bc"));
        assert_ne!(stream("dropout", "1"), stream("dropout", "2"));
    }

    #[test]
    fn a_word_is_where_the_layout_says() {
        let stream = Stream::new(0x1122_3344_5566_7788, 0x0f0f_0f0f);
        assert_eq!(stream.key(), [0x5566_7788, 0x1122_3344 ^ 0x0f0f_0f0f]);
        let (epoch, position) = (7, 0x0001_0002_0003_0004);
        for element in [0, 1, 2, 3, 4, 4095, (1 << 34) - 1] {
            let counter = [(element / 4) as u32, 0x0003_0004, epoch, 0x0001_0002];
            let expected = philox4x32(counter, stream.key())[(element % 4) as usize];
            assert_eq!(stream.word(epoch, position, element), expected);
        }
    }

    /// Pins the layout: these words must never change.
    #[test]
    fn golden_words() {
        let stream = Stream::new(42, stream("dropout", "2.dropout"));
        let words: Vec<u32> = (0..5).map(|element| stream.word(3, 1 << 40, element)).collect();
        assert_eq!(words, GOLDEN, "{words:#010x?}");
    }

    const GOLDEN: [u32; 5] = [0x3735487a, 0x472b1c5a, 0x6a87a5d5, 0x32aa94fc, 0xd4567246];
}
