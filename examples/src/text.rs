//! A text for models of characters.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::read::MultiGzDecoder;
use unisono::data::{Batch, Draws, Field, Sample, Tokens, Width};
use unisono::{INPUT, Trainer};

use crate::{Error, Refused, claim, held_out_loss};

/// The flags of programs that learn a text.
#[derive(Args, Clone, Debug)]
pub struct TextFlags {
    /// Text file, gzipped or not (docs/STATES.md names one). Its last tenth is the validation set
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Number of characters to train on, from the start of the text; at most all but the last tenth
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    train_characters: u32,
}

impl TextFlags {
    /// Reads the text that the flags name.
    ///
    /// # Errors
    /// It returns the errors of [`Text::read`].
    pub fn read(&self) -> Result<Text, Error> {
        Text::read(&self.data, self.train_characters as usize)
    }
}

/// A text as numbers of one byte each. The bytes that occur in the text are numbered 0, 1, 2, ... in
/// ascending order.
pub struct Text {
    name: String,
    characters: Vec<u8>,
    /// All of the text that is not held out.
    known: Vec<u8>,
    /// The number of characters of `known` that are trained on.
    len: usize,
    held_out: Vec<u8>,
}

impl Text {
    /// Reads a file, gzipped or not. Its last tenth is held out. Of the rest, the first `most` characters are
    /// trained on.
    ///
    /// # Errors
    /// It is an error if the file cannot be read or has fewer than 100 characters.
    pub fn read(path: &Path, most: usize) -> Result<Self, Error> {
        let name = path.display().to_string();
        let named = |error: std::io::Error| Refused(format!("{name}: {error}"));
        let mut bytes = fs::read(path).map_err(named)?;
        if bytes.starts_with(&[0x1f, 0x8b]) {
            let packed = std::mem::take(&mut bytes);
            MultiGzDecoder::new(&*packed).read_to_end(&mut bytes).map_err(named)?;
        }
        if bytes.len() < 100 {
            let problem = format!("a text of {} characters is too short to learn from", bytes.len());
            return Err(Refused(format!("{name}: {problem}")).into());
        }
        let mut seen = [false; 256];
        bytes.iter().for_each(|&byte| seen[usize::from(byte)] = true);
        let characters: Vec<u8> = (0..=255).filter(|&byte| seen[usize::from(byte)]).collect();
        let mut number = [0; 256];
        characters.iter().zip(0..).for_each(|(&byte, id)| number[usize::from(byte)] = id);
        bytes.iter_mut().for_each(|byte| *byte = number[usize::from(*byte)]);
        let held_out = bytes.split_off(bytes.len() - bytes.len() / 10);
        Ok(Self { name, characters, len: bytes.len().min(most), known: bytes, held_out })
    }

    /// Returns the number of different characters.
    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    /// Returns the number of characters that are trained on.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is nothing to train on.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the windows to train on and those held out. A window has `context` characters; the target of
    /// each character is the next one.
    ///
    /// # Errors
    /// It is an error if there is not a single window.
    pub fn windows(&self, context: usize) -> Result<[Tokens; 2], Error> {
        let part = |what, bytes: &[u8]| {
            Tokens::in_memory(&format!("{}, {what}", self.name), bytes.to_vec(), Width::U8, context)
        };
        Ok([part("trained on", &self.known[..self.len])?, part("held out", &self.held_out)?])
    }

    /// Returns the loss of a bigram model on the held-out text, in nats a character. The model counts how
    /// often each character follows each other one in the rest of the text, and adds one to each count.
    pub fn bigram_nats(&self) -> f64 {
        let size = self.vocabulary();
        let mut counts = vec![1.0; size * size];
        let pairs = |text: &[u8]| -> Vec<usize> {
            text.windows(2).map(|pair| usize::from(pair[0]) * size + usize::from(pair[1])).collect()
        };
        pairs(&self.known).into_iter().for_each(|pair| counts[pair] += 1.0);
        let sums: Vec<f64> = counts.chunks(size).map(|row| row.iter().sum()).collect();
        let held_out = pairs(&self.held_out);
        let nats = |&pair: &usize| -libm::log(counts[pair] / sums[pair / size]);
        held_out.iter().map(nats).sum::<f64>() / held_out.len() as f64
    }

