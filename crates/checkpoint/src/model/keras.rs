//! Keras's order of axes, and the change to ours.

use crate::model::pattern::Pattern;
use crate::tensors::info::Info;
use crate::tensors::strided::{ordered, places};

/// The layout of Keras's tensors where it differs from PyTorch's, which Unisono shares.
///
/// It is recognised by the last part of a tensor's name in the file, after the last `/` or `.` and without a
/// `:0`:
///
/// | name | Keras | here |
/// |---|---|---|
/// | `kernel`, `recurrent_kernel` of dense and recurrent layers | `[in, out]` | `[out, in]` |
/// | `kernel` of a convolution, here over 2 of 1 to 3 axes | `[H, W, in, out]` | `[out, in, H, W]` |
/// | `kernel` of a transposed convolution | `[H, W, out, in]` | `[in, out, H, W]` |
/// | `depthwise_kernel`, [`Keras::depthwise`] | `[H, W, channels, times]` | `[channels * times, 1, H, W]` |
/// | `bias`, `gamma`, `beta`, `moving_mean`, `moving_variance`, `embeddings`, ... | the same | the same |
///
/// Two things cannot be told from a file. Keras 3 calls depthwise kernels `kernel`, so they have to be named.
/// Where images are flattened before a dense layer, Keras flattens `[H, W, channels]`, and this library
/// `[channels, H, W]`; [`Keras::flattened`] says so. The gates of an LSTM are in the same order (i, f, g, o).
/// Those of a GRU are not (z, r, n there, r, z, n here), and are not reordered.
///
/// `read_keras` reads Keras's own files, where the layers' classes tell all of this but the flattened images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keras {
    depthwise: Vec<Pattern>,
    flattened: Vec<(Pattern, [usize; 3])>,
}

impl Keras {
    /// Returns the layout as far as names alone tell it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the kernels of depthwise convolutions, as they are called in the file. `*` stands for anything.
    pub fn depthwise(mut self, pattern: &str) -> Self {
        self.depthwise.push(Pattern::new(pattern));
        self
    }

    /// Says that a dense layer, its kernel as it is called in the file, takes images of
    /// `[height, width, channels]` that were flattened.
    pub fn flattened(mut self, kernel: &str, image: [usize; 3]) -> Self {
        self.flattened.push((Pattern::new(kernel), image));
        self
    }

    /// Checks that each rule for a layer behind a flattened image has a kernel that takes such images: the
    /// shape alone would not tell.
    ///
    /// # Errors
    /// What is wrong with a rule.
    pub(crate) fn check<'a>(
        &self,
        tensors: impl Iterator<Item = (&'a str, &'a [usize])> + Clone,
    ) -> std::result::Result<(), String> {
        for (pattern, image) in &self.flattened {
            let size = image.iter().try_fold(1_usize, |size, n| size.checked_mul(*n));
            let mut of = tensors.clone().filter(|(name, shape)| pattern.matches(name) && shape.len() == 2);
            let Some((_, shape)) = of.clone().find(|(_, shape)| Some(shape[0]) != size) else {
                if of.next().is_none() {
                    return Err(format!("no kernel is called {pattern} (Keras::flattened)"));
                }
                continue;
            };
            let features = shape[0];
            return Err(format!(
                "{pattern} takes {features} numbers, and not images of {image:?} (Keras::flattened)"
            ));
        }
        Ok(())
    }

    /// Returns how to get from the file's axes to ours, or `None` if they are the same.
    pub(crate) fn view(&self, name: &str, shape: &[usize]) -> Option<View> {
        let plain = name.strip_suffix(":0").unwrap_or(name);
        let last = plain.rsplit(['/', '.']).next().unwrap_or(plain);
        let depthwise = last == "depthwise_kernel" || self.depthwise.iter().any(|p| p.matches(name));
        let flattened = self.flattened.iter().find(|(pattern, _)| pattern.matches(name));
        match (shape, flattened) {
            (&[ref kernel @ .., channels, times], _) if depthwise && !kernel.is_empty() => {
                let axes = kernel.len();
                let mut turned = vec![channels.saturating_mul(times), 1];
                turned.extend(kernel);
                Some(View {
                    axes: shape.to_vec(),
                    order: [axes, axes + 1].into_iter().chain(0..axes).collect(),
                    shape: turned,
                })
            }
            (&[features, units], Some((_, [h, w, c])))
                if h.checked_mul(*w).and_then(|hw| hw.checked_mul(*c)) == Some(features) =>
            {
                Some(View {
                    axes: vec![*h, *w, *c, units],
                    order: vec![3, 2, 0, 1],
                    shape: vec![units, features],
                })
            }
            (&[.., _, _], _) if matches!(last, "kernel" | "recurrent_kernel" | "pointwise_kernel") => {
                let rank = shape.len();
                let order: Vec<usize> = [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect();
                let turned = order.iter().map(|&axis| shape[axis]).collect();
                Some(View { axes: shape.to_vec(), order, shape: turned })
            }
            _ => None,
        }
    }
}

