//! Parquet and Arrow files as sources: what was written is read, by row, within a budget, and damage is an
//! error.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, Int64Builder, ListBuilder};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    types::Int8Type,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use tempfile::TempDir;
use unisono_data::{Columnar, ContentHash, DataError, Loader, Missing, Source};

const CITIES: [&str; 3] = ["Rome", "Bern", "Oslo"];

/// Returns rides of numbers from a row on. Every seventh speed is missing.
fn rides(first: usize, rows: usize) -> RecordBatch {
    let all = first..first + rows;
    let speed = all.clone().map(|row| (row % 7 != 6).then_some(row as f64 / 2.0));
    let city: DictionaryArray<Int8Type> = all.clone().map(|row| CITIES[row % 3]).collect();
    let mut tokens = ListBuilder::new(Int64Builder::new());
    let mut place = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    for row in all.clone() {
        tokens.values().append_slice(&[row as i64, 1, 2]);
        tokens.append(true);
        place.values().append_slice(&[row as f32, -0.5]);
        place.append(true);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("row", Arc::new(Int32Array::from_iter_values(all.clone().map(|row| row as i32)))),
        ("speed", Arc::new(Float64Array::from_iter(speed))),
        ("late", Arc::new(BooleanArray::from_iter(all.clone().map(|row| Some(row % 2 == 1))))),
        ("city", Arc::new(city)),
        (
            "class",
            Arc::new(StringArray::from_iter_values(all.map(|row| if row % 5 == 0 { "b" } else { "a" }))),
        ),
        ("tokens", Arc::new(tokens.finish())),
        ("place", Arc::new(place.finish())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, c)| (name, c, true))).unwrap()
}

fn parquet(
    dir: &TempDir,
    name: &str,
    batch: &RecordBatch,
    group: usize,
    compression: Compression,
) -> PathBuf {
    let path = dir.path().join(name);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_data_page_row_count_limit(16)
        .set_compression(compression)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    path
}

