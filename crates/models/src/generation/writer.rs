//! Writing with a model that has an encoder and a decoder.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono::data::{Batch, Field, FieldDType, FieldSpec, Sample, Values};
use unisono::graph::{DType, Lead};
use unisono::{INPUT, Inputs, Model, OUTPUT, Outputs, Predictions, Predictor, PredictorBuilder, Tape, Var};
use unisono_random::Draws;

use super::cache::Cache;
use super::stream::{NOT_NUMBERS, streams};
use super::{Generate, POSITION, bucket, ids, names, sampling};
use crate::architectures::MASK;
use crate::architectures::decoder::{DecoderSizes, Reader};
use crate::architectures::encoder_decoder::{Cross, EncoderDecoder, Source};
use crate::error::Error;
use crate::pretrained::Pretrained;

/// Writes with a model that has an encoder and a decoder, such as T5 or Whisper (transformers' `generate`).
/// [`Pretrained::writer`] returns one.
///
/// The encoder runs once for each text or sound, and so do the decoder's keys and values of its result. Then
/// each step computes one token of each text, from cached keys and values. Lengths are powers of two, so that
/// a call compiles at most two programs.
///
/// What is written for a text or sound depends on it, the model and the settings. It does not depend on the
/// others that are computed together, or on the number of replicas.
pub struct Writer<M> {
    architecture: M,
    settings: Generate,
    predictor: Predictor,
    /// The signatures of the predictor.
    programs: BTreeMap<Program, usize>,
    /// The tokens that are never written, and those that are not written first.
    suppressed: [Vec<i32>; 2],
    /// The tokens that each text begins with.
    begin: Vec<i32>,
}

/// What a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    /// Reads a text or a sound of up to this number of positions.
    Encode(usize),
    /// Reads one token, with the keys and values of the encoder's positions and of the tokens before it. The
    /// numbers are the number of positions and the most tokens.
    Next([usize; 2]),
}

/// The fields of a program that do not change from token to token.
type Kept = BTreeMap<String, Arc<[u8]>>;

