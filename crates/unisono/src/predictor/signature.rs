//! Other models over a predictor's weights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use unisono_data::{Batch, FieldSpec};
use unisono_graph::{InputKind, Lead, RandomKey};
use unisono_replica::{Feed, Verdict};

use crate::compile::fields::Fields;
use crate::compile::outputs::Reading;
use crate::compile::prediction::PredictionProgram;
use crate::model::Model;
use crate::predictor::Predictor;
use crate::{Error, Predictions};

/// A model that was added to a predictor, with its number among the programs of the replicas.
pub(super) struct Signature {
    program: PredictionProgram,
    index: usize,
}

impl Predictor {
    /// Adds another model with the same weights and its own fields (a signature of TensorFlow's SavedModel).
    /// For example, a decoder reads its prompt with one model and continues token by token with another.
    ///
    /// Returns its number for [`Predictor::predict_signature`]. It stays until the predictor is dropped.
    ///
    /// # Errors
    /// The model has other tensors than the predictor's, or carries something from batch to batch; those of
    /// the model.
    pub fn add_signature(&mut self, model: impl Into<Model>, fields: &[FieldSpec]) -> Result<usize, Error> {
        let program = PredictionProgram::trace(&model.into(), self.precision, &Fields::all(fields))?;
        if program.carries() {
            return Err(Error::setting("signature", "the model carries something from batch to batch"));
        }
        let index = self.replicas.add_programs(vec![program.program.clone()])?;
        self.signatures.push(Signature { program, index });
        Ok(self.signatures.len() - 1)
    }

    /// Frees the device memory in which signatures have stored values for each other
    /// ([`Tape::keep_resident`](crate::Tape::keep_resident)).
    ///
    /// A signature that writes such memory without reading it fills it for the samples of its batch. The
    /// signatures that read it must get the same number of samples, in the same order. If a replica is lost
    /// in between, they return an error for which [`Error::lost_residents`] is true, and the memory has to be
    /// filled again.
    ///
    /// # Errors
    /// All replicas are lost.
    pub fn drop_residents(&mut self) -> Result<(), Error> {
        Ok(self.replicas.drop_residents()?)
    }

    /// Returns all outputs of a signature for a batch of up to [`PredictorBuilder::batch`] samples.
    ///
    /// `shared` holds fields by name as little-endian bytes, with a row for each sample. They are used
    /// without a copy, and are not checked for non-finite numbers or ids that are out of range.
    ///
    /// # Errors
    /// There is no such signature; a field that does not fit it; an error of the replicas.
    ///
    /// [`PredictorBuilder::batch`]: crate::PredictorBuilder::batch
    pub fn predict_signature(
        &mut self,
        signature: usize,
        batch: &Batch,
        shared: &BTreeMap<String, Arc<[u8]>>,
    ) -> Result<Predictions, Error> {
        let began = Instant::now();
        let wrong = |problem: String| Error::setting("signature", problem);
        let Some(Signature { program, index }) = self.signatures.get(signature) else {
            return Err(wrong(format!("there is no signature {signature}")));
        };
        let rows = batch.len();
        if rows == 0 || rows > self.batch {
            return Err(wrong(format!("{rows} samples in batches of up to {}", self.batch)));
        }
        program.check_but(batch, shared)?;
        let inputs = program.program.inputs().iter().map(|input| {
            let name = &*input.name;
            match shared.get(name) {
                _ if matches!(input.kind, InputKind::Random | InputKind::Resident(_)) => {
                    Ok(Arc::from([].as_slice()))
                }
                None => self.inputs.field(batch, name),
                Some(bytes) => {
                    let all = if input.ty.lead == Lead::Global { 1 } else { rows };
                    let expected = 4 * all * input.ty.count();
                    let problem = || wrong(format!("{name} has {} bytes, not {expected}", bytes.len()));
                    if bytes.len() == expected { Ok(Arc::clone(bytes)) } else { Err(problem()) }
                }
            }
        });
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let random = RandomKey { seed: self.seed, epoch: batch.epoch, position: batch.first };
        let feed = Feed { rows, inputs, random, held: None };
        let outcome = self.replicas.step(*index, &feed, &mut |_| Verdict::Commit)?;
        let reading = Reading::new(&program.program, &outcome.outputs);
        let predictions = Predictions::read(&program.outputs, reading, rows)?;
        self.clock.batch(rows, began.elapsed());
        Ok(predictions)
    }
}
