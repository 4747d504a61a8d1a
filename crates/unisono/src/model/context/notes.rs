//! What layers tell the user while a model is traced.

use std::collections::{BTreeMap, BTreeSet};

use unisono_graph::Var;

use crate::model::Context;

/// What layers have told.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerNotes {
    /// Each with the layer that tells it.
    pub told: Vec<String>,
    /// The layers in which a step of a sequence sees the steps behind it.
    pub look_ahead: Vec<String>,
    /// The values that dense layers return, by their nodes: the layer and the number of its input features.
    linear: BTreeMap<usize, (String, usize)>,
}

impl LayerNotes {
    /// Returns the names of those outputs that dense layers return.
    pub fn linear_of<'a>(&self, outputs: impl Iterator<Item = (&'a str, &'a Var)>) -> BTreeSet<String> {
        let linear = outputs.filter(|(_, output)| self.linear.contains_key(&output.id()));
        linear.map(|(name, _)| name.to_owned()).collect()
    }
}

impl Context {
    /// Tells the user something that is odd about the current layer and yet may be meant, such as a setting
    /// that has no effect. [`Trainer::notes`](crate::Trainer::notes) has it, with the layer's path. What is
    /// wrong for certain is an error: see [`Context::fail`].
    pub fn note(&mut self, text: &str) {
        let note = format!("{}: {text}", self.path());
        if !self.notes.told.contains(&note) {
            self.notes.told.push(note);
        }
    }

    /// Says that a step of a sequence sees the steps behind it in the current layer.
    pub(crate) fn looks_ahead(&mut self) {
        let path = self.path();
        self.notes.look_ahead.push(path);
    }

    /// Remembers that `value` is the output of the current layer, a dense layer with `features` inputs.
    pub(crate) fn note_linear(&mut self, value: &Var, features: usize) {
        let path = self.path();
        self.notes.linear.insert(value.id(), (path, features));
    }

    /// Returns the dense layer whose output a value is, with the number of its input features.
    pub(crate) fn linear_layer_of(&self, value: &Var) -> Option<(String, usize)> {
        self.notes.linear.get(&value.id()).cloned()
    }

    /// Returns what layers have told so far.
    pub(crate) fn layer_notes(&self) -> &LayerNotes {
        &self.notes
    }
}
