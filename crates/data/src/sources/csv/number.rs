//! Columns of numbers: how a text becomes an f32 or an i32.

use super::columns::Missing;
use crate::Values;
use crate::sample::narrow::kept;

/// What a number is not that f32 does not hold.
const KEPT: &str =
    "a number that f32 holds (Csv::scaled, Csv::whole, Csv::category or Csv::rounded says what is meant)";

/// How the texts of a column become numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// What is subtracted from a number in f64, and what it is then divided by.
    pub scale: Option<(f64, f64)>,
    /// Whether a number that f32 does not hold is rounded.
    pub rounds: bool,
}

impl Reading {
    /// Reads a number.
    ///
    /// # Errors
    /// The text is not what the error says.
    pub fn number(self, text: &str) -> Result<f32, &'static str> {
        let exact: f64 = text.parse().map_err(|_| "a number")?;
        let scaled = self.scale.map(|(offset, scale)| (exact - offset) / scale);
        let float = match scaled {
            Some(scaled) => scaled as f32,
            // Rounding to f64 first would round some numbers twice.
            None => text.parse::<f32>().map_err(|_| "a number")?,
        };
        if !float.is_finite() {
            return Err("a finite number");
        }
        let is_kept = self.rounds
            || match scaled {
                Some(scaled) => kept(scaled).is_some(),
                None => is_kept(text, exact, float),
            };
        if is_kept { Ok(float) } else { Err(KEPT) }
    }
}

/// Whether f32 holds a number of a text. One that was written from an f32, with as few digits as tell it from
/// others, is held.
fn is_kept(text: &str, exact: f64, float: f32) -> bool {
    match text.parse::<i128>() {
        Ok(whole) => float as i128 == whole,
        Err(_) => kept(exact).is_some() || float.to_string().parse() == Ok(exact),
    }
}

/// Returns a whole number of 32 bits: of digits, or with zeros behind the point, as pandas writes a column of
/// whole numbers that has or had missing values.
pub(super) fn whole(text: &str) -> Option<i32> {
    let of_float =
        |number: &f64| number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(number);
    let float = || text.parse::<f64>().ok().filter(of_float).map(|number| number as i32);
    text.parse().ok().or_else(float)
}

/// A column of numbers.
pub(super) struct Number {
    pub at: usize,
    pub name: String,
    pub reading: Reading,
    pub values: Vec<f32>,
    /// The rows in which it is missing.
    pub missing: Vec<usize>,
}

/// A column of whole numbers that stay what they are.
pub(super) struct Whole {
    pub at: usize,
    pub name: String,
    pub values: Vec<i32>,
}

impl Number {
    /// Returns what takes the place of a number that is missing, if anything does. Sums are in f64, in the
    /// file's order.
    ///
    /// # Errors
    /// The mean or the median of no numbers. The error is the message.
    pub fn fill(&self, missing: Missing) -> Result<Option<f32>, String> {
        let is_there = |row: &usize| self.missing.binary_search(row).is_err();
        let mut there: Vec<f32> =
            (0..self.values.len()).filter(is_there).map(|row| self.values[row]).collect();
        Ok(Some(match missing {
            Missing::Error | Missing::LeaveOut => return Ok(None),
            Missing::Value(value) => value,
            Missing::Mean if !there.is_empty() => {
                (there.iter().map(|x| f64::from(*x)).sum::<f64>() / there.len() as f64) as f32
            }
            Missing::Median if !there.is_empty() => {
                there.sort_by(f32::total_cmp);
                there[(there.len() - 1) / 2]
            }
            Missing::Mean | Missing::Median => return Err(no_numbers(missing, &self.name)),
        }))
    }
}

/// Returns what is said of a mean or a median of a column in which all numbers are missing.
pub(in crate::sources) fn no_numbers(missing: Missing, column: &str) -> String {
    let advice =
        "leave the column out, or fill it with Missing::Value or with the fills of another table (like)";
    format!("Missing::{missing:?} of the column {column:?}, in which all numbers are missing: {advice}")
}

/// Returns the rows of some columns.
pub(super) fn interleaved(columns: &[Number], rows: usize) -> Values {
    let row = |row: usize| columns.iter().map(move |column| column.values[row]);
    Values::F32((0..rows).flat_map(row).collect())
}
