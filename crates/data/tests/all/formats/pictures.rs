//! Folders of pictures: how classes are numbered, what is passed over, and what decoders pass over.

use std::sync::Arc;

use tempfile::TempDir;
use unisono_data::{Cache, Concat, ImageFolder, Loader, Source, Subset};

use super::{given, message, written};

/// Makes a folder with these files. Each holds the same picture.
fn pictures(files: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for file in files {
        written(&dir, file, std::fs::read(given("pal.png")).unwrap());
    }
    dir
}

fn labels(folder: &impl Source) -> Vec<i32> {
    let label = |index| folder.fetch(index).unwrap().field("y").unwrap().values.as_i32().unwrap()[0];
    (0..folder.len()).map(label).collect()
}

#[test]
fn folders_number_their_classes_alike() {
    let train = pictures(&["cat/1.png", "dog/1.png", "fox/1.png"]);
    let train = ImageFolder::open(train.path()).map(|folder| (folder, train)).unwrap();
    let held_out = pictures(&["cat/1.png", "fox/1.png", "fox/2.png"]);
    let alone = ImageFolder::open(held_out.path()).unwrap();
    assert_eq!((alone.class_names(), labels(&alone)), (&["cat".to_owned(), "fox".into()][..], vec![0, 1, 1]));
    let like = alone.clone().like(&train.0).unwrap();
    assert_eq!((like.class_names(), labels(&like)), (train.0.class_names(), vec![0, 2, 2]));
    assert_eq!(like.field_classes("y"), Some(train.0.class_names()));
    assert_eq!(like.field_classes("x"), None);
    let notes = like.notes().join("; ");
    assert!(notes.ends_with("no pictures of the classes dog"), "{notes}");
    // The order is the user's, and samples follow class by class.
    let given = train.0.clone().classes(["fox", "cat"]).unwrap();
    assert_eq!((given.len(), labels(&given)), (2, vec![0, 1]));
    assert!(given.describe(0).ends_with("fox/1.png"), "{}", given.describe(0));
    assert_eq!(given.passed_over()["pictures of the class \"dog\", which was not asked for"], 1);
    assert_ne!(given.fingerprint(), train.0.fingerprint());
    let owls = pictures(&["cat/1.png", "owl/1.png"]);
    let owls = ImageFolder::open(owls.path()).map(|folder| (folder, owls)).unwrap().0;
    assert!(message(owls.clone().like(&train.0)).contains("the class \"owl\" is none of [\"cat\", "));
    assert!(message(owls.clone().classes(["cat", "cat"])).contains("\"cat\" is given twice"));
    assert!(message(owls.clone().classes(["bear"])).contains("no pictures of the classes [\"bear\"]"));
    // Sources that are joined number their classes alike too, and those made of others know them.
    let joined = |a: &ImageFolder, b: &ImageFolder| {
        let both: [Arc<dyn Source>; 2] = [Arc::new(a.clone()), Arc::new(b.clone())];
        Concat::new(both)
    };
    let error = message(joined(&train.0, &alone));
    assert!(error.contains("1 is \"fox\" in source 1 and \"dog\" in source 0"), "{error}");
    assert_eq!(joined(&train.0, &like).unwrap().field_classes("y"), Some(train.0.class_names()));
    let part = Cache::new(Subset::new(&like, [2, 0]).unwrap(), 1 << 20).unwrap();
    assert_eq!((part.field_classes("y"), part.notes()), (like.field_classes("y"), like.notes()));
}

