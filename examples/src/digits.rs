//! The handwritten digits as pictures.

use unisono::data::{Column, Csv, Loader};

use crate::{Error, Run, data};

impl Run {
    /// Returns the digits as pictures of one channel, `x` `[1, 8, 8]` from 0 to 1, with their classes `y`:
    /// four fifths to train on, in another order each epoch, and those held out.
    ///
    /// # Errors
    /// The examples' file of digits cannot be read.
    pub fn digit_pictures(&self) -> Result<(Loader, Loader), Error> {
        let digits = Csv::new(data(None, "digits.csv.gz")).label(Column::Last).read()?;
        let pictures = self.loader(digits).shuffle(self.seed).map("picture", |sample, _| {
            if let Some(digit) = sample.field_mut("x") {
                digit.shape = vec![1, 8, 8];
            }
            sample.f32_mut("x").into_iter().flatten().for_each(|grey| *grey /= 16.0);
        });
        Ok(pictures.validation_split(0.2)?)
    }
}
