//! Writing with a model that has an encoder and a decoder.

use std::collections::BTreeMap;

use unisono::data::{Batch, Field, FieldDType, FieldSpec, Sample, Values};
use unisono::graph::{DType, Lead};
use unisono::{INPUT, Model, OUTPUT, Outputs, Predictions, Predictor, PredictorBuilder, Tape, Type, Var};
use unisono_random::Draws;

use super::stream::{MOST_LOST, streams};
use super::{Generate, POSITION, bucket, ids, sampling};
use crate::architectures::MASK;
use crate::architectures::decoder::{DecoderSizes, Reader};
use crate::architectures::encoder_decoder::{Cross, EncoderDecoder, Source};
use crate::error::Error;
use crate::pretrained::Pretrained;

/// Writes with a model that has an encoder and a decoder, such as T5 or Whisper (transformers' `generate`).
/// [`Pretrained::writer`] returns one.
///
/// The encoder runs once for each text or sound. The decoder's keys and values of its result, and of the
/// tokens so far, then stay on the devices, and each step computes one token of each text. Lengths are powers
/// of two, so that a call compiles at most two programs. If a replica is lost, the others encode the texts
/// again and read what was written, so that the tokens stay the same.
///
/// What is written for a text or sound depends on it, the model and the settings. It does not depend on the
/// others that are computed together, or on the number of replicas.
pub struct Writer<M> {
    architecture: M,
    settings: Generate,
    predictor: Predictor,
    /// The program that the predictor was opened with.
    opened: Program,
    /// The signatures of the predictor.
    programs: BTreeMap<Program, usize>,
    /// The tokens that are never written.
    suppressed: Vec<i32>,
    /// The tokens that are not written first, including those that are never written.
    suppressed_first: Vec<i32>,
    /// The tokens that each text begins with.
    begin: Vec<i32>,
}

/// What a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    /// Reads a text or a sound, and the first token. Leaves on the device the decoder's keys and values of
    /// the encoder's result and of the token. The numbers are the number of positions and the most tokens.
    First([usize; 2]),
    /// Reads one token, with the keys and values of the encoder's result and of the tokens before it, which
    /// stay on the device. The numbers are the same.
    Next([usize; 2]),
}

/// The field with the first token of each text.
const FIRST: &str = "first";

impl<M: EncoderDecoder> Pretrained<M> {
    /// Returns a writer with the weights of the directory. It uses the same adapters as a predictor by
    /// default. It reads three settings from `generation_config.json` or `config.json`: a text ends at the
    /// tokens `eos_token_id`, unless [`Generate::stop`] sets others; the tokens `suppress_tokens` are never
    /// written; and the tokens `begin_suppress_tokens` are not written first.
    ///
    /// # Errors
    /// A setting is out of range. [`Generate::beams`] is above 1, or [`Generate::cached`] is false: a writer
    /// supports neither. There is no adapter.
    pub fn writer(&self, settings: Generate) -> Result<Writer<M>, Error> {
        self.writer_with(Predictor::builder(), settings)
    }

    /// Returns a writer as [`Pretrained::writer`] does, with settings of the predictor.
    ///
    /// # Errors
    /// Those of [`Pretrained::writer`].
    pub fn writer_with(&self, builder: PredictorBuilder, mut settings: Generate) -> Result<Writer<M>, Error> {
        settings.check()?;
        if settings.beams > 1 {
            return Err(Error::setting("beams", "models with an encoder are searched with one beam"));
        }
        if !settings.cached {
            return Err(Error::setting("cached", "models with an encoder always cache keys and values"));
        }
        if settings.stop.is_none() {
            settings.stop = Some(self.generation_ids("eos_token_id")?);
        }
        let architecture = self.architecture().clone();
        if settings.most > MOST {
            let problem = format!("{} tokens are more than {MOST}: ask for fewer", settings.most);
            return Err(Error::setting("most", problem));
        }
        let room = bucket(settings.most, longest(&architecture));
        let opened = Program::First([shortest(&architecture), room]);
        let (model, fields) = program(&architecture, opened);
        let predictor = builder.batch(settings.batch).open_tensors(model, &fields, self.weights())?;
        let suppressed = self.generation_ids("suppress_tokens")?;
        let suppressed_first = [&suppressed[..], &self.generation_ids("begin_suppress_tokens")?].concat();
        let begin = vec![architecture.start() as i32];
        let programs = BTreeMap::new();
        Ok(Writer {
            architecture,
            settings,
            predictor,
            opened,
            programs,
            suppressed,
            suppressed_first,
            begin,
        })
    }
}

