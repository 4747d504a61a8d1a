//! Chosen columns of a CSV file: numbers, categories, several targets, a weight, and what is missing.

use std::collections::BTreeMap;

use super::advice::of_line_numbers;
use super::number::{Number, Whole, interleaved, whole};
use super::schema::TableSchema;
use super::texts::Texts;
use super::{Answer, Column, Csv};
use crate::sources::budget::{Budget, reserve};
use crate::{DataError, Memory, Values};

/// The texts that stand for a value that is missing.
const MISSING: [&str; 7] = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"];

/// What to do with a missing number. In a CSV file these texts are missing numbers: the empty text, `NA`,
/// `N/A`, `NaN`, `nan`, `null` and `NULL`. In Parquet and Arrow files, nulls and NaN are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Missing {
    /// It is an error, which names line and column.
    #[default]
    Error,
    /// This number takes its place.
    Value(f32),
    /// The mean of the column's other numbers takes its place.
    Mean,
    /// The median of the column's other numbers takes its place: of an even number, the lower of the two.
    Median,
    /// Its line is left out.
    LeaveOut,
}

/// The columns that are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    numbers: Vec<Column>,
    categories: Vec<Column>,
    wholes: Vec<Column>,
    targets: Vec<Column>,
    weight: Option<Column>,
    missing: Missing,
    like: Option<TableSchema>,
    /// Whether a category that is unknown is taken as one that is missing.
    unknown_as_missing: bool,
}

impl Csv {
    fn choose(mut self, change: impl FnOnce(&mut Chosen)) -> Self {
        self.header = true;
        change(self.chosen.get_or_insert_default());
        self
    }

    /// Reads these columns as numbers, in this order: "x", f32. Once columns are chosen, the others are not
    /// read, and the file has a header. Default: all columns but the label or target.
    ///
    /// ```
    /// use unisono_data::{Csv, Missing, Source};
    ///
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("houses.csv");
    /// # std::fs::write(&path, "area,city,price,sold\n80,Bern,5,1\n,Rome,3,0\n").unwrap();
    /// let houses = Csv::new(&path).numbers(["area"]).category("city").targets(["price", "sold"]);
    /// let houses = houses.missing(Missing::Mean).read()?;
    /// let names: Vec<&str> = houses.fields().iter().map(|field| &*field.name).collect();
    /// assert_eq!(names, ["x", "city", "y"]);
    /// assert_eq!(houses.array("x").unwrap().as_f32(), Some(&[80.0, 80.0][..]));
    /// assert_eq!(houses.array("city").unwrap().as_i32(), Some(&[0, 1][..]));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn numbers<C: Into<Column>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        self.choose(|chosen| chosen.numbers.extend(columns.into_iter().map(Into::into)))
    }

    /// Reads a column of texts as categories: a field of the column's name, i32, a scalar. The ids count the
    /// texts in alphabetical order from 0. A text that is missing is the category of the empty text.
    pub fn category(self, column: impl Into<Column>) -> Self {
        self.choose(|chosen| chosen.categories.push(column.into()))
    }

    /// Reads a column of whole numbers as they are, such as ids and times: a field of the column's name, i32,
    /// a scalar. One that is missing, or is not a 32-bit integer, is an error.
    pub fn whole(self, column: impl Into<Column>) -> Self {
        self.choose(|chosen| chosen.wholes.push(column.into()))
    }

    /// Reads several columns of numbers to predict: "y", f32, one number for each. A label of classes, one
    /// target, and their texts are [`Csv::label`] and [`Csv::target`].
    pub fn targets<C: Into<Column>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        self.choose(|chosen| chosen.targets.extend(columns.into_iter().map(Into::into)))
    }

    /// Reads a column as the samples' weights: "w", f32, a scalar.
    pub fn weight(self, column: impl Into<Column>) -> Self {
        self.choose(|chosen| chosen.weight = Some(column.into()))
    }

    /// Sets what becomes of numbers of "x" that are missing. Targets, labels and weights that are missing are
    /// errors, unless their lines are left out. Default: [`Missing::Error`].
    pub fn missing(self, missing: Missing) -> Self {
        self.choose(|chosen| chosen.missing = missing)
    }

    /// Reads the file with the categories, classes and fills of another. A category that the other file does
    /// not have is an error, and so are its columns of numbers in another order.
    pub fn like(self, schema: &TableSchema) -> Self {
        self.choose(|chosen| chosen.like = Some(schema.clone()))
    }

    /// Takes a category that the table of [`Csv::like`] does not have as one that is missing, whose id is 0
    /// (Keras's `StringLookup(num_oov_indices=1)`). Both tables are read so: the first one then has this
    /// category whether a line lacks one or not. Default: a category that is unknown is an error.
    ///
    /// ```
    /// use unisono_data::Csv;
    ///
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, later) = (dir.path().join("houses.csv"), dir.path().join("later.csv"));
    /// # std::fs::write(&path, "area,city\n80,Bern\n60,Rome\n").unwrap();
    /// # std::fs::write(&later, "area,city\n70,Oslo\n90,Rome\n").unwrap();
    /// let columns = |path| Csv::new(path).numbers(["area"]).category("city").unknown_as_missing();
    /// let (_, schema) = columns(&path).read_with_schema()?;
    /// assert_eq!(schema.categories["city"], ["", "Bern", "Rome"]);
    /// let later = columns(&later).like(&schema).read()?;
    /// assert_eq!(later.array("city").unwrap().as_i32(), Some(&[0, 2][..]));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn unknown_as_missing(self) -> Self {
        self.choose(|chosen| chosen.unknown_as_missing = true)
    }

    /// Reads the file as [`Csv::read`] does, and returns what its columns were read with. Columns have to be
    /// chosen.
    ///
    /// # Errors
    /// Those of [`Csv::read`].
    pub fn read_with_schema(&self) -> Result<(Memory, TableSchema), DataError> {
        let none = || self.table_error("no columns are chosen: Csv::numbers and Csv::category choose some");
        ChosenTable::read(self, self.chosen.as_ref().ok_or_else(none)?)
    }
}

