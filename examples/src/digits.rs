//! The handwritten digits as pictures.

use std::ops::Range;

use unisono::data::{Column, Csv, Loader, Memory};

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
        Ok(pictures.version("1").validation_split(0.2)?)
    }
}

/// Returns the digits of some classes, with pixels from 0 to 1 in this shape, and labels that count from 0.
///
/// # Errors
/// The examples' file of digits cannot be read. The shape has not 64 pixels.
pub fn digits_of(classes: Range<i32>, shape: &[usize]) -> Result<Memory, Error> {
    let digits = Csv::new(data(None, "digits.csv.gz")).label(Column::Last).read()?;
    let (x, y) = (digits.array("x").and_then(|x| x.as_f32()), digits.array("y").and_then(|y| y.as_i32()));
    let (x, y) = x.zip(y).ok_or("digits without pixels or labels")?;
    let rows: Vec<usize> = (0..y.len()).filter(|&row| classes.contains(&y[row])).collect();
    let pixels: Vec<f32> = rows.iter().flat_map(|row| &x[row * 64..][..64]).map(|x| x / 16.0).collect();
    let labels: Vec<i32> = rows.iter().map(|&row| y[row] - classes.start).collect();
    Ok(Memory::labelled(pixels, shape, labels)?)
}
