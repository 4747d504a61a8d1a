//! Large files made to harm: what they make us ask for is refused or fits a gigabyte. An allocation beyond it
//! that cannot fail ends this process, see [`Limited`].
//!
//! The files take 1 MB here, and 64 MB with `UNISONO_LONG`.
//!
//! Alone in its process, because its allocator limits what the whole process allocates.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use tempfile::TempDir;
use unisono_checkpoint::{export_model, inspect, load, newest, parse_tensors, read_export, read_tensors};
use unisono_data::{
    Array, Cifar, Csv, DataError, ImageFolder, Memory, Per, Source, Statistics, Tokens, Width,
};
use unisono_fuzz::{LIMIT, Limited, Scratch, reader};

#[global_allocator]
static LIMITED: Limited = Limited;

/// One test at a time: they share the gigabyte.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the bytes of the files.
fn size() -> usize {
    if std::env::var_os("UNISONO_LONG").is_some() { 64 << 20 } else { 1 << 20 }
}

/// Runs a case in a directory. Returns the message of the error, or "taken", and prints what was allocated.
fn cost<T>(what: &str, open: impl FnOnce() -> Result<T, DataError>) -> String {
    Limited::reset();
    let message = open().err().map_or_else(|| "taken".into(), |error| error.to_string());
    let peak = Limited::peak();
    println!("{what}: {} MB, {message:.200}", peak >> 20);
    assert!(peak <= LIMIT, "{what}: {peak} bytes");
    message
}

/// Writes a file of so many bytes, which repeats a text.
fn repeated(path: &Path, text: &str, bytes: usize) -> PathBuf {
    std::fs::write(path, text.repeat(bytes / text.len())).unwrap();
    path.into()
}

/// Writes a gzipped file that unpacks to so many bytes.
fn bomb(path: &Path, start: &[u8], text: &str, bytes: usize) -> PathBuf {
    let mut encoder = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    let block = text.repeat((1 << 20) / text.len());
    encoder.write_all(start).unwrap();
    (0..bytes / block.len()).for_each(|_| encoder.write_all(block.as_bytes()).unwrap());
    encoder.finish().unwrap();
    path.into()
}

fn with<T>(test: impl FnOnce(&Path) -> T) -> T {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().unwrap();
    test(dir.path())
}

fn is_refused(message: &str) {
    assert_ne!(message, "taken");
}

#[test]
fn tables_of_one_line_and_of_very_many() {
    with(|dir| {
        let path = dir.join("x.csv");
        for text in ["1", ",", "1,", "\"", "\"\"", " ", "\n", "\r"] {
            repeated(&path, text, size());
            cost(&format!("a line of {text:?}"), || Csv::new(&path).read());
        }
        for text in [",", "1,", "1\n", "1,2,3,4,5,6,7,8\n"] {
            bomb(&path, b"", text, 8 * size());
            cost(&format!("a bomb of {text:?}"), || Csv::new(&path).read());
        }
    });
}

#[test]
fn arrays_that_declare_much_or_have_holes() {
    with(|dir| {
        let path = dir.join("x");
        let count = (1u32 << 30).to_be_bytes();
        bomb(&path, &[&[0, 0, 8, 1][..], &count].concat(), "\0", 8 * size());
        is_refused(&cost("idx", || Array::idx(&path)));
        // A sparse file of 2^41 bytes, whose rows are of 2^40.
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (2, {}), }}", 1u64 << 40);
        let head = [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        std::fs::write(&path, &head).unwrap();
        let sparse = File::options().write(true).open(&path).unwrap();
        if sparse.set_len(head.len() as u64 + (1 << 41)).is_ok() {
            let message = cost("a row of holes", || Array::npy(&path)?.row(1));
            let takes = "a row takes 5497558138880 bytes, and the limit is 2147483648: raise it with `Array::most_row_bytes`";
            assert!(message.ends_with(takes), "{message}");
            let message = cost("a window of holes", || Tokens::open(&path, Width::U8, 1 << 40)?.fetch(0));
            assert!(message.ends_with("raise it with `Tokens::most_bytes`"), "{message}");
            // Rows that the budget allows and memory does not.
            let row = || Array::npy(&path)?.most_row_bytes(u64::MAX).row(1);
            assert!(cost("a row without a budget", row).contains("no memory"));
            cost("cifar", || Cifar::ten([&path]));
        }
    });
}