fn arrow(dir: &TempDir, name: &str, batch: &RecordBatch, at_once: usize) -> PathBuf {
    let path = dir.path().join(name);
    let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &batch.schema()).unwrap();
    for first in (0..batch.num_rows()).step_by(at_once) {
        writer.write(&batch.slice(first, at_once.min(batch.num_rows() - first))).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn floats(source: &dyn Source, row: u64, field: &str) -> Vec<f32> {
    source.fetch(row).unwrap().field(field).unwrap().values.as_f32().unwrap().to_vec()
}

fn ints(source: &dyn Source, row: u64, field: &str) -> Vec<i32> {
    source.fetch(row).unwrap().field(field).unwrap().values.as_i32().unwrap().to_vec()
}

fn hash(source: &dyn Source) -> [u8; 32] {
    let mut hash = ContentHash::new();
    source.hash_content(0..source.len(), &mut hash).unwrap();
    hash.finish()
}

fn all_columns(table: Columnar) -> Columnar {
    let table = table.numbers(["row", "speed", "late"]).category("city").list("tokens").list("place");
    table.label("class").missing(Missing::Value(-1.0))
}

/// Three files of one table, of both formats, with groups and pages that end where parts do not.
#[test]
fn rows_of_several_files_are_found_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [
        parquet(&dir, "0.parquet", &rides(0, 100), 64, Compression::SNAPPY),
        arrow(&dir, "1.arrow", &rides(100, 50), 17),
        parquet(&dir, "2.parquet", &rides(150, 9000), 100_000, Compression::LZ4_RAW),
    ];
    let source = all_columns(Columnar::new(&paths)).open().unwrap();
    assert_eq!(source.len(), 9150);
    let names: Vec<String> = source.fields().iter().map(|f| format!("{} {:?}", f.name, f.shape)).collect();
    assert_eq!(names, ["x [3]", "city []", "tokens [3]", "place [2]", "y []"]);
    // From the last to the first, and some twice.
    for row in (0..9150).rev().step_by(7).chain([99, 100, 149, 150, 9149, 0, 8341, 8342, 8343]) {
        let speed = if row % 7 == 6 { -1.0 } else { row as f32 / 2.0 };
        assert_eq!(floats(&source, row, "x"), [row as f32, speed, (row % 2) as f32], "row {row}");
        assert_eq!(ints(&source, row, "city"), [[2, 0, 1][row as usize % 3]]);
        assert_eq!(ints(&source, row, "tokens"), [row as i32, 1, 2]);
        assert_eq!(floats(&source, row, "place"), [row as f32, -0.5]);
        assert_eq!(ints(&source, row, "y"), [i32::from(row % 5 == 0)]);
    }
    assert_eq!(source.schema().categories["city"], ["Bern", "Oslo", "Rome"]);
    assert_eq!(source.schema().classes, ["a", "b"]);
    assert!(source.fetch(9150).is_err());
    assert!(source.describe(120).ends_with("1.arrow: row 20"), "{}", source.describe(120));
    // The content is that of the rows, whatever the files are like.
    let whole = arrow(&dir, "whole.arrow", &rides(0, 9150), 9150);
    let whole = all_columns(Columnar::new([whole])).open().unwrap();
    assert_eq!(hash(&whole), hash(&source));
    assert_ne!(whole.fingerprint(), source.fingerprint());
    // Threads read at the same time, in an order of the loader's.
    let batches = |source| {
        let loader = Loader::new(source).shuffle(3).threads(4).batch(64);
        loader.epoch(0).unwrap().map(|batch| format!("{:?}", batch.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(batches(source), batches(whole));
}

#[test]
fn a_folder_is_its_files_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Columnar::folder(dir.path()).is_err());
    parquet(&dir, "b.parquet", &rides(10, 10), 64, Compression::UNCOMPRESSED);
    arrow(&dir, "a.feather", &rides(0, 10), 4);
    std::fs::write(dir.path().join("readme.txt"), "no table").unwrap();
    let source = Columnar::folder(dir.path()).unwrap().numbers(["row"]).open().unwrap();
    assert_eq!(
        (0..20).map(|row| floats(&source, row, "x")[0]).collect::<Vec<_>>(),
        Vec::from_iter((0..20).map(|x| x as f32))
    );
}

fn speeds(path: &Path, missing: Missing) -> Result<Vec<f32>, DataError> {
    let source = Columnar::new([path]).numbers(["speed"]).missing(missing).open()?;
    (0..source.len())
        .map(|row| Ok(source.fetch(row)?.field("x").unwrap().values.as_f32().unwrap()[0]))
        .collect()
}

#[test]
fn what_is_missing_is_named_filled_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = parquet(&dir, "rides.parquet", &rides(0, 15), 4, Compression::SNAPPY);
    let error = speeds(&path, Missing::Error).unwrap_err().to_string();
    assert!(error.ends_with("rides.parquet: row 6: column \"speed\": the value is missing"), "{error}");
    // Rows 6 and 13 are missing; the others are 0, 0.5, 1, ...
    let there: Vec<f32> = (0..15).filter(|row| row % 7 != 6).map(|row| row as f32 / 2.0).collect();
    assert_eq!(speeds(&path, Missing::LeaveOut).unwrap(), there);
    let at = |missing| speeds(&path, missing).unwrap()[6];
    assert_eq!(at(Missing::Value(9.0)), 9.0);
    assert_eq!(at(Missing::Mean), there.iter().sum::<f32>() / 13.0);
    assert_eq!(at(Missing::Median), there[6]);
    // Another file is read with the same numbers, and an unknown category is an error that names its row.
    let table =
        |path: &Path| Columnar::new([path]).numbers(["speed"]).category("city").missing(Missing::Mean);
    let source = table(&path).open().unwrap();
    let other = arrow(&dir, "other.arrow", &rides(6, 1), 8);
    let alone = table(&other).open().map(drop).unwrap_err().to_string();
    assert!(alone.contains("Missing::Mean of the column \"speed\", in which all numbers"), "{alone}");
    let other = table(&other).like(source.schema()).open().unwrap();
    assert_eq!(floats(&other, 0, "x")[0], at(Missing::Mean));
    assert_eq!(ints(&other, 0, "city"), [2]);
    let few = arrow(&dir, "few.arrow", &rides(0, 1), 8);
    let few = table(&few).open().unwrap();
    let strange = table(&path).like(few.schema()).open().unwrap().fetch(1).unwrap_err().to_string();
    assert!(strange.ends_with("row 1: column \"city\": \"Bern\" is not known"), "{strange}");
    // Labels must be of the same kind in both tables: texts or whole numbers.
    let by = |label: &str| Columnar::new([&path]).numbers(["speed"]).missing(Missing::Mean).label(label);
    let [texts, wholes] = ["class", "row"].map(|label| by(label).open().unwrap());
    assert_eq!((texts.schema().whole_labels, wholes.schema().whole_labels), (false, true));
    for (label, other, problem) in [
        ("row", &texts, "\"row\" are whole numbers, but those of the other table (like) are texts"),
        ("class", &wholes, "\"class\" are texts, but those of the other table (like) are whole numbers"),
    ] {
        let error = by(label).like(other.schema()).open().map(drop).unwrap_err().to_string();
        assert!(error.ends_with(problem), "{error}");
    }
}

