//! The positions of windows on an image.

use std::fmt;

use serde::Serialize;

use crate::values::Type;

/// The positions of windows on the last two axes of an image. Each field is `[height, width]`, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The size of a window.
    pub kernel: [usize; 2],
    /// The distance from one window to the next.
    pub stride: [usize; 2],
    /// The distance from one element of a window to the next.
    pub dilation: [usize; 2],
    /// The width of the border around the image.
    pub padding: [usize; 2],
}

/// The size, and each setting that is not the default.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, stride, dilation, padding } = self;
        write!(f, "windows of {} x {}", kernel[0], kernel[1])?;
        let settings = [("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0)];
        let other = settings.into_iter().filter(|(_, sizes, default)| **sizes != [*default; 2]);
        other.into_iter().try_for_each(|(name, [down, across], _)| write!(f, ", {name} {down} x {across}"))
    }
}

impl Window {
    /// Returns windows of a size with stride 1, dilation 1 and no border.
    pub fn new(kernel: [usize; 2]) -> Self {
        Self { kernel, stride: [1, 1], dilation: [1, 1], padding: [0, 0] }
    }

    /// Returns how many windows there are on an image, down and across.
    ///
    /// # Errors
    /// Says that no window fits the image, or that the windows have more elements than a value may have.
    pub fn count(&self, image: [usize; 2]) -> Result<[usize; 2], String> {
        let along = |a: usize| {
            let span = self.dilation[a].checked_mul(self.kernel[a].saturating_sub(1))?.checked_add(1)?;
            let length = self.padding[a].checked_mul(2)?.checked_add(image[a])?;
            let valid = self.kernel[a] > 0 && self.stride[a] > 0 && self.dilation[a] > 0 && span <= length;
            valid.then(|| (length - span) / self.stride[a] + 1)
        };
        match (along(0), along(1)) {
            (Some(h), Some(w)) if Type::global(&[h, w, self.kernel[0], self.kernel[1]]).is_countable() => {
                Ok([h, w])
            }
            (Some(h), Some(w)) => Err(format!("{h} x {w} {self} are too many")),
            _ => {
                let [height, width] = image;
                Err(format!(
                    "there is no place for {self} in the height of {height} and the width of {width}"
                ))
            }
        }
    }

    /// Returns whether the windows lie side by side on an image without overlap, gap or border.
    pub(crate) fn is_tiling(&self, image: [usize; 2]) -> bool {
        self.stride == self.kernel
            && self.dilation == [1, 1]
            && self.padding == [0, 0]
            && (0..2).all(|a| (1..=image[a]).contains(&self.kernel[a]))
    }

    /// Returns where element `k` of window `o` lies on axis `a`, `None` on the border.
    pub(crate) fn at(&self, a: usize, o: usize, k: usize, length: usize) -> Option<usize> {
        let at = o * self.stride[a] + k * self.dilation[a];
        at.checked_sub(self.padding[a]).filter(|&i| i < length)
    }
}
