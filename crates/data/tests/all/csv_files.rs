//! CSV files, good and corrupt.

use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use unisono_data::{Column, Csv, Field, Memory, Missing, Source, Values};
use unisono_random::Draws;

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("digits.csv");
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// Returns the error message of reading such a file, after the directory.
    fn error(&self, contents: impl AsRef<[u8]>, set: impl Fn(Csv) -> Csv) -> String {
        let error = set(Csv::new(self.file(contents))).read().unwrap_err().to_string();
        error.split_once("digits.csv").map_or(error.clone(), |(_, rest)| format!("digits.csv{rest}"))
    }
}

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

fn label_last(csv: Csv) -> Csv {
    csv.label(Column::Last)
}

fn arrays(memory: &Memory) -> (&[f32], &[i32]) {
    (memory.array("x").unwrap().as_f32().unwrap(), memory.array("y").unwrap().as_i32().unwrap())
}

#[test]
fn reads_plain_and_gzipped_alike() {
    let files = Files::new();
    let text = "1,2.5,0\n 3 , -4e-1 ,1\r\n\n5,6,2";
    let plain = label_last(Csv::new(files.file(text))).read().unwrap();
    assert_eq!(arrays(&plain), (&[1.0, 2.5, 3.0, -0.4, 5.0, 6.0][..], &[0, 1, 2][..]));
    assert_eq!(plain.fetch(1).unwrap().field("x"), Some(&Field::f32([2], [3.0, -0.4])));

    let two_members = [gzip(&text.as_bytes()[..10]), gzip(&text.as_bytes()[10..])].concat();
    for bytes in [gzip(text.as_bytes()), two_members] {
        let packed = label_last(Csv::new(files.file(bytes))).read().unwrap();
        assert_eq!(packed.fingerprint(), plain.fingerprint());
    }
}

#[test]
fn columns_are_chosen_by_place_or_name() {
    let files = Files::new();
    let path = files.file("\u{feff}class,a,b\n7,1,2\n8,3,4\n");
    for column in [Column::First, Column::Index(0), Column::Name("class".into())] {
        let memory = Csv::new(&path).header(true).label(column).read().unwrap();
        assert_eq!(arrays(&memory), (&[1., 2., 3., 4.][..], &[7, 8][..]));
    }
    let target = Csv::new(&path).header(true).target(Column::Name("a".into())).read().unwrap();
    assert_eq!(target.fetch(1).unwrap().field("y"), Some(&Field::f32([1], [3.0])));
    let all = Csv::new(&path).header(true).shape([3, 1]).read().unwrap();
    assert_eq!((all.fields().len(), all.fields()[0].shape.clone()), (1, vec![3, 1]));
    let semicolons = Csv::new(files.file("1;2\n")).delimiter(b';').read().unwrap();
    assert_eq!(semicolons.array("x"), Some(&Values::F32(vec![1., 2.])));
}

#[test]
fn corrupt_lines_are_named() {
    let files = Files::new();
    let good = "1,2,0\n".repeat(16);
    let after = |line: &str| format!("{good}{line}\n{good}");
    let error = |line: &str| files.error(after(line), label_last);
    for (line, problem) in [
        ("1,abc,0", "17: column 2: \"abc\" is not a number: Csv::category takes a column of texts"),
        ("1,,0", "17: column 2: \"\" is not a number: Csv::numbers with Csv::missing fills empty cells"),
        ("NaN,2,0", "17: column 1: \"NaN\" is not a finite number"),
        ("1,-inf,0", "17: column 2: \"-inf\" is not a finite number"),
        ("1,1e39,0", "17: column 2: \"1e39\" is not a finite number"),
        ("1,2,0.5", "17: column 3: \"0.5\" is not a whole number: use Csv::target to predict a number"),
        ("1,2,4294967296", "17: column 3: \"4294967296\" is not a whole number"),
        ("1,2", "17: 2 columns, expected 3"),
        ("1,2,3,0", "17: 4 columns, expected 3"),
        ("\n\nx,2,0", "19: column 1: \"x\" is not a number: Csv::category takes a column of texts"),
    ] {
        let error = error(line);
        assert!(error.starts_with(&format!("digits.csv: line {problem}")), "{error}");
    }
    let windows = files.error(after("x,2,0").replace('\n', "\r\n"), label_last);
    assert!(windows.starts_with("digits.csv: line 17: column 1: \"x\" is not a number"), "{windows}");
    let last = format!("{good}1,2");
    assert_eq!(files.error(&last, label_last), "digits.csv: line 17: 2 columns, expected 3");
    assert_eq!(files.error(gzip(last.as_bytes()), label_last), "digits.csv: line 17: 2 columns, expected 3");

    let bytes = [good.as_bytes(), b"1,\xff,0\n"].concat();
    assert_eq!(files.error(bytes, label_last), "digits.csv: line 17: not UTF-8");
}

