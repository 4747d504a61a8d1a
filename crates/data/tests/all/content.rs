//! The content of data sets: every value takes part, whatever the size, and nothing but values does.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use unisono_data::{
    Array, Arrays, Cache, Concat, Content, ContentHash, Coverage, DataError, FieldDType, FieldSpec,
    Fingerprint, Hashing, Memory, Sample, Source, Subset, Tokens, Width, split,
};

fn content(source: &dyn Source) -> Content {
    Content::of(source, || true).unwrap().unwrap()
}

/// Returns the blocks that differ.
fn differ(a: &Content, b: &Content) -> Vec<usize> {
    assert_eq!(a.blocks().len(), b.blocks().len());
    (0..a.blocks().len()).filter(|&i| a.blocks()[i] != b.blocks()[i]).collect()
}

fn memory(len: usize, change: Option<usize>) -> Memory {
    let mut x: Vec<f32> = (0..2 * len).map(|i| i as f32).collect();
    if let Some(at) = change {
        x[at] += 0.5;
    }
    Memory::labelled(x, [2], vec![1; len]).unwrap()
}

#[test]
fn a_difference_shows_in_its_block() {
    for (len, at, block) in [(5, 9, 4), (1024, 2047, 1023), (1025, 2049, 512), (5000, 24, 1)] {
        let (a, b) = (content(&memory(len, None)), content(&memory(len, Some(at))));
        assert_eq!(differ(&a, &b), [block], "{len} samples");
        assert_ne!(a.root(), b.root());
        assert!(a.blocks().len() <= 1024);
        assert_eq!(a.root(), content(&memory(len, None)).root());
    }
    assert_ne!(content(&memory(4, None)).root(), content(&memory(5, None)).root());
    content(&memory(0, None));
}

/// Each byte of an array beyond 64 MiB takes part, where the quick fingerprint looks at some of its blocks.
#[test]
fn an_array_over_64_mib_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.idx");
    let (rows, row) = (72u32, 1u32 << 20);
    let mut file = File::create(&path).unwrap();
    let head = [&[0, 0, 8, 2][..], &rows.to_be_bytes(), &row.to_be_bytes()].concat();
    file.write_all(&head).unwrap();
    file.set_len(head.len() as u64 + u64::from(rows) * u64::from(row)).unwrap();
    let open = || Arrays::new("x", Array::idx(&path).unwrap());
    let (before, quick) = (content(&open()), open().fingerprint());
    // A block of 64 KiB that the fingerprint passes over.
    let read: Vec<u64> = (0..1024u64).map(|i| i * 1153 / 1024).collect();
    let missed = (0..1153u64).find(|block| !read.contains(block)).unwrap();
    file.seek(SeekFrom::Start(missed * 65536 + 4096)).unwrap();
    file.write_all(&[1]).unwrap();
    assert_eq!(open().fingerprint(), quick, "the quick fingerprint does not see it");
    assert_eq!(differ(&before, &content(&open())).len(), 1);
}

#[cfg(feature = "pictures")]
#[test]
fn pictures_of_the_same_names_and_sizes_differ() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    // What stands in the files is hashed as it is, not decoded.
    let write = |from: u8| {
        (0..120u8).for_each(|i| {
            std::fs::write(dir.path().join(format!("a/{i:03}.png")), [i.max(from); 64]).unwrap()
        });
    };
    let open = || unisono_data::ImageFolder::open(dir.path()).unwrap();
    write(0);
    let (before, quick) = (content(&open()), open().fingerprint());
    write(119);
    assert_eq!(open().fingerprint(), quick, "the quick fingerprint sees names and sizes only");
    assert_eq!(differ(&before, &content(&open())).len(), 119);
    std::fs::remove_file(dir.path().join("a/007.png")).unwrap();
    let folder = open();
    std::fs::remove_file(dir.path().join("a/008.png")).unwrap();
    // A loader may skip a file that is gone.
    content(&folder);
    // Each fit and each resume asks for the fingerprint: the file system is asked once.
    let sizes = folder.fingerprint();
    std::fs::write(dir.path().join("a/009.png"), [9; 65]).unwrap();
    assert_eq!((folder.fingerprint(), folder.clone().fingerprint()), (sizes, sizes));
    assert_ne!(folder.clone().size(4, 4).fingerprint(), sizes);
    assert_ne!(open().fingerprint(), sizes);
}

/// A run that was begun on one system is resumed on another, where other signs stand between names.
#[test]
fn pictures_have_the_same_fingerprint_on_every_system() {
    let dir = tempfile::tempdir().unwrap();
    for (class, file, bytes) in [("cats", "a.png", 3), ("dogs", "b.jpg", 5)] {
        std::fs::create_dir(dir.path().join(class)).unwrap();
        std::fs::write(dir.path().join(class).join(file), vec![0; bytes]).unwrap();
    }
    let folder = unisono_data::ImageFolder::open(dir.path()).unwrap();
    let hash = Fingerprint::new().source(2, folder.fields());
    let hash = hash.word(0).word(3).text("cats/a.png").word(1).word(5).text("dogs/b.jpg");
    assert_eq!(folder.fingerprint(), hash.finish());
}

