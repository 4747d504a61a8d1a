//! Long messages in parts: MPI counts the bytes of a message with 31 bits.
//!
//! A part of the most bytes has another one behind it, and the last part is shorter, if need be empty. So a
//! message that is shorter than a part is its own only part. Parts of one rank arrive in the order in which
//! it sent them.

use std::collections::BTreeMap;

/// The most bytes of a part.
pub const PART: usize = 256 << 20;

/// Returns the parts of a message.
pub fn cut(bytes: Vec<u8>, most: usize) -> Vec<Vec<u8>> {
    if bytes.len() < most {
        return vec![bytes];
    }
    let mut parts: Vec<Vec<u8>> = bytes.chunks(most).map(<[u8]>::to_vec).collect();
    if bytes.len().is_multiple_of(most) {
        parts.push(Vec::new());
    }
    parts
}

/// The parts that have come of messages that are not complete, by rank.
#[derive(Debug, Default)]
pub struct Joining(BTreeMap<usize, Vec<u8>>);

impl Joining {
    /// Adds a part. Returns the message if it is complete.
    pub fn add(&mut self, from: usize, part: Vec<u8>, most: usize) -> Option<Vec<u8>> {
        let is_last = part.len() < most;
        let whole = match self.0.remove(&from) {
            None => part,
            Some(mut begun) => {
                begun.extend(part);
                begun
            }
        };
        if is_last {
            return Some(whole);
        }
        self.0.insert(from, whole);
        None
    }

    /// Forgets what has come of a rank that is lost.
    pub fn forget(&mut self, rank: usize) {
        self.0.remove(&rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_length_are_joined_from_their_parts() {
        let mut joining = Joining::default();
        for len in 0..14_usize {
            let message = |rank: u8| (0..len as u8).map(|i| 16 * rank + i).collect::<Vec<_>>();
            let (own, other) = (cut(message(1), 4), cut(message(2), 4));
            assert_eq!(own.len(), len / 4 + 1);
            assert!(own.iter().all(|part| part.len() <= 4));
            let mut joined = Vec::new();
            for (part, beside) in own.into_iter().zip(other) {
                joined.extend(joining.add(1, part, 4).map(|whole| (1, whole)));
                joined.extend(joining.add(2, beside, 4).map(|whole| (2, whole)));
            }
            assert_eq!(joined, [(1, message(1)), (2, message(2))], "{len} bytes");
        }
        assert_eq!(joining.add(1, vec![1; 4], 4), None);
        joining.forget(1);
        assert_eq!(joining.add(1, vec![2; 3], 4), Some(vec![2; 3]));
    }
}