#[test]
fn tables_that_cannot_be() {
    let files = Files::new();
    assert_eq!(files.error("", label_last), "digits.csv: no samples");
    assert_eq!(files.error("\n\n", label_last), "digits.csv: no samples");
    assert_eq!(files.error("a,b\n", |csv| csv.header(true)), "digits.csv: no samples");
    assert_eq!(
        files.error("1\n2\n", label_last),
        "digits.csv: no columns of features: a line has one column, and Csv::delimiter says what separates them"
    );
    assert_eq!(
        files.error("1,2\n", |csv| csv.label(Column::Index(2))),
        "digits.csv: no column 2: there are 2"
    );
    let named = |csv: Csv| csv.header(true).label(Column::Name("c".into()));
    assert_eq!(files.error("a,b\n1,2\n", named), "digits.csv: no column named \"c\" in [\"a\", \"b\"]");
    assert_eq!(
        files.error("1,2,3,0\n", |csv| label_last(csv).shape([2, 2])),
        "digits.csv: 3 columns of features do not fill shape [2, 2]"
    );
    assert_eq!(files.error("a,b\n1\n", |csv| csv.header(true)), "digits.csv: line 2: 1 columns, expected 2");
    let missing = Csv::new(files.0.path().join("none.csv")).read().unwrap_err().to_string();
    let no_file = std::fs::File::open(files.0.path().join("none.csv")).unwrap_err().to_string();
    assert!(missing.contains("none.csv: ") && missing.contains(&no_file), "{missing}");
    assert!(Csv::new(files.0.path()).read().is_err(), "a directory");
}

#[test]
fn truncated_compression_is_an_error() {
    let files = Files::new();
    let packed = gzip("1,2,0\n3,4,1\n".repeat(2000).as_bytes());
    for keep in [2, 9, packed.len() / 2, packed.len() - 9, packed.len() - 1] {
        let error = files.error(&packed[..keep], label_last);
        assert!(error.starts_with("digits.csv: line "), "{keep}: {error}");
    }
    let mut flipped = packed.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(files.error(flipped, label_last).starts_with("digits.csv: line "));
}

/// Reads files with bytes changed, cut and repeated at random. Each gives a table or an error, never a panic.
#[test]
fn mutated_files_never_panic() {
    let files = Files::new();
    let text = b"a,b,c\n1,2,0\n3.5,\"4\",1\n-1e3,0,2\n".to_vec();
    let mut draws = Draws::of(5, "test", "mutate", 0, 0);
    for round in 0..600 {
        let mut bytes = if round % 2 == 0 { text.clone() } else { gzip(&text) };
        for _ in 0..=draws.below(4) {
            let at = draws.below(bytes.len() as u32) as usize;
            match draws.below(4) {
                0 => bytes[at] = draws.below(256) as u8,
                1 => bytes.truncate(at + 1),
                2 => bytes.insert(at, b",\"\n\r\0;"[draws.below(6) as usize]),
                _ => bytes.extend_from_within(at..),
            }
        }
        let csv = Csv::new(files.file(&bytes)).header(draws.chance(0.5));
        if let Ok(memory) = csv.label(Column::Last).read() {
            assert!(memory.len() > 0);
        }
    }
}

const HOUSES: &str = "area,city,price,note,sold,w,kind\n\
    80,Rome,5,a,1,1,b\n\
    NA,Bern,3,b,0,2,a\n\
    40,,2,c,1,0.5,b\n\
    60,Rome,7,d,0,1,c\n";

fn houses(files: &Files) -> Csv {
    Csv::new(files.file(HOUSES)).numbers(["area"]).category("city").weight("w")
}

