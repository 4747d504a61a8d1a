//! Files made to harm: whatever bytes they hold, the outcome is an error or a sample, never a panic, and
//! never more memory than a file of their size could need.
//!
//! `UNISONO_MUTATIONS` sets how many mutations a format gets.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use unisono_data::{Array, Cifar, Column, Csv, DataError, Draws, ImageFolder, Source, Tokens, Width};

/// Counts the bytes that each thread has allocated and not yet freed, and their largest number so far.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Makes one to four changes to a file.
fn mutate(file: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=draws.below(4) {
        let at = draws.below(bytes.len() as u32 + 1) as usize;
        // Most harm is done in headers.
        let at = if draws.chance(0.5) { at.min(draws.below(64) as usize) } else { at };
        let end = (at + draws.below(16) as usize).min(bytes.len());
        let word = [0, 1, 0x7f, 0x80, 0xff, draws.below(256)][draws.below(6) as usize] as u8;
        match draws.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, file[..end.min(file.len())].iter().copied().take(40))),
            3 => bytes[at..end].fill(word),
            4 => bytes.extend_from_slice(&[word; 9]),
            5 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            _ if at < bytes.len() => bytes[at] = word,
            _ => bytes.clear(),
        }
    }
    bytes
}

fn mutations() -> u32 {
    std::env::var("UNISONO_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000)
}

/// The bytes that may be allocated for a file: a fixed number, and a number for each byte of the file.
struct Room(isize, isize);

/// Opens mutations of a file and fetches some of their samples.
fn survive(
    format: &str,
    good: &[u8],
    room: Room,
    open: impl Fn(&Path) -> Result<Box<dyn Source>, DataError>,
) {
    let dir = match Path::new("/dev/shm") {
        memory if memory.is_dir() => TempDir::new_in(memory).unwrap(),
        _ => TempDir::new().unwrap(),
    };
    let path = dir.path().join("class/file.png");
    std::fs::create_dir(dir.path().join("class")).unwrap();
    let (mut refused, mut most) = (0, 0);
    for number in 0..=mutations() {
        let mut draws = Draws::of(1, "hostile", format, 0, number.into());
        let bytes = if number == 0 { good.to_vec() } else { mutate(good, &mut draws) };
        std::fs::write(&path, &bytes).unwrap();
        let before = LIVE.get();
        PEAK.set(before);
        let outcome = open(&path).and_then(|source| {
            let last = source.len().saturating_sub(1);
            let _ = (source.describe(0), source.fingerprint());
            [0, 1, last].into_iter().filter(|&index| index <= last && !source.is_empty()).try_for_each(
                |index| {
                    let sample = source.fetch(index)?;
                    assert_eq!(sample.fields().count(), source.fields().len());
                    Ok(())
                },
            )
        });
        let took = PEAK.get() - before;
        most = most.max(took);
        let allowed = room.0 + room.1 * bytes.len() as isize;
        assert!(
            took <= allowed,
            "{format}: mutation {number} of {} bytes took {took}: {outcome:?}",
            bytes.len()
        );
        assert!(number > 0 || outcome.is_ok(), "{format}: {outcome:?}");
        refused += u32::from(outcome.is_err());
    }
    println!("{format}: {refused} of {} refused, at most {most} bytes allocated", mutations());
    assert!(refused > mutations() / 20, "{format}: {refused} refused");
}

fn given(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)).unwrap()
}

fn boxed(source: impl Source + 'static) -> Box<dyn Source> {
    Box::new(source)
}

fn array(array: Array) -> Box<dyn Source> {
    boxed(unisono_data::Arrays::new("x", array))
}

fn idx() -> Vec<u8> {
    [&[0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 5][..], &[7; 100]].concat()
}

const KIB: isize = 1024;

#[test]
fn idx_files() {
    survive("idx", &idx(), Room(16 * KIB, 16), |path| Array::idx(path).map(array));
}

#[test]
fn gzipped_idx_files() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&idx()).unwrap();
    // The fixed part is the decoder's window and tables; the rest is what deflate can make of a file.
    let room = Room(256 * KIB, 4 * 1032);
    survive("idx.gz", &encoder.finish().unwrap(), room, |path| Array::idx(path).map(array));
}

#[test]
fn cifar_files() {
    let good = [&[3][..], &[9; 3072]].concat();
    survive("cifar", &good, Room(64 * KIB, 16), |path| Cifar::ten([path]).map(boxed));
}

#[test]
fn csv_files() {
    let good = b"a,b,class\n1,2.5,0\n-3e2,4,1\n5,6,2\n";
    // This is for the readers' buffers.
    survive("csv", good, Room(96 * KIB, 64), |path| {
        Csv::new(path).header(true).label(Column::Name("class".into())).read().map(boxed)
    });
}

