//! What layers tell the user while a model is traced.

use crate::model::Context;

/// What layers have told.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerNotes {
    /// Each with the layer that tells it.
    pub told: Vec<String>,
    /// The layers in which a step of a sequence sees the steps behind it.
    pub look_ahead: Vec<String>,
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

    /// Returns what layers have told so far.
    pub(crate) fn layer_notes(&self) -> &LayerNotes {
        &self.notes
    }
}
