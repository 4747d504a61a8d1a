//! Several byte strings in one.

/// Packs byte strings into one.
///
/// ```
/// let packed = unisono_cluster::pack(&[b"one", b""]);
/// assert_eq!(unisono_cluster::unpack(&packed), Some(vec![&b"one"[..], b""]));
/// ```
pub fn pack(parts: &[&[u8]]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        packed.extend((part.len() as u64).to_le_bytes());
        packed.extend_from_slice(part);
    }
    packed
}

/// Unpacks what [`pack`] has packed, or returns `None` for other bytes.
pub fn unpack(mut packed: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !packed.is_empty() {
        let (len, rest) = packed.split_first_chunk::<8>()?;
        let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        parts.push(part);
        packed = rest;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(unpack(&[]), Some(vec![]));
        assert_eq!(unpack(&[1, 2, 3]), None);
        assert_eq!(unpack(&[255; 16]), None);
        let packed = pack(&[b"four"]);
        assert_eq!(unpack(&packed[..packed.len() - 1]), None);
    }
}
