//! The border of images: zeros around them, or pixels that are cut off. The layers have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv2d::image;
use super::size::Size;
use crate::model::{Context, Forward, Layer};

/// Zeros around images (PyTorch's `ZeroPad2d`; Keras's `ZeroPadding2D` with `data_format="channels_first"`).
///
/// Shapes: `[B, C, H, W]` to `[B, C, H + top + bottom, W + left + right]`. It has no parameters.
///
/// Errors: the input is not a batch of images, or the result has too many pixels.
#[doc(alias = "ZeroPadding2D")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroPad2d {
    rows: [usize; 2],
    columns: [usize; 2],
}

/// Images without their border (Keras's `Cropping2D` with `data_format="channels_first"`; PyTorch's
/// `ZeroPad2d` with negative numbers).
///
/// Shapes: `[B, C, H, W]` to `[B, C, H - top - bottom, W - left - right]`. It has no parameters.
///
/// Errors: the input is not a batch of images, or nothing is left of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cropping2d {
    rows: [usize; 2],
    columns: [usize; 2],
}

macro_rules! border {
    ($layer:ident) => {
        impl $layer {
            /// Creates a layer with as many rows above and below, and as many columns on the left and on the
            /// right.
            pub fn new(border: impl Into<Size>) -> Self {
                let [rows, columns] = border.into().0;
                Self { rows: [rows, rows], columns: [columns, columns] }
            }

            /// Creates a layer with these numbers of rows above and below, and of columns on the left and
            /// on the right.
            pub fn sides(rows: [usize; 2], columns: [usize; 2]) -> Self {
                Self { rows, columns }
            }
        }
    };
}

border!(ZeroPad2d);
border!(Cropping2d);

impl Forward for ZeroPad2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if image(self.name(), cx, x).is_none() {
            return x.clone();
        }
        let all = [self.rows, self.columns].concat();
        if let Some(most) = all.iter().find(|&&side| side >= 1 << 24) {
            cx.fail(self.name(), format!("{most} rows or columns of zeros are too many"));
            return x.clone();
        }
        x.pad(&[0, self.rows[0], self.columns[0]], &[0, self.rows[1], self.columns[1]])
    }
}

impl Forward for Cropping2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some([_, h, w]) = image(self.name(), cx, x) else { return x.clone() };
        let left = |length: usize, [before, after]: [usize; 2]| {
            length.checked_sub(before).and_then(|rest| rest.checked_sub(after)).filter(|&rest| rest > 0)
        };
        let (Some(rows), Some(columns)) = (left(h, self.rows), left(w, self.columns)) else {
            let problem = format!(
                "nothing is left of {h} x {w} without {:?} rows, {:?} columns",
                self.rows, self.columns
            );
            cx.fail(self.name(), problem);
            return x.clone();
        };
        let [top, first] = [self.rows[0], self.columns[0]];
        x.slice(-2, top..top + rows).slice(-1, first..first + columns)
    }
}