impl<M: EncoderDecoder> Pretrained<M> {
    /// Returns a writer with the weights of the directory. It uses the same adapters as a predictor by
    /// default. It stops at the tokens that `generation_config.json` or `config.json` call `eos_token_id`,
    /// unless [`Generate::stop`] sets others, and never writes those of `suppress_tokens`, nor at first those
    /// of `begin_suppress_tokens`.
    ///
    /// # Errors
    /// A setting is out of range: there are no beams, and keys and values are always cached. There is no
    /// adapter.
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
        let (model, fields) = program(&architecture, Program::Encode(shortest(&architecture)));
        let predictor = builder.batch(settings.batch).open_tensors(model, &fields, self.weights())?;
        let suppressed =
            [self.generation_ids("suppress_tokens")?, self.generation_ids("begin_suppress_tokens")?];
        let begin = vec![architecture.start() as i32];
        Ok(Writer { architecture, settings, predictor, programs: BTreeMap::new(), suppressed, begin })
    }
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
    /// The encoder reads no texts, or a text is empty or has a token that the model does not know. The logits
    /// are not numbers. The replicas fail.
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
            all.extend(self.behind(length, fields.with(MASK, mask.clone()), Some(&mask), draws)?);
        }
        Ok(all)
    }

    /// Returns what the model writes for each sound: up to [`Generate::most`] tokens. A sound is a spectrum,
    /// `[bins, frames]`, of as many frames as the model reads.
    ///
    /// # Errors
    /// The encoder reads texts, or a spectrum has another size. The logits are not numbers. The replicas
    /// fail.
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
            all.extend(self.behind(shortest(&self.architecture), fields, None, draws)?);
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
        let sizes = self.architecture.sizes();
        let (rows, most) = (draws.len(), self.settings.most);
        let tokens = self.begin.len() + most - 1;
        if tokens > sizes.context {
            let (begin, context) = (self.begin.len(), sizes.context);
            let problem =
                format!("{most} tokens behind {begin} are too many for a model of {context}: ask for fewer");
            return Err(Error::setting("most", problem));
        }
        let encoded = self.run(Program::Encode(length), fields, &Kept::new())?;
        let cross = kept(&encoded, sizes);
        let mut cache = Cache::new(sizes, rows, bucket(tokens, sizes.context));
        let mut texts: Vec<Vec<i32>> = vec![self.begin.clone(); rows];
        let mut has_ended = vec![false; rows];
        for position in 0..tokens {
            let newest = texts.iter().map(|text| text.get(position).copied().unwrap_or(0)).collect();
            let mut fields = Sample::new()
                .with(INPUT, ids(&[rows, 1], newest))
                .with(POSITION, ids(&[rows], vec![position as i32; rows]));
            if let Some(mask) = mask {
                fields.set(MASK, mask.clone());
            }
            let mut shared = cross.clone();
            shared.extend(cache.fields.iter().map(|(name, bytes)| (name.clone(), Arc::clone(bytes))));
            let outputs = self.run(Program::Next([length, cache.length]), fields, &shared)?;
            drop(shared);
            cache.take(&outputs, &vec![position; rows], |_| 1);
            if position + 1 < self.begin.len() {
                continue;
            }
            self.choose(&outputs, draws, &mut texts, &mut has_ended)?;
            if has_ended.iter().all(|&has_ended| has_ended) {
                break;
            }
        }
        let begin = self.begin.len();
        Ok(texts.into_iter().map(|mut text| text.split_off(begin)).collect())
    }

    /// Chooses the next token of each text that has not ended.
    fn choose(
        &self,
        outputs: &Predictions,
        draws: &[unisono_random::Stream],
        texts: &mut [Vec<i32>],
        has_ended: &mut [bool],
    ) -> Result<(), Error> {
        let logits = outputs.get(OUTPUT).map(|logits| &*logits.values).unwrap_or_default();
        let vocabulary = (logits.len() / texts.len().max(1)).max(1);
        for (index, (text, logits)) in texts.iter_mut().zip(logits.chunks(vocabulary)).enumerate() {
            if has_ended[index] {
                continue;
            }
            if logits.iter().any(|logit| logit.is_nan()) {
                return Err(Error::Prompt { index, problem: NOT_NUMBERS.into() });
            }
            let step = text.len() - self.begin.len();
            let mut logits = logits.to_vec();
            let [never, first] = &self.suppressed;
            for token in never.iter().chain(first.iter().filter(|_| step == 0)) {
                if let Some(logit) = usize::try_from(*token).ok().and_then(|token| logits.get_mut(token)) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            let token = match self.settings.draws() {
                true => {
                    let uniform = Draws::new(draws[index], 0, step as u64).next_f32();
                    sampling::draw(&logits, &self.settings, uniform)
                }
                false => sampling::greedy(&logits),
            } as i32;
            text.push(token);
            has_ended[index] = self.settings.stop.as_ref().is_some_and(|stop| stop.contains(&token));
        }
        Ok(())
    }

    /// Runs a program.
    fn run(&mut self, of: Program, fields: Sample, shared: &Kept) -> Result<Predictions, Error> {
        let batch = Batch::of_fields(fields).map_err(unisono::Error::from)?;
        if of == Program::Encode(shortest(&self.architecture)) {
            return Ok(self.predictor.predict_batch(&batch)?);
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
        Ok(self.predictor.predict_signature(signature, &batch, shared)?)
    }
}

/// Returns the positions of the first program that encodes: all of a sound, or those of a short text.
fn shortest<M: EncoderDecoder>(architecture: &M) -> usize {
    let input = architecture.input();
    if input.dtype == DType::I32 { bucket(1, usize::MAX) } else { 0 }
}

/// The names of a layer's keys and values of the encoder's result.
fn cross_names(layer: usize) -> [String; 2] {
    names(layer).map(|name| format!("cross {name}"))
}

/// Returns the keys and values of the encoder's result as fields.
fn kept(encoded: &Predictions, sizes: DecoderSizes) -> Kept {
    let bytes = |name: String| {
        let values = encoded.get(&name).map(|output| &*output.values).unwrap_or_default();
        (name, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    };
    (0..sizes.layers).flat_map(cross_names).map(bytes).collect()
}

/// Returns the model that a program is of, and the fields that it takes. Every program traces the whole
/// model, so that all have the same tensors; what does not lead to its outputs is dropped.
fn program<M: EncoderDecoder>(architecture: &M, of: Program) -> (Model, Vec<FieldSpec>) {
    let DecoderSizes { layers, heads, width, .. } = architecture.sizes();
    let input = architecture.input();
    let spec =
        |name: String, dtype: FieldDType, shape: Vec<usize>| FieldSpec { name: name.into(), dtype, shape };
    let is_text = input.dtype == DType::I32;
    let mask = |length: usize| is_text.then(|| spec(MASK.into(), FieldDType::I32, vec![length]));
    let architecture = architecture.clone();
    match of {
        Program::Encode(length) => {
            let model = Model::new(move |cx, x| {
                let (source, mask) = (x[INPUT].clone(), x.get(MASK).cloned());
                let ids = nothing(cx.tape(), &[1], DType::I32);
                let mut cross = Cross::default();
                let source = Source { x: &source, mask: mask.as_ref() };
                architecture.write(cx, source, &ids, &mut Reader::whole(None), &mut cross);
                with_names(Outputs::new(), cross.kept(), cross_names)
            });
            let (dtype, shape) =
                if is_text { (FieldDType::I32, vec![length]) } else { (FieldDType::F32, input.dims) };
            (model, [spec(INPUT.into(), dtype, shape)].into_iter().chain(mask(length)).collect())
        }
        Program::Next([positions, length]) => {
            let dims = if is_text { vec![positions] } else { input.dims.clone() };
            let positions = if is_text { positions } else { architecture.positions() };
            let model = Model::new(move |cx, x| {
                let all = |names: fn(usize) -> [String; 2], x: &Inputs| -> Vec<[Var; 2]> {
                    (0..layers).map(|layer| names(layer).map(|name| x[&*name].clone())).collect()
                };
                let mut reader = Reader::next(&x[POSITION], all(names, x));
                let mut cross = Cross::known(all(cross_names, x));
                let source = nothing(cx.tape(), &dims, input.dtype);
                let (ids, mask) = (x[INPUT].clone(), x.get(MASK).cloned());
                let source = Source { x: &source, mask: mask.as_ref() };
                let logits = architecture.write(cx, source, &ids, &mut reader, &mut cross);
                with_names(Outputs::new().with(OUTPUT, &logits), reader.kept(), names)
            });
            let own = (0..layers).flat_map(names).map(|name| (name, length));
            let other = (0..layers).flat_map(cross_names).map(|name| (name, positions));
            let kept = own.chain(other);
            let kept = kept.map(|(name, length)| spec(name, FieldDType::F32, vec![heads, length, width]));
            let ids = [(INPUT, vec![1]), (POSITION, vec![])];
            let ids = ids.map(|(name, shape)| spec(name.into(), FieldDType::I32, shape));
            (model, ids.into_iter().chain(mask(positions)).chain(kept).collect())
        }
    }
}

/// Returns zeros for each sample, in place of an input that does not count.
fn nothing(tape: &Tape, dims: &[usize], dtype: DType) -> Var {
    let zeros = tape.constant(0.0).expand(Lead::Sample, dims);
    if dtype == DType::I32 { zeros.to_i32() } else { zeros }
}

/// Adds the keys and values of each layer to outputs.
fn with_names(outputs: Outputs, kept: &[[Var; 2]], names: fn(usize) -> [String; 2]) -> Outputs {
    kept.iter().enumerate().fold(outputs, |outputs, (layer, kept)| {
        names(layer).iter().zip(kept).fold(outputs, |outputs, (name, var)| outputs.with(name, var))
    })
}