    /// Prints the loss of a trained model on the held-out text beside [`Text::bigram_nats`]. After a million
    /// characters it has to be lower by 0.3 nats. For shorter runs this is not checked.
    ///
    /// # Errors
    /// It is an error if the model is not better by that much.
    pub fn claim(&self, trainer: &Trainer) -> Result<(), Error> {
        let (nats, pairs) = (held_out_loss(trainer), self.bigram_nats());
        crate::say!("validation: {nats:.3} nats per character; a bigram model: {pairs:.3}");
        let long = self.len * trainer.history().len() >= 1_000_000;
        if long { claim("nats a character below the table's", pairs - nats, 0.3) } else { Ok(()) }
    }

    /// Continues the text `start` by `length` characters. Each is drawn from the model's distribution after
    /// the last `context` characters, at temperature 0.7. The same weights and seed write the same text.
    ///
    /// The model maps ids `[B, context]` to logits `[B, context, vocabulary]`. The logits of a place must not
    /// depend on the places after it.
    ///
    /// # Errors
    /// It returns the errors of the trainer.
    pub fn sample(
        &self,
        trainer: &mut Trainer,
        context: usize,
        start: &str,
        length: usize,
        seed: u64,
    ) -> Result<String, Error> {
        let mut ids = self.ids(start);
        if ids.is_empty() {
            ids.push(0);
        }
        for drawn in 0..length {
            let mut window = ids[ids.len().saturating_sub(context)..].to_vec();
            let last = window.len() - 1;
            // The places after the last character do not matter, because logits do not depend on later
            // places.
            window.resize(context, 0);
            let batch = Batch::of_fields(Sample::new().with(INPUT, Field::i32([1, context], window)))?;
            let logits = trainer.predict_batch(&batch)?;
            let logits = &logits[last * self.vocabulary()..][..self.vocabulary()];
            let highest = logits.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f64> =
                logits.iter().map(|&logit| libm::exp(f64::from(logit - highest) / 0.7)).collect();
            let draw = Draws::of(seed, "sample", "text", 0, drawn as u64).range(0.0, 1.0);
            let mut left = f64::from(draw) * weights.iter().sum::<f64>();
            let chosen = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            ids.push(chosen.unwrap_or(self.vocabulary() - 1) as i32);
        }
        Ok(self.text(&ids))
    }

    /// Returns the numbers of the characters of a text, without those that do not occur in this one.
    pub fn ids(&self, text: &str) -> Vec<i32> {
        let number = |byte: u8| self.characters.binary_search(&byte).ok().map(|id| id as i32);
        text.bytes().filter_map(number).collect()
    }

    /// Returns the text of some numbers, without those that are no character of this text.
    pub fn text(&self, ids: &[i32]) -> String {
        let character = |&id: &i32| self.characters.get(usize::try_from(id).ok()?).copied();
        let bytes: Vec<u8> = ids.iter().filter_map(character).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text(bytes: &[u8], most: usize) -> Result<Text, Error> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(bytes)?;
        Text::read(file.path(), most)
    }

    #[test]
    fn packed_or_not_the_same_numbers() {
        let plain = b"to be or not to be ".repeat(20);
        let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        packed.write_all(&plain).unwrap();
        let (one, other) = (text(&plain, 999).unwrap(), text(&packed.finish().unwrap(), 999).unwrap());
        assert_eq!(
            (&one.characters, &one.known, &one.held_out),
            (&other.characters, &other.known, &other.held_out)
        );
        assert_eq!(one.characters, b" benort");
        assert_eq!((one.len(), one.held_out.len(), one.vocabulary()), (342, 38, 7));
        assert_eq!(text(&plain, 50).unwrap().len(), 50);
        assert!(text(b"short", 9).err().unwrap().to_string().contains("5 characters"));
    }

    /// There are 90 pairs ab and 89 pairs ba, and each of the four counts is one higher: 91 of 92 and 90 of
    /// 91.
    #[test]
    fn a_table_of_pairs() {
        let text = text(&b"ab".repeat(100), 50).unwrap();
        assert_eq!((text.known.len(), text.held_out.len()), (180, 20));
        let (ab, ba) = (91.0f64 / 92.0, 90.0f64 / 91.0);
        let expected = -(10.0 * ab.ln() + 9.0 * ba.ln()) / 19.0;
        assert!((text.bigram_nats() - expected).abs() < 1e-12, "{} and {expected}", text.bigram_nats());
    }
}
