use serde::{Deserialize, Serialize};
use unisono_graph::ops::Window;

/// A height and a width in pixels. One number converts to both.
///
/// ```
/// use unisono::{Conv2d, Size};
///
/// assert_eq!(Size::from(3), Size::from([3, 3]));
/// let wide = Conv2d::new(16, [3, 5]).padding([1, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub [usize; 2]);

impl From<usize> for Size {
    fn from(side: usize) -> Self {
        Self([side, side])
    }
}

impl From<[usize; 2]> for Size {
    fn from(size: [usize; 2]) -> Self {
        Self(size)
    }
}

impl From<(usize, usize)> for Size {
    fn from((height, width): (usize, usize)) -> Self {
        Self([height, width])
    }
}

/// A depth, a height and a width in voxels. One number converts to all three.
///
/// ```
/// use unisono::{Conv3d, Size3};
///
/// assert_eq!(Size3::from(3), Size3::from([3, 3, 3]));
/// let flat = Conv3d::new(16, [1, 3, 3]).padding([0, 1, 1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size3(pub [usize; 3]);

impl From<usize> for Size3 {
    fn from(side: usize) -> Self {
        Self([side; 3])
    }
}

impl From<[usize; 3]> for Size3 {
    fn from(size: [usize; 3]) -> Self {
        Self(size)
    }
}

impl From<(usize, usize, usize)> for Size3 {
    fn from((depth, height, width): (usize, usize, usize)) -> Self {
        Self([depth, height, width])
    }
}

/// Returns windows of a kernel size, with stride 1, dilation 1 and no padding.
pub(super) fn window(kernel: impl Into<Size>) -> Window {
    Window::new(kernel.into().0)
}

/// The fields of a [`Window`], for serde. Their names are part of the format of exported models.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Window", deny_unknown_fields)]
pub(super) struct WindowData {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 2],
}
