//! Cyclic redundancy checks of 32 bits: of event files and of PNG.

/// A table for the polynomial of a check, with its bits reversed.
pub(crate) struct Crc([u32; 256]);

/// CRC-32C (Castagnoli), the check of event files.
pub(crate) const CASTAGNOLI: Crc = Crc::new(0x82f6_3b78);

/// CRC-32 (ISO 3309), the check of PNG.
pub(crate) const ISO: Crc = Crc::new(0xedb8_8320);

impl Crc {
    const fn new(polynomial: u32) -> Self {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut value = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ polynomial } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        Self(table)
    }

    /// Returns the check of some bytes.
    pub(crate) fn of(&self, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, &byte| (crc >> 8) ^ self.0[(crc as u8 ^ byte) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of both polynomials in the literature, and a case of RFC 3720.
    #[test]
    fn checks_are_those_of_the_standards() {
        assert_eq!(CASTAGNOLI.of(b"123456789"), 0xe306_9283);
        assert_eq!(CASTAGNOLI.of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(ISO.of(b"123456789"), 0xcbf4_3926);
    }
}
