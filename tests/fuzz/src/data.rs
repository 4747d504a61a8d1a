//! The readers of the crate `unisono-data`. In most, the first byte chooses options.

use std::io::{Cursor, Write};

use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use unisono_data::{
    Array, Arrays, Cifar, Column, Csv, DataError, Field, FieldDType, ImageFolder, Lines, Memory, Per, Replay,
    Sample, Source, Statistics, TarShards, Tokens, Vocabulary, WavFolder, Width,
};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::scratch::{Scratch, flags};

/// Fetches the first samples and the last of a source, and checks that they are what it promises.
fn fetch(source: Result<impl Source, DataError>) {
    let Ok(source) = source else { return };
    let last = source.len().saturating_sub(1);
    let _ = (source.describe(0), source.describe(u64::MAX), source.fingerprint());
    assert!(source.fetch(source.len()).is_err());
    for index in [0, 1, last] {
        let Ok(sample) = source.fetch(index) else { continue };
        for (spec, (name, field)) in source.fields().iter().zip(sample.fields()) {
            assert_eq!((&*spec.name, spec.dtype), (&**name, field.values.dtype()));
            assert_eq!(
                Some(field.values.len()),
                field.shape.iter().try_fold(1, |n: usize, &d| n.checked_mul(d))
            );
        }
    }
}

fn array(array: Result<Array, DataError>) {
    if let Ok(array) = &array {
        fetch(array.clone().cast(FieldDType::I32).map(|array| Arrays::new("x", array)));
    }
    fetch(array.map(|array| Arrays::new("x", array)));
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

pub(crate) fn csv(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let path = if flags & 32 > 0 { scratch.file("x", &gzipped(rest)) } else { scratch.file("x", rest) };
    let csv = Csv::new(path).header(flags & 1 > 0).delimiter(if flags & 8 > 0 { b';' } else { b',' });
    let csv = match flags >> 1 & 3 {
        0 => csv,
        1 => csv.label(Column::Last),
        2 => csv.target(Column::First),
        _ => csv.label(Column::Name("y".into())),
    };
    fetch(if flags & 16 > 0 { csv.shape([2]).read() } else { csv.read() });
}

pub(crate) fn idx(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let packed = if flags & 1 > 0 { gzipped(rest) } else { rest.to_vec() };
    array(Array::idx(scratch.file("x", &packed)));
}

pub(crate) fn npy(scratch: &Scratch, bytes: &[u8]) {
    array(Array::npy(scratch.file("x", bytes)));
}

/// Reads an archive, or one whose only member, with the right checksum, is what is given.
pub(crate) fn npz(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let path = match flags & 3 {
        1 => scratch.file("x", &zipped(rest, CompressionMethod::Stored)),
        2 => scratch.file("x", &zipped(rest, CompressionMethod::Deflated)),
        _ => scratch.file("x", rest),
    };
    array(Array::npz(path, "x"));
}

fn zipped(npy: &[u8], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("x.npy", SimpleFileOptions::default().compression_method(method)).expect("memory");
    zip.write_all(npy).expect("memory");
    zip.finish().expect("memory").into_inner()
}

pub(crate) fn cifar(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let mut bytes = rest.to_vec();
    if flags & 2 > 0 {
        bytes.resize(rest.len().next_multiple_of(if flags & 1 > 0 { 3074 } else { 3073 }), 7);
    }
    let path = scratch.file("x", &bytes);
    fetch(if flags & 1 > 0 { Cifar::hundred([&path, &path]) } else { Cifar::ten([path]) });
}

fn picture(scratch: &Scratch, flags: u8, file: &[u8]) {
    picture_of(scratch, "png", flags, file);
}

/// Reads a picture whose name has an ending. Few inputs may take as much memory as users' may, since to fill
/// it takes the time of thousands of small pictures.
fn picture_of(scratch: &Scratch, ending: &str, flags: u8, file: &[u8]) {
    scratch.file(&format!("pictures/class/x.{ending}"), file);
    let folder = ImageFolder::open(scratch.path("pictures"));
    let folder = folder.map(|folder| if flags & 2 > 0 { folder.grayscale() } else { folder });
    let folder = folder.map(|folder| if flags & 4 > 0 { folder.size(3, 5) } else { folder });
    fetch(folder.map(|folder| if flags >> 3 == 31 { folder } else { folder.most_bytes(16 << 20) }));
}

pub(crate) fn png(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let mut file = rest.to_vec();
    if flags & 1 > 0 {
        with_checksums(&mut file);
    }
    picture(scratch, flags, &file);
}

/// Gives the chunks of a PNG file the right checksums, so that what is in them is looked at.
fn with_checksums(file: &mut [u8]) {
    let mut at = 8;
    while let Some(head) = file.get(at..at + 8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let end = at + 8 + length;
        let Some(data) = file.get(at + 4..end) else { return };
        let mut crc = Crc::new();
        crc.update(data);
        let sum = crc.sum().to_be_bytes();
        let Some(place) = file.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&sum);
        at = end + 4;
    }
}

pub(crate) fn jpeg(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    picture(scratch, flags, rest);
}

