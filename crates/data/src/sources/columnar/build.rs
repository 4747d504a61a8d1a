//! Opening files: their columns are looked up, and read through where what is made of them depends on all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use arrow_array::{Array, RecordBatch};

use super::cells;
use super::chunk::{Make, column};
use super::file::{File, Part};
use super::source::{ColumnarSource, Kept};
use super::{Columnar, Columns, Floats};
use crate::sources::budget::Budget;
use crate::sources::csv::number::no_numbers;
use crate::sources::files::element::check_scale;
use crate::{DataError, FieldSpec, Fingerprint, Missing, TableSchema};

/// Opens the files of a table.
pub(super) fn open(table: &Columnar) -> Result<ColumnarSource, DataError> {
    check_settings(table)?;
    let files = table.paths.iter().map(|path| File::open(path)).collect::<Result<Vec<_>, _>>()?;
    let columns = table.columns.names();
    for file in &files {
        check_columns(file, &files[0], &columns)?;
    }
    let budget = Budget { most: table.most, setting: "Columnar::most_bytes" };
    let (mut parts, mut rows) = (Vec::new(), 0_u64);
    for (number, file) in files.iter().enumerate() {
        for part in file.parts() {
            let too_long = || DataError::format(file.path(), "more rows than can be counted");
            parts.push((number, part, rows));
            rows = rows.checked_add(part.rows).ok_or_else(too_long)?;
        }
    }
    let scan = Scan::of(table, &files, &parts, budget)?;
    let schema = scan.schema(table).map_err(|problem| DataError::format(files[0].path(), problem))?;
    let makes = makes(table, &files, &parts, &schema, budget)?;
    let specs: Vec<FieldSpec> = makes
        .iter()
        .map(|(name, shape, make)| FieldSpec {
            name: name.as_str().into(),
            dtype: make.dtype(),
            shape: shape.clone(),
        })
        .collect();
    // What is read of the files, with what.
    let read = Fingerprint::new().text(&format!("{makes:?} without {:?}", scan.left_out));
    let read = match &table.floats {
        Floats { scaled, rounds: false } if scaled.is_empty() => read,
        floats => read.text(&format!("{floats:?}")),
    };
    let fingerprint = files.iter().try_fold(read, |hash, file| file.bytes().fingerprint(hash))?;
    Ok(ColumnarSource {
        parts,
        rows,
        left_out: scan.left_out,
        columns,
        floats: table.floats.clone(),
        makes: makes.into_iter().map(|(_, _, make)| make).collect(),
        specs,
        schema,
        budget,
        fingerprint: fingerprint.finish(),
        kept: Mutex::new(Kept::default()),
        files,
    })
}

/// Checks what a table is asked for, before any file is opened.
fn check_settings(table: &Columnar) -> Result<(), DataError> {
    let setting = |what: &str| DataError::Setting { setting: "Columnar", what: what.into() };
    let Columns { numbers, categories, wholes, lists, texts, targets, label, weight } = &table.columns;
    if table.paths.is_empty() {
        return Err(setting("no files"));
    }
    if numbers.is_empty()
        && categories.is_empty()
        && wholes.is_empty()
        && lists.is_empty()
        && texts.is_empty()
    {
        return Err(setting("no columns of features"));
    }
    if label.is_some() && !targets.is_empty() {
        return Err(setting("a label and targets are both the field \"y\""));
    }
    if let Some(text) = texts.iter().find(|text| text.longest == 0) {
        return Err(setting(&format!("texts of {:?} are cut to no ids", text.column)));
    }
    for (name, scale) in &table.floats.scaled {
        check_scale(*scale).map_err(|problem| setting(&format!("column {name:?}: {problem}")))?;
        if !numbers.iter().chain(targets).chain(weight).any(|own| own == name) {
            return Err(setting(&format!("column {name:?} is scaled and not read as numbers")));
        }
    }
    let own = categories.iter().chain(wholes).chain(lists).chain(texts.iter().map(|text| &text.column));
    let mut fields = BTreeSet::new();
    for name in own {
        if ["x", "y", "w"].contains(&name.as_str()) {
            return Err(setting(&format!("a column cannot be called {name:?}, as another field is")));
        }
        if !fields.insert(name) {
            return Err(setting(&format!("column {name:?} is read twice, as two fields of one name")));
        }
    }
    Ok(())
}