/// A cell spoils its row, not the rows that are decoded with it.
#[test]
fn a_bad_cell_is_one_bad_sample() {
    let dir = tempfile::tempdir().unwrap();
    let path = parquet(&dir, "rides.parquet", &rides(0, 13), 13, Compression::SNAPPY);
    let source = Columnar::new([&path]).numbers(["speed"]).open().unwrap();
    for row in 0..13 {
        match source.fetch(row) {
            Ok(_) => assert_ne!(row, 6),
            Err(error) => {
                assert!(row == 6 && error.to_string().contains("row 6: column \"speed\""), "{error}")
            }
        }
    }
    let rest = unisono_data::Loader::new(source).batch(20).skip_bad(1);
    assert_eq!(rest.epoch(0).unwrap().next().unwrap().unwrap().len(), 12);
}

/// What is read of a file makes the data, too.
#[test]
fn other_columns_and_fills_are_other_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = parquet(&dir, "rides.parquet", &rides(0, 15), 4, Compression::SNAPPY);
    let table = |missing| Columnar::new([&path]).numbers(["speed"]).missing(missing).open().unwrap();
    let all = [Missing::Mean, Missing::Median, Missing::Value(0.0), Missing::LeaveOut, Missing::Error];
    let prints: std::collections::BTreeSet<u64> =
        all.into_iter().map(|missing| table(missing).fingerprint()).collect();
    assert_eq!(prints.len(), all.len());
    assert_eq!(table(Missing::Mean).fingerprint(), table(Missing::Mean).fingerprint());
}

#[test]
fn what_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = parquet(&dir, "rides.parquet", &rides(0, 40), 64, Compression::SNAPPY);
    let refused = |table: Columnar| table.open().map(drop).unwrap_err().to_string();
    let table = || Columnar::new([&path]);
    for (table, problem) in [
        (
            table().numbers(["sped"]),
            "no column \"sped\": there is row, speed, late, city, class, tokens, place",
        ),
        (table(), "no columns of features"),
        (table().numbers(["row"]).label("class").target("speed"), "a label and targets are both the field"),
        (table().list("row"), "column \"row\" is not of lists"),
        (table().text("row", 4, |_| Ok(vec![1])), "column \"row\" is not of texts"),
        (table().category("city").list("city"), "column \"city\" is read twice, as two fields of one name"),
        (table().text("class", 0, |_| Ok(vec![1])), "texts of \"class\" are cut to no ids"),
        (table().category("place"), "are neither texts nor whole numbers"),
        (table().numbers(["row"]).most_bytes(10), "raise it with `Columnar::most_bytes`"),
        (Columnar::new([dir.path().join("none.parquet")]).numbers(["row"]), "none.parquet"),
    ] {
        // Sizes are checked when a part is decoded.
        let error = match table.open() {
            Ok(source) => source.fetch(0).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(problem), "{problem:?}: {error}");
    }
    let city = table().numbers(["city"]).open().unwrap().fetch(0).unwrap_err().to_string();
    assert!(city.contains("texts are not numbers: `Columnar::category`"), "{city}");
    let text = dir.path().join("text.parquet");
    std::fs::write(&text, "PAX1").unwrap();
    assert!(refused(Columnar::new([text]).numbers(["row"])).contains("neither a Parquet nor an Arrow file"));
    // Lists of two lengths.
    let mut lists = ListBuilder::new(Float32Builder::new());
    for len in [2, 2, 3] {
        lists.values().append_slice(&vec![1.0; len]);
        lists.append(true);
    }
    let batch = RecordBatch::try_from_iter([("list", Arc::new(lists.finish()) as ArrayRef)]).unwrap();
    let path = parquet(&dir, "lists.parquet", &batch, 64, Compression::SNAPPY);
    let error = Columnar::new([path]).list("list").open().unwrap().fetch(2).unwrap_err().to_string();
    assert!(error.ends_with("row 2: column \"list\": a list of 3, and the first one has 2"), "{error}");
}

