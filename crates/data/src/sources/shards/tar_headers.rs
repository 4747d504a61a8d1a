//! The headers of a tar archive: which files it holds, and where their bytes lie.

use crate::DataError;
use crate::sources::files::Bytes;

/// The size of a header, and what sizes are rounded up to.
const BLOCK: u64 = 512;
/// The most bytes of a name that a header of its own gives.
const MOST_NAME: u64 = 1 << 16;

/// A regular file in an archive.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub name: String,
    pub start: u64,
    pub len: u64,
}

/// Lists the regular files of an archive in their order. Only headers are read. Formats: ustar, GNU's long
/// names, and pax with `path` and `size`. An archive that lacks its end, a block of zeros, is an error.
pub(super) fn members(file: &Bytes) -> Result<Vec<Member>, DataError> {
    let mut members = Vec::new();
    let (mut at, mut long_name, mut pax_size) = (0, None, None);
    while at + BLOCK <= file.len() {
        let header = file.to_vec(at, BLOCK)?;
        // Two blocks of zeros end an archive, and one is enough to know.
        if header.iter().all(|&byte| byte == 0) {
            return Ok(members);
        }
        let wrong = |what: &str| DataError::format(file.path(), format!("tar: at byte {at}: {what}"));
        if !sum_is_right(&header) {
            return Err(wrong(match &header[..2] {
                [0x1f, 0x8b] => {
                    "it is gzipped: unpack it first, because its files cannot be read by position"
                }
                _ => "no header of a file, by its check sum",
            }));
        }
        let declared = number(&header[124..136]).ok_or_else(|| wrong("the size is no number"))?;
        let len = pax_size.take().unwrap_or(declared);
        let start = at + BLOCK;
        let end = start.checked_add(len).filter(|&end| end <= file.len());
        let end = end.ok_or_else(|| wrong(&format!("a file of {len} bytes is cut off")))?;
        match header[156] {
            b'L' | b'x' if len > MOST_NAME => return Err(wrong(&format!("a name of {len} bytes"))),
            b'L' => long_name = Some(text(&file.to_vec(start, len)?)),
            b'x' => {
                let (path, size) = pax(&file.to_vec(start, len)?);
                long_name = path.or(long_name);
                pax_size = size;
            }
            b'0' | 0 | b'7' => {
                let name = long_name.take().unwrap_or_else(|| name_of(&header));
                members.push(Member { name, start, len });
            }
            // Global settings stand before other files; directories and links have no bytes of their own.
            b'g' | b'K' => {}
            _ => long_name = None,
        }
        at = end.div_ceil(BLOCK) * BLOCK;
    }
    // Whatever else the archive held would be missing without a word.
    let what = format!("tar: cut off after {} bytes: no block of zeros ends it", file.len());
    Err(DataError::format(file.path(), what))
}

/// Whether the header's check sum is that of its bytes, with the sum itself as blanks.
fn sum_is_right(header: &[u8]) -> bool {
    let sum = header.iter().enumerate().map(|(at, &byte)| {
        let is_sum = (148..156).contains(&at);
        u64::from(if is_sum { b' ' } else { byte })
    });
    number(&header[148..156]) == Some(sum.sum())
}

/// Returns a number in octal digits, or in binary where the highest bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        let (high, low) = field.split_at(field.len().checked_sub(8)?);
        let fits = high.iter().enumerate().all(|(at, &byte)| byte == if at == 0 { 0x80 } else { 0 });
        return fits.then(|| low.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)));
    }
    let digits = text(field);
    let digits = digits.trim();
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

/// Returns the text up to the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn name_of(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    let is_ustar = &header[257..263] == b"ustar\0";
    if is_ustar && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

/// Returns the path and the size in a pax header: lines of a length, a key and a value.
fn pax(bytes: &[u8]) -> (Option<String>, Option<u64>) {
    let (mut path, mut size, mut rest) = (None, None, bytes);
    while let Some(blank) = rest.iter().position(|&byte| byte == b' ') {
        let length =
            text(&rest[..blank]).parse().ok().filter(|&length| length > blank && length <= rest.len());
        let Some(length): Option<usize> = length else { break };
        let line = text(&rest[blank + 1..length]);
        match line.trim_end_matches('\n').split_once('=') {
            Some(("path", value)) => path = Some(value.to_owned()),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
        rest = &rest[length..];
    }
    (path, size)
}
