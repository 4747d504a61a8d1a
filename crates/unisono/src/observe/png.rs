//! PNG files of pictures that loggers keep. Pixels are stored, not compressed.

use crate::observe::crc::ISO;

/// The most bytes of a stored block of deflate.
const BLOCK: usize = 65_535;

/// Returns a PNG file. `pixels` has `height` rows of `width` pixels of `channels` bytes: 1 is grey, 2 is grey
/// and alpha, 3 is RGB, 4 is RGBA.
pub(crate) fn encode(width: u32, height: u32, channels: u32, pixels: &[u8]) -> Vec<u8> {
    let row = (width * channels) as usize;
    let filtered: Vec<u8> = pixels.chunks(row.max(1)).flat_map(|row| [&[0], row].concat()).collect();
    let colour = [0, 4, 2, 6][channels as usize - 1];
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, colour, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, content) in [(b"IHDR", header), (b"IDAT", zlib(&filtered)), (b"IEND", Vec::new())] {
        file.extend((content.len() as u32).to_be_bytes());
        let checked = [name.as_slice(), &content].concat();
        file.extend(&checked);
        file.extend(ISO.of(&checked).to_be_bytes());
    }
    file
}

/// Returns bytes as a zlib stream of stored blocks.
fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let blocks = bytes.len().div_ceil(BLOCK).max(1);
    for i in 0..blocks {
        let block = &bytes[i * BLOCK..bytes.len().min((i + 1) * BLOCK)];
        let length = block.len() as u16;
        stream.push(u8::from(i + 1 == blocks));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    stream.extend(adler32(bytes).to_be_bytes());
    stream
}

/// Returns the Adler-32 check of some bytes.
fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for &byte in bytes {
        a = (a + u32::from(byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    (b << 16) | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_header_its_rows_and_right_checks() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        let file = encode(2, 1, 3, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(&file[12..26], b"IHDR\0\0\0\x02\0\0\0\x01\x08\x02");
        let at = file.windows(4).position(|name| name == b"IDAT").unwrap() + 4;
        assert_eq!(file[at..at + 14], [0x78, 1, 1, 7, 0, 248, 255, 0, 1, 2, 3, 4, 5, 6]);
        // More than a block of pixels.
        let large = zlib(&vec![7; BLOCK + 1]);
        assert_eq!((large[2], large[2 + 5 + BLOCK]), (0, 1));
    }
}
