//! Tensors that are made of the elements of a file's tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::keras::View;
use crate::tensors::info::{Info, TensorDType};
use crate::tensors::strided::{ordered, places};

/// A tensor whose elements are those of one or more tensors of a file, in some order. It says where each
/// element is, and so leads in both directions.
#[derive(Debug)]
pub(crate) struct Arranged {
    pub dtype: TensorDType,
    pub shape: Vec<usize>,
    made: Made,
}

#[derive(Debug)]
enum Made {
    /// A tensor of the file, in Keras's order if there is a view.
    Stored { name: String, axes: Vec<usize>, view: Option<View> },
    /// The same elements, in another shape.
    Reshaped(Arc<Arranged>),
    /// Axis i is axis `order[i]` of the other tensor.
    Permuted(Arc<Arranged>, Vec<usize>),
    /// A part of an axis, from this place on.
    Part { of: Arc<Arranged>, axis: usize, start: usize },
    /// The concatenation of tensors along an axis.
    Joined(Vec<Arc<Arranged>>, usize),
}

/// An element of a file: the number of its tensor, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub tensor: usize,
    pub at: usize,
}

impl Arranged {
    /// Returns a tensor of the file.
    pub fn stored(name: &str, info: &Info, view: Option<View>) -> Self {
        let shape = view.as_ref().map_or_else(|| info.shape.clone(), |view| view.shape.clone());
        let made = Made::Stored { name: name.to_owned(), axes: info.shape.clone(), view };
        Self { dtype: info.dtype, shape, made }
    }

    /// Returns the file's tensor that this is, if it is one without any change.
    pub fn plain(&self) -> Option<&str> {
        match &self.made {
            Made::Stored { name, view: None, .. } => Some(name),
            _ => None,
        }
    }

    /// Returns the names of the file's tensors that it is made of, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.collect(&mut names);
        names
    }

    fn collect<'a>(&'a self, names: &mut Vec<&'a str>) {
        match &self.made {
            Made::Stored { name, .. } if names.contains(&name.as_str()) => {}
            Made::Stored { name, .. } => names.push(name),
            Made::Reshaped(of) | Made::Permuted(of, _) | Made::Part { of, .. } => of.collect(names),
            Made::Joined(parts, _) => parts.iter().for_each(|part| part.collect(names)),
        }
    }

    /// Gives the elements another shape.
    pub fn reshaped(self, shape: &[usize]) -> Result<Self, String> {
        let new = Info { dtype: self.dtype, shape: shape.to_vec() };
        let old = Info { dtype: self.dtype, shape: self.shape.clone() };
        if new.bytes().is_none() || new.bytes() != old.bytes() {
            return Err(format!("{:?} has other elements than {shape:?}", self.shape));
        }
        Ok(Self { dtype: self.dtype, shape: new.shape, made: Made::Reshaped(Arc::new(self)) })
    }

    /// Reorders the axes: axis i becomes what axis `order[i]` is.
    pub fn permuted(self, order: &[usize]) -> Result<Self, String> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.shape.len()) {
            return Err(format!("{order:?} does not order the axes of {:?}", self.shape));
        }
        let shape = order.iter().map(|&axis| self.shape[axis]).collect();
        Ok(Self { dtype: self.dtype, shape, made: Made::Permuted(Arc::new(self), order.to_vec()) })
    }

    /// Swaps the last two axes.
    pub fn transposed(self) -> Result<Self, String> {
        let Some(last) = self.shape.len().checked_sub(2) else {
            return Err(format!("{:?} has no two axes", self.shape));
        };
        let order: Vec<usize> = (0..last).chain([last + 1, last]).collect();
        self.permuted(&order)
    }

    /// Cuts an axis into parts of these lengths, or into equal parts.
    pub fn split(self, axis: usize, lengths: &[Option<usize>]) -> Result<Vec<Self>, String> {
        let whole = self.shape.get(axis).copied();
        let whole = whole.ok_or_else(|| format!("{:?} has no axis {axis}", self.shape))?;
        let equal = whole.checked_div(lengths.len()).unwrap_or(0);
        let lengths: Vec<usize> = lengths.iter().map(|length| length.unwrap_or(equal)).collect();
        if lengths.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length)) != Some(whole) {
            return Err(format!("axis {axis} of {:?} does not divide into {lengths:?}", self.shape));
        }
        let of = Arc::new(self);
        let mut start = 0;
        let part = |length: usize| {
            let mut shape = of.shape.clone();
            shape[axis] = length;
            let made = Made::Part { of: Arc::clone(&of), axis, start };
            start += length;
            Self { dtype: of.dtype, shape, made }
        };
        Ok(lengths.into_iter().map(part).collect())
    }

    /// Concatenates tensors along an axis.
    pub fn joined(parts: Vec<Self>, axis: usize) -> Result<Self, String> {
        let Some((first, rest)) = parts.split_first() else { return Err("there are no parts".into()) };
        let mut shape = first.shape.clone();
        if axis >= shape.len() {
            return Err(format!("{shape:?} has no axis {axis}"));
        }
        for part in rest {
            let same = part.shape.len() == shape.len() && part.dtype == first.dtype;
            let others = part.shape.iter().zip(&shape).enumerate();
            if !same || others.into_iter().any(|(own, (a, b))| own != axis && a != b) {
                let [a, b] = [first, part].map(|part| format!("{}{:?}", part.dtype, part.shape));
                return Err(format!("{a} and {b} cannot be joined along axis {axis}"));
            }
            shape[axis] = shape[axis].checked_add(part.shape[axis]).ok_or("they are too long")?;
        }
        let dtype = first.dtype;
        let parts = parts.into_iter().map(Arc::new).collect();
        Ok(Self { dtype, shape, made: Made::Joined(parts, axis) })
    }

    /// Returns where each element is. `tensors` gives the file's tensors their numbers.
    pub fn places(&self, tensors: &BTreeMap<&str, usize>) -> Vec<Place> {
        // Without elements there may be axes whose product no machine can hold.
        if self.shape.contains(&0) {
            return Vec::new();
        }
        match &self.made {
            Made::Stored { name, axes, view } => {
                let tensor = tensors.get(name.as_str()).copied().unwrap_or(usize::MAX);
                let count: usize = axes.iter().product();
                let order = match view {
                    None => (0..count).collect(),
                    Some(view) => numbers(axes, count, view),
                };
                order.into_iter().map(|at| Place { tensor, at }).collect()
            }
            Made::Reshaped(of) => of.places(tensors),
            Made::Permuted(of, order) => {
                let all = of.places(tensors);
                places(ordered(&of.shape, order)).map(|at| all[at]).collect()
            }
            Made::Part { of, axis, start } => {
                let (outer, inner) = around(&of.shape, *axis);
                let (from, length) = (of.shape[*axis] * inner, self.shape[*axis] * inner);
                let all = of.places(tensors);
                let part = |i: usize| all[i * from + start * inner..][..length].iter().copied();
                (0..outer).flat_map(part).collect()
            }
            Made::Joined(parts, axis) => {
                let (outer, inner) = around(&self.shape, *axis);
                let all = parts.iter().map(|part| (part.places(tensors), part.shape[*axis] * inner));
                let all: Vec<(Vec<Place>, usize)> = all.collect();
                let row = |i: usize| all.iter().flat_map(move |(part, n)| &part[i * n..(i + 1) * n]);
                (0..outer).flat_map(row).copied().collect()
            }
        }
    }
}

