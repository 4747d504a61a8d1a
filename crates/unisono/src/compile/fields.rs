//! The fields of a sample that a model is built for, by name.

use std::collections::BTreeMap;

use unisono_data::{Batch, Field, FieldDType, FieldSpec};
use unisono_graph::{DType, Tape, Type};

use crate::compile::objective::On;

use crate::compile::parts::Parts;
use crate::model::functional::OUTPUT;
use crate::model::{Inputs, Mode};
use crate::{Context, Error};

/// The name of the field with each sample's weight, which data need not have.
pub const WEIGHT: &str = "w";

/// The fields that programs take, each with its type, in the order in which graphs declare them.
///
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    types: Vec<(String, Type)>,
    /// The upper limits of the ids that a field holds, for each of its elements, see
    /// [`crate::model::ids::limits`].
    pub ids: BTreeMap<String, Vec<usize>>,
    /// The fields with weights: [`WEIGHT`], where there is one, and those of outputs.
    pub weights: Vec<String>,
}

impl Fields {
    /// Selects the fields that a training step takes: those that the model asks for, in its order, those that
    /// its outputs are compared with and, where there is one, [`WEIGHT`].
    ///
    /// # Errors
    /// One is missing, a weight is not one f32 a sample, or the model's own errors.
    pub fn of(parts: &Parts, specs: &[FieldSpec]) -> Result<Self, Error> {
        let find = |name: &str| specs.iter().find(|s| &*s.name == name).map(field_type);
        let there = || match specs {
            [] => "no fields".to_owned(),
            specs => specs.iter().map(|s| s.name.to_string()).collect::<Vec<_>>().join(", "),
        };
        let (mut names, outputs) = match parts.only_input() {
            Some(input) => asked_by_layer(parts, input, find(input)),
            None => asked_for(parts, specs)?,
        };
        // An output that the model does not have would look like a field that the data do not have.
        for on in parts.compared() {
            let is_there = on.target.as_deref().is_some_and(|target| find(target).is_some());
            if !is_there && !outputs.contains(&on.output) {
                return Err(Error::setting("losses and metrics", on.not_among(&outputs)));
            }
        }
        for target in parts.targets() {
            if !names.iter().any(|name| name == target) {
                names.push(target.to_owned());
            }
        }
        for (output, field) in &parts.weighing.fields {
            if field == WEIGHT {
                let problem =
                    "the field \"w\" weights the samples of all outputs by itself: leave this setting out";
                return Err(Error::setting("sample weights", problem));
            }
            check_weights(output, field, find(field))?;
            if !names.contains(field) {
                names.push(field.clone());
            }
        }
        let mut weights: Vec<String> = parts.weighing.fields.values().cloned().collect();
        let mut types = Vec::new();
        for name in &names {
            let missing = || {
                let on = parts.compared().find(|on| on.target.as_ref() == Some(name));
                let of = |on: &On| {
                    let output = &on.output;
                    let other =
                        if output == name { " (loss_between and metric_between name another)" } else { "" };
                    format!(", which the output {output:?} is compared with{other}")
                };
                let expected = format!("a field of this name{}", on.map(of).unwrap_or_default());
                Error::Field { field: name.clone(), expected, got: there() }
            };
            types.push((name.clone(), find(name).ok_or_else(missing)?));
        }
        // It weighs the samples also where the model takes it, too.
        if let Some(weight) = find(WEIGHT) {
            weights.push(WEIGHT.to_owned());
            let expected = Type::sample(&[]);
            if weight != expected {
                let hint = "weights of labels are a field of another name, see Builder::sample_weights_of";
                let (expected, got) = (format!("{expected} ({hint})"), weight.to_string());
                return Err(Error::Field { field: WEIGHT.into(), expected, got });
            }
            if !names.iter().any(|name| name == WEIGHT) {
                types.push((WEIGHT.to_owned(), weight));
            }
        }
        Ok(Self { types, weights, ..Self::default() })
    }

    /// Returns a note that names those of the data's fields that are not among these, if there are any.
    pub fn unread_note(&self, specs: &[FieldSpec]) -> Option<String> {
        let unread = specs.iter().map(|spec| &*spec.name).filter(|name| self.get(name).is_none());
        let unread: Vec<&str> = unread.collect();
        let read: Vec<&str> = self.iter().map(|(name, _)| name).collect();
        (!unread.is_empty()).then(|| {
            let padding = match unread.contains(&"length") {
                true => ". Without the lengths, layers read the padding of short sequences too: unisono::data::mask",
                false => "",
            };
            let (unread, read) = (unread.join(", "), read.join(", "));
            format!("training does not use the data's fields {unread}: the model, its losses and metrics read {read}{padding}")
        })
    }