/// The most tokens of a text by a model whose positions have no end.
const MOST: usize = 1 << 17;

/// Returns the most tokens that a model writes in one text.
fn longest(architecture: &impl EncoderDecoder) -> usize {
    architecture.sizes().context.min(MOST)
}

impl<M: EncoderDecoder> Writer<M> {
    /// Sets tokens that follow the first one of each text, such as Whisper's language and task
    /// (`decoder_input_ids`). They are not returned. Default: none.
    pub fn begin_with(mut self, tokens: impl IntoIterator<Item = i32>) -> Self {
        self.begin.truncate(1);
        self.begin.extend(tokens);
        self
    }

    /// Returns what the model writes for each text: up to [`Generate::most`] tokens. The last one may be a
    /// stop token.
    ///
    /// # Errors
    /// The encoder reads no texts, or a text is empty or has a token that the model does not know. A logit is
    /// NaN or infinity, or all tokens that are not suppressed have -infinity. The replicas fail.
    pub fn tokens(&mut self, texts: &[Vec<i32>]) -> Result<Vec<Vec<i32>>, Error> {
        if self.architecture.input().dtype != DType::I32 {
            return Err(Error::setting("tokens", "the encoder reads sound: use `transcribe`"));
        }
        if let Some(index) = texts.iter().position(Vec::is_empty) {
            return Err(Error::Prompt { index, problem: "it is empty".into() });
        }
        let draws = streams(texts, &self.settings);
        let mut all = Vec::with_capacity(texts.len());
        for (texts, draws) in texts.chunks(self.settings.batch).zip(draws.chunks(self.settings.batch)) {
            let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
            let length = bucket(longest, usize::MAX);
            let filled =
                |text: &Vec<i32>| text.iter().copied().chain(std::iter::repeat(0)).take(length).collect();
            let x: Vec<Vec<i32>> = texts.iter().map(filled).collect();
            let seen = |text: &Vec<i32>| (0..length).map(|at| i32::from(at < text.len())).collect();
            let mask: Vec<Vec<i32>> = texts.iter().map(seen).collect();
            let mask = ids(&[texts.len(), length], mask.concat());
            let fields = Sample::new().with(INPUT, ids(&[texts.len(), length], x.concat()));
            let written = self.behind(length, fields.with(MASK, mask.clone()), Some(&mask), draws);
            all.extend(written.map_err(|error| error.of_prompt(|index| all.len() + index))?);
        }
        Ok(all)
    }

    /// Returns what the model writes for each sound: up to [`Generate::most`] tokens. A sound is a spectrum,
    /// `[bins, frames]`, of as many frames as the model reads.
    ///
    /// # Errors
    /// The encoder reads texts, or a spectrum has another size or a number that is not finite. A logit is NaN
    /// or infinity, or all tokens that are not suppressed have -infinity. The replicas fail.
    pub fn transcribe(&mut self, spectra: &[Vec<f32>]) -> Result<Vec<Vec<i32>>, Error> {
        let input = self.architecture.input();
        if input.dtype != DType::F32 {
            return Err(Error::setting("transcribe", "the encoder reads texts: use `tokens`"));
        }
        let count: usize = input.dims.iter().product();
        if let Some(index) = spectra.iter().position(|spectrum| spectrum.len() != count) {
            let problem = format!("{} numbers, and a spectrum has {:?}", spectra[index].len(), input.dims);
            return Err(Error::Prompt { index, problem });
        }
        let bits = |spectrum: &Vec<f32>| spectrum.iter().map(|x| x.to_bits() as i32).collect();
        let contents: Vec<Vec<i32>> = match self.settings.draws() {
            true => spectra.iter().map(bits).collect(),
            false => vec![Vec::new(); spectra.len()],
        };
        let draws = streams(&contents, &self.settings);
        let mut all = Vec::with_capacity(spectra.len());
        for (spectra, draws) in spectra.chunks(self.settings.batch).zip(draws.chunks(self.settings.batch)) {
            let shape = [&[spectra.len()], &input.dims[..]].concat();
            let fields = Sample::new().with(INPUT, Field { shape, values: Values::F32(spectra.concat()) });
            let written = self.behind(shortest(&self.architecture), fields, None, draws);
            all.extend(written.map_err(|error| error.of_prompt(|index| all.len() + index))?);
        }
        Ok(all)
    }

