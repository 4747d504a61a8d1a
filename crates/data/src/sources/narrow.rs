//! Numbers of files as f32, which has 24 bits for them.

/// From here on f32 has no longer every whole number.
const WHOLE: f64 = 16_777_216.0;
/// From here on f64 has no longer every whole number, so one is as rounded as its f32.
const ROUNDED: f64 = 9_007_199_254_740_992.0;

/// How numbers become f32: less an offset, times a scale, in f64, and then rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Narrow {
    pub offset: f64,
    pub scale: f64,
    /// Whether large numbers may be rounded.
    pub rounds: bool,
}

impl Default for Narrow {
    fn default() -> Self {
        Self { offset: 0.0, scale: 1.0, rounds: false }
    }
}

impl Narrow {
    /// Returns a number as f32.
    ///
    /// # Errors
    /// It is above 2^24 in size, and f32 has only another one near it, as for a time in seconds or a key: then
    /// neighbours would be one. The error is the message.
    pub fn of(self, exact: f64) -> Result<f32, String> {
        let exact = match self {
            Self { offset: 0.0, scale: 1.0, .. } => exact,
            Self { offset, scale, .. } => (exact - offset) * scale,
        };
        let narrow = exact as f32;
        let size = exact.abs();
        let is_lost = size > WHOLE && size < ROUNDED && f64::from(narrow) != exact;
        match is_lost && !self.rounds {
            true => Err(format!("{exact} would become {narrow}, the nearest f32; {WAYS}")),
            false => Ok(narrow),
        }
    }

    /// Returns a number that is written in text as f32: one of up to seven digits is taken for a rounded one.
    ///
    /// # Errors
    /// As [`Narrow::of`].
    #[cfg(feature = "csv")]
    pub fn of_text(self, text: &str, exact: f64) -> Result<f32, String> {
        let digits = text.split(['e', 'E']).next().unwrap_or_default().bytes().filter(u8::is_ascii_digit);
        let digits: Vec<u8> = digits.skip_while(|digit| *digit == b'0').collect();
        let zeros = digits.iter().rev().take_while(|digit| **digit == b'0').count();
        Self { rounds: self.rounds || digits.len() - zeros <= 7, ..self }.of(exact)
    }
}

/// What a user can do.
const WAYS: &str = "subtract an offset (`scaled`), read it as whole numbers or as a category, or say that rounding is meant \
                    (`rounded`)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f32_cannot_tell_apart_is_an_error() {
        let plain = Narrow::default();
        for fine in [0.1, -5.0, 16_777_216.0, 16_777_218.0, 1e20, 6.022e23, 1_700_000_000.0, f64::INFINITY] {
            assert_eq!(plain.of(fine), Ok(fine as f32));
        }
        for lost in [16_777_217.0, -1_700_000_001.0, 1_700_000_000.25] {
            assert!(plain.of(lost).unwrap_err().contains("the nearest f32"), "{lost}");
            assert_eq!(Narrow { rounds: true, ..plain }.of(lost), Ok(lost as f32));
        }
        let since = Narrow { offset: 1_700_000_000.0, scale: 0.5, rounds: false };
        assert_eq!([1_700_000_001.0, 1_700_000_002.0].map(|x| since.of(x)), [Ok(0.5), Ok(1.0)]);
    }
}