/// The values of chosen columns that were read so far.
#[derive(Default)]
pub(super) struct ChosenTable {
    width: usize,
    numbers: Vec<Number>,
    categories: Vec<Texts>,
    wholes: Vec<Whole>,
    targets: Vec<Number>,
    label: Option<Texts>,
    weight: Option<Number>,
    rows: usize,
    left_out: u64,
}

impl ChosenTable {
    /// Reads a file.
    pub fn read(csv: &Csv, chosen: &Chosen) -> Result<(Memory, TableSchema), DataError> {
        let mut table: Option<Self> = None;
        csv.for_each_record(&mut |names, record, line| match &mut table {
            Some(table) => table.push(csv, chosen, record, line),
            None => table.insert(Self::new(csv, chosen, names)?).push(csv, chosen, record, line),
        })?;
        let none = || csv.table_error("no samples");
        table.filter(|table| table.rows > 0).ok_or_else(none)?.finish(csv, chosen)
    }

    fn new(csv: &Csv, chosen: &Chosen, names: &[String]) -> Result<Self, DataError> {
        if names.is_empty() {
            return Err(csv.table_error("columns are chosen of a table with a header"));
        }
        let width = names.len();
        let at = |column: &Column| csv.index_of(column, width, names);
        let number = |column: &Column| {
            let at = at(column)?;
            let (name, reading) = (names[at].clone(), csv.reading(at, width, names));
            Ok(Number { at, name, reading, values: Vec::new(), missing: Vec::new() })
        };
        let texts = |column: &Column| {
            let at = at(column)?;
            let (name, like) = (names[at].clone(), chosen.like.as_ref());
            let known = like.and_then(|like| like.categories.get(&name));
            let known = known.map(|texts| texts.iter().cloned().collect());
            Ok(Texts { at, name, ids: BTreeMap::new(), values: Vec::new(), known })
        };
        let mut targets: Vec<Number> = chosen.targets.iter().map(number).collect::<Result<_, DataError>>()?;
        let mut label = None;
        match &csv.answer {
            Answer::None => {}
            Answer::Target(column) => targets.push(number(column)?),
            Answer::Label(column) => {
                let classes = chosen.like.as_ref().map(|like| &like.classes);
                let known = classes.filter(|classes| !classes.is_empty());
                let known = known.map(|classes| classes.iter().cloned().collect());
                label = Some(Texts { known, ..texts(column)? });
            }
        }
        // What is to be predicted would be known.
        let answers = targets.iter().map(|target| target.at).chain(label.iter().map(|label| label.at));
        let numbers: Vec<usize> = chosen.numbers.iter().map(at).collect::<Result<_, DataError>>()?;
        for (place, column) in numbers.iter().enumerate() {
            let twice = || format!("the column {:?} is among the numbers twice", names[*column]);
            let known = || {
                format!("the column {:?} is to be predicted, and is among the numbers too", names[*column])
            };
            if numbers[..place].contains(column) {
                return Err(csv.table_error(twice()));
            }
            if answers.clone().any(|answer| answer == *column) {
                return Err(csv.table_error(known()));
            }
        }
        if label.is_some() && !targets.is_empty() {
            return Err(csv.table_error("a label and targets are both the field \"y\""));
        }
        let categories: Vec<Texts> = chosen.categories.iter().map(texts).collect::<Result<_, DataError>>()?;
        let taken = |name: &str| ["x", "y", "w"].contains(&name);
        if let Some(column) = categories.iter().find(|column| taken(&column.name)) {
            return Err(csv
                .table_error(format!("a category cannot be called {:?}, as another field is", column.name)));
        }
        let as_whole = |column: &Column| {
            let at = at(column)?;
            Ok(Whole { at, name: names[at].clone(), values: Vec::new() })
        };
        let wholes: Vec<Whole> = chosen.wholes.iter().map(as_whole).collect::<Result<_, DataError>>()?;
        if let Some(column) = wholes.iter().find(|column| taken(&column.name)) {
            let what = format!("whole numbers cannot be called {:?}, as another field is", column.name);
            return Err(csv.table_error(what));
        }
        let lacks = |column: &&Texts| chosen.unknown_as_missing && !column.knows("");
        if let Some(column) = categories.iter().find(lacks) {
            let what = "the other table, without Csv::unknown_as_missing, has no category that is missing";
            return Err(csv.table_error(format!("{:?}: {what}", column.name)));
        }
        let numbers: Vec<Number> = chosen.numbers.iter().map(number).collect::<Result<_, DataError>>()?;
        if let Some(like) = &chosen.like {
            let names: Vec<String> = numbers.iter().map(|number| number.name.clone()).collect();
            like.check_order(&names).map_err(|problem| csv.table_error(problem))?;
        }
        if numbers.is_empty() && categories.is_empty() && wholes.is_empty() {
            return Err(
                csv.table_error("no columns of features: choose them by Csv::numbers, category or whole")
            );
        }
        let weight = chosen.weight.as_ref().map(number).transpose()?;
        for (column, scale) in &csv.scaled {
            let place = at(column)?;
            csv.check_scale(place, names, *scale)?;
            if !numbers.iter().chain(&targets).chain(&weight).any(|number| number.at == place) {
                return Err(csv.not_numbers(&names[place]));
            }
        }
        Ok(Self { width, numbers, categories, wholes, targets, label, weight, ..Self::default() })
    }

