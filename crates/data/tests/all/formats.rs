//! Files of each format, right ones and those with the commonest mistakes.

mod pictures;

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use unisono_data::{
    Array, Arrays, Cifar, DataError, Element, Field, FieldDType, ImageFolder, Loader, Source, Tokens, Values,
    Width, augment,
};

/// A file written by another program.
fn given(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

fn written(dir: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Returns the message of a failure, after the directory.
fn message<T>(result: Result<T, DataError>) -> String {
    let Err(error) = result else { panic!("no error") };
    let text = error.to_string();
    text.split_once('/').and_then(|_| text.rsplit_once('/')).map_or(text.clone(), |(_, rest)| rest.to_owned())
}

fn idx(kind: u8, shape: &[u32], elements: &[u8]) -> Vec<u8> {
    let extents = shape.iter().flat_map(|extent| extent.to_be_bytes());
    [0, 0, kind, shape.len() as u8].into_iter().chain(extents).chain(elements.iter().copied()).collect()
}

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn idx_plain_and_gzipped() {
    let dir = TempDir::new().unwrap();
    let images = idx(8, &[3, 2, 2], &(0..12).collect::<Vec<u8>>());
    let labels = idx(8, &[3], &[7, 0, 9]);
    let plain = Arrays::labelled(
        Array::idx(written(&dir, "images", &images)).unwrap(),
        Array::idx(written(&dir, "labels", &labels)).unwrap(),
    )
    .unwrap();
    let packed = Arrays::labelled(
        Array::idx(written(&dir, "images.gz", gzip(&images))).unwrap(),
        Array::idx(written(&dir, "labels.gz", gzip(&labels))).unwrap(),
    )
    .unwrap();
    for source in [&plain, &packed] {
        assert_eq!(source.len(), 3);
        let sample = source.fetch(2).unwrap();
        assert_eq!(sample.field("x"), Some(&Field::f32([2, 2], [8., 9., 10., 11.])));
        assert_eq!(sample.field("y"), Some(&Field::i32([], [9])));
        assert!(source.fetch(3).is_err());
    }
    assert_eq!(plain.fingerprint(), packed.fingerprint());
    let wide = Array::idx(written(&dir, "wide", idx(0x0c, &[2], &[0, 0, 1, 0, 255, 255, 255, 255]))).unwrap();
    assert_eq!((wide.element(), wide.row(0).unwrap()), (Element::I32, Values::I32(vec![256])));
    let deep = Array::idx(written(&dir, "deep", idx(0x0d, &[1; 9], &1.5f32.to_be_bytes()))).unwrap();
    assert_eq!((deep.shape(), deep.row(0).unwrap()), (&[1; 9][..], Values::F32(vec![1.5])));

    let error = |bytes: &[u8]| message(Array::idx(written(&dir, "bad", bytes)));
    assert_eq!(error(&images[..27]), "bad: declares 28 bytes, holds 27");
    assert_eq!(error(&[&images[..], &[0]].concat()), "bad: declares 28 bytes, holds 29");
    assert_eq!(error(&gzip(&images[..27])), "bad: declares 28 bytes, holds 27");
    assert_eq!(
        error(&idx(8, &[u32::MAX; 3], &[])),
        "bad: shape [4294967295, 4294967295, 4294967295] is too large"
    );
    assert_eq!(
        error(&gzip(&idx(8, &[1 << 31], &[]))),
        "bad: declares 2147483656 bytes, more than it can hold"
    );
    assert_eq!(error(&idx(7, &[1], &[0])), "bad: not an IDX file: 0x07 is no element type");
    assert_eq!(error(&[0, 0, 8, 3, 0]), "bad: cut off within the header");
    assert!(error(b"").contains("not an IDX file") && error(b"PK34").contains("not an IDX file"));
    assert!(message(Array::idx(dir.path())).ends_with("not a regular file"));
    assert_eq!(message(Arrays::labelled(wide.clone(), deep)), "deep: F32 elements cannot be read as i32");
    assert_eq!(plain.with("z", wide).unwrap_err().to_string(), "field 'z': 2 samples, but 'x' has 3");
}

#[test]
fn numpy_reads_back() {
    for name in ["arrays.npz", "arrays_packed.npz"] {
        let images = Array::npz(given(name), "images").unwrap();
        assert_eq!((images.shape(), images.row(1).unwrap()), (&[3, 2][..], Values::F32(vec![0.5, 0.75])));
        let labels = Array::npz(given(name), "labels").unwrap();
        assert_eq!((labels.element(), labels.row(0).unwrap()), (Element::I64, Values::I32(vec![2])));
        assert_eq!(Arrays::labelled(images, labels).unwrap().len(), 3);
        assert_eq!(message(Array::npz(given(name), "z")), format!("{name}: no array \"z\""));
    }
    let halves = Array::npy(given("images.npy")).unwrap();
    assert_eq!((halves.element(), halves.row(2).unwrap()), (Element::F16, Values::F32(vec![1.0, 1.25])));
    let fortran = message(Array::npy(given("fortran.npy")));
    assert_eq!(fortran, "fortran.npy: in Fortran order; save numpy.ascontiguousarray(array)");
    assert!(message(Array::npy(given("pal.png"))).contains("not a .npy file"));
    assert!(message(Array::npz(given("pal.png"), "a")).starts_with("pal.png: "));
}

#[test]
fn safetensors() {
    let dir = TempDir::new().unwrap();
    let file = |header: &str, data: &[u8]| {
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        written(&dir, "data.safetensors", bytes)
    };
    let header = r#"{"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}}"#;
    let path = file(header, &[0, 0, 128, 63, 0, 0, 0, 64, 5, 6]);
    let x = Array::safetensors(&path, "x").unwrap();
    let source = Arrays::labelled(x, Array::safetensors(&path, "y").unwrap()).unwrap();
    let sample = source.fetch(1).unwrap();
    assert_eq!(sample.field("x"), Some(&Field::f32([1], [2.0])));
    assert_eq!(sample.field("y"), Some(&Field::i32([], [6])));
    assert_eq!(message(Array::safetensors(&path, "z")), "data.safetensors: no tensor \"z\"");
    let short = file(header, &[0; 4]);
    assert_eq!(
        message(Array::safetensors(&short, "x")),
        "data.safetensors: the tensors take 10 bytes, the file holds 4"
    );
    let huge =
        header.replace("[2,1]", "[18446744073709551615,2]").replace("[0,8]", "[0,18446744073709551615]");
    assert!(Array::safetensors(file(&huge, &[0; 10]), "x").is_err());
    let long = written(&dir, "long.safetensors", u64::MAX.to_le_bytes());
    assert_eq!(
        message(Array::safetensors(long, "x")),
        "long.safetensors: a header of 18446744073709551615 bytes in a file of 8"
    );
}

#[test]
fn cifar_both_ways() {
    let dir = TempDir::new().unwrap();
    let record = |labels: &[u8]| [labels, &[10; 1024], &[20; 1024], &[30; 1024]].concat();
    let one = written(&dir, "1.bin", [record(&[3]), record(&[9])].concat());
    let two = written(&dir, "2.bin", record(&[12]));
    let ten = Cifar::ten([&one, &two]).unwrap();
    assert_eq!((ten.len(), ten.fields()[0].shape.clone()), (3, vec![32, 32, 3]));
    let sample = ten.fetch(1).unwrap();
    assert_eq!(sample.field("y"), Some(&Field::i32([], [9])));
    assert_eq!(sample.field("x").unwrap().values.as_f32().unwrap()[..4], [10., 20., 30., 10.]);
    let error = Loader::new(ten).batch(3).epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.ends_with("2.bin: image 0: fetch: class 12 is not one of 10"), "{error}");
    let hundred = Cifar::hundred([written(&dir, "train.bin", record(&[19, 99]))]).unwrap();
    assert_eq!(hundred.fetch(0).unwrap().field("y"), Some(&Field::i32([], [99])));
    assert_eq!(message(Cifar::hundred([one])), "1.bin: 6146 bytes are not a whole number of records of 3074");
    assert!(Cifar::ten([written(&dir, "empty.bin", [])]).is_err());
}

#[test]
fn tokens_in_windows() {
    let dir = TempDir::new().unwrap();
    let tokens: Vec<u8> = (0..10u16).flat_map(|token| (token * 300).to_le_bytes()).collect();
    let path = written(&dir, "tokens.bin", &tokens);
    let source = Tokens::open(&path, Width::U16, 3).unwrap();
    assert_eq!((source.len(), source.tokens()), (3, 10));
    let sample = source.fetch(2).unwrap();
    assert_eq!(sample.field("x"), Some(&Field::i32([3], [1800, 2100, 2400])));
    assert_eq!(sample.field("y"), Some(&Field::i32([3], [2100, 2400, 2700])));
    assert!(source.fetch(3).is_err());
    let held = Tokens::in_memory("tokens", tokens.clone(), Width::U16, 3).unwrap();
    assert_eq!((held.fetch(2).unwrap(), held.fingerprint()), (sample.clone(), source.fingerprint()));
    let every = source.clone().stride(1);
    assert_eq!((every.len(), every.fetch(6).unwrap().field("y")), (7, sample.field("y")));
    assert!(every.overlaps() && !source.overlaps());
    assert_eq!(
        source.clone().vocabulary(2000).fetch(2).unwrap_err().to_string(),
        "token 2100 in a vocabulary of 2000"
    );
    assert_ne!(every.fingerprint(), source.fingerprint());
    let wide = written(&dir, "wide.bin", u32::MAX.to_le_bytes().repeat(4));
    let error = Tokens::open(wide, Width::U32, 2).unwrap().fetch(0).unwrap_err();
    assert_eq!(error.to_string(), "4294967295 does not fit an i32");
    assert_eq!(
        message(Tokens::open(&path, Width::U16, 10)),
        "tokens.bin: 10 tokens hold no window of 10 and a target"
    );
    assert!(
        Tokens::open(&path, Width::U16, 0).is_err() && Tokens::open(&path, Width::U8, usize::MAX).is_err()
    );
    let odd = written(&dir, "odd.bin", &tokens[..7]);
    assert_eq!(
        message(Tokens::open(odd, Width::U16, 1)),
        "odd.bin: 7 bytes are not a whole number of tokens of 2"
    );
}

/// Returns the root mean square distance from the picture that they all show.
fn distance(image: &[f32], channels: usize) -> f32 {
    let original = |at: usize| (at % 251) as f32;
    let value = |i: usize| match channels {
        3 => original(i),
        _ => 0.299 * original(3 * i) + 0.587 * original(3 * i + 1) + 0.114 * original(3 * i + 2),
    };
    let squares: f32 = image.iter().enumerate().map(|(i, x)| (x - value(i)).powi(2)).sum();
    (squares / image.len() as f32).sqrt()
}

#[test]
fn an_image_folder() {
    let dir = TempDir::new().unwrap();
    let copy = |from: &str, to: &str| written(&dir, to, std::fs::read(given(from)).unwrap());
    for (from, to) in [
        ("pil.jpg", "cat/b.JPG"),
        ("pil420.jpg", "cat/a.jpeg"),
        ("grey.jpg", "Dog/1.jpg"),
        ("pal.png", "dog/1.png"),
        ("pal.png", "dog/.hidden.png"),
        ("pal.png", "loose.png"),
    ] {
        copy(from, to);
    }
    written(&dir, "dog/notes.txt", "not a picture");
    let folder = ImageFolder::open(dir.path()).unwrap();
    assert_eq!(folder.class_names(), ["Dog", "cat", "dog"]);
    let files: Vec<_> = (0..folder.len()).map(|i| folder.describe(i)).collect();
    let expected = ["Dog/1.jpg", "cat/a.jpeg", "cat/b.JPG", "dog/1.png"];
    assert!(
        files.len() == 4 && files.iter().zip(expected).all(|(file, end)| file.ends_with(end)),
        "{files:?}"
    );
    for (index, class, limit) in [(0, 0, 60.0), (1, 1, 40.0), (2, 1, 40.0), (3, 2, 60.0)] {
        let sample = folder.fetch(index).unwrap();
        let image = sample.field("x").unwrap();
        assert_eq!(
            (image.shape.as_slice(), sample.field("y")),
            (&[12, 20, 3][..], Some(&Field::i32([], [class])))
        );
        let far = distance(image.values.as_f32().unwrap(), 3);
        assert!(far < limit, "{index}: {far}");
    }
    let grey = folder.clone().grayscale().size(12, 20);
    for index in 0..4 {
        let sample = grey.fetch(index).unwrap();
        assert_eq!(sample.field("x").unwrap().shape, [12, 20, 1]);
        let far = distance(sample.field("x").unwrap().values.as_f32().unwrap(), 1);
        assert!(far < 45.0, "{index}: {far}");
    }
    let small = folder.clone().size(4, 6);
    assert_eq!(small.fields()[0].shape, [4, 6, 3]);
    assert_eq!(Loader::new(small).batch(4).epoch(0).unwrap().next().unwrap().unwrap().len(), 4);

    std::fs::write(dir.path().join("cat/b.JPG"), &std::fs::read(given("pil.jpg")).unwrap()[..400]).unwrap();
    let crop = augment::resized_crop("x", [4, 4], [0.5, 1.0], [1.0, 1.0]);
    let loader = Loader::new(folder).try_map("crop", crop);
    let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("cat/b.JPG: fetch: decode: JPEG: "), "{error}");
    let batch = loader.skip_bad(1).epoch(0).unwrap().next().unwrap().unwrap();
    assert_eq!((batch.indices, batch.skipped), (vec![0, 1, 3], vec![2]));

    let empty = TempDir::new().unwrap();
    assert!(message(ImageFolder::open(empty.path())).contains("no pictures in directories of classes"));
    assert!(ImageFolder::open(empty.path().join("missing")).is_err());
}

