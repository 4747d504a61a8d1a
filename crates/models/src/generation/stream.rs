//! The steps of generation.

use std::collections::BTreeMap;

use unisono::data::Sample;
use unisono::{INPUT, Predictions};
use unisono_random::{Draws, stream};

use crate::architectures::decoder::Decoder;
use crate::error::Error;

use super::cache::Cache;
use super::{Generate, Generator, LENGTH, POSITION, Program, bucket, ids, sampling};

/// The steps of a batch of prompts, made by [`Generator::stream`]: an iterator over what each step writes,
/// for each prompt its next token, or none if its text has ended. An error ends it.
pub struct Stream<'a, M> {
    generator: &'a mut Generator<M>,
    texts: Vec<Text>,
    /// The keys and values of all tokens but the newest ones, if the host keeps them: beams change their
    /// rows.
    cache: Option<Cache>,
    /// Whether the keys and values of all tokens but the newest ones are on the devices.
    on_devices: bool,
    /// The number of tokens for which keys and values get room, where they are kept.
    room: usize,
    written: usize,
}

/// The most times that a step is made again since replicas were lost.
pub(super) const MOST_LOST: usize = 16;

/// A prompt, and what was written behind it.
struct Text {
    tokens: Vec<i32>,
    draws: unisono_random::Stream,
    has_ended: bool,
}

/// Returns the random numbers of each prompt. They depend on its tokens, and on how many equal prompts came
/// before it.
pub(super) fn streams(prompts: &[Vec<i32>], settings: &Generate) -> Vec<unisono_random::Stream> {
    let mut before: BTreeMap<&[i32], usize> = BTreeMap::new();
    let own = |prompt| {
        let times = before.entry(prompt).or_default();
        *times += 1;
        unisono_random::Stream::new(settings.seed, stream("generate", &format!("{prompt:?} {times}")))
    };
    prompts.iter().map(Vec::as_slice).map(own).collect()
}

impl<'a, M: Decoder> Stream<'a, M> {
    pub(super) fn new(
        generator: &'a mut Generator<M>,
        prompts: &[Vec<i32>],
        streams: &[unisono_random::Stream],
    ) -> Self {
        let text = |(prompt, &draws): (&Vec<i32>, &unisono_random::Stream)| Text {
            tokens: prompt.clone(),
            draws,
            has_ended: false,
        };
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
        let context = generator.architecture.sizes().context;
        let room = bucket((longest + generator.settings.most).saturating_sub(1), context);
        let texts = prompts.iter().zip(streams).map(text).collect();
        Self { generator, texts, cache: None, on_devices: false, room, written: 0 }
    }

    /// Returns the predictor, for its report.
    pub fn predictor(&self) -> &unisono::Predictor {
        &self.generator.predictor
    }

    /// Returns the logits behind the newest token of each text.
    ///
    /// # Errors
    /// The replicas fail. Logits are not finite.
    pub(super) fn logits(&mut self) -> Result<Vec<Vec<f32>>, Error> {
        let outputs = self.step()?;
        let checked = |(index, logits): (usize, &[f32])| {
            sampling::check(logits).map_err(|problem| Error::prompt(index, problem))?;
            Ok(logits.to_vec())
        };
        sampling::rows(&outputs, self.texts.len()).enumerate().map(checked).collect()
    }

    /// Continues the texts of some rows, each with a token.
    pub(super) fn go_on(&mut self, rows: &[(usize, i32)]) {
        let text = |&(row, token): &(usize, i32)| {
            let before = self.texts.get(row)?;
            let tokens = before.tokens.iter().copied().chain([token]).collect();
            Some(Text { tokens, draws: before.draws, has_ended: false })
        };
        self.texts = rows.iter().filter_map(text).collect();
        if let Some(cache) = &mut self.cache {
            cache.select(&rows.iter().map(|(row, _)| *row).collect::<Vec<_>>());
        }
        self.written += 1;
    }

    /// Returns the logits behind the newest token of each text, `[B, 1, vocabulary]`.
    fn step(&mut self) -> Result<Predictions, Error> {
        let mut lost = 0;
        loop {
            let step = match self.cache.take() {
                Some(cache) => self.next_token(cache),
                None if std::mem::take(&mut self.on_devices) => self.next_on_devices(),
                None => self.whole(),
            };
            // A replica was lost with its keys and values: the others read the texts again.
            match step {
                Err(Error::Unisono(error)) if error.lost_residents() && lost < MOST_LOST => lost += 1,
                step => return step,
            }
        }
    }

