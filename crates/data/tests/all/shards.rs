//! Shards: lines of text files, and tar archives as WebDataset writes them.

use std::path::{Path, PathBuf};

use unisono_data::{
    Batch, BoxError, Content, DataError, Field, Lines, Loader, Position, Sample, Source, TarSample,
    TarShards, split,
};

/// Returns a member of a tar archive as GNU tar and Python's tarfile write it.
fn member(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    finished(header, bytes)
}

/// Sets the check sum of a header, and appends the file's bytes in whole blocks.
fn finished(mut header: Vec<u8>, bytes: &[u8]) -> Vec<u8> {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.extend_from_slice(bytes);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut all = members.concat();
    all.resize(all.len() + 1024, 0);
    all
}

/// Writes shards of 7, 8, 9 .. samples, each numbered throughout.
fn numbered(dir: &Path, shards: usize) -> Vec<PathBuf> {
    let mut next = 0_u32;
    (0..shards)
        .map(|shard| {
            let mut members = vec![member("./", b'5', b"")];
            for _ in 0..7 + shard {
                let x = [next, next * next].map(|x| (x as f32).to_le_bytes()).concat();
                members.push(member(&format!("./{next:05}.x.bin"), b'0', &x));
                members.push(member(&format!("./{next:05}.CLS"), b'0', (next % 3).to_string().as_bytes()));
                next += 1;
            }
            let path = dir.join(format!("train-{shard:04}.tar"));
            std::fs::write(&path, archive(&members)).unwrap();
            path
        })
        .collect()
}

fn decode(files: &TarSample<'_>) -> Result<Sample, BoxError> {
    let x: Vec<f32> =
        files.bytes("x.bin")?.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    let y = files.text("cls")?.trim().parse()?;
    Ok(Sample::new().with("x", Field::f32([2], x)).with("y", Field::i32([], [y])))
}

fn message<T>(result: Result<T, DataError>, dir: &Path) -> String {
    let Err(error) = result else { panic!("no error") };
    error.to_string().replace(&format!("{}{}", dir.display(), std::path::MAIN_SEPARATOR), "")
}

#[test]
fn ten_archives_are_read_exactly_once_per_epoch_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let shards = TarShards::open(numbered(dir.path(), 10), decode).unwrap();
    assert_eq!(shards.len(), (7..17).sum::<u64>());
    for index in 0..shards.len() {
        let sample = shards.fetch(index).unwrap();
        let x = index as f32;
        assert_eq!(sample.field("x"), Some(&Field::f32([2], [x, x * x])));
        assert_eq!(sample.field("y"), Some(&Field::i32([], [index as i32 % 3])));
    }
    assert!(shards.describe(7).ends_with("train-0001.tar: ./00007"), "{}", shards.describe(7));
    assert_eq!(shards.fetch(115).unwrap_err().to_string(), "sample 115: the source's length is 115");
    let [train, rest] = split(shards.clone(), 100, 1).unwrap();
    assert_eq!((train.len(), rest.len()), (100, 15));

    let loader = Loader::new(shards).shuffle_window(5, 20).batch(6);
    let epoch = |threads| -> Vec<Batch> {
        loader.clone().threads(threads).epoch(3).unwrap().map(Result::unwrap).collect()
    };
    let one = epoch(1);
    let mut all: Vec<u64> = one.iter().flat_map(|batch| batch.indices.clone()).collect();
    let in_order = (0..115).collect::<Vec<_>>();
    assert_ne!(all, in_order);
    all.sort_unstable();
    assert_eq!(all, in_order);
    assert_eq!(epoch(4), one);
    // Any position is reached at once, whatever was read before.
    for (at, batch) in one.iter().enumerate() {
        let from = Position { epoch: 3, sample: 6 * at as u64 };
        assert_eq!(&loader.epochs_from(from).unwrap().next().unwrap().unwrap(), batch);
    }
}

