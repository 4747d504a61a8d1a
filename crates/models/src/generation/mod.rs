//! Writing with a decoder: token by token, with the keys and values of the tokens so far.

mod beams;
mod cache;
mod perplexity;
mod sampling;
mod settings;
mod stream;
#[cfg(feature = "tokenizers")]
mod text;
mod writer;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use unisono::checkpoint::Tensors;
use unisono::data::{Batch, Field, FieldDType, FieldSpec, Sample};
use unisono::{INPUT, Model, OUTPUT, Outputs, Predictions, Predictor, PredictorBuilder, TARGET, Type};

use crate::architectures::decoder::{Decoder, DecoderSizes, Reader};
use crate::error::Error;
use crate::pretrained::Pretrained;

pub use settings::Generate;
pub use stream::Stream;
#[cfg(feature = "tokenizers")]
pub use text::TextStream;
pub use writer::Writer;

/// The field with the number of tokens of each prompt.
const LENGTH: &str = "length";
/// The field with the position of each token.
const POSITION: &str = "position";
/// The shortest length that programs are compiled for. Longer ones are its doubles.
const SHORTEST: usize = 32;

/// Generates text with a decoder (transformers' `generate`). [`Pretrained::generator`] returns one.
///
/// Prompts of different lengths are padded to the same length and computed together. Then each step computes
/// one token of each sequence, from the cached keys and values of the tokens before it. Lengths are powers of
/// two from 32 on, up to the model's context. A call therefore compiles at most two programs.
///
/// Keys and values stay on the devices: for each token, its id and position go up and the logits come down.
/// Each replica has those of its share of the prompts. If a replica is lost, the others read the texts so far
/// again. With beams, keys and values are the host's and go up for each token, because beams change places.
///
/// The tokens of a prompt depend on the model, the prompt and the settings. They do not depend on the other
/// prompts, on the number of replicas, or on whether keys and values are cached: the logits have the same
/// bits.
pub struct Generator<M> {
    architecture: M,
    settings: Generate,
    predictor: Predictor,
    /// The signatures of the predictor.
    programs: BTreeMap<Program, usize>,
    /// The directory of the model.
    dir: PathBuf,
    /// Its tokenizer, once it was needed.
    #[cfg(feature = "tokenizers")]
    tokenizer: Option<Arc<unisono::data::Tokenizer>>,
}

/// What a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Program {
    /// Reads prompts of up to this number of tokens.
    Prompt(usize),
    /// Reads one token, with the keys and values of up to this number of tokens before it, which the host
    /// has.
    Next(usize),
    /// Reads prompts of up to `length` tokens, and leaves their keys and values on the device, with room for
    /// up to `room` tokens.
    Fill { length: usize, room: usize },
    /// Reads one token, with the keys and values of up to this number of tokens before it, which stay on the
    /// device.
    Continue(usize),
    /// Reads this number of tokens, and computes -ln of the probability of each token after them.
    Losses(usize),
}

impl<M: Decoder> Pretrained<M> {
    /// Returns a generator with the weights of the directory. It uses the same adapters as a predictor by
    /// default. It stops at the tokens that `generation_config.json` or `config.json` call `eos_token_id`,
    /// unless [`Generate::stop`] sets others.
    ///
    /// # Errors
    /// A setting is out of range. There is no adapter.
    pub fn generator(&self, settings: Generate) -> Result<Generator<M>, Error> {
        self.generator_with(Predictor::builder(), self.weights(), settings)
    }

    /// Returns a generator as [`Pretrained::generator`] does, with settings of the predictor and with weights
    /// of this model, such as those of a trainer.
    ///
    /// # Errors
    /// Those of [`Pretrained::generator`]; the weights do not fit the model.
    pub fn generator_with(
        &self,
        builder: PredictorBuilder,
        weights: &Tensors,
        mut settings: Generate,
    ) -> Result<Generator<M>, Error> {
        settings.check()?;
        if settings.stop.is_none() {
            settings.stop = Some(self.generation_ids("eos_token_id")?);
        }
        let architecture = self.architecture().clone();
        let length = bucket(1, architecture.sizes().context);
        let (model, fields) = program(&architecture, Program::Prompt(length));
        let predictor = builder.batch(settings.batch).open_tensors(model, &fields, weights)?;
        Ok(Generator {
            architecture,
            settings,
            predictor,
            programs: BTreeMap::new(),
            dir: self.dir().to_owned(),
            #[cfg(feature = "tokenizers")]
            tokenizer: None,
        })
    }
}