    /// Returns the number of programs that were compiled so far.
    pub fn programs(&self) -> usize {
        self.programs.len() + 1
    }

    /// Writes for sources of a number of positions.
    fn behind(
        &mut self,
        length: usize,
        fields: Sample,
        mask: Option<&Field>,
        draws: &[unisono_random::Stream],
    ) -> Result<Vec<Vec<i32>>, Error> {
        let context = longest(&self.architecture);
        let (rows, most) = (draws.len(), self.settings.most);
        let tokens = self.begin.len() + most - 1;
        if tokens > context {
            let begin = self.begin.len();
            let problem =
                format!("{most} tokens behind {begin} are too many for a model of {context}: ask for fewer");
            return Err(Error::setting("most", problem));
        }
        let sizes = [length, bucket(tokens, context)];
        let mut texts: Vec<Vec<i32>> = vec![self.begin.clone(); rows];
        let written = self.write((sizes, tokens), &fields, mask, draws, &mut texts);
        let dropped = self.predictor.drop_residents();
        written?;
        dropped?;
        let begin = self.begin.len();
        Ok(texts.into_iter().map(|mut text| text.split_off(begin)).collect())
    }

    /// Writes behind the beginnings of texts, until all have ended or have so many tokens but one.
    fn write(
        &mut self,
        (sizes, tokens): ([usize; 2], usize),
        source: &Sample,
        mask: Option<&Field>,
        draws: &[unisono_random::Stream],
        texts: &mut [Vec<i32>],
    ) -> Result<(), Error> {
        let rows = texts.len();
        let mut has_ended = vec![false; rows];
        let (mut position, mut lost) = (0, 0);
        while position < tokens {
            let newest = texts.iter().map(|text| text.get(position).copied().unwrap_or(0)).collect();
            let newest = ids(&[rows, 1], newest);
            let outputs = if position == 0 {
                self.run(Program::First(sizes), source.clone().with(FIRST, newest))
            } else {
                let positions = ids(&[rows], vec![position as i32; rows]);
                let mut fields = Sample::new().with(INPUT, newest).with(POSITION, positions);
                if let Some(mask) = mask {
                    fields.set(MASK, mask.clone());
                }
                self.run(Program::Next(sizes), fields)
            };
            let outputs = match outputs {
                // A replica was lost with its keys and values: the others begin again.
                Err(Error::Unisono(error)) if error.lost_residents() && lost < MOST_LOST => {
                    (position, lost) = (0, lost + 1);
                    continue;
                }
                outputs => outputs?,
            };
            position += 1;
            if texts.iter().any(|text| text.len() > position) {
                continue;
            }
            self.choose(&outputs, draws, texts, &mut has_ended)?;
            if has_ended.iter().all(|&has_ended| has_ended) {
                break;
            }
        }
        Ok(())
    }

    /// Chooses the next token of each text that has not ended.
    fn choose(
        &self,
        outputs: &Predictions,
        draws: &[unisono_random::Stream],
        texts: &mut [Vec<i32>],
        has_ended: &mut [bool],
    ) -> Result<(), Error> {
        let rows = sampling::rows(outputs, texts.len());
        for (index, (text, logits)) in texts.iter_mut().zip(rows).enumerate() {
            if has_ended[index] {
                continue;
            }
            let step = text.len() - self.begin.len();
            let never = if step == 0 { &self.suppressed_first } else { &self.suppressed };
            let draws = Draws::new(draws[index], 0, step as u64);
            let token = sampling::choose(logits, never, &self.settings, draws);
            let token = token.map_err(|problem| Error::prompt(index, problem))?;
            text.push(token);
            has_ended[index] = self.settings.ends_at(token);
        }
        Ok(())
    }