fn floats<'a>(memory: &'a Memory, name: &str) -> &'a [f32] {
    memory.array(name).unwrap().as_f32().unwrap()
}

fn ids<'a>(memory: &'a Memory, name: &str) -> &'a [i32] {
    memory.array(name).unwrap().as_i32().unwrap()
}

#[test]
fn chosen_columns_are_fields() {
    let files = Files::new();
    let (all, schema) =
        houses(&files).targets(["sold", "price"]).missing(Missing::Mean).read_with_schema().unwrap();
    assert_eq!(floats(&all, "x"), [80.0, 60.0, 40.0, 60.0]);
    assert_eq!(ids(&all, "city"), [2, 1, 0, 2]);
    assert_eq!(floats(&all, "y"), [1.0, 5.0, 0.0, 3.0, 1.0, 2.0, 0.0, 7.0]);
    assert_eq!(floats(&all, "w"), [1.0, 2.0, 0.5, 1.0]);
    assert_eq!(schema.categories["city"], ["", "Bern", "Rome"]);
    assert_eq!((schema.fills["area"], schema.left_out), (60.0, 0));
    for (missing, expected) in [(Missing::Median, 60.0), (Missing::Value(-1.0), -1.0)] {
        let filled = houses(&files).missing(missing).read().unwrap();
        assert_eq!(floats(&filled, "x")[1], expected);
    }
    let (some, schema) = houses(&files).missing(Missing::LeaveOut).read_with_schema().unwrap();
    assert_eq!((floats(&some, "x"), schema.left_out), (&[80.0, 40.0, 60.0][..], 1));
    let error = houses(&files).read().unwrap_err().to_string();
    let missing = "line 3: column 1 (area): \"NA\" is not a number, and Csv::missing does not say";
    assert!(error.contains(missing), "{error}");
}

#[test]
fn an_unknown_category_may_stand_as_one_that_is_missing() {
    let files = Files::new();
    let csv = |text: &str| {
        Csv::new(files.file(text)).numbers(["area"]).category("city").label("kind").unknown_as_missing()
    };
    let (first, schema) = csv("kind,city,area\na,Rome,1\nb,Bern,2\n").read_with_schema().unwrap();
    assert_eq!(schema.categories["city"], ["", "Bern", "Rome"]);
    assert_eq!(ids(&first, "city"), [2, 1]);
    let (new, same) =
        csv("kind,city,area\na,Oslo,1\nb,Bern,2\na,,3\n").like(&schema).read_with_schema().unwrap();
    assert_eq!((ids(&new, "city"), &same.categories), (&[0, 1, 0][..], &schema.categories));
    // A class that is unknown stays an error, and so does a table in which no id is free.
    let error = csv("kind,city,area\nc,Rome,1\n").like(&schema).read().unwrap_err().to_string();
    assert!(error.contains("\"c\" is not a class that is known"), "{error}");
    let mut without = schema.clone();
    without.categories.insert("city".into(), vec!["Bern".into(), "Rome".into()]);
    let error = csv("kind,city,area\na,Rome,1\n").like(&without).read().unwrap_err().to_string();
    assert!(error.contains("\"city\": the other table, without Csv::unknown_as_missing"), "{error}");
}

#[test]
fn labels_may_be_texts_and_another_file_is_read_the_same_way() {
    let files = Files::new();
    let read = |csv: Csv| csv.label("kind").missing(Missing::Mean).read_with_schema();
    let (all, schema) = read(houses(&files)).unwrap();
    assert_eq!(
        (ids(&all, "y"), &schema.classes[..]),
        (&[1, 0, 1, 2][..], &["a", "b", "c"].map(String::from)[..])
    );
    let (numbers, plain) = houses(&files).label("sold").missing(Missing::Mean).read_with_schema().unwrap();
    assert_eq!((ids(&numbers, "y"), plain.classes.len()), (&[1, 0, 1, 0][..], 0));
    let again = serde_json::from_str(&serde_json::to_string(&schema).unwrap()).unwrap();
    let other = |text: &str| {
        let csv = Csv::new(files.file(text)).numbers(["area"]).category("city").label("kind");
        csv.missing(Missing::Mean).like(&again).read()
    };
    let new = other("kind,city,area\nc,Rome,\nb,Rome,1\n").unwrap();
    assert_eq!(
        (ids(&new, "city"), ids(&new, "y"), floats(&new, "x")),
        (&[2, 2][..], &[2, 1][..], &[60.0, 1.0][..])
    );
    let error = other("kind,city,area\na,Oslo,1\n").unwrap_err().to_string();
    assert!(error.contains("line 2: column 2 (city): \"Oslo\" is not a category that is known"), "{error}");
    let error = other("kind,city,area\nd,Rome,1\n").unwrap_err().to_string();
    assert!(error.contains("\"d\" is not a class that is known"), "{error}");
}

