use super::*;
use crate::{Content, Loader, Spectrogram};

/// Returns a WAV file as Python's `wave` and libsndfile write it, with a chunk that nobody asks for.
fn wav(tag: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let align = channels * bits / 8;
    let mut format = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
    format.extend(rate.to_le_bytes());
    format.extend((rate * u32::from(align)).to_le_bytes());
    format.extend([align.to_le_bytes(), bits.to_le_bytes()].concat());
    let chunk = |name: &[u8], bytes: &[u8]| {
        let mut chunk = [name, &(bytes.len() as u32).to_le_bytes(), bytes].concat();
        chunk.resize(chunk.len().next_multiple_of(2), 0);
        chunk
    };
    let body =
        [b"WAVE".to_vec(), chunk(b"fmt ", &format), chunk(b"LIST", b"odd"), chunk(b"data", data)].concat();
    [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
}

#[test]
fn every_coding_is_read() {
    let values = |file: &[u8]| wav::decode(file).map(|wave| wave.values);
    let of_i16: Vec<u8> = [0_i16, 16_384, -32_768, 32_767].iter().flat_map(|x| x.to_le_bytes()).collect();
    let wave = wav::decode(&wav(1, 16, 2, 8000, &of_i16)).unwrap();
    assert_eq!((wave.rate, wave.channels), (8000, 2));
    assert_eq!(wave.values, [0.0, 0.5, -1.0, 32_767.0 / 32_768.0]);
    assert_eq!(values(&wav(1, 8, 1, 8000, &[128, 192, 0])).unwrap(), [0.0, 0.5, -1.0]);
    assert_eq!(values(&wav(1, 24, 1, 8000, &[0, 0, 0x40, 0, 0, 0x80])).unwrap(), [0.5, -1.0]);
    let of_i32: Vec<u8> = [1_i32 << 30, i32::MIN].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(values(&wav(1, 32, 1, 8000, &of_i32)).unwrap(), [0.5, -1.0]);
    let of_f32: Vec<u8> = [0.25_f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(values(&wav(3, 32, 1, 8000, &of_f32)).unwrap(), [0.25, -2.0]);
    let of_f64: Vec<u8> = [0.25_f64, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(values(&wav(3, 64, 1, 8000, &of_f64)).unwrap(), [0.25, -2.0]);
    // The size of data that was written to a pipe is not known.
    let mut open = wav(1, 8, 1, 8000, &[128, 192, 0, 0]);
    let at = open.windows(4).position(|name| name == b"data").unwrap();
    open[at + 4..at + 8].fill(0xff);
    assert_eq!(values(&open).unwrap(), [0.0, 0.5, -1.0, -1.0]);
}

#[test]
fn broken_files_are_refused() {
    let whole = wav(1, 16, 1, 8000, &[1, 2, 3, 4]);
    for cut in 0..whole.len() {
        assert!(wav::decode(&whole[..cut]).is_err(), "{cut}");
    }
    let message = |file: &[u8]| wav::decode(file).unwrap_err();
    assert_eq!(message(&wav(2, 4, 1, 8000, &[0])), "coding 2 of 4 bits: convert it to PCM or floats");
    assert_eq!(message(&wav(1, 16, 0, 8000, &[0])), "0 channels of 16 bits in 0 bytes, 8000 a second");
    assert_eq!(
        message(&wav(1, 16, 2, 8000, &[0; 6])),
        "6 bytes are not a whole number of values of 2 channels"
    );
    assert_eq!(message(&wav(1, 16, 1, 8000, &[])), "no values");
    assert_eq!(message(b"OggS0000000000000"), "an Ogg file, not WAV");
    assert!(message(&whole[..whole.len() - 1]).starts_with("cut off: the chunk \"data\" has 4 bytes"));
}

#[test]
fn folders_are_classes() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, file: &[u8]| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file).unwrap();
    };
    write("yes/b.wav", &wav(1, 8, 2, 100, &[128, 192, 0, 128]));
    write("yes/a.WAV", &wav(1, 8, 1, 100, &[192; 60]));
    write("no/c.wav", &wav(1, 8, 1, 100, &[0; 30]));
    write("yes/notes.txt", b"");
    write("readme.wav", b"");
    write("yes/.hidden.wav", b"");
    write("__MACOSX/yes/b.wav", b"");
    let folder = WavFolder::open(dir.path()).unwrap().length(40);
    assert_eq!((folder.rate(), folder.class_names().concat()), (100, "noyes".to_owned()));
    assert_eq!(folder.field_classes("y").unwrap(), ["no", "yes"]);
    assert!(folder.notes()[0].ends_with("in the directory of a class: 3"), "{:?}", folder.notes());
    let found: Vec<Sample> = (0..3).map(|index| folder.fetch(index).unwrap()).collect();
    assert_eq!(found[2].field("y"), Some(&Field::i32([], [1])));
    let x = |sample: &Sample| sample.field("x").unwrap().values.as_f32().unwrap().to_vec();
    assert_eq!(
        (x(&found[0])[..31].to_vec(), x(&found[1])),
        ([vec![-1.0; 30], vec![0.0]].concat(), vec![0.5; 40])
    );
    assert_eq!(x(&found[2])[..3], [0.25, -0.5, 0.0]);
    let mel = Spectrogram::new(16).mel(100, 4).log();
    let loader = Loader::new(folder.clone()).try_map("mel", mel.transform("x"));
    assert_eq!(loader.fields().unwrap()[0].shape, [6, 4]);
    let root = |folder: &WavFolder| Content::of(folder, || true).unwrap().unwrap().root();
    let before = (root(&folder), root(&folder.clone().length(41)));
    assert_ne!(before.0, before.1);
    write("no/c.wav", &wav(1, 8, 1, 100, &[1; 30]));
    assert_ne!(root(&folder), before.0);
    write("no/c.wav", &wav(1, 8, 1, 200, &[1; 30]));
    let again = WavFolder::open(dir.path()).unwrap();
    let error = again.fetch(1).unwrap_err().to_string();
    assert!(error.ends_with("a.WAV: 100 values a second, and the first file has 200"), "{error}");
    assert!(Loader::new(again.clone()).fields().unwrap_err().to_string().contains("varies"));
    assert!(again.most_bytes(10).fetch(0).unwrap_err().to_string().contains("WavFolder::most_bytes"));
    let empty = tempfile::tempdir().unwrap();
    assert!(WavFolder::open(empty.path()).unwrap_err().to_string().contains("no WAV files"));
}

#[test]
fn another_folder_has_the_same_class_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, wav(1, 8, 1, 100, &[0; 30])).unwrap();
    };
    for file in ["train/no/a.wav", "train/up/b.wav", "train/yes/c.wav", "held_out/up/d.wav"] {
        write(file);
    }
    let open = |part: &str| WavFolder::open(dir.path().join(part)).unwrap();
    let class = |folder: &WavFolder| folder.fetch(0).unwrap().field("y").cloned();
    assert_eq!(class(&open("held_out")), Some(Field::i32([], [0])));
    let alike = open("held_out").like(&open("train")).unwrap();
    assert_eq!((class(&alike), alike.class_names().len()), (Some(Field::i32([], [1])), 3));
    assert!(alike.notes()[0].ends_with("no WAV files of the classes no, yes"), "{:?}", alike.notes());
    let error = open("train").like(&open("held_out")).unwrap_err().to_string();
    assert!(error.contains("the class \"no\" is not one of [\"up\"]"), "{error}");
}