#[test]
fn npy_files() {
    survive("npy", &given("images.npy"), Room(16 * KIB, 32), |path| Array::npy(path).map(array));
}

#[test]
fn npz_files() {
    let open = |path: &Path| Array::npz(path, "images").map(array);
    survive("npz", &given("arrays.npz"), Room(256 * KIB, 64), open);
    survive("npz packed", &given("arrays_packed.npz"), Room(256 * KIB, 4 * 1032), open);
}

#[test]
fn safetensors_files() {
    let header = r#"{"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
    let good = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
    survive("safetensors", &good, Room(16 * KIB, 64), |path| Array::safetensors(path, "x").map(array));
}

#[test]
fn token_files() {
    survive("tokens", &[1; 100], Room(16 * KIB, 64), |path| Tokens::open(path, Width::U32, 3).map(boxed));
}

/// Returns the source of the folder that holds the file.
fn folder(path: &Path) -> Result<Box<dyn Source>, DataError> {
    let root: PathBuf = path.ancestors().nth(2).unwrap_or(path).into();
    ImageFolder::open(root).map(boxed)
}

#[test]
fn png_files() {
    survive("png", &given("pal.png"), Room(512 * KIB, 1032 * 16), folder);
}

#[test]
fn jpeg_files() {
    // A byte may hold 512 pixels of three channels: as bytes, as f32, and what the decoder keeps.
    let room = Room(512 * KIB, 512 * 3 * 16);
    survive("jpeg", &given("pil420.jpg"), Room(room.0, room.1), folder);
    survive("progressive jpeg", &given("pil.jpg"), room, folder);
}

/// Returns the message of the error that opening gives, and the most bytes that were allocated meanwhile.
fn cost<T>(open: impl FnOnce() -> Result<T, DataError>) -> (String, isize) {
    let before = LIVE.get();
    PEAK.set(before);
    let message = open().err().map_or_else(|| "taken".into(), |error| error.to_string());
    (message, PEAK.get() - before)
}

/// Writes `count` bytes, gzipped, to a file.
fn write_gzipped(path: &Path, byte: u8, count: usize) {
    use std::io::Write;
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    let block = vec![byte; 1 << 16];
    (0..count >> 16).for_each(|_| encoder.write_all(&block).unwrap());
    encoder.finish().unwrap();
}

#[test]
fn a_line_without_end_is_refused_at_the_limit() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("line.csv.gz");
    write_gzipped(&path, b'1', 64 << 20);
    let (message, took) = cost(|| Csv::new(&path).read());
    let expected = "line.csv.gz: the text of line 1, which may take a 64th of the budget, takes 33554433 \
                    bytes, and the limit is 33554432: raise it with `Csv::most_bytes`";
    assert!(message.ends_with(expected), "{message}");
    assert!(took < 160 << 20, "{took} bytes");
    // A quoted value goes on over the ends of lines.
    write_gzipped(&path, b'\n', 1 << 20);
    let packed = std::fs::read(&path).unwrap();
    let quoted = [&gzipped(b"\"")[..], &packed[..]].concat();
    std::fs::write(&path, quoted).unwrap();
    let (message, took) = cost(|| Csv::new(&path).most_bytes(1 << 20).read());
    assert!(message.contains("the limit is 65536: raise it with `Csv::most_bytes`"), "{message}");
    assert!(took < 2 << 20, "{took} bytes");
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_table_keeps_to_its_budget() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("table.csv");
    std::fs::write(&path, "1,2\n".repeat(100_000)).unwrap();
    let table = || Csv::new(&path).target(Column::Last);
    assert_eq!(table().most_bytes(800_000).read().unwrap().len(), 100_000);
    let (message, took) = cost(|| table().most_bytes(799_999).read());
    let expected = "table.csv: the table up to line 100000 takes 800000 bytes, and the limit is 799999: raise it with \
                    `Csv::most_bytes`";
    assert!(message.ends_with(expected), "{message}");
    assert!(took < 2 << 20, "{took} bytes");
}

#[test]
fn what_is_unpacked_keeps_to_its_budget() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x.idx.gz");
    std::fs::write(&path, gzipped(&idx())).unwrap();
    assert!(Array::idx_within(&path, 116).is_ok());
    let (message, _) = cost(|| Array::idx_within(&path, 115));
    let expected =
        "the unpacked array takes 116 bytes, and the limit is 115: raise it with `Array::idx_within`";
    assert!(message.ends_with(expected), "{message}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/arrays_packed.npz");
    assert!(Array::npz(&path, "images").is_ok());
    let (message, _) = cost(|| Array::npz_within(&path, "images", 10));
    assert!(message.ends_with("and the limit is 10: raise it with `Array::npz_within`"), "{message}");
}

