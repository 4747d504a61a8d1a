use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, Window};
use crate::values::{Array, Frame, Type};

/// The im2col of a convolution: `[..., H, W, kh, kw]` to `[..., windows down, windows across, kh, kw]`, the
/// element of each window that lies at place (kh, kw) in it, and `fill` on the border.
///
/// The operand is the image, broadcast over the places in a window ([`Var::windows`]): so the op and its
/// gradient [`Col2Im`] move single elements, and the sum over windows that overlap is a reduction of its own
/// ([`Var::fold`]).
#[derive(Debug, Clone, Serialize)]
pub struct Im2Col {
    /// How the windows lie on the image.
    pub window: Window,
    /// The value on the border.
    pub fill: f32,
}

/// The col2im of a convolution before its sum, the transpose of [`Im2Col`]: at (h, w, kh, kw) the element of
/// the window that holds (h, w) at its place (kh, kw), and 0 where no window does.
#[derive(Debug, Clone, Serialize)]
pub struct Col2Im {
    /// The windows.
    pub window: Window,
    /// The height and width of the image.
    pub image: [usize; 2],
}

fn split(ty: &Type) -> Result<(&[usize], [usize; 4]), String> {
    match ty.dims.split_last_chunk::<4>() {
        Some((rest, last)) => Ok((rest, *last)),
        None => Err(format!("{ty} has no image with windows")),
    }
}

impl Op for Im2Col {
    fn name(&self) -> &'static str {
        "im2col"
    }

    fn attrs(&self) -> String {
        format!("{:?} fill={}", self.window, self.fill)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (rest, [h, w, kh, kw]) = split(inputs[0])?;
        let [down, across] = self.window.count([h, w])?;
        Ok(inputs[0].with_dims(&[rest, &[down, across, kh, kw]].concat()))
    }

    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let dims = x[0].dims();
        let image = [dims[dims.len() - 4], dims[dims.len() - 3]];
        vec![Some(dy.apply(Col2Im { window: self.window.clone(), image }))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (x, n) = (inputs[0], inputs[0].dims.len());
        let image = [x.dims[n - 4], x.dims[n - 3]];
        Array::generate(&frame.dims(output), |at| {
            let place = |a: usize| self.window.at(a, at[n - 4 + a], at[n - 2 + a], image[a]);
            let (Some(h), Some(w)) = (place(0), place(1)) else { return f64::from(self.fill) };
            let mut from = at.to_vec();
            (from[n - 4], from[n - 3]) = (h, w);
            x.at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Im2Col { window: self.window.clone(), fill: self.fill }
    }
}

impl Op for Col2Im {
    fn name(&self) -> &'static str {
        "col2im"
    }

    fn attrs(&self) -> String {
        format!("{:?} {:?}", self.window, self.image)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (rest, [down, across, kh, kw]) = split(inputs[0])?;
        let count = self.window.count(self.image)?;
        let dims = [rest, &[self.image[0], self.image[1], kh, kw]].concat();
        let problem =
            || format!("{} does not have the {count:?} windows of an image of {:?}", inputs[0], self.image);
        (count == [down, across]).then(|| inputs[0].with_dims(&dims)).ok_or_else(problem)
    }

    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Im2Col { window: self.window.clone(), fill: 0.0 }))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (x, n) = (inputs[0], inputs[0].dims.len());
        let w = &self.window;
        Array::generate(&frame.dims(output), |at| {
            let place = |a: usize| {
                let from = (at[n - 4 + a] + w.padding[a]).checked_sub(at[n - 2 + a] * w.dilation[a])?;
                let window = from / w.stride[a];
                (from.is_multiple_of(w.stride[a]) && window < x.dims[n - 4 + a]).then_some(window)
            };
            let (Some(down), Some(across)) = (place(0), place(1)) else { return 0.0 };
            let mut from = at.to_vec();
            (from[n - 4], from[n - 3]) = (down, across);
            x.at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Col2Im { window: self.window.clone() }
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "im2col", cases: im2col_cases },
    Entry { name: "col2im", cases: col2im_cases },
];

fn window_cases() -> [(Window, [usize; 2]); 4] {
    let plain = Window::new([2, 3]);
    [
        (plain.clone(), [4, 5]),
        (Window { stride: [2, 1], padding: [1, 0], ..plain.clone() }, [5, 4]),
        (Window { dilation: [2, 1], padding: [1, 2], ..plain.clone() }, [4, 4]),
        (Window { stride: [3, 2], dilation: [1, 2], padding: [0, 1], ..plain }, [7, 6]),
    ]
}

fn im2col_cases() -> Vec<Case> {
    let case = |(window, [h, w]): (Window, [usize; 2])| {
        let [kh, kw] = window.kernel;
        Case::random(Im2Col { window, fill: 0.5 }, &[Type::sample(&[2, h, w, kh, kw])])
    };
    window_cases().into_iter().map(case).collect()
}

fn col2im_cases() -> Vec<Case> {
    let case = |(window, image): (Window, [usize; 2])| {
        let [kh, kw] = window.kernel;
        let [down, across] = window.count(image).unwrap_or_default();
        Case::random(Col2Im { window, image }, &[Type::sample(&[2, down, across, kh, kw])])
    };
    window_cases().into_iter().map(case).collect()
}