/// Checks that a file has the columns, each once and of the type that it has in the first file.
fn check_columns(file: &File, first: &File, columns: &[String]) -> Result<(), DataError> {
    for name in columns {
        let wrong = |what: String| DataError::format(file.path(), what);
        let found: Vec<_> = file.schema.fields().iter().filter(|field| field.name() == name).collect();
        match &found[..] {
            [field] => {
                let like = first.schema.field_with_name(name).map(|field| field.data_type().clone());
                if like.is_ok_and(|like| &like != field.data_type()) {
                    return Err(wrong(format!("column {name:?} is {} here", field.data_type())));
                }
            }
            [] => {
                let all: Vec<&str> = file.schema.fields().iter().map(|field| field.name().as_str()).collect();
                return Err(wrong(format!("no column {name:?}: there is {}", all.join(", "))));
            }
            _ => return Err(wrong(format!("several columns are called {name:?}"))),
        }
    }
    Ok(())
}

/// What follows from all rows.
#[derive(Default)]
struct Scan {
    texts: BTreeMap<String, BTreeSet<String>>,
    numbers: BTreeMap<String, Numbers>,
    left_out: Vec<u64>,
}

/// What is known of a column of numbers.
#[derive(Default)]
struct Numbers {
    /// The sum, in the order of the rows, and the count of those that are there.
    sum: f64,
    count: u64,
    /// All values, where the median is asked for.
    all: Vec<f32>,
}

impl Scan {
    /// Reads all rows of the columns that something depends on.
    fn of(
        table: &Columnar,
        files: &[File],
        parts: &[(usize, Part, u64)],
        budget: Budget,
    ) -> Result<Self, DataError> {
        let known = table.like.as_ref();
        let Columns { numbers, categories, wholes, targets, label, lists, texts: encoded, weight } =
            &table.columns;
        let is_text = |name: &&String| {
            files[0].schema.field_with_name(name).is_ok_and(|field| cells::is_text(field.data_type()))
        };
        let mut texts: Vec<&String> = categories
            .iter()
            .filter(|name| known.is_none_or(|like| !like.categories.contains_key(*name)))
            .collect();
        let classes_known = known.is_some_and(|like| !like.classes.is_empty());
        texts.extend(label.iter().filter(is_text).filter(|_| !classes_known));
        let fills = matches!(table.missing, Missing::Mean | Missing::Median);
        let unknown = |name: &&String| known.is_none_or(|like| !like.fills.contains_key(*name));
        let filled: Vec<&String> = numbers.iter().filter(|_| fills).filter(unknown).collect();
        let mut needed: Vec<&String> = Vec::new();
        if table.missing == Missing::LeaveOut {
            needed
                .extend(numbers.iter().chain(targets).chain(label).chain(lists).chain(weight).chain(wholes));
            needed.extend(encoded.iter().map(|text| &text.column));
        }
        let mut read: Vec<String> =
            texts.iter().chain(&filled).chain(&needed).map(|name| (*name).clone()).collect();
        read.sort();
        read.dedup();
        let mut scan = Self::default();
        scan.texts.extend(texts.iter().map(|name| ((*name).clone(), BTreeSet::new())));
        if read.is_empty() {
            return Ok(scan);
        }
        for &(file, part, first) in parts {
            let mut row = first;
            for batch in files[file].decode(part, &read, budget)? {
                let wrong = |problem: String| DataError::format(files[file].path(), problem);
                let missing = missing_rows(&batch, &needed).map_err(wrong)?;
                scan.left_out.extend(missing.iter().map(|at| row + *at as u64));
                scan.add(&batch, &missing, &texts, &filled, table).map_err(wrong)?;
                scan.within(files[file].path(), budget)?;
                row += batch.num_rows() as u64;
            }
        }
        Ok(scan)
    }