impl<M: Decoder> Generator<M> {
    /// Returns the continuation of each prompt: up to [`Generate::most`] tokens. The last one may be a stop
    /// token.
    ///
    /// # Errors
    /// A prompt is empty, is too long for the model, or has a token that the model does not know. A logit is
    /// NaN or infinity, or all are -infinity; -infinity alone stands for a token that is never chosen. The
    /// replicas fail.
    pub fn tokens(&mut self, prompts: &[Vec<i32>]) -> Result<Vec<Vec<i32>>, Error> {
        self.check(prompts)?;
        if self.settings.beams > 1 {
            return beams::search(self, prompts);
        }
        let streams = stream::streams(prompts, &self.settings);
        let mut all = Vec::with_capacity(prompts.len());
        for (part, streams) in prompts.chunks(self.settings.batch).zip(streams.chunks(self.settings.batch)) {
            let mut tokens = vec![Vec::new(); part.len()];
            for step in Stream::new(self, part, streams) {
                let step = step.map_err(|error| error.of_prompt(|index| all.len() + index))?;
                step.into_iter().zip(&mut tokens).for_each(|(token, tokens)| tokens.extend(token));
            }
            all.extend(tokens);
        }
        Ok(all)
    }

    /// Returns an iterator over the steps for up to [`Generate::batch`] prompts. Each step has, for each
    /// prompt, its next token, or none if its text has ended.
    ///
    /// # Errors
    /// Those of [`Generator::tokens`] that are known before the first step. There are too many prompts.
    pub fn stream(&mut self, prompts: &[Vec<i32>]) -> Result<Stream<'_, M>, Error> {
        if self.settings.beams > 1 {
            let problem = "with several beams, no token is certain before the last one: use `tokens`";
            return Err(Error::setting("beams", problem));
        }
        let most = self.settings.batch;
        if prompts.len() > most {
            let problem = format!("{} prompts in batches of up to {most}", prompts.len());
            return Err(Error::setting("stream", problem));
        }
        self.check(prompts)?;
        let streams = stream::streams(prompts, &self.settings);
        Ok(Stream::new(self, prompts, &streams))
    }

    /// Returns the number of programs that were compiled so far.
    pub fn programs(&self) -> usize {
        self.programs.len() + 1
    }

    /// Returns the predictor, for its report.
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Refuses prompts that the model cannot read.
    fn check(&self, prompts: &[Vec<i32>]) -> Result<(), Error> {
        let (context, most) = (self.architecture.sizes().context, self.settings.most);
        for (index, prompt) in prompts.iter().enumerate() {
            let length = prompt.len();
            if length == 0 {
                return Err(Error::Prompt { index, problem: "it is empty".into() });
            }
            if length.saturating_add(most - 1) > context {
                let problem = format!(
                    "{length} tokens and {most} more are too many for a model of {context}: shorten the prompt, or \
                     ask for fewer"
                );
                return Err(Error::Prompt { index, problem });
            }
        }
        Ok(())
    }

    /// Runs a program. An error names a prompt by its place in the batch.
    fn run(
        &mut self,
        of: Program,
        fields: Sample,
        shared: &BTreeMap<String, Arc<[u8]>>,
    ) -> Result<Predictions, Error> {
        let batch = Batch::of_fields(fields).map_err(unisono::Error::from)?;
        if of == Program::Prompt(bucket(1, self.architecture.sizes().context)) {
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
        self.predictor.predict_signature(signature, &batch, shared).map_err(Error::of_batch)
    }
}

/// Returns the length of the program that reads this number of tokens.
fn bucket(tokens: usize, context: usize) -> usize {
    tokens.checked_next_power_of_two().unwrap_or(context).max(SHORTEST).min(context)
}

