//! Predictions of some outputs alone, for data without the fields that only the other outputs take.

use std::borrow::Cow;

use unisono_data::{Batch, Field, Sample};
use unisono_graph::{DType, InputKind, OutputKind, Program, Type};

use crate::Error;
use crate::compile::fields::Fields;
use crate::compile::programs::predicted;

/// The outputs that are asked for, and the fields that none of them depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The outputs with their types, in the order in which they were asked for.
    pub outputs: Vec<(String, Type)>,
    /// The fields that data need not have. Zeros stand for them.
    blank: Vec<(String, Type)>,
}

impl Asked {
    /// Asks for all outputs of a program, which takes all its fields.
    pub fn all(outputs: &[(String, Type)]) -> Self {
        Self { outputs: outputs.to_vec(), blank: Vec::new() }
    }

    /// Asks for some outputs of a program. What the model carries to the next batch counts as asked for.
    ///
    /// # Errors
    /// The model has no such output, or none is asked for.
    pub fn some(
        program: &Program,
        fields: &Fields,
        all: &[(String, Type)],
        asked: &[&str],
    ) -> Result<Self, Error> {
        let names = || all.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
        if asked.is_empty() {
            return Err(Error::setting(
                "predict",
                format!("no output is asked for: the model has {}", names()),
            ));
        }
        let find = |name: &&str| {
            let missing =
                || Error::setting("predict", format!("the model has no output {name:?}, only {}", names()));
            all.iter().find(|(own, _)| own == name).cloned().ok_or_else(missing)
        };
        let outputs: Vec<(String, Type)> = asked.iter().map(find).collect::<Result<_, _>>()?;
        let own: Vec<String> = outputs.iter().map(|(name, _)| predicted(name)).collect();
        let needed = program.outputs().iter().zip(&program.graph().outputs);
        let needed =
            needed.filter(|(output, _)| output.kind != OutputKind::Value || own.contains(&output.name));
        let needed: Vec<usize> = needed.map(|(_, output)| output.node).collect();
        let inputs = program.inputs().iter().filter(|input| input.kind == InputKind::Data);
        let is_blank = |name: &str| !needed.iter().any(|&node| program.depends_on(node, name));
        let blank = inputs.filter(|input| is_blank(&input.name));
        let blank = blank.filter_map(|input| Some((input.name.clone(), fields.get(&input.name)?.clone())));
        Ok(Self { outputs, blank: blank.collect() })
    }

    /// Returns a batch with zeros for the fields that it need not have and does not.
    pub fn fill<'a>(&self, batch: &'a Batch) -> Cow<'a, Batch> {
        if self.blank.iter().all(|(name, _)| batch.field(name).is_some()) {
            return Cow::Borrowed(batch);
        }
        let mut filled = batch.clone();
        let rows = filled.rows().len();
        self.fill_in(&mut filled.stacked, rows);
        Cow::Owned(filled)
    }

    /// Adds zeros for the fields that rows of samples need not have and do not.
    pub fn fill_in(&self, stacked: &mut Sample, rows: usize) {
        for (name, ty) in
            self.blank.iter().filter(|(name, _)| stacked.field(name).is_none()).collect::<Vec<_>>()
        {
            let shape = [&[rows], &*ty.dims].concat();
            let count = rows * ty.count();
            let zeros = match ty.dtype {
                DType::I32 => Field::i32(shape, vec![0; count]),
                _ => Field::f32(shape, vec![0.0; count]),
            };
            stacked.set(name.as_str(), zeros);
        }
    }
}