    /// Adds the rows of a batch, those that are left out excepted.
    fn add(
        &mut self,
        batch: &RecordBatch,
        left_out: &[usize],
        texts: &[&String],
        filled: &[&String],
        table: &Columnar,
    ) -> Result<(), String> {
        for name in texts {
            let of = cells::texts(column(batch, name)?)
                .map_err(|problem| format!("column {name:?}: {problem}"))?;
            let known = self.texts.entry((*name).clone()).or_default();
            for (row, text) in of.into_iter().enumerate() {
                if left_out.binary_search(&row).is_err() {
                    let text = text.unwrap_or_default();
                    if !known.contains(&text) {
                        known.insert(text);
                    }
                }
            }
        }
        for name in filled {
            let of = cells::numbers(column(batch, name)?)
                .map_err(|problem| format!("column {name:?}: {problem}"))?;
            let known = self.numbers.entry((*name).clone()).or_default();
            let scale = table.floats.scaled.get(*name);
            for value in of.into_iter().flatten() {
                let value = scale.map_or(value, |(offset, scale)| (value - offset) / scale);
                (known.sum, known.count) = (known.sum + value, known.count + 1);
                if table.missing == Missing::Median {
                    known.all.push(value as f32);
                }
            }
        }
        Ok(())
    }

    /// Checks that what is kept fits the budget.
    fn within(&self, path: &std::path::Path, budget: Budget) -> Result<(), DataError> {
        let texts = self.texts.values().map(|texts| texts.len() as u64 * 64).sum::<u64>();
        let numbers = self.numbers.values().map(|numbers| numbers.all.len() as u64 * 4).sum::<u64>();
        let needs = texts + numbers + 8 * self.left_out.len() as u64;
        budget.check(path, "what is kept of all rows", Some(needs))
    }

    /// Returns what the columns are read with. An error is a message of numbers in another order, or of the
    /// mean or the median of no numbers.
    fn schema(&self, table: &Columnar) -> Result<TableSchema, String> {
        let mut schema = table.like.clone().unwrap_or_default();
        schema.check_order(&table.columns.numbers)?;
        schema.numbers.clone_from(&table.columns.numbers);
        schema.left_out = self.left_out.len() as u64;
        let label = table.columns.label.as_ref();
        for (name, texts) in &self.texts {
            let texts: Vec<String> = texts.iter().cloned().collect();
            if Some(name) == label && !table.columns.categories.contains(name) {
                schema.classes = texts;
            } else {
                if Some(name) == label {
                    schema.classes.clone_from(&texts);
                }
                schema.categories.insert(name.clone(), texts);
            }
        }
        let are_texts = |name| self.texts.contains_key(name) || !schema.classes.is_empty();
        if let Some(name) = label {
            schema.whole_labels = !are_texts(name);
        }
        for name in &table.columns.numbers {
            let known = schema.fills.get(name).copied();
            let numbers = self.numbers.get(name);
            let fill = match (known, table.missing) {
                (Some(known), _) => Some(known),
                (None, Missing::Value(value)) => Some(value),
                (None, Missing::Mean | Missing::Median) if numbers.is_some_and(|all| all.count == 0) => {
                    return Err(no_numbers(table.missing, name));
                }
                (None, Missing::Mean) => numbers.map(|all| (all.sum / all.count.max(1) as f64) as f32),
                (None, Missing::Median) => numbers.map(Numbers::median),
                (None, Missing::Error | Missing::LeaveOut) => None,
            };
            if let Some(fill) = fill {
                schema.fills.insert(name.clone(), fill);
            }
        }
        Ok(schema)
    }
}

impl Numbers {
    /// Returns the median: of an even number, the lower of the two. 0 where there are none.
    fn median(&self) -> f32 {
        let mut all = self.all.clone();
        all.sort_by(f32::total_cmp);
        all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }
}

/// Returns the rows of a batch in which one of these columns is missing, in ascending order.
fn missing_rows(batch: &RecordBatch, columns: &[&String]) -> Result<Vec<usize>, String> {
    let mut missing = BTreeSet::new();
    for name in columns {
        let values = column(batch, name)?;
        let is_missing = |row: usize| values.is_null(row);
        missing.extend((0..values.len()).filter(|row| is_missing(*row)));
        if values.data_type().is_floating() {
            let numbers = cells::numbers(values)?;
            missing.extend(numbers.iter().enumerate().filter(|(_, x)| x.is_none()).map(|(row, _)| row));
        }
    }
    Ok(missing.into_iter().collect())
}

