use serde::Serialize;

use crate::array::{Array, Frame};
use crate::op::{Io, Lowering, Op};
use crate::ops::registry::{Case, Entry};
use crate::tape::Var;
use crate::types::{Lead, Type};

/// How windows lie on the last two axes of an image: `[height, width]` each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Size.
    pub kernel: [usize; 2],
    /// From one window to the next.
    pub stride: [usize; 2],
    /// From one element of a window to the next.
    pub dilation: [usize; 2],
    /// Border around the image.
    pub padding: [usize; 2],
}

impl Window {
    /// A window of this size, one beside the other in steps of 1, without a border.
    pub fn new(kernel: [usize; 2]) -> Self {
        Self { kernel, stride: [1, 1], dilation: [1, 1], padding: [0, 0] }
    }

    /// How many windows there are on an image, or why none.
    pub fn count(&self, image: [usize; 2]) -> Result<[usize; 2], String> {
        let along = |a: usize| {
            let span = self.dilation[a] * self.kernel[a].saturating_sub(1) + 1;
            let length = image[a] + 2 * self.padding[a];
            let valid = self.kernel[a] > 0 && self.stride[a] > 0 && self.dilation[a] > 0 && span <= length;
            valid.then(|| (length - span) / self.stride[a] + 1)
        };
        match (along(0), along(1)) {
            (Some(h), Some(w)) => Ok([h, w]),
            _ => Err(format!("no window {self:?} fits an image of {image:?}")),
        }
    }

    /// Whether windows lie side by side on an image, and nothing of them beside it.
    fn is_tiling(&self, image: [usize; 2]) -> bool {
        self.stride == self.kernel
            && self.dilation == [1, 1]
            && self.padding == [0, 0]
            && (0..2).all(|a| (1..=image[a]).contains(&self.kernel[a]))
    }

    /// Where element `k` of window `o` lies on axis `a`, if not on the border.
    fn at(&self, a: usize, o: usize, k: usize, length: usize) -> Option<usize> {
        let at = o * self.stride[a] + k * self.dilation[a];
        at.checked_sub(self.padding[a]).filter(|&i| i < length)
    }
}

/// `[..., H, W, kh, kw]` to `[..., windows down, windows across, kh, kw]`: the element of each window that lies at place
/// (kh, kw) in it; `fill` on the border. Its gradient is [`Col2Im`], and the other way round.
#[derive(Debug, Clone, Serialize)]
pub struct Im2Col {
    /// The windows.
    pub window: Window,
    /// The value on the border.
    pub fill: f32,
}

/// The transpose of [`Im2Col`]: what the window that holds (h, w) at its place (kh, kw) has there; 0 where none does.
#[derive(Debug, Clone, Serialize)]
pub struct Col2Im {
    /// The windows.
    pub window: Window,
    /// Height and width of the image.
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

impl Var {
    /// The windows of an image: `[..., H, W]` to `[..., windows down, windows across, kh, kw]` (PyTorch's `unfold`); `fill`
    /// on the border.
    pub fn windows(&self, window: &Window, fill: f32) -> Var {
        if let Some(image) = self.dims().last_chunk::<2>().filter(|&&image| window.is_tiling(image)) {
            return self.tiles(window, *image);
        }
        let dims = [self.dims(), &window.kernel].concat();
        let repeated = self.reshape(&[self.dims(), &[1, 1]].concat()).expand(self.ty().lead, &dims);
        repeated.apply(Im2Col { window: window.clone(), fill })
    }

    /// Windows that lie side by side are just another order of the image's elements.
    fn tiles(&self, window: &Window, image: [usize; 2]) -> Var {
        let [kh, kw] = window.kernel;
        let [down, across] = [image[0] / kh, image[1] / kw];
        let mut inside = self.clone();
        for (axis, (length, used)) in [(-2, (image[0], down * kh)), (-1, (image[1], across * kw))] {
            if used < length {
                inside = inside.slice(axis, 0..used);
            }
        }
        let n = self.dims().len() - 2;
        let split = inside.reshape(&[&self.dims()[..n], &[down, kh, across, kw]].concat());
        split.permute(&(0..n).chain([n, n + 2, n + 1, n + 3]).collect::<Vec<_>>())
    }

    /// Windows added up where they overlap: `[..., windows down, windows across, kh, kw]` to `[..., H, W]` (PyTorch's
    /// `fold`). Each pixel's sum runs over (kh, kw), row-major.
    pub fn fold(&self, window: &Window, image: [usize; 2]) -> Var {
        let n = self.dims().len().saturating_sub(4);
        let count = window.count(image).ok();
        if window.is_tiling(image) && self.dims().get(n..n + 2) == count.as_ref().map(|c| &c[..]) {
            let [kh, kw] = window.kernel;
            let side_by_side = self.permute(&(0..n).chain([n, n + 2, n + 1, n + 3]).collect::<Vec<_>>());
            let used = [image[0] / kh * kh, image[1] / kw * kw];
            let inside = side_by_side.reshape(&[&self.dims()[..n], &used].concat());
            let after: Vec<usize> =
                vec![0; n].into_iter().chain([image[0] - used[0], image[1] - used[1]]).collect();
            return if used == image { inside } else { inside.pad(&vec![0; n + 2], &after) };
        }
        self.apply(Col2Im { window: window.clone(), image }).sum(&[-2, -1])
    }

