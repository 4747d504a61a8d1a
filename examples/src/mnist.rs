//! MNIST's images, for the programs that repeat a published result on them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use unisono::data::{Array, Arrays, Loader, Source, Subset, rescale};
use unisono::{Schedule, Trainer};

use crate::{Defaults, Error, Run, say};

/// The flags of a program that trains on MNIST.
#[derive(Args, Clone, Debug)]
pub struct MnistFlags {
    /// Folder with MNIST's four IDX files, gzipped or not. docs/STATES.md says where to get them
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Number of images to train on, from the start [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    train_samples: Option<u64>,
    /// Let the learning rate fall to 0 along half a cosine. Keras's examples keep it constant
    #[arg(long)]
    decay: bool,
}

impl MnistFlags {
    /// Returns the images to train on and the test images.
    ///
    /// # Errors
    /// A file is missing or is not MNIST's.
    pub fn read(&self) -> Result<[Arc<dyn Source>; 2], Error> {
        let train = mnist(&self.data, "train")?;
        let samples = train.len().min(self.train_samples.unwrap_or(u64::MAX));
        Ok([Arc::new(part(&train, 0..samples)?), mnist(&self.data, "t10k")?])
    }

    /// Returns the learning rate of a run on these samples: the first number throughout, or with `--decay`
    /// from the second one to 0.
    pub fn rate(&self, [constant, first]: [f64; 2], run: &Run, train: &Loader) -> Schedule {
        if self.decay { Schedule::cosine(first, run.steps(train)) } else { constant.into() }
    }

    /// Says which share of the test images is classified correctly, beside a published result.
    ///
    /// # Errors
    /// It is an error if the share is less than `least`, or with `--decay` less than the published one,
    /// unless the run was on fewer images or shorter than the program's own.
    pub fn claim(
        &self,
        of: Defaults,
        trainer: &Trainer,
        what: &str,
        right: f64,
        [published, least]: [f64; 2],
    ) -> Result<(), Error> {
        say!("{what}: {:.2}% right; published: {:.1}%", 100.0 * right, 100.0 * published);
        let least = if self.decay { published } else { least };
        match self.train_samples {
            Some(_) => Ok(()),
            None => of.claim_of(trainer, &format!("accuracy on the {what}"), right, least),
        }
    }
}

impl Run {
    /// Returns a loader of images whose pixels are from 0 to 1, in samples of this shape.
    pub fn mnist(&self, images: impl Source + 'static, shape: &'static [usize]) -> Loader {
        let pixels = self.loader(images).try_map("pixels", rescale("x", 1.0 / 255.0, 0.0)).version("1");
        let shaped = pixels.map("shape", move |sample, _| {
            if let Some(image) = sample.field_mut("x") {
                image.shape = shape.to_vec();
            }
        });
        shaped.version(format!("{shape:?}"))
    }
}

/// Returns the images `x` `[28, 28]`, from 0 to 255, and labels `y` of a part of MNIST: `train` or `t10k`.
///
/// # Errors
/// A file is missing or is not MNIST's.
pub fn mnist(dir: &Path, part: &str) -> Result<Arc<dyn Source>, Error> {
    let array = |name: String| {
        let (plain, packed) = (dir.join(&name), dir.join(format!("{name}.gz")));
        Array::idx(if plain.exists() { plain } else { packed })
    };
    let images = array(format!("{part}-images-idx3-ubyte"))?;
    Ok(Arc::new(Arrays::labelled(images, array(format!("{part}-labels-idx1-ubyte"))?)?))
}

/// Returns a range of the samples of a source.
///
/// # Errors
/// The source ends before.
pub fn part(source: &Arc<dyn Source>, range: Range<u64>) -> Result<Subset<Arc<dyn Source>>, Error> {
    Ok(Subset::new(source.clone(), range.collect::<Vec<_>>())?)
}
