//! Samples, their fields, and the trait of their sources: what the rest of the crate is made of.

pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod content;
pub(crate) mod effects;
pub(crate) mod error;
pub(crate) mod field;
pub(crate) mod fingerprint;
pub(crate) mod narrow;
pub(crate) mod part;
pub(crate) mod position;
pub(crate) mod regular;
pub(crate) mod source;
pub(crate) mod tree;

use std::sync::Arc;

use self::field::{Field, FieldSpec};

/// One sample, or a batch of them: fields by name, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    fields: Vec<(Arc<str>, Field)>,
}

impl Sample {
    /// Returns a sample without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a field, or replaces the one of that name in its place.
    pub fn set(&mut self, name: impl Into<Arc<str>>, field: Field) {
        let name = name.into();
        match self.field_mut(&name) {
            Some(old) => *old = field,
            None => self.fields.push((name, field)),
        }
    }

    /// Appends or replaces a field as [`set`](Self::set) does, for building a sample in one expression.
    pub fn with(mut self, name: impl Into<Arc<str>>, field: Field) -> Self {
        self.set(name, field);
        self
    }

    /// Removes a field and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Field> {
        let at = self.fields.iter().position(|(own, _)| **own == *name)?;
        Some(self.fields.remove(at).1)
    }

    /// Returns the field of a name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|(own, _)| **own == *name).map(|(_, field)| field)
    }

    /// Returns the field of a name, mutably.
    pub fn field_mut(&mut self, name: &str) -> Option<&mut Field> {
        self.fields.iter_mut().find(|(own, _)| **own == *name).map(|(_, field)| field)
    }

    /// Returns the elements of an f32 field, or `None` if there is no such field or it is of another type.
    ///
    /// ```
    /// use unisono_data::{Field, Sample};
    ///
    /// let mut sample = Sample::new().with("x", Field::f32([2], [0.5, 1.0])).with("y", Field::i32([], [3]));
    /// assert_eq!((sample.f32("x"), sample.i32("x")), (Some(&[0.5, 1.0][..]), None));
    /// sample.i32_mut("y").unwrap()[0] += 1;
    /// assert_eq!(sample.i32("y"), Some(&[4][..]));
    /// ```
    pub fn f32(&self, name: &str) -> Option<&[f32]> {
        self.field(name)?.values.as_f32()
    }

    /// Returns the elements of an i32 field, or `None` if there is no such field or it is of another type.
    pub fn i32(&self, name: &str) -> Option<&[i32]> {
        self.field(name)?.values.as_i32()
    }

    /// Returns the elements of an i32 field, mutably, or `None` if there is no such field or it is of
    /// another type.
    pub fn i32_mut(&mut self, name: &str) -> Option<&mut [i32]> {
        self.field_mut(name)?.values.as_i32_mut()
    }

    /// Returns the elements of an f32 field, mutably, or `None` if there is no such field or it is of
    /// another type.
    pub fn f32_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        self.field_mut(name)?.values.as_f32_mut()
    }

    /// Returns all fields with their names, in order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Field)> {
        self.fields.iter().map(|(name, field)| (name, field))
    }

    /// Keeps the rows of stacked samples that are marked true.
    pub(crate) fn keep_rows(&mut self, keep: &[bool]) {
        for (_, field) in &mut self.fields {
            field.values.keep_rows(keep);
            if let Some(rows) = field.shape.first_mut() {
                *rows = keep.iter().filter(|&&keep| keep).count();
            }
        }
    }

    /// Returns the names, types and shapes of this sample's fields.
    pub fn specs(&self) -> Vec<FieldSpec> {
        self.fields().map(|(name, field)| field.spec(name.clone())).collect()
    }
}