    /// Two-dimensional convolution (cross-correlation, as everywhere in the field) of `[B, C, H, W]` with `[O, C / groups, kh,
    /// kw]` (PyTorch's `conv2d` without bias): each output sums over (channel, kh, kw), row-major.
    pub fn conv2d(&self, weight: &Var, window: &Window, groups: usize) -> Var {
        let (Some(&[c, h, w]), Some(&[o, per_group, kh, kw])) =
            (self.dims().first_chunk::<3>(), weight.dims().first_chunk::<4>())
        else {
            self.tape().fail_here("conv2d", format!("no image {} for a weight {}", self.ty(), weight.ty()));
            return self.clone();
        };
        let divides =
            groups > 0 && c.is_multiple_of(groups) && o.is_multiple_of(groups) && c / groups == per_group;
        let count = window.count([h, w]);
        let (Ok([down, across]), true) = (&count, divides && [kh, kw] == window.kernel) else {
            let problem = count.err().unwrap_or_else(|| {
                format!("input {} and weight {} do not fit in {groups} groups", self.ty(), weight.ty())
            });
            self.tape().fail_here("conv2d", problem);
            return self.clone();
        };
        let (pixels, inner) = (down * across, per_group * kh * kw);
        // [B, groups, C/g, down, across, kh, kw] -> rows [down across] of [C/g kh kw] each; they need not be in memory, see
        // `fuse::implicit_gemm`.
        let grouped = self.reshape(&[groups, per_group, h, w]).windows(window, 0.0);
        let rows = grouped.permute(&[0, 2, 3, 1, 4, 5]);
        let y = if groups == 1 {
            weight.reshape(&[o, inner]).matmul_t(&rows.reshape(&[pixels, inner]))
        } else {
            let weight = weight.reshape(&[groups, o / groups, inner]);
            weight.matmul_t(&rows.reshape(&[groups, pixels, inner]))
        };
        y.reshape(&[o, *down, *across])
    }

    /// The transpose of [`Var::conv2d`] (PyTorch's `conv_transpose2d` without bias): `[B, C, h, w]` with `[C, O / groups, kh, kw]`
    /// to `[B, O, H, W]`, where `window` lies on that image.
    pub fn conv_transpose2d(&self, weight: &Var, window: &Window, groups: usize, image: [usize; 2]) -> Var {
        let (Some(&[c, h, w]), Some(&[c_weight, per_group, kh, kw])) =
            (self.dims().first_chunk::<3>(), weight.dims().first_chunk::<4>())
        else {
            let problem = format!("no image {} for a weight {}", self.ty(), weight.ty());
            self.tape().fail_here("conv_transpose2d", problem);
            return self.clone();
        };
        if c != c_weight || groups == 0 || !c.is_multiple_of(groups) || [kh, kw] != window.kernel {
            let problem =
                format!("input {} and weight {} do not fit in {groups} groups", self.ty(), weight.ty());
            self.tape().fail_here("conv_transpose2d", problem);
            return self.clone();
        }
        let (pixels, inner) = (h * w, per_group * kh * kw);
        let rows = if groups == 1 {
            self.reshape(&[c, pixels]).permute(&[1, 0]).matmul(&weight.reshape(&[c, inner]))
        } else {
            let x = self.reshape(&[groups, c / groups, pixels]).permute(&[0, 2, 1]);
            x.matmul(&weight.reshape(&[groups, c / groups, inner]))
        };
        let windows = rows.reshape(&[groups, h, w, per_group, kh, kw]).permute(&[0, 3, 1, 2, 4, 5]);
        windows.fold(window, image).reshape(&[groups * per_group, image[0], image[1]])
    }

    /// The largest of each window (PyTorch's `max_pool2d`): `[B, C, H, W]` to `[B, C, down, across]`. The gradient is shared
    /// by the elements that reach the maximum.
    pub fn max_pool2d(&self, window: &Window) -> Var {
        self.windows(window, f32::MIN).max(&[-2, -1])
    }

    /// The mean of each window's pixels, the border not among them (PyTorch's `avg_pool2d(count_include_pad=False)`).
    pub fn avg_pool2d(&self, window: &Window) -> Var {
        let image = &self.dims()[self.dims().len().saturating_sub(2)..];
        let ones = self.tape().constant(1.0).expand(Lead::Global, image);
        self.windows(window, 0.0).sum(&[-2, -1]) / ones.windows(window, 0.0).sum(&[-2, -1])
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