    /// Runs a program. An error names a text by its place in the batch.
    fn run(&mut self, of: Program, fields: Sample) -> Result<Predictions, Error> {
        let batch = Batch::of_fields(fields).map_err(unisono::Error::from)?;
        if of == self.opened {
            return self.predictor.predict_batch(&batch).map_err(Error::of_batch);
        }
        let signature = match self.programs.get(&of) {
            Some(&signature) => signature,
            None => {
                let (model, fields) = program(&self.architecture, of);
                let signature = self.predictor.add_signature(model, &fields)?;
                self.programs.insert(of, signature);
                signature
            }
        };
        self.predictor.predict_signature(signature, &batch, &BTreeMap::new()).map_err(Error::of_batch)
    }
}

/// Returns the positions of the first program that encodes: all of a sound, or those of a short text.
fn shortest<M: EncoderDecoder>(architecture: &M) -> usize {
    let input = architecture.input();
    if input.dtype == DType::I32 { bucket(1, usize::MAX) } else { 0 }
}

/// Returns the model that a program is of, and the fields that it takes. Every program traces the whole
/// model, so that all have the same tensors; what does not lead to its outputs is dropped.
fn program<M: EncoderDecoder>(architecture: &M, of: Program) -> (Model, Vec<FieldSpec>) {
    let DecoderSizes { layers, heads, width, .. } = architecture.sizes();
    let input = architecture.input();
    let spec =
        |name: &str, dtype: FieldDType, shape: Vec<usize>| FieldSpec { name: name.into(), dtype, shape };
    let is_text = input.dtype == DType::I32;
    let mask = |length: usize| is_text.then(|| spec(MASK, FieldDType::I32, vec![length]));
    let architecture = architecture.clone();
    match of {
        Program::First([positions, room]) => {
            let model = Model::new(move |cx, x| {
                let (source, mask) = (x[INPUT].clone(), x.get(MASK).cloned());
                let (mut reader, mut cross) = (Reader::whole(None), Cross::default());
                let source = Source { x: &source, mask: mask.as_ref() };
                let logits = architecture.write(cx, source, &x[FIRST], &mut reader, &mut cross);
                let after = [0, room.saturating_sub(1), 0];
                let own = reader.kept().iter().flatten().map(|kept| kept.pad(&[0, 0, 0], &after));
                let kept = own.chain(cross.kept().iter().flatten().cloned()).enumerate();
                kept.for_each(|(number, kept)| logits.tape().keep_resident(number, &kept));
                Outputs::new().with(OUTPUT, &logits)
            });
            let (dtype, shape) =
                if is_text { (FieldDType::I32, vec![positions]) } else { (FieldDType::F32, input.dims) };
            let fields = [spec(INPUT, dtype, shape), spec(FIRST, FieldDType::I32, vec![1])];
            (model, fields.into_iter().chain(mask(positions)).collect())
        }
        Program::Next([positions, room]) => {
            let dims = if is_text { vec![positions] } else { input.dims.clone() };
            let all = if is_text { positions } else { architecture.positions() };
            let model = Model::new(move |cx, x| {
                let tape = cx.tape().clone();
                let resident = |first: usize, length: usize| -> Vec<[Var; 2]> {
                    let of = |number| tape.resident(number, Type::sample(&[heads, length, width]));
                    let layer = |layer| [of(first + 2 * layer), of(first + 2 * layer + 1)];
                    (0..layers).map(layer).collect()
                };
                let mut reader = Reader::next(&x[POSITION], resident(0, room));
                let mut cross = Cross::known(resident(2 * layers, all));
                let source = nothing(&tape, &dims, input.dtype);
                let (ids, mask) = (x[INPUT].clone(), x.get(MASK).cloned());
                let source = Source { x: &source, mask: mask.as_ref() };
                let logits = architecture.write(cx, source, &ids, &mut reader, &mut cross);
                let kept = reader.whole_kept().iter().flatten().enumerate();
                kept.for_each(|(number, kept)| tape.keep_resident(number, kept));
                Outputs::new().with(OUTPUT, &logits)
            });
            let ids = [(INPUT, vec![1]), (POSITION, vec![])];
            let ids = ids.map(|(name, shape)| spec(name, FieldDType::I32, shape));
            (model, ids.into_iter().chain(mask(positions)).collect())
        }
    }
}

/// Returns zeros for each sample, in place of an input that does not count.
fn nothing(tape: &Tape, dims: &[usize], dtype: DType) -> Var {
    let zeros = tape.constant(0.0).expand(Lead::Sample, dims);
    if dtype == DType::I32 { zeros.to_i32() } else { zeros }
}
