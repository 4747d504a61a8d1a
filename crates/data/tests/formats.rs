//! Files of each format, right ones and those with the commonest mistakes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use unisono_data::{
    Array, Arrays, Cifar, Concat, DataError, Element, Field, FieldDType, ImageFolder, Interleave, Loader,
    Source, Tokens, Values, Width, augment, differing_category,
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

/// Returns the classes of all pictures, by the ends of their paths.
fn labels(folder: &ImageFolder) -> Vec<(String, i32)> {
    let label = |i| folder.fetch(i).unwrap().field("y").unwrap().values.as_i32().unwrap()[0];
    let name = |i| folder.describe(i).replace('\\', "/").rsplit_once("data/").unwrap().1.to_owned();
    (0..folder.len()).map(|i| (name(i), label(i))).collect()
}

#[test]
fn folders_of_one_data_set_number_classes_alike() {
    let dir = TempDir::new().unwrap();
    let picture = std::fs::read(given("pal.png")).unwrap();
    for name in [
        "train/data/cat/1.png",
        "train/data/dog/1.png",
        "train/data/fox/1.png",
        "held/data/cat/1.png",
        "held/data/fox/old/deep/2.png",
        "held/data/fox/3.jfif",
        "held/data/fox/__MACOSX/4.png",
        "held/data/__MACOSX/fox/5.png",
    ] {
        written(&dir, name, picture.clone());
    }
    for name in ["held/data/fox/scan.picture", "held/data/fox/notes.txt", "held/data/empty/.keep"] {
        written(&dir, name, "none");
    }
    let train = ImageFolder::open(dir.path().join("train/data")).unwrap();
    let held = ImageFolder::open(dir.path().join("held/data")).unwrap();
    // By itself the folder has no dogs, so a fox is 1 in it.
    assert_eq!(held.class_names(), ["cat", "fox"]);
    let differing = differing_category(&train.categories(), &held.categories());
    assert_eq!(differing.as_deref(), Some("1 of \"y\" is \"dog\" in one, and \"fox\" in the other"));
    let both: Vec<Arc<dyn Source>> = vec![Arc::new(train.clone()), Arc::new(held.clone())];
    assert!(message(Concat::new(both.clone())).contains("\"fox\" in the other"));
    assert!(
        message(Interleave::new(both.into_iter().map(|source| (source, 1)))).contains("\"fox\" in the other")
    );
    let notes = held.notes();
    assert!(
        notes[0].ends_with(
            "2 files that are no pictures by their names were passed over: fox/notes.txt, fox/scan.picture"
        ),
        "{notes:?}"
    );
    assert!(
        notes[1].ends_with(
            "3 directories without pictures or of the system were passed over: __MACOSX, empty, fox/__MACOSX"
        ),
        "{notes:?}"
    );
    assert!(train.notes().is_empty());

    let expected = [("cat/1.png", 0), ("fox/3.jfif", 2), ("fox/old/deep/2.png", 2)];
    let expected: Vec<(String, i32)> = expected.map(|(name, class)| (name.to_owned(), class)).to_vec();
    let like = held.clone().like(&train).unwrap();
    let named = held.clone().classes(["cat", "dog", "fox"]).unwrap();
    assert_eq!((labels(&like), labels(&named)), (expected.clone(), expected));
    assert_eq!(differing_category(&train.categories(), &like.categories()), None);
    assert!(Concat::new([Arc::new(train.clone()) as Arc<dyn Source>, Arc::new(like)]).is_ok());

    // Two of three classes, in another order.
    let two = train.clone().classes(["fox", "cat"]).unwrap();
    assert_eq!(labels(&two), [("fox/1.png".to_owned(), 0), ("cat/1.png".to_owned(), 1)]);
    assert!(two.notes()[0].ends_with("1 directories that are none of the classes were passed over: dog"));
    let lacks = train.clone().like(&held).unwrap_err().to_string();
    assert!(lacks.contains("the class \"dog\" is not in"), "{lacks}");
    assert!(message(train.clone().classes(["cat", "cat"])).contains("named twice"));
    assert!(message(train.classes(["wolf"])).contains("no pictures in directories of classes"));
}

#[cfg(unix)]
#[test]
fn links_in_an_image_folder_end() {
    let dir = TempDir::new().unwrap();
    written(&dir, "data/cat/1.png", std::fs::read(given("pal.png")).unwrap());
    std::os::unix::fs::symlink(dir.path().join("data"), dir.path().join("data/cat/up")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("data/cat"), dir.path().join("data/kitten")).unwrap();
    let folder = ImageFolder::open(dir.path().join("data")).unwrap();
    assert_eq!(folder.class_names(), ["cat", "kitten"]);
    assert!(folder.notes().iter().any(|note| note.contains("cat/up")), "{:?}", folder.notes());
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
fn elements_that_f32_cannot_tell_apart_are_refused() {
    let dir = TempDir::new().unwrap();
    let npy = |name: &str, kind: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': (2, 1), }}");
        let header = format!("{header:<117}\n");
        let start = [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec()].concat();
        written(&dir, name, [start, header.into_bytes(), bytes].concat())
    };
    let times = [1_700_000_001i64, 1_700_000_002];
    let files = [
        npy("i64.npy", "<i8", times.iter().flat_map(|t| t.to_le_bytes()).collect()),
        npy("u32.npy", "<u4", times.iter().flat_map(|t| (*t as u32).to_le_bytes()).collect()),
        npy("f64.npy", "<f8", times.iter().flat_map(|t| (*t as f64).to_le_bytes()).collect()),
    ];
    for file in files {
        let open = || Array::npy(&file).unwrap().cast(FieldDType::F32).unwrap();
        let error = Arrays::new("x", open()).fetch(1).unwrap_err().to_string();
        assert!(error.contains("1700000002 would become 1700000000, the nearest f32"), "{error}");
        let first = |array: Array| array.row(0).unwrap();
        assert_eq!(first(open().scaled(1.7e9, 2.0)), Values::F32(vec![2.0]));
        assert_eq!(first(open().rounded()), Values::F32(vec![1.7e9]));
    }
}

#[test]
fn arrays_are_cast_as_asked() {
    let labels = Array::npz(given("arrays.npz"), "labels").unwrap();
    assert_eq!(labels.cast(FieldDType::F32).unwrap().row(0).unwrap(), Values::F32(vec![2.0]));
}
