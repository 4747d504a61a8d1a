//! The data of the parts: in the folder of the packed kit, or in the repository.

use std::fs;
use std::path::{Path, PathBuf};

use unisono::checkpoint::write_whole;
use unisono::data::{Column, Csv, Sample, Source, Values};
use unisono_examples::Error;

/// The share of the digits that are for training: four fifths.
const TRAIN: (u64, u64) = (4, 5);
/// The side of a digit, and that of MNIST's pictures.
const SIDE: usize = 8;
const WIDE: usize = 28;

/// Where the data of the parts are.
pub struct Inputs {
    /// The folder with PyTorch's cases.
    pub oracle: PathBuf,
    /// The UCI digits.
    pub digits: PathBuf,
    /// The digits as MNIST's files.
    pub images: PathBuf,
    /// A text.
    pub text: PathBuf,
    /// The program that times PyTorch.
    pub torch: PathBuf,
}

impl Inputs {
    /// Finds the data in a folder, or where they are in the kit or in the repository. Writes the digits as
    /// MNIST's files into `out`.
    pub fn find(folder: Option<&Path>, out: &Path) -> Result<Self, Error> {
        let own = std::env::current_exe()?.parent().map(|dir| dir.join("data"));
        let examples = Path::new(env!("CARGO_MANIFEST_DIR"));
        let find = |name: &str, there: PathBuf| {
            let packed = folder.map(Path::to_owned).or(own.clone()).map(|dir| dir.join(name));
            packed.filter(|path| path.exists()).unwrap_or(there)
        };
        let tests = examples.join("../tests");
        let digits = find("digits.csv.gz", examples.join("data/digits.csv.gz"));
        let images = out.join("images");
        pictures(&digits, &images).map_err(|error| format!("{}: {error}", digits.display()))?;
        Ok(Self {
            oracle: find("oracle", tests.join("oracle")),
            text: find("reviews.tsv", examples.join("data/reviews.tsv")),
            torch: find("step.py", tests.join("peers/torch/step.py")),
            images: images.canonicalize()?,
            digits,
        })
    }
}

fn values<'a>(sample: &'a Sample, name: &str) -> Option<&'a Values> {
    sample.field(name).map(|field| &field.values)
}

/// Writes the digits of 8 x 8 grey values as MNIST's four files of 28 x 28.
fn pictures(digits: &Path, dir: &Path) -> Result<(), Error> {
    let digits = Csv::new(digits).label(Column::Last).read()?;
    let train = digits.len() * TRAIN.0 / TRAIN.1;
    fs::create_dir_all(dir)?;
    for (name, samples) in [("train", 0..train), ("t10k", train..digits.len())] {
        let count = ((samples.end - samples.start) as u32).to_be_bytes();
        let side = (WIDE as u32).to_be_bytes();
        let mut images = [&[0, 0, 8, 3], &count[..], &side, &side].concat();
        let mut labels = [&[0, 0, 8, 1], &count[..]].concat();
        for index in samples {
            let sample = digits.fetch(index)?;
            let (Some(Values::F32(grey)), Some(Values::I32(label))) =
                (values(&sample, "x"), values(&sample, "y"))
            else {
                return Err("is not of numbers with a label".into());
            };
            // Three pixels a grey value, and two at each side.
            let at = |i: usize| i.checked_sub(2).map(|i| i / 3).filter(|&i| i < SIDE);
            let place = |i: usize| Some(SIDE * at(i / WIDE)? + at(i % WIDE)?);
            let pixel = |i: usize| place(i).and_then(|place| grey.get(place)).map_or(0.0, |grey| 15.9 * grey);
            images.extend((0..WIDE * WIDE).map(|i| pixel(i) as u8));
            labels.extend(label.iter().map(|&label| label as u8));
        }
        write_whole(dir.join(format!("{name}-images-idx3-ubyte")), &[&images])?;
        write_whole(dir.join(format!("{name}-labels-idx1-ubyte")), &[&labels])?;
    }
    Ok(())
}
