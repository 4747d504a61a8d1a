//! What transforms say of their effects while a loader runs them on its first sample.
//!
//! A transform is a closure, so nobody can look into it. The transforms of this crate therefore report what
//! they do, in a variable of their thread, and the loader collects these reports.

use std::cell::RefCell;

/// What a transform says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It moves the pixels of these fields, with one draw for all of them.
    Moves(Vec<String>),
    /// It brings the values of a field to another scale. `settings` is the hash of its numbers, and `samples`
    /// the number of samples that these are statistics of.
    Scales { field: String, settings: u64, samples: Option<u64> },
}

thread_local! {
    static SAID: RefCell<Option<Vec<Effect>>> = const { RefCell::new(None) };
}

/// Says an effect to whoever listens in this thread.
pub(crate) fn say(effect: impl FnOnce() -> Effect) {
    SAID.with_borrow_mut(|said| said.as_mut().map(|said| said.push(effect())));
}

/// Runs something, and returns what it returns with what transforms have said in the meantime.
pub(crate) fn listen<T>(run: impl FnOnce() -> T) -> (T, Vec<Effect>) {
    SAID.set(Some(Vec::new()));
    let result = run();
    (result, SAID.take().unwrap_or_default())
}

/// What the transforms of a loader do to its fields, as far as they say it: those of this crate do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Transforms that move the pixels of one field at random, and leave those of another field of the same
    /// height and width where they are.
    pub apart: Vec<MovedApart>,
    /// Transforms that bring the values of a field to another scale, in their order.
    pub scaled: Vec<Scaled>,
}

/// A transform that moves the pixels of a field at random and not those of another, see [`Effects`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedApart {
    /// The transform, such as `map 'flip'`.
    pub transform: String,
    /// The field that is moved.
    pub moved: String,
    /// The field that stays.
    pub left: String,
}

/// A transform that brings the values of a field to another scale, see [`Effects`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// The transform, such as `map 'normalize'`.
    pub transform: String,
    /// The field.
    pub field: String,
    /// The hash of the transform's kind and numbers, such as the mean and the deviation of
    /// [`normalize`](crate::normalize).
    pub settings: u64,
    /// The number of samples whose statistics the numbers are, if they are.
    pub samples: Option<u64>,
}
