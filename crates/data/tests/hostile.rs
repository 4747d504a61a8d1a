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
