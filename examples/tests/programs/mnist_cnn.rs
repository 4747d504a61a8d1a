use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::{done, err};

const SIDE: usize = 28;

/// Returns an image of 28x28 bytes. Class c is a bar in row 2 c + 4, and no two images are equal.
fn image(class: u8, number: usize) -> Vec<u8> {
    let grey = |place: usize| {
        let bar = place / SIDE == 2 * usize::from(class) + 4;
        let noise = (place * 31 + number * 17) % 60;
        noise as u8 + if bar { 190 } else { 0 }
    };
    (0..SIDE * SIDE).map(grey).collect()
}

/// Returns the classes of a part in the order in which a folder of pictures lists them.
fn labels(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 10 / count) as u8).collect()
}

/// Writes the two IDX files of a part. The labels are gzipped, the images are not.
pub(crate) fn idx(dir: &Path, part: &str, count: usize) {
    let labels = labels(count);
    let extents =
        |extents: &[usize]| extents.iter().flat_map(|&e| (e as u32).to_be_bytes()).collect::<Vec<u8>>();
    let pixels = labels.iter().enumerate().flat_map(|(i, &class)| image(class, i));
    let images = [vec![0, 0, 8, 3], extents(&[count, SIDE, SIDE]), pixels.collect()].concat();
    fs::write(dir.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
    let file = File::create(dir.join(format!("{part}-labels-idx1-ubyte.gz"))).unwrap();
    let mut packed = GzEncoder::new(file, Compression::default());
    packed.write_all(&[vec![0, 0, 8, 1], extents(&[count]), labels].concat()).unwrap();
    packed.finish().unwrap();
}

/// Writes the same images as PNG files, in one directory for each class.
fn pictures(dir: &Path, count: usize) {
    for (i, class) in labels(count).into_iter().enumerate() {
        let dir = dir.join(class.to_string());
        fs::create_dir_all(&dir).unwrap();
        let file = File::create(dir.join(format!("{i:05}.png"))).unwrap();
        let mut encoder = png::Encoder::new(file, SIDE as u32, SIDE as u32);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(&image(class, i)).unwrap();
    }
}

/// Runs the program. Returns its standard output and the bytes of the model.
fn trained(from: &str, data: &Path, out: &Path, flags: &[&str]) -> (String, Vec<u8>) {
    let paths = [from.as_ref(), data.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let flags = ["--json", "--epochs", "1", "--global-batch", "16"].iter().chain(flags).map(OsStr::new);
    let output = Command::new(env!("CARGO_BIN_EXE_mnist_cnn")).args(paths).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    (String::from_utf8(output.stdout).unwrap(), fs::read(out.join("model.safetensors")).unwrap())
}

/// There are 40 images in steps of 16. The last step is ragged and leaves the third replica without a sample.
#[test]
fn replicas_do_not_show_nor_does_the_kind_of_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let arrays = at("arrays");
    fs::create_dir(&arrays).unwrap();
    idx(&arrays, "train", 40);
    idx(&arrays, "t10k", 10);
    let one = trained("--data", &arrays, &at("1"), &["--replicas", "1"]);
    assert_eq!(done(&one.0, "steps"), 3);
    for replicas in ["2", "3"] {
        let more = trained("--data", &arrays, &at(replicas), &["--replicas", replicas]);
        assert!(one == more, "{replicas} replicas: {} and {}", one.0, more.0);
    }
    pictures(&at("pictures").join("train"), 40);
    pictures(&at("pictures").join("test"), 10);
    let folder = trained("--images", &at("pictures"), &at("folder"), &["--replicas", "2"]);
    assert!(one == folder, "pictures: {} and {}", one.0, folder.0);
    let fewer = trained("--data", &arrays, &at("fewer"), &["--replicas", "2", "--train-samples", "32"]);
    assert_eq!(done(&fewer.0, "steps"), 2);
    assert!(one.1 != fewer.1);
}

#[test]
fn what_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&OsStr], words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mnist_cnn")).args(args).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {}", output.status);
        words.iter().for_each(|word| assert!(err(&output).contains(word), "{args:?}: {}", err(&output)));
    };
    refused(&[], &["--data"]);
    refused(&["--data".as_ref(), dir.path().as_os_str()], &["train-images-idx3-ubyte.gz"]);
    idx(dir.path(), "train", 3);
    fs::write(dir.path().join("train-images-idx3-ubyte"), "half").unwrap();
    refused(&["--data".as_ref(), dir.path().as_os_str()], &["train-images-idx3-ubyte", "not an IDX file"]);
}

/// The programs that repeat published results, on few images. The last step of 40 images is ragged.
#[test]
fn programs_of_published_results_have_one_state() {
    let dir = tempfile::tempdir().unwrap();
    idx(dir.path(), "train", 40);
    idx(dir.path(), "t10k", 20);
    for program in [
        env!("CARGO_BIN_EXE_mnist_convnet"),
        env!("CARGO_BIN_EXE_mnist_mlp"),
        env!("CARGO_BIN_EXE_mnist_siamese"),
        env!("CARGO_BIN_EXE_mnist_hierarchical_rnn"),
    ] {
        let run = |flags: &[&str]| {
            let mut command = Command::new(program);
            command.args(["--json", "--epochs", "1", "--global-batch", "16"]).args(flags);
            let output = command.arg("--data").arg(dir.path()).output().unwrap();
            assert!(output.status.success(), "{program} {flags:?}: {}", err(&output));
            let of = if program.ends_with("siamese") { "pairs of test images" } else { "test images" };
            assert!(err(&output).contains(&format!("\n{of}: ")), "{program}: {}", err(&output));
            String::from_utf8(output.stdout).unwrap()
        };
        let states = ["1", "2", "3"].map(|replicas| run(&["--replicas", replicas]));
        assert!(states[0] == states[1] && states[1] == states[2], "{program}: {states:?}");
        let fewer = run(&["--replicas", "1", "--train-samples", "38"]);
        assert_ne!(done(&fewer, "state_sha256"), done(&states[0], "state_sha256"), "{program}");
    }
}