    /// Returns fields with these names and types, whether a model asks for them or not.
    pub fn all(specs: &[FieldSpec]) -> Self {
        let types = specs.iter().map(|spec| (spec.name.to_string(), field_type(spec))).collect();
        Self { types, ..Self::default() }
    }

    /// Returns the fields with these names, in their order.
    pub fn only(&self, names: &[String]) -> Self {
        let types = names.iter().filter_map(|name| Some((name.clone(), self.get(name)?.clone()))).collect();
        Self { types, ..Self::default() }
    }

    /// Returns names and types in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Type)> {
        self.types.iter().map(|(name, ty)| (name.as_str(), ty))
    }

    /// Returns the fields as sources describe them.
    pub fn specs(&self) -> Vec<FieldSpec> {
        let dtype = |ty: &Type| if ty.dtype == DType::F32 { FieldDType::F32 } else { FieldDType::I32 };
        let spec = |(name, ty): (&str, &Type)| FieldSpec {
            name: name.into(),
            dtype: dtype(ty),
            shape: ty.dims.clone(),
        };
        self.iter().map(spec).collect()
    }

    /// Returns a field's type.
    pub fn get(&self, name: &str) -> Option<&Type> {
        self.iter().find(|(own, _)| *own == name).map(|(_, ty)| ty)
    }

    /// Returns a field's type where the field has to be there.
    ///
    /// # Errors
    /// The trainer was built without such a field.
    pub fn expect(&self, name: &str) -> Result<&Type, Error> {
        let missing = || Error::Field { field: name.into(), expected: "a field".into(), got: "none".into() };
        self.get(name).ok_or_else(missing)
    }

    /// Returns whether the fields of a batch that are among these have the same axes and types. A prediction
    /// needs no targets.
    pub fn fit(&self, batch: &Batch) -> bool {
        self.fit_types(&in_batch(batch))
    }

    /// Does [`Fields::fit`] for samples whose fields have these types.
    pub fn fit_types(&self, samples: &dyn Fn(&str) -> Option<Type>) -> bool {
        self.iter().all(|(name, ty)| samples(name).is_none_or(|own| own == *ty))
    }

    /// Returns these fields with the lengths that they have in samples: the first axis may be shorter there.
    /// A field that the samples lack, as the targets of a prediction, is as long as the others that have its
    /// length here. Its length may have nothing to do with theirs, so the fields in which it keeps its own
    /// come second, if they are others. Returns `None` if another axis or the type differs too, or if the
    /// samples are longer.
    pub fn of_length(&self, samples: &dyn Fn(&str) -> Option<Type>) -> Option<(Self, Option<Self>)> {
        let mut all = self.clone();
        let mut lengths = BTreeMap::new();
        for (name, ty) in &mut all.types {
            let Some(own) = samples(name) else { continue };
            let shorter = ty.dims.first().zip(own.dims.first()).is_some_and(|(most, own)| own <= most);
            let rest = |ty: &Type| ty.dims.get(1..).map(<[usize]>::to_vec);
            if own != *ty && (!shorter || rest(&own) != rest(ty) || own.dtype != ty.dtype) {
                return None;
            }
            lengths.extend(ty.dims.first().copied().zip(own.dims.first().copied()));
            *ty = own;
        }
        all.ids.clear();
        let mut cut = all.clone();
        for (_, ty) in cut.types.iter_mut().filter(|(name, _)| samples(name).is_none()) {
            let length = ty.dims.first().and_then(|length| lengths.get(length)).copied();
            ty.dims.iter_mut().zip(length).for_each(|(first, length)| *first = length);
        }
        let other = (cut.types != all.types).then_some(all);
        Some((cut, other))
    }

    /// Returns the error of samples whose length a model cannot take: these fields have it, and the problem
    /// is why.
    pub fn cannot_be(&self, other: &Self, problem: &str) -> Error {
        let mut differ = self.iter().zip(other.iter()).filter(|(own, other)| own.1 != other.1);
        let (name, expected, got) = match differ.next() {
            Some(((name, own), (_, other))) => (name, own.to_string(), other.to_string()),
            None => ("", String::new(), String::new()),
        };
        let got = format!("{got} (a program for this length: {problem})");
        Error::Field { field: name.into(), expected, got }
    }

    /// Declares all fields as inputs of a graph, in order, and returns them by name.
    pub fn declare(&self, tape: &Tape) -> Inputs {
        let inputs = Inputs::new(tape, self.iter());
        for (name, _) in self.iter() {
            let _declared = inputs.get(name);
        }
        inputs
    }

    /// Compares a loader's fields with these, before there is a batch.
    ///
    /// # Errors
    /// The first field that is missing or of another type.
    pub fn check_specs(&self, specs: &[FieldSpec]) -> Result<(), Error> {
        let samples = in_specs(specs);
        for (name, ty) in self.iter() {
            let got = samples(name);
            if got.as_ref() != Some(ty) {
                let got = got.map_or_else(|| "no such field".into(), |got| got.to_string());
                return Err(Error::Field { field: name.into(), expected: ty.to_string(), got });
            }
        }
        Ok(())
    }
}