/// The names of a layer's keys and values.
fn names(layer: usize) -> [String; 2] {
    [format!("key {layer}"), format!("value {layer}")]
}

/// Returns the model that a program is of, and the fields that it takes.
fn program<M: Decoder>(architecture: &M, of: Program) -> (Model, Vec<FieldSpec>) {
    let DecoderSizes { layers, heads, width, .. } = architecture.sizes();
    let ids = |name: &str, shape: &[usize]| FieldSpec {
        name: name.into(),
        dtype: FieldDType::I32,
        shape: shape.to_vec(),
    };
    let architecture = architecture.clone();
    match of {
        Program::Prompt(length) => {
            let model = Model::new(move |cx, x| {
                let mut reader = Reader::prompt(&x[LENGTH]);
                let logits = architecture.decode(cx, &x[INPUT], &mut reader);
                outputs(&logits, &reader)
            });
            (model, vec![ids(INPUT, &[length]), ids(LENGTH, &[])])
        }
        Program::Next(length) => {
            let model = Model::new(move |cx, x| {
                let before = (0..layers).map(|layer| names(layer).map(|name| x[&*name].clone()));
                let mut reader = Reader::next(&x[POSITION], before.collect());
                let logits = architecture.decode(cx, &x[INPUT], &mut reader);
                outputs(&logits, &reader)
            });
            let kept = (0..layers).flat_map(names).map(|name| FieldSpec {
                name: name.into(),
                dtype: FieldDType::F32,
                shape: vec![heads, length, width],
            });
            (model, [ids(INPUT, &[1]), ids(POSITION, &[])].into_iter().chain(kept).collect())
        }
        Program::Fill { length, room } => {
            let model = Model::new(move |cx, x| {
                let mut reader = Reader::prompt(&x[LENGTH]);
                let logits = architecture.decode(cx, &x[INPUT], &mut reader);
                let after = [0, room.saturating_sub(length), 0];
                let kept = reader.kept().iter().flatten().map(|kept| kept.pad(&[0, 0, 0], &after));
                kept.enumerate().for_each(|(number, kept)| logits.tape().keep_resident(number, &kept));
                Outputs::new().with(OUTPUT, &logits)
            });
            (model, vec![ids(INPUT, &[length]), ids(LENGTH, &[])])
        }
        Program::Continue(room) => {
            let model = Model::new(move |cx, x| {
                let position = &x[POSITION];
                let tape = position.tape();
                let resident = |number| tape.resident(number, Type::sample(&[heads, room, width]));
                let before = (0..layers).map(|layer| [resident(2 * layer), resident(2 * layer + 1)]);
                let mut reader = Reader::next(position, before.collect());
                let logits = architecture.decode(cx, &x[INPUT], &mut reader);
                let kept = reader.whole_kept().iter().flatten().enumerate();
                kept.for_each(|(number, kept)| tape.keep_resident(number, kept));
                Outputs::new().with(OUTPUT, &logits)
            });
            (model, vec![ids(INPUT, &[1]), ids(POSITION, &[])])
        }
        Program::Losses(length) => {
            let model = Model::new(move |cx, x| {
                let logits = architecture.decode(cx, &x[INPUT], &mut Reader::whole(None));
                Outputs::new().with(OUTPUT, &-logits.log_softmax().take(&x[TARGET]))
            });
            (model, vec![ids(INPUT, &[length]), ids(TARGET, &[length])])
        }
    }
}

/// Returns the outputs of a program: logits, and the keys and values of the tokens that it read.
fn outputs(logits: &unisono::Var, reader: &Reader) -> Outputs {
    let kept = reader.kept().iter().enumerate();
    kept.fold(Outputs::new().with(OUTPUT, logits), |outputs, (layer, kept)| {
        names(layer).iter().zip(kept).fold(outputs, |outputs, (name, var)| outputs.with(name, var))
    })
}

/// Returns a field of ids.
fn ids(shape: &[usize], values: Vec<i32>) -> Field {
    Field { shape: shape.to_vec(), values: unisono::data::Values::I32(values) }
}