/// Makes readers of pictures, each by the ending of its files.
macro_rules! more_pictures {
    ($($ending:ident),+) => {$(
        #[cfg(feature = "more-pictures")]
        pub(crate) fn $ending(scratch: &Scratch, bytes: &[u8]) {
            let (flags, rest) = flags(bytes);
            picture_of(scratch, stringify!($ending), flags, rest);
        }
    )+};
}

more_pictures!(webp, bmp, gif, tiff);

/// Reads a Parquet or an Arrow file with the columns of the kept inputs.
#[cfg(feature = "columnar")]
pub(crate) fn columnar(scratch: &Scratch, bytes: &[u8]) {
    let path = scratch.file("x", bytes);
    let table = || unisono_data::Columnar::new([&path]).most_bytes(64 << 20);
    fetch(table().numbers(["row", "speed"]).missing(unisono_data::Missing::Median).open());
    let ids = |text: &str| Ok(text.bytes().map(i32::from).collect());
    fetch(table().list("tokens").category("city").text("class", 4, ids).label("row").open());
}

pub(crate) fn tokens(scratch: &Scratch, bytes: &[u8]) {
    let &[flags, context, stride, ref rest @ ..] = bytes else { return };
    let width = [Width::U8, Width::U16, Width::U32, Width::U8][usize::from(flags & 3)];
    let context = if flags & 8 > 0 { usize::MAX - usize::from(context) } else { context.into() };
    let tokens = Tokens::open(scratch.file("x", rest), width, context);
    let tokens = tokens.map(|tokens| tokens.stride(stride.into()));
    fetch(tokens.map(|tokens| if flags & 4 > 0 { tokens.vocabulary(100) } else { tokens }));
}

pub(crate) fn safetensors(scratch: &Scratch, bytes: &[u8]) {
    array(Array::safetensors(scratch.file("x", &with_length(bytes)), "x"));
}

/// Returns a safetensors file. If the first byte is odd, what is before the first zero byte is its header,
/// which gets its length.
pub(crate) fn with_length(bytes: &[u8]) -> Vec<u8> {
    let (flags, rest) = flags(bytes);
    if flags & 1 == 0 {
        return rest.to_vec();
    }
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let data = rest.get(end + 1..).unwrap_or_default();
    [&(end as u64).to_le_bytes(), &rest[..end], data].concat()
}

pub(crate) fn statistics(scratch: &Scratch, bytes: &[u8]) {
    let source = Memory::labelled([0.5, 1.0, 2.0, 4.0], [2], [0, 1]).expect("four values");
    let path = scratch.file("x", bytes);
    let statistics = Statistics::saved(&path, &source, "x", Per::Channel, 1).expect("statistics");
    assert_eq!(statistics.mean.len(), statistics.deviation.len());
}

/// Reads a tar archive. If the first byte is odd, the headers in it get the right check sums.
pub(crate) fn tar(scratch: &Scratch, bytes: &[u8]) {
    let (flags, rest) = flags(bytes);
    let mut file = rest.to_vec();
    if flags & 1 > 0 {
        file.chunks_exact_mut(512).filter(|block| block.starts_with(b"a")).for_each(with_sum);
    }
    fetch(TarShards::open([scratch.file("x", &file)], |files| {
        let lengths: Vec<i32> = files
            .extensions()
            .map(|extension| files.bytes(extension).map(|bytes| bytes.len() as i32))
            .collect::<Result<_, _>>()?;
        let sum = lengths.iter().fold(0_i32, |sum, length| sum.wrapping_add(*length));
        Ok(Sample::new().with("x", Field::i32([], [sum])))
    }));
}

/// Gives a header of a tar archive the right check sum.
fn with_sum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

pub(crate) fn lines(scratch: &Scratch, bytes: &[u8]) {
    let path = scratch.file("x", bytes);
    fetch(Lines::open([&path, &path], |line| {
        Ok(Sample::new().with("x", Field::i32([], [line.len() as i32])))
    }));
}

pub(crate) fn wav(scratch: &Scratch, bytes: &[u8]) {
    scratch.file("sounds/class/x.wav", bytes);
    let folder = WavFolder::open(scratch.path("sounds"));
    fetch(folder.map(|folder| folder.most_bytes(16 << 20).length(7)));
}

pub(crate) fn vocabulary(scratch: &Scratch, bytes: &[u8]) {
    let path = scratch.file("x", bytes);
    let Ok(vocabulary) = Vocabulary::open(&path) else { return };
    let ids = vocabulary.encode("a text, and another");
    assert!(ids.iter().all(|id| (1..vocabulary.len() as i32).contains(id)));
    vocabulary.save(&path).expect("a vocabulary of the same size or less");
    assert_eq!(Vocabulary::open(&path).expect("what was saved"), vocabulary);
}

pub(crate) fn replay(scratch: &Scratch, bytes: &[u8]) {
    let Ok(mut replay) = Replay::open(scratch.file("x", &with_length(bytes))) else { return };
    if let Ok(batch) = replay.draw(3) {
        assert_eq!(batch.len(), 3);
    }
    let _ = replay.push(&Sample::new().with("x", Field::f32([1], [0.5])));
}