/// Returns an archive with empty members, each of another name, whose end declares `count` of them.
fn archive(bytes: usize, count: Option<u64>) -> Vec<u8> {
    let mut zip = Vec::with_capacity(bytes + 200);
    let mut members = 0u64;
    while zip.len() + 54 < bytes {
        let mut entry = [0u8; 46];
        entry[..4].copy_from_slice(b"PK\x01\x02");
        entry[28] = 8;
        zip.extend(entry);
        zip.extend(format!("{members:08x}").bytes());
        members += 1;
    }
    let (count, directory) = (count.unwrap_or(members), zip.len() as u64);
    let start = zip.len() as u64;
    let word = |value: u64| value.to_le_bytes();
    zip.extend([b"PK\x06\x06", &word(44)[..], &[45, 0, 45, 0], &[0; 8], &word(count), &word(count)].concat());
    zip.extend([word(directory.max(count.saturating_mul(46))), word(0)].concat());
    zip.extend([b"PK\x06\x07", &[0; 4][..], &word(start), &[1, 0, 0, 0]].concat());
    zip.extend([b"PK\x05\x06", &[0; 4][..], &[0xff; 12], &[0; 2]].concat());
    zip
}

#[test]
fn archives_of_many_members() {
    with(|dir| {
        let path = dir.join("x.npz");
        for count in [None, Some(1 << 40), Some(u64::MAX), Some(1 << 20)] {
            std::fs::write(&path, archive(size(), count)).unwrap();
            is_refused(&cost(&format!("an archive that declares {count:?} members"), || {
                Array::npz(&path, "x")
            }));
        }
    });
}

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(kind);
    crc.update(data);
    [&(data.len() as u32).to_be_bytes(), &kind[..], data, &crc.sum().to_be_bytes()].concat()
}

/// Returns the start of a PNG file of three channels.
fn png(side: u32) -> Vec<u8> {
    let side = side.to_be_bytes();
    [b"\x89PNG\r\n\x1a\n", &chunk(b"IHDR", &[&side[..], &side, &[8, 2, 0, 0, 0]].concat())[..]].concat()
}

fn deflated(bytes: usize) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    (0..bytes >> 20).for_each(|_| encoder.write_all(&vec![0; 1 << 20]).unwrap());
    encoder.finish().unwrap()
}

#[test]
fn pictures_of_huge_sides_and_chunks() {
    with(|dir| {
        let path = dir.join("class/x.png");
        std::fs::create_dir(dir.join("class")).unwrap();
        let fetch = || ImageFolder::open(dir)?.fetch(0);
        let zeros = vec![0; size()];
        let text = [&b"k\0\0"[..], &deflated(8 * size())].concat();
        let international = [&b"k\0\x01\0\0\0"[..], &text[3..]].concat();
        // The first side is beyond the budget; the others are beyond the memory or just within it.
        for side in [40_000, 11_500, 9_000] {
            std::fs::write(&path, [png(side), chunk(b"IDAT", &zeros)].concat()).unwrap();
            is_refused(&cost(&format!("a PNG of {side} x {side}"), fetch));
        }
        for (kind, data) in [(b"iCCP", &text), (b"zTXt", &text), (b"iTXt", &international), (b"tEXt", &zeros)]
        {
            let many = chunk(kind, data).repeat((size() / data.len()).clamp(1, 1000));
            std::fs::write(&path, [png(2), many, chunk(b"IDAT", &[0; 9])].concat()).unwrap();
            is_refused(&cost(&format!("a PNG with {}", String::from_utf8_lossy(kind)), fetch));
        }
        for (kind, side) in [(0xc0, 65_535u16), (0xc2, 65_535), (0xc2, 11_900), (0xc2, 9_500), (0xc0, 9_500)]
        {
            let [high, low] = side.to_be_bytes();
            let frame = [0xff, kind, 0, 17, 8, high, low, high, low, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0];
            let scan = [0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, if kind == 0xc2 { 0 } else { 63 }, 0];
            let tables: Vec<u8> = [&[0xff, 0xdb, 0, 67, 0][..], &[1; 64]].concat();
            std::fs::write(&path, [&[0xff, 0xd8][..], &tables, &frame, &scan, &zeros].concat()).unwrap();
            cost(&format!("a JPEG of {side} x {side}"), fetch);
        }
    });
}

/// What a text is, and how it is made. Few of them are in memory at once.
type Case<'a> = (&'static str, &'a dyn Fn() -> String);