/// Texts of a table, in every way that Zstandard packs one.
#[test]
fn texts_are_ids_of_one_length() {
    let dir = tempfile::tempdir().unwrap();
    let texts = StringArray::from(vec![Some("ab"), None, Some("abcdef"), Some("")]);
    let batch =
        RecordBatch::try_from_iter_with_nullable([("text", Arc::new(texts) as ArrayRef, true)]).unwrap();
    let packed = dir.path().join("packed.arrow");
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let file = File::create(&packed).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for path in [parquet(&dir, "packed.parquet", &batch, 2, Compression::ZSTD(ZstdLevel::default())), packed]
    {
        let bytes = |text: &str| Ok(text.bytes().map(i32::from).collect());
        let table = Columnar::new([&path]).text("text", 3, bytes);
        let source = table.clone().missing(Missing::LeaveOut).open().unwrap();
        assert_eq!((&*source.fields()[0].name, &source.fields()[0].shape[..]), ("text", &[3][..]));
        let rows: Vec<Vec<i32>> = (0..source.len()).map(|row| ints(&source, row, "text")).collect();
        assert_eq!(rows, [[97, 98, 0], [97, 98, 99], [0, 0, 0]]);
        let error = |table: &Columnar, row| table.open().unwrap().fetch(row).unwrap_err().to_string();
        let missing = error(&table, 1);
        assert!(missing.ends_with("row 1: column \"text\": the value is missing"), "{missing}");
        let strange = |_: &str| Err(DataError::other(std::io::Error::other("no such word")));
        let strange = error(&Columnar::new([&path]).text("text", 3, strange), 0);
        assert!(
            strange.contains("row 0: column \"text\": ") && strange.contains("no such word"),
            "{strange}"
        );
    }
}