#[test]
fn what_changes_no_sample_changes_no_content() {
    let plain = content(&memory(100, None)).root();
    assert_eq!(content(&Cache::new(memory(100, None), 1 << 20).unwrap()).root(), plain);
    assert_eq!(content(&(Arc::new(memory(100, None)) as Arc<dyn Source>)).root(), plain);
    let all: Vec<u64> = (0..100).collect();
    assert_eq!(content(&Subset::new(memory(100, None), all).unwrap()).root(), plain);
    let half = |from: usize| {
        Arc::new(Subset::new(memory(100, None), (from as u64..from as u64 + 50).collect::<Vec<_>>()).unwrap())
    };
    assert_eq!(content(&Concat::new([half(0) as Arc<dyn Source>, half(50)]).unwrap()).root(), plain);
    let [first, rest] = split(memory(100, None), 40, 7).unwrap();
    let [other, _] = split(memory(100, None), 40, 8).unwrap();
    assert_ne!(content(&first).root(), content(&other).root());
    assert_eq!(rest.coverage(), Coverage::Hashed);
}

#[test]
fn tokens_of_all_windows_take_part() {
    let tokens = |text: &[u8], context| Tokens::in_memory("text", text.to_vec(), Width::U8, context).unwrap();
    let a = content(&tokens(b"to be or not", 4));
    assert_eq!(differ(&a, &content(&tokens(b"to be or nOt", 4))), [0; 0], "no window has it");
    assert_eq!(differ(&a, &content(&tokens(b"to be oR not", 4))), [1]);
    assert_eq!(differ(&a, &content(&tokens(b"to bE or not", 4))), [0, 1]);
}

/// Samples that are computed.
struct Squares(Vec<FieldSpec>, Coverage);

impl Source for Squares {
    fn len(&self) -> u64 {
        3000
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.0
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        match index {
            7 => Err(DataError::other("bad")),
            2999 => {
                Err(DataError::Io { path: Path::new("gone").into(), cause: std::io::Error::other("gone") })
            }
            _ => Ok(Sample::new().with("x", unisono_data::Field::f32([], [(index * index) as f32]))),
        }
    }
    fn coverage(&self) -> Coverage {
        self.1.clone()
    }
}

fn squares(coverage: Coverage) -> Squares {
    Squares(vec![FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![] }], coverage)
}

#[test]
fn sources_of_users_say_how_they_are_covered() {
    let mut hash = ContentHash::new();
    // A bad sample is a part of the content, a file that cannot be read an error.
    squares(Coverage::Hashed).hash_content(0..9, &mut hash).unwrap();
    assert!(Content::of(&squares(Coverage::Hashed), || true).is_err());
    let joined = |coverage: Coverage| Subset::new(squares(coverage), [5, 2999]).unwrap();
    assert_eq!(joined(Coverage::Unknown).coverage(), Coverage::Unknown);
    let named = |name: &str| content(&joined(Coverage::Named(name.into()))).root();
    assert_eq!(named("squares 1"), named("squares 1"));
    assert_ne!(named("squares 1"), named("squares 2"));
    // A name says nothing of the fields.
    let mut wide = squares(Coverage::Named("squares 1".into()));
    wide.0[0].shape = vec![2];
    let [wide, plain] = [wide, squares(Coverage::Named("squares 1".into()))]
        .map(|source| content(&Subset::new(source, [5]).unwrap()).blocks().to_vec());
    assert_ne!(wide, plain);
}

/// Whether a file is there is a part of the content; what keeps it from being opened is not.
#[cfg(all(unix, feature = "pictures"))]
#[test]
fn a_file_that_is_gone_is_content_and_one_that_cannot_be_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let class = dir.path().join("class");
    std::fs::create_dir(&class).unwrap();
    let [first, second] = ["a.png", "b.png"].map(|name| class.join(name));
    [&first, &second].into_iter().for_each(|path| std::fs::write(path, "bytes").unwrap());
    let folder = unisono_data::ImageFolder::open(dir.path()).unwrap();
    let whole = content(&folder).root();
    std::fs::remove_file(&second).unwrap();
    assert_ne!(content(&folder).root(), whole);
    std::fs::create_dir(&second).unwrap();
    assert_ne!(content(&folder).root(), whole);
    std::fs::remove_dir(&second).unwrap();
    std::os::unix::fs::symlink(&second, &second).unwrap();
    let error = Content::of(&folder, || true).unwrap_err().to_string();
    assert!(error.contains("b.png"), "{error}");
}

#[test]
fn it_is_hashed_on_a_thread_of_its_own() {
    let source: Arc<dyn Source> = Arc::new(memory(5000, None));
    let hashing = Hashing::start(source.clone()).unwrap();
    assert!(hashing.is_of(&source) && !hashing.is_of(&(Arc::new(memory(1, None)) as Arc<dyn Source>)));
    let found = hashing.wait(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(found, content(&*source));
    let broken = Hashing::start(Arc::new(squares(Coverage::Hashed))).unwrap();
    assert!(broken.wait(Duration::from_secs(60)).unwrap_err().to_string().contains("gone"));
    // One that nobody waits for any more ends.
    drop(Hashing::start(source).unwrap());
}