/// Checks the field with the weights of an output's samples or labels.
///
/// # Errors
/// It is missing, or not f32.
fn check_weights(output: &str, field: &str, found: Option<Type>) -> Result<(), Error> {
    match found {
        Some(ty) if ty.dtype == DType::F32 => Ok(()),
        found => {
            let expected = format!("f32, which weigh the samples or labels of the output {output:?}");
            let got = found.map_or_else(|| "no such field".to_owned(), |ty| ty.to_string());
            Err(Error::Field { field: field.to_owned(), expected, got })
        }
    }
}

/// Returns the field that a layer asks for, and the names of its outputs. Its errors come when it is traced
/// for training.
fn asked_by_layer(parts: &Parts, input: &str, ty: Option<Type>) -> (Vec<String>, Vec<String>) {
    let mut names = vec![OUTPUT.to_owned()];
    if let Some(ty) = ty {
        let tape = Tape::with_precision(parts.precision);
        let mut cx = Context::new(&tape, Mode::Train);
        parts.model.forward(&mut cx, &Inputs::new(&tape, std::iter::once((input, &ty))));
        parts.settle_with(cx.added());
        names.extend(cx.added().values().map(|(name, _)| name.to_owned()));
    }
    (vec![input.to_owned()], names)
}

/// Returns the fields that a model asks for in training, in its order, and behind them those that it asks for
/// in evaluations alone. Returns the names of its outputs, too.
///
/// # Errors
/// Those of the model.
fn asked_for(parts: &Parts, specs: &[FieldSpec]) -> Result<(Vec<String>, Vec<String>), Error> {
    let types: Vec<(&str, Type)> = specs.iter().map(|spec| (&*spec.name, field_type(spec))).collect();
    let (mut all, mut names): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for mode in [Mode::Train, Mode::Evaluate] {
        let tape = Tape::with_precision(parts.precision);
        let inputs = Inputs::new(&tape, types.iter().map(|(name, ty)| (*name, ty)));
        let mut cx = Context::new(&tape, mode);
        let outputs = parts.model.forward(&mut cx, &inputs).with_added(&cx);
        if mode == Mode::Train {
            parts.settle_with(cx.added());
        }
        tape.error().map_or(Ok(()), Err)?;
        let more: Vec<String> = inputs.used().into_iter().filter(|name| !all.contains(name)).collect();
        all.extend(more);
        names.extend(outputs.iter().map(|(name, _)| name.to_owned()));
    }
    names.sort_unstable();
    names.dedup();
    Ok((all, names))
}

/// Returns the types of a batch's fields, by their names.
pub(crate) fn in_batch(batch: &Batch) -> impl Fn(&str) -> Option<Type> {
    |name| batch.field(name).map(|field| field_type(&sample_spec(field)))
}

/// Returns the types of a loader's fields, by their names.
pub(crate) fn in_specs(specs: &[FieldSpec]) -> impl Fn(&str) -> Option<Type> {
    |name| specs.iter().find(|spec| &*spec.name == name).map(field_type)
}

/// Returns what a batch's field is for one sample.
fn sample_spec(field: &Field) -> FieldSpec {
    let mut spec = field.spec("");
    spec.shape = field.shape.get(1..).unwrap_or_default().to_vec();
    spec
}

/// Returns the type that a field has in a graph.
pub(crate) fn field_type(spec: &FieldSpec) -> Type {
    let dtype = match spec.dtype {
        FieldDType::F32 => DType::F32,
        FieldDType::I32 => DType::I32,
    };
    Type::sample(&spec.shape).of(dtype)
}
