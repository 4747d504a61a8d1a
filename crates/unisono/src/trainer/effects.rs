//! Notes on what transforms do to the data, as far as they say it.

use std::collections::BTreeSet;

use unisono_data::{Effects, Loader, MovedApart};

use crate::Trainer;

impl Trainer {
    /// Tells observers of transforms of the training data that move a picture and not its targets, or that
    /// scale a field twice.
    pub(super) fn note_effects(&mut self, train: &Loader) {
        let effects = &self.known_data.effects;
        let notes = [self.note_on_moves(effects), twice(effects), of_more(effects, train)];
        notes.into_iter().for_each(|note| self.note_once(note));
    }

    fn note_on_moves(&self, effects: &Effects) -> Option<String> {
        let targets: BTreeSet<&str> =
            self.plan.programs.losses.iter().filter_map(|(loss, _)| loss.on.target.as_deref()).collect();
        let is_target = |name: &str| targets.contains(name);
        let is_apart = |apart: &&MovedApart| is_target(&apart.moved) != is_target(&apart.left);
        let MovedApart { transform, moved, left } = effects.apart.iter().find(is_apart)?;
        Some(format!(
            "{transform} moves the pixels of {moved:?} and leaves those of {left:?} where they are: a transform that is \
             given both fields, [{moved:?}, {left:?}], moves them alike"
        ))
    }

    /// Tells observers once if other data are scaled by other numbers than the training data.
    pub(super) fn note_other_effects(&mut self, loader: &Loader, what: &str) {
        if self.known_data.transforms.is_none() {
            return;
        }
        // The loader knows its effects, since it has read samples.
        let own = loader.effects().unwrap_or_default();
        let trained = &self.known_data.effects;
        let fields: BTreeSet<&str> = trained.scaled.iter().map(|scaled| &*scaled.field).collect();
        let settings = |effects: &Effects, field: &str| -> Vec<u64> {
            let scaled = effects.scaled.iter().filter(|scaled| scaled.field == field);
            scaled.map(|scaled| scaled.settings).collect()
        };
        let is_other = |field: &&str| {
            let (trained, own) = (settings(trained, field), settings(&own, field));
            // Where one is not scaled at all, the values tell.
            !own.is_empty() && trained != own
        };
        let note = fields.into_iter().find(is_other).map(|field| {
            format!(
                "{what} scales {field:?} by other numbers than training does: use the Statistics of the training \
                 data for both, because the model learned with those"
            )
        });
        self.note_once(note);
    }
}

/// Returns a note if statistics are those of more samples than the training data have.
fn of_more(effects: &Effects, train: &Loader) -> Option<String> {
    let scaled =
        effects.scaled.iter().find(|scaled| scaled.samples.is_some_and(|of| of > train.samples()))?;
    Some(format!(
        "{} scales {:?} by statistics of {} samples, and the training data have {}: compute the Statistics on the \
         training data alone, so that no held-out sample leaks into training",
        scaled.transform,
        scaled.field,
        scaled.samples.unwrap_or_default(),
        train.samples()
    ))
}

/// Returns a note if a field is scaled twice by the same numbers.
fn twice(effects: &Effects) -> Option<String> {
    let mut all = effects.scaled.iter().enumerate();
    let (first, again) = all.find_map(|(at, scaled)| {
        let same = |before: &&unisono_data::Scaled| {
            (&before.field, before.settings) == (&scaled.field, scaled.settings)
        };
        Some((effects.scaled[..at].iter().find(same)?, scaled))
    })?;
    Some(format!(
        "{} scales {:?} by the same numbers as {} has: once is enough",
        again.transform, again.field, first.transform
    ))
}