/// Checks that the same digits as IDX files and as a folder of pictures, in the same order, make the same
/// batches.
#[test]
fn a_folder_made_of_idx_files_is_the_same_data() {
    let dir = TempDir::new().unwrap();
    let pixels: Vec<u8> = (0..30 * 28 * 28).map(|i| (i * i / 77 % 256) as u8).collect();
    // They are sorted by class, as a folder is.
    let labels: Vec<u8> = (0..30).map(|i| i / 3).collect();
    for (at, (image, label)) in pixels.chunks(28 * 28).zip(&labels).enumerate() {
        let path = written(&dir, &format!("digits/{label}/{at:05}.png"), []);
        let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), 28, 28);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(image).unwrap();
    }
    let images = Array::idx(written(&dir, "images", idx(8, &[30, 28, 28, 1], &pixels))).unwrap();
    let labels = Array::idx(written(&dir, "labels", idx(8, &[30], &labels))).unwrap();
    let of_idx = Loader::new(Arrays::labelled(images, labels).unwrap());
    let of_folder =
        Loader::new(ImageFolder::open(dir.path().join("digits")).unwrap().grayscale().size(28, 28));
    let batches = |loader: Loader| {
        let loader = loader.batch(8).shuffle(42).try_map("crop", augment::random_crop("x", [28, 28], 2));
        loader.epoch(0).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!(batches(of_idx), batches(of_folder));
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9.png");
    std::fs::create_dir(dir.path().join("class")).unwrap();
    std::fs::copy(given("pal.png"), dir.path().join("class").join(odd)).unwrap();
    // The name of a file is only bytes to sort by, but that of a class must be text.
    assert_eq!(
        ImageFolder::open(dir.path()).unwrap().fetch(0).unwrap().field("y"),
        Some(&Field::i32([], [0]))
    );
    std::fs::create_dir(dir.path().join(odd)).unwrap();
    assert!(message(ImageFolder::open(dir.path())).ends_with("the name is not UTF-8"));
}