#[test]
fn names_in_headers_of_their_own_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.tar");
    let folder = "folder".repeat(30);
    let long = format!("{folder}/sample.txt");
    let mut prefixed = member("b.txt", b'0', b"three");
    prefixed[345..351].copy_from_slice(b"prefix");
    prefixed[148..156].fill(b' ');
    let prefixed = finished(prefixed[..512].to_vec(), b"three");
    let line = format!(" path={folder}/other.txt\n");
    let pax = format!("{}{line}", line.len() + 3);
    let members = [
        member("global", b'g', b"20 comment=nothing\n"),
        member("././@LongLink", b'L', format!("{long}\0").as_bytes()),
        member("cut", b'0', b"one"),
        member("PaxHeaders/x", b'x', pax.as_bytes()),
        member("cut", b'0', b"two"),
        prefixed,
        member(".hidden", b'0', b"four"),
        member("link.txt", b'2', b""),
        member("._a.txt", b'0', b"of macOS"),
    ];
    std::fs::write(&path, archive(&members)).unwrap();
    let texts = |files: &TarSample<'_>| {
        let extensions: Vec<&str> = files.extensions().collect();
        let text = files.text(extensions[0])?;
        Ok(Sample::new().with("length", Field::i32([], [text.len() as i32])))
    };
    let shards = TarShards::open([&path], texts).unwrap();
    let again = dir.path().join(".").join(path.file_name().unwrap());
    let twice = message(TarShards::open([&path, &again], texts), dir.path());
    assert!(twice.contains("the archive is given twice"), "{twice}");
    let keys: Vec<String> = (0..shards.len()).map(|index| shards.describe(index)).collect();
    assert_eq!(keys.len(), 3, "{keys:?}");
    let names = [format!("{folder}/sample"), format!("{folder}/other"), "prefix/b".to_owned()];
    for (key, name) in keys.iter().zip(names) {
        assert!(key.ends_with(&format!(": {name}")), "{key}");
    }
}

#[test]
fn broken_archives_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        message(TarShards::open([&path], decode), dir.path())
    };
    let whole = archive(&[member("1.x.bin", b'0', &[0; 8]), member("1.cls", b'0', b"2")]);
    assert_eq!(open(b"short"), "a.tar: tar: cut off after 5 bytes: no block of zeros ends it");
    assert!(open(&[0; 2048]).starts_with("no samples in the archives"));
    assert!(open(&[7; 2048]).contains("a.tar: tar: at byte 0: no header of a file"));
    let gzipped = [&[0x1f, 0x8b][..], &[8; 2000]].concat();
    assert!(open(&gzipped).contains("unpack it first"));
    assert_eq!(open(&whole[..515]), "a.tar: tar: at byte 0: a file of 8 bytes is cut off");
    for cut in [520, 600, 1024, 1500, 2048] {
        assert_eq!(
            open(&whole[..cut]),
            format!("a.tar: tar: cut off after {cut} bytes: no block of zeros ends it")
        );
    }
    let mut flipped = whole.clone();
    flipped[1030] ^= 1;
    assert!(open(&flipped).contains("at byte 1024: no header"));
    let twice = archive(&[member("1.cls", b'0', b"2"), member("1.cls", b'0', b"2")]);
    assert_eq!(open(&twice), "a.tar: tar: the sample 1 has two files .cls");
    let lacks = archive(&[member("1.cls", b'0', b"2")]);
    assert_eq!(open(&lacks), "a.tar: 1: no file .x.bin: there are [\"cls\"]");
    let wrong = archive(&[member("1.x.bin", b'0', &[0; 8]), member("1.cls", b'0', b"cat")]);
    assert_eq!(open(&wrong), "a.tar: 1: invalid digit found in string");
    let mut huge = member("1.cls", b'0', b"2");
    huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert!(open(&finished(huge[..512].to_vec(), b"")).contains("is cut off"));
    std::fs::write(&path, &whole).unwrap();
    let limited = TarShards::open([&path], decode).unwrap().most_bytes(7).fetch(0);
    assert!(message(limited, dir.path()).contains("TarShards::most_bytes"));
    assert!(
        message(TarShards::open([dir.path().join("none.tar")], decode), dir.path()).starts_with("none.tar")
    );
}

#[test]
fn lines_are_samples() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let files = [write("a", b"1\r\n2\n"), write("b", b""), write("c", b"3\n4"), write("d", b"5\n\n")];
    let number = |line: &str| {
        let number = if line.is_empty() { 0 } else { line.parse()? };
        Ok(Sample::new().with("y", Field::i32([], [number])))
    };
    let lines = Lines::open(&files, number).unwrap();
    let found: Vec<i32> = (0..lines.len())
        .map(|index| lines.fetch(index).unwrap().field("y").unwrap().values.as_i32().unwrap()[0])
        .collect();
    assert_eq!(found, [1, 2, 3, 4, 5, 0]);
    assert!(lines.describe(3).ends_with("c: line 2"));
    assert_eq!(message(lines.fetch(6), dir.path()), "sample 6: the source's length is 6");
    assert_eq!(
        message(lines.clone().most_bytes(2).fetch(0), dir.path()).split(": raise").next().unwrap(),
        "a: line 1 takes 3 bytes, and the limit is 2"
    );
    assert!(message(Lines::open([&files[1]], number), dir.path()).starts_with("no lines in the files"));
    let bad = [write("e", b"6\nx\n\xff\n")];
    let lines = Lines::open(&bad, number).unwrap();
    assert_eq!(message(lines.fetch(1), dir.path()), "e: line 2: invalid digit found in string");
    assert_eq!(message(lines.fetch(2), dir.path()), "e: line 3: it is not UTF-8");
    // The content covers what becomes of a line.
    let content = |factor: i32, bytes: &[u8]| {
        let scaled =
            move |line: &str| Ok(Sample::new().with("y", Field::i32([], [factor * line.parse::<i32>()?])));
        let lines = Lines::open([write("f", bytes)], scaled).unwrap();
        (lines.fingerprint(), Content::of(&lines, || true).unwrap().unwrap().root())
    };
    let (print, root) = content(1, b"1\n2\n");
    assert_eq!(content(1, b"1\n2\n"), (print, root));
    assert_eq!(content(2, b"1\n2\n").0, print);
    assert_ne!(content(2, b"1\n2\n").1, root);
    assert_ne!(content(1, b"1\n3\n").0, print);
}

