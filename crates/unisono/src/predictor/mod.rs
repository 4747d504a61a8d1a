//! Prediction without a trainer: no targets, no optimizer, no gradients.

pub(crate) mod builder;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod server;
pub(crate) mod signature;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use unisono_checkpoint::{Info, Tensor, Tensors, WeightPrecision};
use unisono_data::{Batch, FieldDType, FieldSpec, Loader, Sample, Values};
use unisono_graph::Precision;
use unisono_replica::{Replicas, Verdict};

use crate::compile::asked::Asked;
use crate::compile::feed::{self, InputMemory};
use crate::compile::fields::{Fields, in_batch};
use crate::compile::outputs::Reading;
use crate::compile::prediction::PredictionProgram;
use crate::model::Model;
use crate::model::functional::INPUT;
use crate::onnx;
use crate::predictor::builder::PredictorBuilder;
use crate::predictor::report::Clock;
use crate::predictor::signature::Signature;
use crate::run::carries::Carries;
use crate::run::scales::{MOST_RATIO, Scale};
use crate::saving::tensors::info;
use crate::trainer::evaluate::{OTHER_ORDER, all_predicted};
use crate::trainer::held_out::{drawn, dropped};
use crate::{Error, MemoryEstimate, Prediction, Predictions};

/// A model for prediction on all replicas (Keras's `load_model` and `predict`). It holds only parameters and
/// statistics.
///
/// ```no_run
/// use unisono::Predictor;
///
/// # fn main() -> Result<(), unisono::Error> {
/// let mut predictor = Predictor::open("runs/digits/model.safetensors")?;
/// let logits = predictor.predict_array(&[0.0; 64])?;
/// assert_eq!(logits.shape, [1, 10]);
/// println!("{}", predictor.report());
/// # Ok(())
/// # }
/// ```
///
/// Results come in the order of the inputs. The result for a row depends on that row only: neither on the
/// other rows of its batch nor on the number of replicas. Stateful models, such as a stateful LSTM, are the
/// exception: within a call they continue from batch to batch. A model that draws random numbers when it
/// predicts draws them by [`PredictorBuilder::seed`] and by the position of the sample.
pub struct Predictor {
    model: Model,
    precision: Precision,
    /// The programs: that of the longest samples first, then those of other lengths, that which was used last
    /// at the end, with the numbers by which replicas know them.
    programs: Vec<(PredictionProgram, usize)>,
    replicas: Replicas,
    batch: usize,
    /// The seed of models that draw random numbers.
    seed: u64,
    /// Other models over the same weights.
    signatures: Vec<Signature>,
    /// The most programs of other lengths.
    lengths: usize,
    carries: Carries,
    memory: MemoryEstimate,
    /// Memory for the inputs of batches.
    inputs: InputMemory,
    clock: Clock,
    /// The texts that were attached to the model.
    attached: BTreeMap<String, String>,
    /// How large the values of the input were in training, until an input has been compared with it.
    scale: Option<Scale>,
    /// What a user should know of the data that were predicted.
    notes: BTreeSet<String>,
}