/// Returns a safetensors file with this header and no data.
fn header(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn headers_of_tensors() {
    with(|dir| {
        let path = dir.join("x.safetensors");
        let many = |entry: &dyn Fn(usize) -> String| {
            let (mut text, mut number) = (String::from("{"), 0);
            while text.len() < size() {
                text += &entry(number);
                text.push(',');
                number += 1;
            }
            text + &entry(number)
        };
        let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let notes = || many(&|number| format!(r#""{number:x}":"""#));
        let cases: [Case<'_>; 6] = [
            ("many tensors", &|| many(&|number| format!(r#""{number:x}":{tensor}"#)) + "}"),
            ("many notes", &|| format!(r#"{{"__metadata__":{}}}}}"#, notes())),
            ("a long shape", &|| {
                format!(r#"{{"x":{{"dtype":"U8","shape":[{}0]}}}}"#, "0,".repeat(size() / 2))
            }),
            ("a deep text", &|| "[".repeat(size())),
            ("unknown fields", &|| many(&|number| format!(r#""{number:x}":{{"":[0,0]}}"#)) + "}"),
            ("a long name", &|| format!(r#"{{"{}":{tensor}}}"#, "n".repeat(size()))),
        ];
        for (what, text) in cases {
            let file = header(&text());
            std::fs::write(&path, &file).unwrap();
            cost(&format!("{what}, data"), || Array::safetensors(&path, "x"));
            cost(&format!("{what}, tensors"), || parse_tensors(&path, &file).map_err(DataError::other));
            drop(file);
            cost(&format!("{what}, read"), || read_tensors(&path).map_err(DataError::other));
            cost(&format!("{what}, show"), || inspect::show(&path).map(drop).map_err(DataError::other));
        }
        // One byte is one element.
        let text = format!(r#"{{"x":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, size());
        std::fs::write(&path, [header(&text), vec![1; size()]].concat()).unwrap();
        for (what, run) in [
            (
                "show",
                (|path| inspect::show(path).map(drop)) as fn(&Path) -> Result<(), unisono_checkpoint::Error>,
            ),
            ("diff", |path| inspect::diff(path, path).map(drop)),
            ("export", |path| export_model(path, &inspect::model(path)?, &Default::default()).map(drop)),
        ] {
            let message =
                cost(&format!("a tensor of bytes, {what}"), || run(&path).map_err(DataError::other));
            assert_eq!(message, "taken");
        }
    });
}

/// Texts of JSON that are much larger when they are parsed.
const TEXTS: [Case<'static>; 6] = [
    ("maps of one entry", &|| list(r#"{"":0}"#)),
    ("zeros", &|| list("0")),
    ("texts", &|| list(r#""a""#)),
    ("lists", &|| list("[0]")),
    ("one map", &|| {
        let keys = (0..size() / 12).map(|number| format!(r#""{number:06x}":0,"#)).collect::<String>();
        format!(r#"{{{keys}"":0}}"#)
    }),
    ("depth", &|| "[".repeat(size())),
];

fn list(item: &str) -> String {
    format!("[{}0]", format!("{item},").repeat(size() / (item.len() + 1)))
}

#[test]
fn texts_of_checkpoints() {
    let scratch = Scratch::new();
    with(|dir| {
        for (what, text) in TEXTS {
            let text = text();
            let file = |name: &str| {
                std::fs::write(dir.join(name), &text).unwrap();
                dir.join(name)
            };
            let source = Memory::labelled([0.5, 1.0], [1], [0, 1]).unwrap();
            let path = file("statistics.json");
            cost(&format!("{what}, statistics"), || Statistics::saved(&path, &source, "x", Per::All, 1));
            std::fs::write(dir.join("m.safetensors"), header("{}")).unwrap();
            file("m.json");
            let export = || read_export(dir.join("m.safetensors")).map(drop).map_err(DataError::other);
            is_refused(&cost(&format!("{what}, model.json"), export));
            std::fs::create_dir_all(dir.join("run/checkpoints/step-00000001")).unwrap();
            let manifest = file("run/checkpoints/step-00000001/manifest.json");
            let checkpoint = || load(manifest.parent().unwrap()).map_err(DataError::other);
            is_refused(&cost(&format!("{what}, manifest"), checkpoint));
            is_refused(&cost(&format!("{what}, run"), || newest(dir.join("run")).map_err(DataError::other)));
            for (name, start, end) in [
                ("trainer", "\0", ""),
                ("trainer", "\0{\"version\":2,\"sections\":", "}"),
                ("trainer", "\0{\"version\":1,\"history\":", "}"),
                ("export", "\x01", ""),
                ("model", "\0", ""),
            ] {
                let Some(reader) = reader(name) else { continue };
                let bytes = [start, &text, end].concat();
                cost(&format!("{what}, {name}"), || {
                    (reader.read)(&scratch, bytes.as_bytes());
                    Ok(())
                });
            }
        }
    });
}