/// A file without gaps says nothing of what fills those of another one.
#[test]
fn a_file_without_fills_leaves_them_to_the_next() {
    let files = Files::new();
    for missing in [Missing::Error, Missing::LeaveOut] {
        let first = Csv::new(files.file("area,b\n1,2\n3,4\n")).numbers(["area"]).missing(missing);
        let (_, schema) = first.read_with_schema().unwrap();
        let other = Csv::new(files.file("area,b\n,2\n3,4\n5,1\n")).numbers(["area"]).like(&schema);
        let filled = |missing| floats(&other.clone().missing(missing).read().unwrap(), "x")[0];
        assert_eq!((filled(Missing::Value(-1.0)), filled(Missing::Mean)), (-1.0, 4.0));
    }
}

#[test]
fn the_index_of_pandas_is_no_feature() {
    let files = Files::new();
    for name in ["", "Unnamed: 0", "\u{feff}"] {
        let csv = Csv::new(files.file(format!("{name},a,b\n0,1.5,0\n1,2.5,1\n"))).label("b");
        let error = csv.read().unwrap_err().to_string();
        assert!(error.contains("the index that pandas writes") && error.contains("Csv::numbers"), "{error}");
        assert_eq!(floats(&csv.numbers(["a"]).read().unwrap(), "x"), [1.5, 2.5]);
    }
    // Labels may come first, and the names of a file without a header are not known.
    let csv = Csv::new(files.file(",a\n0,1.5\n1,2.5\n")).header(true).label(Column::First);
    assert_eq!(floats(&csv.read().unwrap(), "x"), [1.5, 2.5]);
}

#[test]
fn a_column_without_numbers_has_no_mean() {
    let files = Files::new();
    let whole = Csv::new(files.file("area,b\n3,2\n5,4\n")).numbers(["area", "b"]).missing(Missing::Mean);
    let (_, schema) = whole.read_with_schema().unwrap();
    let table = Csv::new(files.file("area,b\n,2\nNA,4\n")).numbers(["area", "b"]);
    for missing in [Missing::Mean, Missing::Median] {
        let error = table.clone().missing(missing).read().unwrap_err().to_string();
        let expected =
            format!("Missing::{missing:?} of the column \"area\", in which all numbers are missing");
        assert!(error.contains(&expected), "{error}");
    }
    let filled = table.missing(Missing::Mean).like(&schema).read().unwrap();
    assert_eq!(floats(&filled, "x"), [4.0, 2.0, 4.0, 4.0]);
}

/// Labels that are whole numbers but for one are no names.
#[test]
fn a_label_that_is_no_whole_number_among_others_is_an_error() {
    let files = Files::new();
    let labels = |text: &str| Csv::new(files.file(text)).numbers(["a"]).label("y");
    let (_, schema) = labels("y,a\n0,1\n2,1\n10,1\n").read_with_schema().unwrap();
    for odd in ["3.5", "3000000000", "1e30"] {
        let error = labels(&format!("y,a\n0,1\n{odd},1\n10,1\n")).read().unwrap_err().to_string();
        assert!(error.contains(&format!("{odd:?} is not a 32-bit integer")), "{error}");
    }
    let error = labels("y,a\n2,1\n10,1\nx,1\n").like(&schema).read().unwrap_err().to_string();
    assert!(error.contains("\"x\" is not a 32-bit integer"), "{error}");
    let names = labels("y,a\n2,1\n10,1\nx,1\n").read().unwrap();
    assert_eq!(ids(&names, "y"), [1, 0, 2]);
}