/// Returns the name, the shape and the making of each field.
fn makes(
    table: &Columnar,
    files: &[File],
    parts: &[(usize, Part, u64)],
    schema: &TableSchema,
    budget: Budget,
) -> Result<Vec<(String, Vec<usize>, Make)>, DataError> {
    let Columns { numbers, categories, wholes, lists, texts, targets, label, weight } = &table.columns;
    let fills = !matches!(table.missing, Missing::Error | Missing::LeaveOut);
    let type_of = |name: &str| files[0].schema.field_with_name(name).map(|field| field.data_type().clone());
    let mut all = Vec::new();
    let ids = |texts: &[String]| texts.iter().cloned().zip(0..).collect::<BTreeMap<String, i32>>();
    if !numbers.is_empty() {
        let fill = |name: &String| schema.fills.get(name).copied().filter(|_| fills);
        let columns = numbers.iter().map(|name| (name.clone(), fill(name))).collect();
        all.push(("x".to_owned(), vec![numbers.len()], Make::Numbers(columns)));
    }
    for name in categories {
        let texts = schema.categories.get(name).map_or(&[][..], |texts| texts);
        let make = Make::Ids { column: name.clone(), ids: ids(texts), empty: true };
        all.push((name.clone(), vec![], make));
    }
    for name in wholes {
        all.push((name.clone(), vec![], Make::Whole(name.clone())));
    }
    for name in lists {
        let element = type_of(name).ok().and_then(|of| cells::element(&of).cloned());
        let none = || DataError::format(files[0].path(), format!("column {name:?} is not of lists"));
        let whole = cells::is_whole(&element.ok_or_else(none)?);
        let len = first_length(name, files, parts, budget)?;
        all.push((name.clone(), vec![len], Make::List { column: name.clone(), len, whole }));
    }
    for text in texts {
        if !type_of(&text.column).is_ok_and(|of| cells::is_text(&of)) {
            let what = format!("column {:?} is not of texts", text.column);
            return Err(DataError::format(files[0].path(), what));
        }
        all.push((text.column.clone(), vec![text.longest], Make::Text(text.clone())));
    }
    if let Some(name) = label {
        let are_texts = type_of(name).is_ok_and(|of| cells::is_text(&of));
        let (here, there) = if are_texts { ("texts", "whole numbers") } else { ("whole numbers", "texts") };
        let is_other_kind = table.like.as_ref().is_some_and(|like| match are_texts {
            true => like.whole_labels,
            false => !like.classes.is_empty(),
        });
        if is_other_kind {
            let what =
                format!("the labels {name:?} are {here}, but those of the other table (like) are {there}");
            return Err(DataError::format(files[0].path(), what));
        }
        let make = if are_texts {
            Make::Ids { column: name.clone(), ids: ids(&schema.classes), empty: false }
        } else {
            Make::Whole(name.clone())
        };
        all.push(("y".to_owned(), vec![], make));
    }
    if !targets.is_empty() {
        let columns = targets.iter().map(|name| (name.clone(), None)).collect();
        all.push(("y".to_owned(), vec![targets.len()], Make::Numbers(columns)));
    }
    if let Some(name) = weight {
        all.push(("w".to_owned(), vec![], Make::Numbers(vec![(name.clone(), None)])));
    }
    Ok(all)
}

/// Returns the length of the first list of a column that is there.
fn first_length(
    name: &String,
    files: &[File],
    parts: &[(usize, Part, u64)],
    budget: Budget,
) -> Result<usize, DataError> {
    for &(file, part, _) in parts {
        for batch in files[file].decode(part, std::slice::from_ref(name), budget)? {
            let wrong = |problem: String| {
                DataError::format(files[file].path(), format!("column {name:?}: {problem}"))
            };
            let lists = cells::lists(column(&batch, name).map_err(wrong)?).map_err(wrong)?;
            if let Some(list) = lists.into_iter().flatten().next() {
                return Ok(list.len());
            }
        }
    }
    Err(DataError::format(files[0].path(), format!("column {name:?} has no lists")))
}