    fn push(
        &mut self,
        csv: &Csv,
        chosen: &Chosen,
        record: &::csv::StringRecord,
        line: u64,
    ) -> Result<(), DataError> {
        if record.len() != self.width {
            let (found, expected) = (record.len(), self.width);
            return Err(DataError::CsvWidth { path: csv.path.clone(), line, found, expected });
        }
        self.within_budget(csv, record, line)?;
        let is_missing = |at: usize| MISSING.contains(&&record[at]);
        let needed = self.numbers.iter().chain(&self.targets).chain(&self.weight).map(|number| number.at);
        let needed = needed.chain(self.wholes.iter().map(|column| column.at));
        let needed: Vec<usize> = needed.chain(self.label.iter().map(|label| label.at)).collect();
        if chosen.missing == Missing::LeaveOut && needed.into_iter().any(is_missing) {
            self.left_out += 1;
            return Ok(());
        }
        let row = self.rows;
        let parsed = |Number { at, name, reading, .. }: &Number, may_be_missing: bool| {
            let wrong = |expected| wrong(csv, record, line, (*at, name), expected);
            reading.number(&record[*at]).map_err(|expected| match expected {
                _ if may_be_missing && is_missing(*at) => {
                    wrong("a number, and Csv::missing does not say what takes its place")
                }
                expected => wrong(expected),
            })
        };
        for number in &mut self.numbers {
            let fills = !matches!(chosen.missing, Missing::Error | Missing::LeaveOut);
            if fills && is_missing(number.at) {
                number.missing.push(row);
                number.values.push(0.0);
            } else {
                number.values.push(parsed(number, true)?);
            }
        }
        for number in self.targets.iter_mut().chain(&mut self.weight) {
            number.values.push(parsed(number, false)?);
        }
        for column in &mut self.wholes {
            let wrong = || wrong(csv, record, line, (column.at, &column.name), "a whole number of 32 bits");
            column.values.push(whole(&record[column.at]).ok_or_else(wrong)?);
        }
        for column in &mut self.categories {
            let is_unknown = chosen.unknown_as_missing && !column.knows(&record[column.at]);
            let text = if is_unknown || is_missing(column.at) { "" } else { &record[column.at] };
            if !column.knows(text) {
                return Err(wrong(csv, record, line, (column.at, &column.name), "a category that is known"));
            }
            column.push(text);
        }
        if let Some(label) = &mut self.label {
            let text = &record[label.at];
            if is_missing(label.at) || !label.knows(text) {
                return Err(wrong(csv, record, line, (label.at, &label.name), "a class that is known"));
            }
            label.push(text);
        }
        self.rows += 1;
        Ok(())
    }