/// A change of layout: the file's axes, the order in which they go here, and the shape that they then make.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct View {
    axes: Vec<usize>,
    order: Vec<usize>,
    pub(crate) shape: Vec<usize>,
}

impl View {
    /// Returns the transpose of a matrix. `None`: the shape is no matrix's.
    #[cfg(feature = "keras")]
    pub(crate) fn transpose(shape: &[usize]) -> Option<Self> {
        let &[rows, columns] = shape else { return None };
        Some(Self { axes: shape.to_vec(), order: vec![1, 0], shape: vec![columns, rows] })
    }

    /// Returns the elements in their new order. `bytes` are those of the file's tensor.
    pub(crate) fn apply(&self, info: &Info, bytes: &[u8]) -> Vec<u8> {
        // Without elements there may be axes whose product no machine can hold.
        if bytes.is_empty() {
            return Vec::new();
        }
        let size = info.dtype.size();
        let mut moved = Vec::with_capacity(bytes.len());
        for at in places(ordered(&self.axes, &self.order)) {
            moved.extend_from_slice(&bytes[at * size..][..size]);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::info::TensorDType;

    fn turned(keras: &Keras, name: &str, shape: &[usize]) -> (Vec<usize>, Vec<u8>) {
        let info = Info { dtype: TensorDType::U8, shape: shape.to_vec() };
        let bytes: Vec<u8> = (0..info.bytes().unwrap() as u8).collect();
        let view = keras.view(name, shape).unwrap();
        let moved = view.apply(&info, &bytes);
        (view.shape, moved)
    }

    #[test]
    fn kernels_are_turned() {
        let keras = Keras::new();
        assert_eq!(turned(&keras, "dense/kernel:0", &[2, 3]), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        // [H, W, in, out] = [1, 2, 2, 3]: element [o, i, h, w] is at w * 6 + i * 3 + o.
        let (shape, moved) = turned(&keras, "conv.kernel", &[1, 2, 2, 3]);
        assert_eq!((shape, moved), (vec![3, 2, 1, 2], vec![0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11]));
        assert_eq!(turned(&keras, "kernel", &[5, 1, 2]).0, [2, 1, 5]);
        assert_eq!(turned(&keras, "separable/pointwise_kernel", &[1, 1, 2, 3]).0, [3, 2, 1, 1]);
        // [H, W, channels, times] = [1, 2, 2, 2]: element [c * 2 + t, 0, 0, w] is at w * 4 + c * 2 + t.
        let expected = (vec![4, 1, 1, 2], vec![0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(turned(&keras, "a/depthwise_kernel", &[1, 2, 2, 2]), expected);
        assert_eq!(turned(&keras, "a/depthwise_kernel", &[2, 2, 1]), (vec![2, 1, 2], vec![0, 2, 1, 3]));
        assert_eq!(turned(&Keras::new().depthwise("a/*"), "a/kernel", &[1, 2, 2, 2]), expected);
        for (name, shape) in [("dense/bias", &[3][..]), ("embed/embeddings", &[3, 2]), ("kernel", &[3])] {
            assert_eq!(keras.view(name, shape), None, "{name}");
        }
    }

    #[test]
    fn no_elements_are_no_trouble() {
        let keras = Keras::new().depthwise("d");
        for name in ["kernel", "d"] {
            let shape = [0, usize::MAX, usize::MAX, 2];
            let info = Info { dtype: TensorDType::F32, shape: shape.to_vec() };
            assert!(keras.view(name, &shape).unwrap().apply(&info, &[]).is_empty());
        }
    }

    #[test]
    fn what_was_flattened_is_reordered() {
        // Two pixels of two channels to one unit: [h w c] is 0 1 2 3, [c h w] takes 0 2 1 3.
        let keras = Keras::new().flattened("dense/*", [1, 2, 2]);
        assert_eq!(turned(&keras, "dense/kernel", &[4, 1]), (vec![1, 4], vec![0, 2, 1, 3]));
        let problem = |name: &'static str, shape: &[usize]| keras.check([(name, shape)].into_iter());
        assert_eq!(problem("dense/kernel", &[4, 1]), Ok(()));
        assert!(
            problem("dense/kernel", &[6, 1]).unwrap_err().starts_with("dense/* takes 6 numbers, and not")
        );
        assert!(problem("conv/kernel", &[4, 1]).unwrap_err().starts_with("no kernel is called dense/*"));
    }
}