/// Returns the start of a PNG file of three channels, and zeros where its pixels should be.
fn png_of(side: u32, zeros: u32) -> Vec<u8> {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        [&(data.len() as u32).to_be_bytes(), &kind[..], data, &crc.sum().to_be_bytes()].concat()
    };
    let side = side.to_be_bytes();
    let header = chunk(b"IHDR", &[&side[..], &side, &[8, 2, 0, 0, 0]].concat());
    [b"\x89PNG\r\n\x1a\n", &header[..], &chunk(b"IDAT", &vec![0; zeros as usize])].concat()
}

#[test]
fn a_huge_picture_is_refused_before_it_is_decoded() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("class/huge.png");
    std::fs::create_dir(dir.path().join("class")).unwrap();
    std::fs::write(&path, png_of(20_000, 1_300_000)).unwrap();
    let (message, took) = cost(|| ImageFolder::open(dir.path())?.fetch(0));
    let expected = "huge.png: a picture of 20000 x 20000 takes 6001300045 bytes, and the limit is 2147483648: raise it \
                    with `ImageFolder::most_bytes`";
    assert!(message.ends_with(expected), "{message}");
    assert!(took < 4 << 20, "{took} bytes");
    // The budget covers the file, and what it is resized to.
    let given = |name: &str| std::fs::write(&path, given(name)).unwrap();
    for (name, format) in [("pal.png", "PNG"), ("pil420.jpg", "JPEG")] {
        given(name);
        let open = || ImageFolder::open(dir.path());
        assert!(open().unwrap().fetch(0).is_ok(), "{format}");
        let (message, _) = cost(|| open()?.most_bytes(4000).fetch(0));
        assert!(message.contains("the limit is 4000"), "{format}: {message}");
        let (message, _) = cost(|| open()?.size(1 << 40, usize::MAX).fetch(0));
        assert!(message.contains("takes more bytes than can be counted"), "{format}: {message}");
    }
}

#[test]
fn stored_arrays_are_checked_against_the_archives_checksum() {
    let good = given("arrays.npz");
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("arrays.npz");
    std::fs::write(&path, &good).unwrap();
    let array = Array::npz(&path, "images").unwrap();
    let row: Vec<u8> = match array.row(1).unwrap() {
        unisono_data::Values::F32(row) => row.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => panic!("images are f32"),
    };
    let at = good.windows(row.len()).position(|window| window == row).unwrap();
    let mut bad = good.clone();
    bad[at] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let (message, _) = cost(|| Array::npz(&path, "images"));
    assert!(message.to_lowercase().contains("checksum"), "{message}");
}

#[test]
fn names_that_occur_twice_in_safetensors_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x.safetensors");
    let tensor = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let twice = [
        ("x", format!(r#"{{"x":{tensor},"x":{tensor}}}"#)),
        ("x", format!(r#"{{"x":{tensor},"\u0078":{tensor}}}"#)),
        ("__metadata__", format!(r#"{{"__metadata__":{{}},"x":{tensor},"__metadata__":{{}}}}"#)),
    ];
    for (name, header) in twice {
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
        std::fs::write(&path, file).unwrap();
        let (message, _) = cost(|| Array::safetensors(&path, "x"));
        assert!(message.contains(&format!("the name {name:?} occurs twice")), "{header}: {message}");
    }
}

/// Opens each format in a thread of its own, so that a hang is a failure.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("class")).unwrap();
    let pipe = dir.path().join("class/x.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let zero = PathBuf::from("/dev/zero");
    for path in [pipe, zero] {
        let (done, outcome) = std::sync::mpsc::channel();
        let root = dir.path().to_path_buf();
        let opened = path.clone();
        std::thread::spawn(move || {
            let message = |result: Result<(), DataError>| result.unwrap_err().to_string();
            let _ = done.send(("csv", message(Csv::new(&opened).read().map(drop))));
            let _ = done.send(("idx", message(Array::idx(&opened).map(drop))));
            let _ = done.send(("npy", message(Array::npy(&opened).map(drop))));
            let _ = done.send(("npz", message(Array::npz(&opened, "x").map(drop))));
            let _ = done.send(("safetensors", message(Array::safetensors(&opened, "x").map(drop))));
            let _ = done.send(("cifar", message(Cifar::ten([&opened]).map(drop))));
            let _ = done.send(("tokens", message(Tokens::open(&opened, Width::U8, 4).map(drop))));
            let _ = done
                .send(("pictures", message(ImageFolder::open(root).and_then(|all| all.fetch(0)).map(drop))));
        });
        for _ in 0..8 {
            let (format, message) = outcome.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
            assert!(message.ends_with("not a regular file"), "{format} of {}: {message}", path.display());
        }
    }
}