#[test]
fn columns_that_cannot_be_chosen_are_errors() {
    let files = Files::new();
    let error = |csv: Csv| csv.read().unwrap_err().to_string();
    for column in [Column::First, Column::Last, Column::Index(0)] {
        let without = error(Csv::new(files.file("1,2\n")).numbers([column]).header(false));
        assert!(without.ends_with("columns are chosen of a table with a header"), "{without}");
    }
    let csv = || Csv::new(files.file(HOUSES));
    assert!(error(csv().numbers(["rooms"])).contains("no column named \"rooms\""));
    assert!(error(csv().weight("w")).contains("no columns of features"));
    assert!(error(csv().category("w")).contains("cannot be called \"w\""));
    assert!(error(csv().numbers([0]).label("sold").targets(["price"])).contains("both the field"));
    assert!(error(csv().numbers(["price"]).most_bytes(20)).contains("Csv::most_bytes"));
    let ragged = Csv::new(files.file("a,b\n1,2\n3\n")).numbers(["a"]);
    assert!(error(ragged).contains("line 3: 1 columns, expected 2"));
}

#[test]
fn numbers_that_f32_does_not_hold_are_named() {
    let files = Files::new();
    let text = "id,price,sold\n1700000000,0.1,0\n1700000001,2.5,1\n1700000002,3,1\n1700000050,3,1\n";
    let named = |csv: Csv| csv.numbers(["id", "price"]).label("sold");
    let advice = "Csv::scaled, Csv::whole, Csv::category or Csv::rounded says what is meant";
    let wanted = format!(
        "digits.csv: line 3: column 1 (id): \"1700000001\" is not a number that f32 holds ({advice})"
    );
    assert_eq!(files.error(text, named), wanted);
    assert_eq!(files.error(text, |csv| csv.label("sold")), wanted);
    let path = files.file(text);
    let scaled = |csv: Csv| csv.scaled("id", 1_700_000_000.0, 2.0);
    for read in [scaled(Csv::new(&path)).label("sold"), named(scaled(Csv::new(&path)))] {
        let x = read.read().unwrap().array("x").unwrap().as_f32().unwrap().to_vec();
        assert_eq!(x, [0.0, 0.1, 0.5, 2.5, 1.0, 3.0, 25.0, 3.0]);
    }
    let rounded = Csv::new(&path).rounded().label("sold").read().unwrap();
    assert_eq!(rounded.array("x").unwrap().as_f32().unwrap()[4], 1_700_000_002_f32);
    let whole = Csv::new(&path).numbers(["price"]).whole("id").label("sold").read().unwrap();
    let ids = [1_700_000_000, 1_700_000_001, 1_700_000_002, 1_700_000_050];
    assert_eq!(whole.array("id").unwrap().as_i32(), Some(&ids[..]));
    let category = Csv::new(&path).numbers(["price"]).category("id").label("sold").read();
    assert_eq!(category.unwrap().array("id").unwrap().as_i32(), Some(&[0, 1, 2, 3][..]));
    assert!(files.error(text, |csv| csv.scaled("ids", 0.0, 1.0).label("sold")).contains("no column named"));
    let not_read = "is scaled and not read as numbers";
    let by_inf = "column \"id\": the scale is inf, but must be finite and not 0";
    type Set = fn(Csv) -> Csv;
    let errors: [(Set, &str); 4] = [
        (|csv| csv.scaled("sold", 0.0, 1.0).label("sold"), not_read),
        (|csv| csv.numbers(["price"]).scaled("id", 0.0, 1.0), not_read),
        (|csv| csv.scaled("id", 0.0, f64::INFINITY).label("sold"), by_inf),
        (|csv| csv.numbers(["id"]).scaled("id", 0.0, f64::INFINITY), by_inf),
    ];
    for (set, problem) in errors {
        assert!(files.error(text, set).ends_with(problem));
    }
    assert!(files.error("id,sold\n3000000000,1\n", |csv| csv.whole("id").label("sold")).contains("32 bits"));
    // Targets and weights are numbers too.
    let error = files.error("a,b\n1,16777217\n", |csv| csv.numbers(["a"]).targets(["b"]));
    assert!(error.starts_with("digits.csv: line 2: column 2 (b): \"16777217\""), "{error}");
    let error = files.error("a,b\n1,16777217\n", |csv| csv.numbers(["a"]).weight("b"));
    assert!(error.starts_with("digits.csv: line 2: column 2 (b): \"16777217\""), "{error}");
    for held in
        ["16777216", "16777218", "0.1", "1e-30", "123456790.0", "1.2345679e8", "-1.7e38", "1e-45", "1e20"]
    {
        let read = Csv::new(files.file(format!("{held}\n"))).read().unwrap();
        assert_eq!(read.array("x"), Some(&Values::F32(vec![held.parse().unwrap()])), "{held}");
    }
    for lost in ["16777217", "-16777219", "1700000001.25", "123456789.0", "9007199254740993", "1e-50"] {
        let error = files.error(format!("{lost}\n"), |csv| csv);
        assert!(error.contains("is not a number that f32 holds"), "{lost}: {error}");
    }
}