    /// Checks that the table with one more row fits the budget, and reserves its memory.
    fn within_budget(&mut self, csv: &Csv, record: &::csv::StringRecord, line: u64) -> Result<(), DataError> {
        let columns = self.numbers.len() + self.categories.len() + self.wholes.len() + self.targets.len() + 2;
        let texts = self.categories.iter().chain(&self.label).map(|texts| texts.ids.len()).sum::<usize>();
        let budget = Budget { most: csv.most, setting: "Csv::most_bytes" };
        let values = self.rows.checked_add(1).and_then(|rows| rows.checked_mul(columns));
        // A text that is kept takes its own bytes and some for its place.
        let needs = values.and_then(|values| values.checked_mul(4)?.checked_add(texts.checked_mul(64)?));
        let needs = needs.and_then(|bytes| bytes.checked_add(record.as_slice().len()));
        budget.check(&csv.path, &format!("the table up to line {line}"), needs.map(|bytes| bytes as u64))?;
        let most = usize::try_from(csv.most / 4).unwrap_or(usize::MAX);
        for number in self.numbers.iter_mut().chain(&mut self.targets).chain(&mut self.weight) {
            reserve(&csv.path, &mut number.values, 1, most)?;
        }
        for column in &mut self.wholes {
            reserve(&csv.path, &mut column.values, 1, most)?;
        }
        for texts in self.categories.iter_mut().chain(&mut self.label) {
            reserve(&csv.path, &mut texts.values, 1, most)?;
        }
        Ok(())
    }

    fn finish(mut self, csv: &Csv, chosen: &Chosen) -> Result<(Memory, TableSchema), DataError> {
        let numbers = self.numbers.iter().map(|number| number.name.clone()).collect();
        let mut schema = TableSchema { numbers, left_out: self.left_out, ..TableSchema::default() };
        let mut notes: Vec<String> = self.numbers.iter().filter_map(of_line_numbers).collect();
        let mut memory: Option<Memory> = None;
        let mut add = |name: &str, shape: Vec<usize>, values: Values| {
            let with = match memory.take() {
                Some(memory) => memory.with(name, shape, values),
                None => Memory::new(name, shape, values),
            };
            memory = Some(with?);
            Ok::<(), DataError>(())
        };
        for number in &mut self.numbers {
            let known = chosen.like.as_ref().and_then(|like| like.fills.get(&number.name).copied());
            let fill = match known {
                Some(known) => Some(known),
                None => number.fill(chosen.missing).map_err(|problem| csv.table_error(problem))?,
            };
            if let Some(fill) = fill {
                number.missing.iter().for_each(|&row| number.values[row] = fill);
                schema.fills.insert(number.name.clone(), fill);
            }
        }
        if !self.numbers.is_empty() {
            let columns = self.numbers.len();
            let shape = csv.shape.clone().unwrap_or_else(|| vec![columns]);
            if crate::sample::field::elements(&shape) != Some(columns) {
                let what = format!("{columns} columns of features do not fill shape {shape:?}");
                return Err(csv.table_error(what));
            }
            add("x", shape, interleaved(&self.numbers, self.rows))?;
        }
        for column in self.categories {
            let known = chosen.like.as_ref().and_then(|like| like.categories.get(&column.name).cloned());
            let name = column.name.clone();
            let (values, texts) = column.sorted(known, chosen.unknown_as_missing);
            add(&name, Vec::new(), Values::I32(values))?;
            schema.categories.insert(name, texts);
        }
        for column in self.wholes {
            add(&column.name, Vec::new(), Values::I32(column.values))?;
        }
        if let Some(label) = self.label {
            let labels = label.labels(chosen.like.as_ref());
            let (values, classes) = labels.map_err(|problem| csv.table_error(problem))?;
            schema.whole_labels = classes.is_empty() && !values.is_empty();
            schema.classes = classes;
            add("y", Vec::new(), Values::I32(values))?;
        } else if !self.targets.is_empty() {
            add("y", vec![self.targets.len()], interleaved(&self.targets, self.rows))?;
        }
        if let Some(weight) = self.weight {
            add("w", Vec::new(), Values::F32(weight.values))?;
        }
        let none = || csv.table_error("no columns of features");
        let mut memory = memory.ok_or_else(none)?;
        for (name, texts) in &schema.categories {
            memory = memory.with_classes(name, texts);
        }
        if !schema.classes.is_empty() {
            memory = memory.with_classes("y", &schema.classes);
        }
        if self.left_out > 0 {
            let (path, count) = (csv.path.display(), self.left_out);
            notes.push(format!("{path}: lines left out because a value is missing: {count}"));
        }
        Ok((memory.with_notes(notes), schema))
    }
}

fn wrong(
    csv: &Csv,
    record: &::csv::StringRecord,
    line: u64,
    (at, name): (usize, &str),
    expected: &'static str,
) -> DataError {
    DataError::CsvValue {
        path: csv.path.clone(),
        line,
        column: at + 1,
        name: Some(name.to_owned()),
        value: record[at].chars().take(40).collect(),
        expected,
    }
}