impl Predictor {
    /// Opens a model that [`Trainer::export`](crate::Trainer::export) or
    /// [`Trainer::save_model`](crate::Trainer::save_model) wrote. `path` is `NAME.safetensors` with
    /// `NAME.json` next to it, or the directory of a run with `model.safetensors`. The predictor uses the
    /// same adapters as a trainer by default.
    ///
    /// # Errors
    /// The files cannot be read or do not belong together. The model has layers of your own: use
    /// [`PredictorBuilder::open_model`]. There is no adapter.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open(path)
    }

    /// Returns a builder, for a predictor with other settings.
    pub fn builder() -> PredictorBuilder {
        PredictorBuilder::default()
    }

    /// Returns a text that was attached to the model ([`Builder::attach`](crate::Builder::attach)), such as a
    /// vocabulary. A predictor that was opened with the model's code has none.
    pub fn attached(&self, name: &str) -> Option<&str> {
        self.attached.get(name).map(String::as_str)
    }

    /// Returns the fields that the model takes, with the shapes of the longest samples.
    pub fn fields(&self) -> Vec<FieldSpec> {
        self.programs.first().map(|(program, _)| program.fields.specs()).unwrap_or_default()
    }

    /// Returns the names of the model's outputs, with the shape of each for one sample.
    pub fn outputs(&self) -> Vec<(String, Vec<usize>)> {
        let outputs = self.programs.first().map(|(program, _)| &program.outputs[..]).unwrap_or_default();
        outputs.iter().map(|(name, ty)| (name.clone(), ty.dims.clone())).collect()
    }

    /// Returns all outputs for every sample of a loader, in the loader's order. Its batches have
    /// [`PredictorBuilder::batch`] samples, but if the model carries state from batch to batch, they have the
    /// number that the loader was given, if it was given one.
    ///
    /// # Errors
    /// The data do not fit the model. The loader's batches are larger than the predictor's, and the model
    /// carries state. A sample is bad, even if the loader would skip it: later rows would
    /// then belong to other samples. Samples have several lengths: use [`Predictor::predict_batch`]. The
    /// replicas fail.
    pub fn predict(&mut self, loader: &Loader) -> Result<Predictions, Error> {
        self.predict_of(loader, None)
    }

    /// Returns some outputs for every sample of a loader, in the loader's order. The samples need only the
    /// fields that these outputs depend on. State that the model carries to the next batch counts as one of
    /// these outputs.
    ///
    /// # Errors
    /// Those of [`Predictor::predict`]; the model has no such output.
    pub fn predict_outputs(&mut self, loader: &Loader, outputs: &[&str]) -> Result<Predictions, Error> {
        self.predict_of(loader, Some(outputs))
    }

    fn predict_of(&mut self, loader: &Loader, outputs: Option<&[&str]>) -> Result<Predictions, Error> {
        self.carries.reset();
        self.notes.extend((!loader.keeps_order()).then(|| OTHER_ORDER.to_owned()));
        let mut all = Predictions::default();
        let loader = loader.clone().batch(self.batch_of(loader)?);
        self.notes.extend(dropped(&loader, "a prediction"));
        let mut batches = loader.epoch(0)?;
        for batch in &mut batches {
            all.extend(self.predict_batch_of(&batch?, outputs)?)?;
        }
        all_predicted(&batches)?;
        self.notes.extend(drawn(&batches, "a prediction"));
        Ok(all)
    }

    /// Returns the size of a loader's batches. For a model that carries state, it is the loader's own: each
    /// row of a batch continues where the same row of the one before stopped.
    fn batch_of(&self, loader: &Loader) -> Result<usize, Error> {
        let carries = self.programs.iter().any(|(program, _)| program.carries());
        let own = loader.explicit_batch_size().filter(|_| carries).unwrap_or(self.batch);
        let most = self.batch;
        let problem = || {
            format!(
                "the model carries state, so its batches have the loader's {own} samples, and the predictor takes {most}: \
                 set `PredictorBuilder::batch({own})`, or a smaller `Loader::batch`"
            )
        };
        if own <= most { Ok(own) } else { Err(Error::setting("batch", problem())) }
    }

    /// Returns the output of a model with one output and one f32 input. `values` contains the samples one
    /// after another.
    ///
    /// # Errors
    /// The values are not a whole number of samples. The model has other inputs or outputs. The replicas
    /// fail.
    pub fn predict_array(&mut self, values: &[f32]) -> Result<Prediction, Error> {
        let wrong = |problem: String| Error::setting("predict_array", problem);
        let fields = self.fields();
        let ([field], [_]) = (&fields[..], &self.outputs()[..]) else {
            let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
            return Err(wrong(format!(
                "the model takes {} and has {} outputs, but predict_array needs one of each: use predict_batch or \
                 rows",
                names.join(", "),
                self.outputs().len()
            )));
        };
        let row: usize = field.shape.iter().product();
        if field.dtype != FieldDType::F32
            || row == 0
            || values.is_empty()
            || !values.len().is_multiple_of(row)
        {
            let (count, shape) = (values.len(), &field.shape);
            return Err(wrong(format!(
                "{count} f32 values do not make samples of {shape:?} {}",
                field.dtype
            )));
        }
        self.carries.reset();
        let mut all = Predictions::default();
        for (part, first) in values.chunks(self.batch * row).zip((0..).step_by(self.batch)) {
            let shape = [&[part.len() / row], &field.shape[..]].concat();
            let stacked = Sample::new().with(field.name.clone(), unisono_data::Field::f32(shape, part));
            all.extend(self.predict_batch(&Batch::of_fields(stacked)?.starting_at(first))?)?;
        }
        all.0.pop().ok_or_else(|| wrong("the model has no output".into()))
    }

    /// Returns all outputs for a batch of at most [`PredictorBuilder::batch`] samples. A stateful model
    /// continues from the previous batch, until you call [`Predictor::reset_carries`]. A model that draws
    /// random numbers draws them for the positions from [`Batch::first`] on.
    ///
    /// # Errors
    /// The batch does not fit the model. The replicas fail.
    pub fn predict_batch(&mut self, batch: &Batch) -> Result<Predictions, Error> {
        self.predict_batch_of(batch, None)
    }

    /// Returns some outputs for a batch. The batch needs only the fields that these outputs depend on, as
    /// with [`Predictor::predict_outputs`].
    ///
    /// # Errors
    /// Those of [`Predictor::predict_batch`]; the model has no such output.
    pub fn predict_batch_outputs(&mut self, batch: &Batch, outputs: &[&str]) -> Result<Predictions, Error> {
        self.predict_batch_of(batch, Some(outputs))
    }

    fn predict_batch_of(&mut self, batch: &Batch, outputs: Option<&[&str]>) -> Result<Predictions, Error> {
        let began = Instant::now();
        if batch.len() == 0 {
            return Err(Error::setting("batch", "there is no sample in it"));
        }
        if batch.len() > self.batch {
            let (rows, most) = (batch.len(), self.batch);
            let problem = format!(
                "{rows} samples in batches of up to {most}: pass a loader to `predict`, which cuts it into batches, \
                 or set `PredictorBuilder::batch({rows})`"
            );
            return Err(Error::setting("batch", problem));
        }
        let at = self.program_for(batch)?;
        let (program, index) = &self.programs[at];
        let asked = match outputs {
            None => Asked::all(&program.outputs),
            Some(outputs) => Asked::some(&program.program, &program.fields, &program.outputs, outputs)?,
        };
        let batch = &*asked.fill(batch);
        program.check(batch)?;
        self.notes.extend(other_scale(&mut self.scale, batch));
        let batch = self.carries.with(batch)?;
        let feed = feed::feed(&program.program, &batch, &[], self.seed, &self.inputs)?;
        let outcome = self.replicas.step(*index, &feed, &mut |_| Verdict::Commit)?;
        self.carries.take(&program.program, &outcome.outputs);
        let reading = Reading::new(&program.program, &outcome.outputs);
        let predictions = Predictions::read(&asked.outputs, reading, batch.len())?;
        self.clock.batch(batch.len(), began.elapsed());
        Ok(predictions)
    }

    /// Sets the state that the model carries from batch to batch to zeros.
    pub fn reset_carries(&mut self) {
        self.carries.reset();
    }

    /// Writes the model as an ONNX file for its longest samples, as
    /// [`Trainer::export_onnx`](crate::Trainer::export_onnx) does.
    ///
    /// # Errors
    /// Those of [`Trainer::export_onnx`](crate::Trainer::export_onnx).
    pub fn export_onnx(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.export_onnx_as(path, WeightPrecision::F32)
    }

    /// Writes the model as an ONNX file with its weights in a precision, as
    /// [`Trainer::export_onnx_as`](crate::Trainer::export_onnx_as) does. A model that was opened from i8
    /// weights is quantized again: the integers stay, and a scale may differ in its last bit.
    ///
    /// # Errors
    /// Those of [`Trainer::export_onnx_as`](crate::Trainer::export_onnx_as).
    pub fn export_onnx_as(
        &mut self,
        path: impl AsRef<Path>,
        precision: WeightPrecision,
    ) -> Result<(), Error> {
        let tensors = self.tensors()?;
        let fields = &self.programs[0].0.fields;
        let program = PredictionProgram::trace(&self.model, Precision::F32, fields)?;
        onnx::write(path.as_ref(), &program, &tensors, precision)
    }

    /// Returns parameters and statistics by name.
    ///
    /// # Errors
    /// Of the replicas.
    fn tensors(&mut self) -> Result<Tensors, Error> {
        let states = self.programs[0].0.program.states().to_vec();
        let all = self.replicas.read_states(&(0..states.len()).collect::<Vec<_>>(), Vec::new())?;
        let tensor = |(state, bytes): (&unisono_graph::StateDecl, Vec<u8>)| {
            let Info { dtype, shape } = info(&state.ty);
            Ok((state.name.clone(), Tensor::new(dtype, shape, bytes)?))
        };
        states.iter().zip(all).map(tensor).collect()
    }

    /// Returns the place of the program for samples such as those of a batch. A program for a length that is
    /// new is compiled, and takes the place of that which was not used for the longest time where there are
    /// as many as there may be.
    ///
    /// # Errors
    /// The model cannot take this length, or has other parameters then.
    fn program_for(&mut self, batch: &Batch) -> Result<usize, Error> {
        let last = self.programs.len() - 1;
        match self.programs.iter().position(|(program, _)| program.fields.fit(batch)) {
            Some(0) => return Ok(0),
            Some(at) => {
                self.programs[at..].rotate_left(1);
                return Ok(last);
            }
            None => {}
        }
        let Some((fields, other)) = self.programs[0].0.fields.of_length(&in_batch(batch)) else {
            return Ok(0);
        };
        let added = self.add_program(&fields).or_else(|error| {
            let added = other.map(|fields| self.add_program(&fields));
            added.and_then(Result::ok).ok_or(error)
        })?;
        self.programs.push(added);
        if last == self.lengths {
            let (_, oldest) = self.programs.remove(1);
            self.replicas.forget_programs(oldest..oldest + 1)?;
        }
        Ok(self.programs.len() - 1)
    }

    /// Compiles the program for samples with these fields.
    fn add_program(&mut self, fields: &Fields) -> Result<(PredictionProgram, usize), Error> {
        let traced = PredictionProgram::trace(&self.model, self.precision, fields);
        let added = traced.map_err(|error| error.to_string()).and_then(|program| {
            let index = self.replicas.add_programs(vec![program.program.clone()]);
            Ok((program, index.map_err(|error| error.to_string())?))
        });
        added.map_err(|problem| self.programs[0].0.fields.cannot_be(fields, &problem))
    }
}