    /// Reads all tokens.
    fn whole(&mut self) -> Result<Predictions, Error> {
        let sizes = self.generator.architecture.sizes();
        let settings = &self.generator.settings;
        let longest = self.texts.iter().map(|text| text.tokens.len()).max().unwrap_or(1);
        let (rows, length) = (self.texts.len(), bucket(longest, sizes.context));
        let is_kept = settings.cached && settings.most > 1;
        let mut cache = (is_kept && settings.beams > 1).then(|| Cache::new(sizes, rows, self.room));
        let on_devices = is_kept && settings.beams == 1;
        let program = match on_devices {
            true => Program::Fill { length, room: self.room },
            false => Program::Prompt(length),
        };
        let filled = |text: &Text| {
            let filler = std::iter::repeat(0);
            text.tokens.iter().copied().chain(filler).take(length).collect::<Vec<_>>()
        };
        let lengths: Vec<usize> = self.texts.iter().map(|text| text.tokens.len()).collect();
        let fields = Sample::new()
            .with(INPUT, ids(&[rows, length], self.texts.iter().flat_map(filled).collect()))
            .with(LENGTH, ids(&[rows], lengths.iter().map(|&length| length as i32).collect()));
        let outputs = self.generator.run(program, fields, &BTreeMap::new())?;
        if let Some(cache) = &mut cache {
            cache.take(&outputs, &vec![0; rows], |row| lengths[row]);
        }
        (self.cache, self.on_devices) = (cache, on_devices);
        Ok(outputs)
    }

    /// Reads the newest token of each text, whose keys and values go to those on the devices.
    fn next_on_devices(&mut self) -> Result<Predictions, Error> {
        let (fields, _) = self.newest();
        let outputs = self.generator.run(Program::Continue(self.room), fields, &BTreeMap::new())?;
        self.on_devices = true;
        Ok(outputs)
    }

    /// Reads the newest token of each text.
    fn next_token(&mut self, mut cache: Cache) -> Result<Predictions, Error> {
        let (fields, positions) = self.newest();
        let outputs = self.generator.run(Program::Next(cache.length), fields, &cache.fields)?;
        cache.take(&outputs, &positions, |_| 1);
        self.cache = Some(cache);
        Ok(outputs)
    }

    /// Returns the newest token of each text with its position, as fields, and these positions.
    fn newest(&self) -> (Sample, Vec<usize>) {
        let rows = self.texts.len();
        let newest = |text: &Text| text.tokens.last().copied().unwrap_or(0);
        let positions: Vec<usize> = self.texts.iter().map(|text| text.tokens.len() - 1).collect();
        let fields = Sample::new()
            .with(INPUT, ids(&[rows, 1], self.texts.iter().map(newest).collect()))
            .with(POSITION, ids(&[rows], positions.iter().map(|&at| at as i32).collect()));
        (fields, positions)
    }

    /// Chooses the next token of each text.
    fn choose(&mut self, outputs: &Predictions) -> Result<Vec<Option<i32>>, Error> {
        let (settings, step) = (&self.generator.settings, self.written as u64);
        let rows = sampling::rows(outputs, self.texts.len());
        let choose = |(index, (text, logits)): (usize, (&mut Text, &[f32]))| {
            if text.has_ended {
                return Ok(None);
            }
            let token = sampling::choose(logits, &[], settings, Draws::new(text.draws, 0, step));
            let token = token.map_err(|problem| Error::prompt(index, problem))?;
            text.tokens.push(token);
            text.has_ended = settings.ends_at(token);
            Ok(Some(token))
        };
        self.texts.iter_mut().zip(rows).enumerate().map(choose).collect()
    }
}

impl<M> Drop for Stream<'_, M> {
    /// Gives the memory of keys and values back.
    fn drop(&mut self) {
        let Generate { cached, beams, .. } = self.generator.settings;
        if cached && beams == 1 && self.written > 0 {
            // Without replicas there is no memory to give back.
            let _ = self.generator.predictor.drop_residents();
        }
    }
}

impl<M: Decoder> Iterator for Stream<'_, M> {
    type Item = Result<Vec<Option<i32>>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_over = self.written >= self.generator.settings.most;
        if is_over || self.texts.iter().all(|text| text.has_ended) {
            return None;
        }
        let step = self.step().and_then(|outputs| self.choose(&outputs));
        self.written = if step.is_ok() { self.written + 1 } else { usize::MAX };
        Some(step)
    }
}