/// Returns the products of the axes before an axis and of those behind it.
fn around(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

/// Returns the numbers 0.. in the order of a view.
fn numbers(axes: &[usize], count: usize, view: &View) -> Vec<usize> {
    let info = Info { dtype: TensorDType::U64, shape: axes.to_vec() };
    let bytes: Vec<u8> = (0..count as u64).flat_map(u64::to_le_bytes).collect();
    let moved = view.apply(&info, &bytes);
    moved.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(shape: &[usize]) -> Arranged {
        Arranged::stored("w", &Info::f32(shape), None)
    }

    fn order(tensor: &Arranged) -> Vec<usize> {
        let numbers = BTreeMap::from([("w", 0), ("v", 1)]);
        tensor.places(&numbers).iter().map(|place| 10 * place.tensor + place.at).collect()
    }

    #[test]
    fn elements_go_where_the_axes_say() {
        assert_eq!(order(&stored(&[2, 3]).transposed().unwrap()), [0, 3, 1, 4, 2, 5]);
        let parts = stored(&[2, 4]).split(1, &[Some(1), Some(3)]).unwrap();
        assert_eq!(parts.iter().map(order).collect::<Vec<_>>(), [vec![0, 4], vec![1, 2, 3, 5, 6, 7]]);
        let other = Arranged::stored("v", &Info::f32(&[2, 1]), None);
        let joined = Arranged::joined(vec![stored(&[2, 2]), other], 1).unwrap();
        assert_eq!((joined.shape.clone(), order(&joined)), (vec![2, 3], vec![0, 1, 10, 2, 3, 11]));
        assert_eq!(joined.names(), ["w", "v"]);
        let turned = stored(&[2, 1, 3]).permuted(&[2, 0, 1]).unwrap().reshaped(&[6]).unwrap();
        assert_eq!(order(&turned), [0, 3, 1, 4, 2, 5]);
        assert_eq!(order(&stored(&[0, usize::MAX, usize::MAX]).transposed().unwrap()), [0; 0]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let error = |result: Result<Arranged, String>| result.unwrap_err();
        assert_eq!(error(stored(&[3]).transposed()), "[3] has no two axes");
        assert_eq!(error(stored(&[3, 2]).reshaped(&[5])), "[3, 2] has other elements than [5]");
        assert_eq!(error(stored(&[3, 2]).permuted(&[0, 0])), "[0, 0] does not order the axes of [3, 2]");
        let halves = stored(&[3]).split(0, &[None, None]).unwrap_err();
        assert_eq!(halves, "axis 0 of [3] does not divide into [1, 1]");
        assert_eq!(stored(&[3]).split(1, &[None]).unwrap_err(), "[3] has no axis 1");
        let joined = Arranged::joined(vec![stored(&[3, 2]), stored(&[2, 3])], 0);
        assert_eq!(error(joined), "F32[3, 2] and F32[2, 3] cannot be joined along axis 0");
    }
}