/// A file whose lines are longer than what is read at once, with newlines at every place of a border.
#[test]
fn lines_across_the_parts_that_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long");
    let lengths: Vec<usize> = (0..40).map(|at| (1 << 16) * (at % 5) + at).collect();
    let text: String = lengths.iter().map(|&length| format!("{}\n", "x".repeat(length))).collect();
    std::fs::write(&path, text).unwrap();
    let lines = Lines::open([&path], |line| Ok(Sample::new().with("n", Field::i32([], [line.len() as i32]))))
        .unwrap();
    assert_eq!(lines.len(), 40);
    for (index, &length) in lengths.iter().enumerate() {
        let found = lines.fetch(index as u64).unwrap();
        assert_eq!(found.field("n"), Some(&Field::i32([], [length as i32])));
    }
}

#[test]
fn archives_of_other_programs_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    for name in ["gnu", "posix", "pax", "ustar"] {
        let packed = std::fs::File::open(files.join(format!("{name}.tar.gz"))).unwrap();
        let path = dir.path().join(format!("{name}.tar"));
        let mut file = std::fs::File::create(&path).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut file).unwrap();
        let shards = TarShards::open([&path], |files| {
            let y = files.text("cls")?.parse()?;
            let length = files.text("txt")?.len() as i32;
            Ok(Sample::new().with("y", Field::i32([], [y])).with("length", Field::i32([], [length])))
        });
        let shards = shards.unwrap();
        assert_eq!(shards.len(), 3, "{name}");
        let keys = ["0001".to_owned(), format!("ordner-{}/0002", "x".repeat(110)), "größe".to_owned()];
        for (index, (key, (y, length))) in keys.iter().zip([(3, 3), (4, 3), (5, 5)]).enumerate() {
            let described = shards.describe(index as u64);
            assert!(described.trim_end_matches(key.as_str()).ends_with([' ', '/']), "{name}: {described}");
            assert!(described.ends_with(key), "{name}: {described}");
            let sample = shards.fetch(index as u64).unwrap();
            assert_eq!(sample.field("y"), Some(&Field::i32([], [y])));
            assert_eq!(sample.field("length"), Some(&Field::i32([], [length])));
        }
    }
}

#[cfg(feature = "pictures")]
#[test]
fn pictures_in_archives_are_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let read = |name: &str| std::fs::read(files.join(name)).unwrap();
    let path = dir.path().join("pictures.tar");
    let members = [member("a.jpg", b'0', &read("pil.jpg")), member("b.png", b'0', &read("pal.png"))];
    std::fs::write(&path, archive(&members)).unwrap();
    let shards =
        TarShards::open([&path], |files| Ok(Sample::new().with("x", files.picture(&["jpg", "png"], 3)?)));
    let shards = shards.unwrap();
    let found: Vec<Field> = (0..2).map(|at| shards.fetch(at).unwrap().field("x").unwrap().clone()).collect();
    assert_eq!((&*found[0].shape, &*found[1].shape), (&[12, 20, 3][..], &[12, 20, 3][..]));
    let far = |at: usize| {
        let x = found[at].values.as_f32().unwrap();
        x.iter().enumerate().map(|(i, value)| (value - (i % 251) as f32).abs()).sum::<f32>() / 720.0
    };
    assert!(far(0) < 16.0, "{}", far(0));
    let limited = shards.clone().most_bytes(2000).fetch(0).unwrap_err().to_string();
    assert!(limited.contains("TarShards::most_bytes"), "{limited}");
    let other = TarShards::open([&path], |files| Ok(Sample::new().with("x", files.picture(&["webp"], 2)?)));
    assert!(message(other, dir.path()).contains("2 channels, not 1 or 3"));
}
