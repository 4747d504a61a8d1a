//! Decoded rows as the values of fields.

use std::collections::BTreeMap;

use arrow_array::{Array, RecordBatch};

use super::{Floats, Text, cells};
use crate::sample::narrow::kept as held;
use crate::{Field, FieldDType, FieldSpec, Values};

/// How a field is made of columns.
#[derive(Clone, Debug)]
pub(super) enum Make {
    /// Numbers of several columns, each with what takes the place of one that is missing.
    Numbers(Vec<(String, Option<f32>)>),
    /// The id of a text.
    Ids { column: String, ids: BTreeMap<String, i32>, empty: bool },
    /// A whole number.
    Whole(String),
    /// The ids of a text.
    Text(Text),
    /// A list of numbers of this length.
    List { column: String, len: usize, whole: bool },
}

/// Decoded rows: for each field its values, row after row.
#[derive(Debug)]
pub(super) struct Chunk {
    fields: Vec<Values>,
    /// What is wrong with a row, by its number from the chunk's first. Its values are zeros.
    bad: Bad,
}

/// What is wrong with rows, by their numbers.
type Bad = BTreeMap<usize, String>;

impl Chunk {
    /// Makes fields of record batches.
    ///
    /// # Errors
    /// A column that is missing or of another type; the error is the message.
    pub fn of(makes: &[Make], floats: &Floats, batches: &[RecordBatch]) -> Result<Self, String> {
        let mut bad = Bad::new();
        let mut field = |make: &Make| {
            let mut values = match make {
                Make::Numbers(_) | Make::List { whole: false, .. } => Values::F32(Vec::new()),
                _ => Values::I32(Vec::new()),
            };
            let mut first = 0;
            for batch in batches {
                add(make, floats, batch, &mut values, &mut |row, problem| {
                    bad.entry(first + row).or_insert(problem);
                })?;
                first += batch.num_rows();
            }
            Ok(values)
        };
        let fields = makes.iter().map(&mut field).collect::<Result<_, String>>()?;
        Ok(Self { fields, bad })
    }

    /// Returns what is wrong with a row, such as a value that is missing or does not fit.
    pub fn problem(&self, row: usize) -> Option<&str> {
        self.bad.get(&row).map(String::as_str)
    }

    /// Returns the fields of a row.
    pub fn row<'a>(&'a self, row: usize, specs: &'a [FieldSpec]) -> impl Iterator<Item = (&'a str, Field)> {
        specs.iter().zip(&self.fields).map(move |(spec, values)| {
            let count: usize = spec.shape.iter().product();
            let own = row * count..(row + 1) * count;
            let field = match values {
                Values::F32(values) => Field::f32(spec.shape.clone(), values.get(own).unwrap_or_default()),
                Values::I32(values) => Field::i32(spec.shape.clone(), values.get(own).unwrap_or_default()),
            };
            (&*spec.name, field)
        })
    }

    /// Returns the bytes that the values take.
    pub fn bytes(&self) -> u64 {
        let values = self.fields.iter().map(|values| 4 * values.len() as u64);
        values.chain(self.bad.values().map(|problem| 64 + problem.len() as u64)).sum()
    }
}

impl Make {
    /// Returns the type of the field.
    pub fn dtype(&self) -> FieldDType {
        match self {
            Self::Numbers(_) | Self::List { whole: false, .. } => FieldDType::F32,
            Self::Ids { .. } | Self::Whole(_) | Self::Text(_) | Self::List { whole: true, .. } => {
                FieldDType::I32
            }
        }
    }
}

/// Adds the rows of a batch to a field. `tell` is told what is wrong with a row, which is zeros then.
fn add(
    make: &Make,
    floats: &Floats,
    batch: &RecordBatch,
    values: &mut Values,
    tell: &mut dyn FnMut(usize, String),
) -> Result<(), String> {
    let of = |name: &str| column(batch, name);
    match (make, values) {
        (Make::Numbers(columns), Values::F32(values)) => {
            let mut all: Vec<Vec<f32>> = Vec::with_capacity(columns.len());
            for (name, fill) in columns {
                let numbers = cells::numbers(of(name)?).map_err(|problem| in_column(name, &problem))?;
                let lost = floats.lost(name, of(name)?);
                let number = |(row, x): (usize, Option<f64>)| {
                    let number = match (lost.get(&row), x, fill) {
                        (Some(whole), _, _) => Err(not_held(whole)),
                        (None, None, Some(fill)) => Ok(*fill),
                        (None, x, _) => float(x, floats, Some(name)),
                    };
                    kept(row, name, number, tell)
                };
                all.push(numbers.into_iter().enumerate().map(number).collect());
            }
            values.extend((0..batch.num_rows()).flat_map(|row| all.iter().map(move |column| column[row])));
        }
        (Make::Ids { column, ids, empty }, Values::I32(values)) => {
            let texts = cells::texts(of(column)?).map_err(|problem| in_column(column, &problem))?;
            for (row, text) in texts.into_iter().enumerate() {
                let text = text.or_else(|| empty.then(String::new));
                let id = match &text {
                    Some(text) => ids.get(text).copied().ok_or_else(|| format!("{text:?} is not known")),
                    None => Err(MISSING.to_owned()),
                };
                values.push(kept(row, column, id, tell));
            }
        }
        (Make::Whole(column), Values::I32(values)) => {
            let numbers = cells::numbers(of(column)?).map_err(|problem| in_column(column, &problem))?;
            let numbers = numbers.into_iter().enumerate();
            values.extend(numbers.map(|(row, number)| kept(row, column, whole(number), tell)));
        }
        (Make::Text(text), Values::I32(values)) => {
            let name = &text.column;
            let texts = cells::texts(of(name)?).map_err(|problem| in_column(name, &problem))?;
            for (row, found) in texts.into_iter().enumerate() {
                let found = found.ok_or_else(|| MISSING.to_owned());
                let ids = found.and_then(|found| (text.encode.0)(&found).map_err(|error| error.to_string()));
                let mut ids = kept(row, name, ids, tell);
                ids.resize(text.longest, 0);
                values.extend(ids);
            }
        }
        (Make::List { column, len, .. }, values) => {
            add_lists(of(column)?, floats, column, *len, values, tell)?
        }
        _ => {}
    }
    Ok(())
}

