//! Data out of and into arrays of the crate ndarray.

use std::sync::Arc;

use ndarray::ArrayD;

use crate::{DataError, Field, Memory, Values};

impl Memory {
    /// Makes a source of an array whose first axis counts the samples.
    ///
    /// ```
    /// use ndarray::{Array, ArrayD};
    /// use unisono_data::{Memory, Source};
    ///
    /// let x: ArrayD<f32> = Array::from_shape_fn((5, 2, 3), |(i, j, k)| (i + j + k) as f32).into_dyn();
    /// let y: ArrayD<i32> = Array::from_vec(vec![0, 1, 2, 1, 0]).into_dyn();
    /// let data = Memory::of_ndarray("x", &x)?.with_ndarray("y", &y)?;
    /// assert_eq!((data.len(), &data.fields()[0].shape[..]), (5, &[2, 3][..]));
    /// assert_eq!(data.fetch(4)?.field("x").unwrap().to_ndarray_f32().unwrap()[[1, 2]], 7.0);
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// The array has no axes, or a sample of it has no elements.
    pub fn of_ndarray<A>(name: impl Into<Arc<str>>, array: &ArrayD<A>) -> Result<Self, DataError>
    where
        for<'a> Field: From<&'a ArrayD<A>>,
    {
        let name = name.into();
        let (shape, values) = rows(&name, array.into())?;
        Self::new(name, shape, values)
    }

    /// Adds a field, as [`Memory::with`] does, of an array whose first axis counts the samples.
    ///
    /// # Errors
    /// Those of [`Memory::of_ndarray`] and of [`Memory::with`].
    pub fn with_ndarray<A>(self, name: impl Into<Arc<str>>, array: &ArrayD<A>) -> Result<Self, DataError>
    where
        for<'a> Field: From<&'a ArrayD<A>>,
    {
        let name = name.into();
        let (shape, values) = rows(&name, array.into())?;
        self.with(name, shape, values)
    }
}

/// Returns the axes of a sample and all values.
fn rows(name: &str, field: Field) -> Result<(Vec<usize>, Values), DataError> {
    match field.shape.split_first() {
        Some((_, shape)) => Ok((shape.to_vec(), field.values)),
        None => Err(DataError::field(name, "an array without axes has no samples")),
    }
}

impl From<&ArrayD<f32>> for Field {
    fn from(array: &ArrayD<f32>) -> Self {
        Self::f32(array.shape(), array.iter().copied().collect::<Vec<f32>>())
    }
}

impl From<&ArrayD<i32>> for Field {
    fn from(array: &ArrayD<i32>) -> Self {
        Self::i32(array.shape(), array.iter().copied().collect::<Vec<i32>>())
    }
}

impl Field {
    /// Returns the field as an array, or `None` if it holds i32 or its values do not fill its shape.
    pub fn to_ndarray_f32(&self) -> Option<ArrayD<f32>> {
        ArrayD::from_shape_vec(self.shape.clone(), self.values.as_f32()?.to_vec()).ok()
    }

    /// Returns the field as an array, or `None` if it holds f32 or its values do not fill its shape.
    pub fn to_ndarray_i32(&self) -> Option<ArrayD<i32>> {
        ArrayD::from_shape_vec(self.shape.clone(), self.values.as_i32()?.to_vec()).ok()
    }
}