/// Returns a note if the values of the input are of another size than in training, and forgets `known` once
/// there were enough of them.
fn other_scale(known: &mut Option<Scale>, batch: &Batch) -> Option<String> {
    let trained = known.as_ref()?;
    let Values::F32(values) = &batch.stacked.field(INPUT)?.values else { return None };
    let own = Scale::of(values);
    let note = own.is_other(trained, MOST_RATIO, MOST_RATIO).then(|| {
        format!(
            "the values of {INPUT:?} are {own} in a batch of a prediction, and {trained} in the training (mean and \
             standard deviation): predictions need the transforms of the training data, such as normalize or rescale"
        )
    });
    if own.is_enough() {
        *known = None;
    }
    note
}

/// Stacks samples of the same fields into a batch.
///
/// # Errors
/// A sample lacks a field that the model takes, or has another shape or type there than the first one, or not
/// as many values as the shape says.
fn stack(fields: &[FieldSpec], samples: &[Sample]) -> Result<Batch, Error> {
    let mut stacked = Sample::new();
    for FieldSpec { name, shape, dtype } in fields {
        let first = samples.first().and_then(|sample| sample.field(name));
        let lacks = |expected: String, got: String| Error::Field { field: name.to_string(), expected, got };
        let first = first.ok_or_else(|| {
            let there = samples.iter().take(1).flat_map(|sample| sample.fields());
            let there: Vec<&str> = there.map(|(name, _)| &**name).collect();
            lacks(format!("{shape:?} {dtype} in each sample"), format!("fields {there:?}"))
        })?;
        let mut values = match first.values.dtype() {
            FieldDType::F32 => Values::F32(Vec::new()),
            FieldDType::I32 => Values::I32(Vec::new()),
        };
        // Too few values in one sample and too many in the next would make a batch of the right size, whose
        // rows are shifted.
        let count = first.shape.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent));
        for sample in samples {
            let field = sample.field(name).filter(|field| field.shape == first.shape);
            if let Some(field) = field.filter(|field| Some(field.values.len()) != count) {
                let got = format!("{} values", field.values.len());
                return Err(lacks(format!("values that fill shape {:?}", field.shape), got));
            }
            match (&mut values, field.map(|field| &field.values)) {
                (Values::F32(all), Some(Values::F32(own))) => all.extend(own),
                (Values::I32(all), Some(Values::I32(own))) => all.extend(own),
                _ => {
                    let got = "another type or shape, or none".into();
                    return Err(lacks("a field like the first sample's".into(), got));
                }
            }
        }
        let shape = [&[samples.len()], &first.shape[..]].concat();
        stacked.set(name.clone(), unisono_data::Field { shape, values });
    }
    Ok(Batch::of_fields(stacked)?)
}