/// Adds the lists of a column to a field.
fn add_lists(
    of: &dyn Array,
    floats: &Floats,
    name: &str,
    len: usize,
    values: &mut Values,
    tell: &mut dyn FnMut(usize, String),
) -> Result<(), String> {
    let lists = cells::lists(of).map_err(|problem| in_column(name, &problem))?;
    for (row, list) in lists.into_iter().enumerate() {
        let lost = list.as_ref().and_then(|list| floats.lost(name, list.as_ref()).pop_first());
        let numbers = match list {
            Some(list) if list.len() == len => cells::numbers(list.as_ref()),
            Some(list) => Err(format!("a list of {}, and the first one has {len}", list.len())),
            None => Err("the list is missing".to_owned()),
        };
        match values {
            Values::F32(values) => {
                let numbers = match lost {
                    Some((_, whole)) => Err(not_held(&whole)),
                    None => numbers,
                };
                let of = |number| float(number, floats, None);
                let found = numbers.and_then(|all| all.into_iter().map(of).collect());
                let mut floats: Vec<f32> = kept(row, name, found, tell);
                floats.resize(len, 0.0);
                values.extend(floats);
            }
            Values::I32(values) => {
                let wholes = numbers.and_then(|all| all.into_iter().map(whole).collect());
                let mut wholes: Vec<i32> = kept(row, name, wholes, tell);
                wholes.resize(len, 0);
                values.extend(wholes);
            }
        }
    }
    Ok(())
}

/// Returns the value of a row, or a zero where something is wrong with it, which is told.
fn kept<T: Default>(
    row: usize,
    name: &str,
    value: Result<T, String>,
    tell: &mut dyn FnMut(usize, String),
) -> T {
    value.unwrap_or_else(|problem| {
        tell(row, in_column(name, &problem));
        T::default()
    })
}

/// Returns a column of a batch.
pub(super) fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array, String> {
    batch.column_by_name(name).map(AsRef::as_ref).ok_or_else(|| format!("there is no column {name:?}"))
}

fn in_column(name: &str, problem: &str) -> String {
    format!("column {name:?}: {problem}")
}

const MISSING: &str = "the value is missing";

/// Returns a number of a column as an f32, scaled where the column is, if it is there, finite and held.
fn float(number: Option<f64>, floats: &Floats, column: Option<&String>) -> Result<f32, String> {
    let number = number.ok_or(MISSING)?;
    let scale = column.and_then(|column| floats.scaled.get(column));
    let scaled = scale.map_or(number, |(offset, scale)| (number - offset) / scale);
    let float = scaled as f32;
    if !float.is_finite() {
        return Err(format!("{number} is not finite as an f32"));
    }
    if floats.rounds || held(scaled).is_some() { Ok(float) } else { Err(not_held(&number)) }
}

fn not_held(number: &dyn std::fmt::Display) -> String {
    let advice =
        "Columnar::scaled, Columnar::whole, Columnar::category or Columnar::rounded says what is meant";
    format!("{number} is not held by f32: {advice}")
}

impl Floats {
    /// Returns the whole numbers of 64 bits that not even f64 represents, by their rows, where each number of
    /// the column has to stay what it is.
    fn lost(&self, column: &str, of: &dyn Array) -> BTreeMap<usize, i128> {
        if self.rounds || self.scaled.contains_key(column) {
            return BTreeMap::new();
        }
        let is_lost = |&(_, whole): &(usize, i128)| whole as f64 as i128 != whole;
        cells::wide(of).into_iter().filter(is_lost).collect()
    }
}

/// Returns a number as an i32, if it is there and whole.
fn whole(number: Option<f64>) -> Result<i32, String> {
    let number = number.ok_or(MISSING)?;
    let fits = number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number);
    if fits { Ok(number as i32) } else { Err(format!("{number} is not a 32-bit integer")) }
}
