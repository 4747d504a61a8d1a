//! Bytes between the segments of a JPEG file, which cameras and editors leave there.

use std::borrow::Cow;

/// Returns a JPEG file without the bytes that stand where a marker belongs. Decoders such as libjpeg, and so
/// Pillow, pass them over; the crate zune-jpeg takes them for damage, as it takes a file that was cut off.
pub(super) fn without_bytes_between(file: &[u8]) -> Cow<'_, [u8]> {
    // What is kept so far, once bytes were found, and the first byte that is not yet in it.
    let (mut kept, mut from) = (None::<Vec<u8>>, 0);
    let mut at = 2;
    while let Some(marker) = next_marker(file, at) {
        if marker > at {
            let bytes = kept.get_or_insert_default();
            // Where memory does not suffice the decoder refuses the file as it is.
            if bytes.try_reserve(file.len()).is_err() {
                return Cow::Borrowed(file);
            }
            bytes.extend_from_slice(&file[from..at]);
            from = marker;
        }
        at = match file[marker + 1] {
            0xd9 => break,
            // These have no length.
            0x01 | 0xd0..=0xd8 => marker + 2,
            code => {
                let Some(&[high, low]) = file.get(marker + 2..marker + 4) else { break };
                let end = marker + 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
                if code == 0xda { end_of_scan(file, end) } else { end }
            }
        };
        if at >= file.len() {
            break;
        }
    }
    match kept {
        Some(mut bytes) => {
            bytes.extend_from_slice(&file[from..]);
            Cow::Owned(bytes)
        }
        None => Cow::Borrowed(file),
    }
}

/// Returns the place of the next marker: a byte 0xff before one that is neither that nor 0.
fn next_marker(file: &[u8], at: usize) -> Option<usize> {
    let pairs = file.get(at..)?.windows(2);
    pairs.into_iter().position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff)).map(|place| at + place)
}

/// Returns the place of the first marker after the packed pixels from a place on. Within these a byte 0xff
/// stands before a 0 or a marker of a restart.
fn end_of_scan(file: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(marker) = next_marker(file, at) {
        if !matches!(file[marker + 1], 0xd0..=0xd7) {
            return marker;
        }
        at = marker + 2;
    }
    file.len()
}