#[test]
fn arrays_are_cast_as_asked() {
    let labels = Array::npz(given("arrays.npz"), "labels").unwrap();
    assert_eq!(labels.cast(FieldDType::F32).unwrap().row(0).unwrap(), Values::F32(vec![2.0]));
}

/// Returns a .npy file of version 1.
fn npy(of: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{of}', 'fortran_order': False, 'shape': {shape}, }}").into_bytes();
    header.resize(117, b' ');
    header.push(b'\n');
    [b"\x93NUMPY\x01\x00\x76\x00", &header[..], values].concat()
}

#[test]
fn numbers_of_arrays_that_f32_does_not_hold_are_named() {
    let dir = TempDir::new().unwrap();
    let times = [1_700_000_000_i64, 16_777_216, 1_700_000_001, 1_700_000_002];
    let advice = "Array::scaled, Array::rounded, or Array::cast to i32 says what is meant";
    let bytes = |of: &str| -> Vec<u8> {
        match of {
            "<i8" => times.iter().flat_map(|time| time.to_le_bytes()).collect(),
            "<u8" => times.iter().flat_map(|time| (*time as u64).to_le_bytes()).collect(),
            "<i4" => times.iter().flat_map(|time| (*time as i32).to_le_bytes()).collect(),
            ">u4" => times.iter().flat_map(|time| (*time as u32).to_be_bytes()).collect(),
            _ => times.iter().flat_map(|time| (*time as f64).to_le_bytes()).collect(),
        }
    };
    for of in ["<i8", "<u8", "<i4", ">u4", "<f8"] {
        let path = written(&dir, "times.npy", npy(of, "(2, 2)", &bytes(of)));
        let array = || Array::npy(&path).unwrap();
        let floats = || array().cast(FieldDType::F32).unwrap();
        assert_eq!(floats().row(0).unwrap(), Values::F32(vec![1.7e9, 16_777_216.0]), "{of}");
        let error = message(floats().row(1));
        let wanted = format!("row 1: element 0 is 1700000001, which f32 does not hold: {advice}");
        assert!(error.ends_with(&wanted), "{of}: {error}");
        assert_eq!(floats().rounded().row(1).unwrap(), Values::F32(vec![1.7e9, 1.7e9]), "{of}");
        let scaled = array().scaled(1.7e9, 0.5);
        assert_eq!(scaled.row(1).unwrap(), Values::F32(vec![2.0, 4.0]), "{of}");
        let [plain, scaled] = [floats(), scaled].map(|array| Arrays::new("x", array));
        assert_ne!(plain.fingerprint(), scaled.fingerprint());
        if of != "<f8" {
            let whole = array().row(1).unwrap();
            assert_eq!(whole, Values::I32(vec![1_700_000_001, 1_700_000_002]), "{of}");
        }
    }
    let path = written(&dir, "labels.npy", npy("<u4", "(2,)", &[7, u32::MAX].map(u32::to_le_bytes).concat()));
    let error = message(Array::npy(&path).unwrap().row(1));
    assert_eq!(error, "labels.npy: row 1: 4294967295 does not fit an i32");
    for (offset, scale) in [(0.0, 0.0), (0.0, f64::NAN), (0.0, f64::INFINITY), (f64::INFINITY, 1.0)] {
        let error = Array::npy(&path).unwrap().scaled(offset, scale).row(0).unwrap_err().to_string();
        assert!(error.starts_with("Array::scaled: "), "{error}");
    }
    // f64 that only lose digits are rounded; those out of the range of f32 are not.
    let row = |values: [f64; 2]| {
        let bytes = values.map(f64::to_le_bytes).concat();
        Array::npy(written(&dir, "reals.npy", npy("<f8", "(1, 2)", &bytes))).unwrap().row(0)
    };
    assert_eq!(row([0.1, 1.0 / 3.0]).unwrap(), Values::F32(vec![0.1, 1.0 / 3.0]));
    assert!(row([f64::NAN, f64::INFINITY]).is_ok());
    for lost in [1e39, 1e-50, 1_700_000_001.25] {
        assert!(message(row([0.5, lost])).contains(&format!("element 1 is {lost}, which f32")), "{lost}");
    }
    let mut sample = unisono_data::Sample::new().with("y", Field::i32([2], [16_777_216, 16_777_217]));
    let cast = unisono_data::cast("y", FieldDType::F32);
    let error = cast(&mut sample, &mut unisono_data::Draws::of(0, "t", "", 0, 0)).unwrap_err().to_string();
    assert_eq!(error, "field 'y': 16777217 is not held by f32");
}