#[test]
fn labels_are_whole_however_they_are_written() {
    let files = Files::new();
    for text in ["a,y\n1,0\n2,1\n", "a,y\n1,0.0\n2,1.0\n", "a,y\n1,0\n2,1.0\n", "a,y\n1,0e0\n2,1\n"] {
        let path = files.file(text);
        for csv in [Csv::new(&path).label("y"), Csv::new(&path).numbers(["a"]).label("y")] {
            assert_eq!(arrays(&csv.read().unwrap()), (&[1., 2.][..], &[0, 1][..]), "{text}");
        }
    }
    assert!(files.error("a,y\n1,0.5\n", |csv| csv.label("y")).contains("\"0.5\" is not a whole number"));
}

#[test]
fn a_header_that_comes_again_and_names_that_do_are_refused() {
    let files = Files::new();
    let again = "city,y\nBern,cat\ncity,y\nRome,dog\n";
    let wanted = "digits.csv: line 3: the header comes again; a table has it once";
    assert_eq!(files.error(again, |csv| csv.category("city").label("y")), wanted);
    assert_eq!(files.error("a,y\n1,0\na,y\n2,1\n", |csv| csv.label("y")), wanted);
    let twice = "a,a,y\n1,2,0\n";
    let error = files.error(twice, |csv| csv.numbers(["a"]).label("y"));
    assert_eq!(error, "digits.csv: several columns are named \"a\": choose by index");
    let by_index = Csv::new(files.file(twice)).numbers([1]).label("y").read().unwrap();
    assert_eq!(arrays(&by_index), (&[2.0][..], &[0][..]));
}

#[test]
fn old_line_ends() {
    let files = Files::new();
    let plain = Csv::new(files.file("a,y\n1,0\n2,1\n3,1\n")).label("y").read().unwrap();
    for text in ["a,y\r1,0\r2,1\r3,1\r", "a,y\r1,0\r2,1\r3,1", "a,y\r\n1,0\r2,1\n\r3,1\r\n"] {
        for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let read = Csv::new(files.file(bytes)).label("y").read().unwrap();
            assert_eq!(read.fingerprint(), plain.fingerprint(), "{text:?}");
        }
    }
    // The buffers of a reader may end between the two.
    let long: String = (0..5000).map(|at| format!("{},{}\r\n", at % 97, at % 3)).collect();
    let unix = Csv::new(files.file(long.replace("\r\n", "\n"))).label(Column::Last).read().unwrap();
    for text in [long.replace("\r\n", "\r"), long] {
        let read = Csv::new(files.file(text)).label(Column::Last).read().unwrap();
        assert_eq!((read.len(), read.fingerprint()), (5000, unix.fingerprint()));
    }
    let error = files.error("a,y\r1,0\r2,x\r", |csv| csv.label("y"));
    assert!(error.starts_with("digits.csv: line 3: column 2 (y): \"x\""), "{error}");
}

#[test]
fn classes_and_lines_that_are_left_out_are_told() {
    let files = Files::new();
    let path = files.file("a,city,y\n1,Bern,cat\n,Rome,dog\n3,Oslo,cat\n");
    let csv = Csv::new(&path).numbers(["a"]).category("city").label("y").missing(Missing::LeaveOut);
    let table = csv.read().unwrap();
    assert_eq!(table.field_classes("y"), Some(&["cat".to_owned()][..]));
    assert_eq!(table.field_classes("city"), Some(&["Bern".to_owned(), "Oslo".into()][..]));
    let notes = table.notes().join("; ");
    assert!(notes.ends_with("digits.csv: lines left out because a value is missing: 1"), "{notes}");
}