/// Parts are decoded again where not all can be kept, and give the same rows.
#[test]
fn a_small_budget_keeps_few_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = arrow(&dir, "rides.arrow", &rides(0, 2000), 100);
    let most = std::fs::metadata(&path).unwrap().len();
    let table = || Columnar::new([&path]).numbers(["row"]);
    let source = table().most_bytes(most).open().unwrap();
    for row in [1999, 0, 1000, 1, 1998, 500] {
        assert_eq!(floats(&source, row, "x"), [row as f32]);
    }
    assert!(table().most_bytes(most - 1).open().unwrap().fetch(0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the rows, groups and budget, each row is the one that was written.
    #[test]
    fn what_is_written_is_read(
        values in prop::collection::vec(prop::option::weighted(0.8, -1e6_f64..1e6), 1..200),
        group in 1_usize..60,
        is_arrow in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let column: ArrayRef = Arc::new(Float64Array::from(values.clone()));
        let batch = RecordBatch::try_from_iter_with_nullable([("v", column, true)]).unwrap();
        let path = if is_arrow {
            arrow(&dir, "v.arrow", &batch, group)
        } else {
            parquet(&dir, "v.parquet", &batch, group, Compression::SNAPPY)
        };
        prop_assert_eq!(
            Columnar::new([&path]).numbers(["v"]).missing(Missing::Value(7.0)).open().map(|source| {
                (0..source.len()).map(|row| floats(&source, row, "x")[0]).collect::<Vec<_>>()
            }).unwrap(),
            values.iter().map(|x| x.unwrap_or(7.0) as f32).collect::<Vec<_>>()
        );
        let left: Vec<f32> = values.iter().flatten().map(|x| *x as f32).collect();
        let table = Columnar::new([&path]).numbers(["v"]).missing(Missing::LeaveOut).open().unwrap();
        prop_assert_eq!((0..table.len()).map(|row| floats(&table, row, "x")[0]).collect::<Vec<_>>(), left);
    }

    /// A damaged file is an error or some rows, never a panic.
    #[test]
    fn damage_never_panics(at in 0.0_f64..1.0, byte in any::<u8>(), cut in 0.0_f64..4.0, is_arrow in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let batch = rides(0, 40);
        let path = if is_arrow {
            arrow(&dir, "rides.arrow", &batch, 16)
        } else {
            parquet(&dir, "rides.parquet", &batch, 16, Compression::SNAPPY)
        };
        let mut bytes = std::fs::read(&path).unwrap();
        let place = ((bytes.len() as f64 * at) as usize).min(bytes.len() - 1);
        bytes[place] = byte;
        bytes.truncate((bytes.len() as f64 * cut) as usize);
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(source) = all_columns(Columnar::new([&path])).open() {
            (0..source.len().min(100)).for_each(|row| drop(source.fetch(row)));
        }
    }
}

#[test]
fn numbers_that_f32_does_not_hold_are_named() {
    let dir = TempDir::new().unwrap();
    let times = [1_700_000_000_i64, 1_700_000_001, 1_700_000_050, (1 << 53) + 1];
    let reals = [0.1, 1e-50, 1_700_000_001.25, 3.0];
    let mut lists = ListBuilder::new(arrow_array::builder::Float64Builder::new());
    for real in reals {
        lists.values().append_slice(&[0.5, real]);
        lists.append(true);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("time", Arc::new(Int64Array::from_iter_values(times))),
        ("real", Arc::new(Float64Array::from_iter_values(reals))),
        ("list", Arc::new(lists.finish())),
        ("y", Arc::new(Int32Array::from_iter_values(0..4))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = parquet(&dir, "times.parquet", &batch, 4, Compression::UNCOMPRESSED);
    let table = || Columnar::new([&path]).label("y");
    let x = |table: &unisono_data::ColumnarSource, row: u64| {
        table.fetch(row).map(|sample| sample.field("x").unwrap().values.as_f32().unwrap().to_vec())
    };
    let strict = table().numbers(["time"]).open().unwrap();
    assert_eq!(x(&strict, 0).unwrap(), [1.7e9]);
    let advice =
        "Columnar::scaled, Columnar::whole, Columnar::category or Columnar::rounded says what is meant";
    for (row, time) in [(1, "1700000001"), (2, "1700000050"), (3, "9007199254740993")] {
        let error = x(&strict, row).unwrap_err().to_string();
        let wanted = format!("row {row}: column \"time\": {time} is not held by f32: {advice}");
        assert!(error.ends_with(&wanted), "{error}");
    }
    let reals = table().numbers(["real"]).open().unwrap();
    assert_eq!((x(&reals, 0).unwrap(), x(&reals, 3).unwrap()), (vec![0.1], vec![3.0]));
    assert!([1, 2].iter().all(|&row| x(&reals, row).unwrap_err().to_string().contains("is not held by f32")));
    let lists = table().list("list").open().unwrap();
    assert!(lists.fetch(0).is_ok() && lists.fetch(1).is_err() && lists.fetch(2).is_err());
    let rounded = table().numbers(["time", "real"]).list("list").rounded().open().unwrap();
    assert_eq!(x(&rounded, 1).unwrap(), [1.7e9, 0.0]);
    assert!((0..4).all(|row| rounded.fetch(row).is_ok()));
    let scaled = table().numbers(["time"]).scaled("time", 1.7e9, 10.0).open().unwrap();
    assert_eq!((x(&scaled, 1).unwrap(), x(&scaled, 2).unwrap()), (vec![0.1], vec![5.0]));
    assert_ne!(scaled.fingerprint(), strict.fingerprint());
    let whole = table().numbers(["real"]).rounded().whole("time").open().unwrap();
    assert_eq!(whole.fetch(1).unwrap().field("time").unwrap().values.as_i32(), Some(&[1_700_000_001][..]));
    assert!(whole.fetch(3).is_err());
    let category = table().category("time").open().unwrap();
    assert_eq!(category.fetch(1).unwrap().field("time").unwrap().values.as_i32(), Some(&[1][..]));
    assert_eq!(category.field_classes("time").map(|names| names[1].as_str()), Some("1700000001"));
    let by_none = table().numbers(["time"]).scaled("time", 0.0, 0.0).open().map(drop).unwrap_err();
    assert!(
        by_none.to_string().ends_with("column \"time\": the scale is 0, but must be finite and not 0"),
        "{by_none}"
    );
    let other = table().numbers(["real"]).scaled("time", 0.0, 1.0).open();
    assert!(
        other.is_err_and(|error| error.to_string().contains("\"time\" is scaled and not read as numbers"))
    );
}