#[test]
fn a_size_of_nothing_and_the_parts_of_a_data_set_are_refused() {
    let dir = pictures(&["train/cat/1.png", "train/dog/1.png", "Val/cat/1.png"]);
    let error = message(ImageFolder::open(dir.path()));
    assert!(error.contains(r#"the directories ["Val", "train"] are parts of a data set"#), "{error}");
    let train = ImageFolder::open(dir.path().join("train")).unwrap();
    assert_eq!(train.class_names(), ["cat", "dog"]);
    // Classes may have such names where they are classes.
    let classes = pictures(&["train/1.png", "test/1.png"]);
    assert_eq!(ImageFolder::open(classes.path()).unwrap().class_names(), ["test", "train"]);
    let vehicles = pictures(&["train/steam/1.png", "car/1.png"]);
    assert_eq!(ImageFolder::open(vehicles.path()).unwrap().class_names(), ["car", "train"]);

    let expected = "ImageFolder::size: a height of 0 and a width of 8: both have to be above 0";
    let none = Loader::new(train.size(0, 8));
    assert_eq!(message(none.fields()), expected);
    assert_eq!(message(none.epoch(0)), expected);
}

#[test]
fn what_a_folder_passes_over_is_counted() {
    let dir = pictures(&[
        "cat/a.png",
        "cat/more/b.png",
        "cat/more/deep/c.JFIF",
        "cat/d.heic",
        "cat/e.heic",
        "cat/f",
        "cat/._a.png",
        "cat/.DS_Store",
        "cat/Thumbs.db",
        "cat/.ipynb_checkpoints/a-checkpoint.png",
        "dog/1.jpe",
        "__MACOSX/cat/1.png",
        "@eaDir/1.png",
        "lost+found/1.png",
        ".git/1.png",
        "loose.png",
        "readme.txt",
    ]);
    std::fs::create_dir(dir.path().join("owl")).unwrap();
    let folder = ImageFolder::open(dir.path()).unwrap();
    assert_eq!(folder.class_names(), ["cat", "dog", "owl"]);
    assert_eq!(labels(&folder), [0, 0, 0, 1]);
    assert!(folder.describe(2).ends_with("cat/more/deep/c.JFIF"), "{}", folder.describe(2));
    let counted: Vec<(&str, u64)> =
        folder.passed_over().iter().map(|(what, count)| (what.as_str(), *count)).collect();
    let wanted = [
        ("directories called .git", 1),
        ("directories called .ipynb_checkpoints", 1),
        ("directories called @eaDir", 1),
        ("directories called __MACOSX", 1),
        ("directories called lost+found", 1),
        ("files that end in .heic", 2),
        ("files without an ending", 1),
        ("pictures outside of the classes' directories", 1),
        ("pictures whose names start with a dot", 1),
    ];
    assert_eq!(counted, wanted);
    let notes = folder.notes().join("\n");
    for part in ["files that end in .heic: 2", "no pictures of the classes owl", "2, such as cat/more/b.png"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("..", dir.path().join("dog/up")).unwrap();
        let error = message(ImageFolder::open(dir.path()));
        assert!(error.ends_with("the directory lies within itself, by a link"), "{error}");
    }
}

/// Bytes between the segments of a JPEG file are passed over, as libjpeg and Pillow do. What is cut off stays
/// an error.
#[test]
fn bytes_between_the_segments_of_a_jpeg_file() {
    let fetched = |bytes: &[u8]| {
        let dir = TempDir::new().unwrap();
        written(&dir, "a/1.jpg", bytes);
        ImageFolder::open(dir.path()).unwrap().fetch(0)
    };
    for name in ["pil.jpg", "pil420.jpg", "grey.jpg"] {
        let file = std::fs::read(given(name)).unwrap();
        let plain = fetched(&file).unwrap();
        // The places of the markers before the pixels.
        let mut places = vec![2];
        while file[places[places.len() - 1] + 1] != 0xda {
            let at = places[places.len() - 1];
            places.push(at + 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]])));
        }
        places.push(file.len() - 2);
        for bytes in [&b"\0"[..], b"exif\xff\0\xff\xff", &[7; 300]] {
            for &place in &places[..places.len() - 1] {
                let odd = [&file[..place], bytes, &file[place..]].concat();
                assert_eq!(fetched(&odd).unwrap(), plain, "{name} at {place}");
            }
            let everywhere = places[..places.len() - 1]
                .iter()
                .rev()
                .fold(file.clone(), |file, &place| [&file[..place], bytes, &file[place..]].concat());
            assert_eq!(fetched(&everywhere).unwrap(), plain, "{name}");
            let cut = &everywhere[..everywhere.len() - file.len() / 3];
            assert!(fetched(cut).is_err(), "{name}");
        }
    }
}
