//! Functions of images: what lies in windows, convolutions and pools.

use super::{Col2Im, Im2Col, MatMul};
use crate::trace::{Var, Window};
use crate::values::Lead;

impl Var {
    /// Returns the windows of an image with `fill` on the border (PyTorch's `unfold`):
    /// `[..., H, W]` to `[..., windows down, windows across, kh, kw]`.
    pub fn windows(&self, window: &Window, fill: f32) -> Var {
        if let Some(image) = self.dims().last_chunk::<2>().filter(|&&image| window.is_tiling(image)) {
            return self.tiles(window, *image);
        }
        let dims = [self.dims(), &window.kernel].concat();
        let repeated = self.reshape(&[self.dims(), &[1, 1]].concat()).expand(self.ty().lead, &dims);
        repeated.apply(Im2Col { window: window.clone(), fill })
    }

    /// Returns windows that lie side by side, which are another order of the image's elements.
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

    /// Returns the image of windows that are added up where they overlap (PyTorch's `fold`): `[..., windows
    /// down, windows across, kh, kw]` to `[..., H, W]`. The sum of each pixel runs over (kh, kw) in row-major
    /// order.
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

    /// Returns the two-dimensional convolution (in fact the cross-correlation, as everywhere in the field)
    /// with a weight, without bias (PyTorch's `conv2d`): `[B, C, H, W]` with `[O, C / groups, kh, kw]` to
    /// `[B, O, H, W]`. Each output sums over (channel, kh, kw) in row-major order.
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
        // [B, groups, C/g, down, across, kh, kw] -> rows [down across] of [C/g kh kw] each; they need not be
        // in memory, see `fuse::implicit_gemm`.
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

    /// Returns the transpose of [`Var::conv2d`], without bias (PyTorch's `conv_transpose2d`):
    /// `[B, C, h, w]` with `[C, O / groups, kh, kw]` to `[B, O, H, W]`, where `window` lies on the result.
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
        // Columns [O/g kh kw] of [h w] each, which `fold` reads along the pixels.
        let columns = if groups == 1 {
            let product = MatMul { transpose_a: true, transpose_b: true };
            let rows = self.reshape(&[c, pixels]).permute(&[1, 0]);
            self.tape().apply(product, &[&weight.reshape(&[c, inner]), &rows])
        } else {
            let weight = weight.reshape(&[groups, c / groups, inner]).permute(&[0, 2, 1]);
            weight.matmul(&self.reshape(&[groups, c / groups, pixels]))
        };
        let windows = columns.reshape(&[groups, per_group, kh, kw, h, w]).permute(&[0, 1, 4, 5, 2, 3]);
        windows.fold(window, image).reshape(&[groups * per_group, image[0], image[1]])
    }

    /// Returns the largest element of each window (PyTorch's `max_pool2d`): `[B, C, H, W]` to `[B, C, down,
    /// across]`. The gradient is shared by the elements that reach the maximum.
    pub fn max_pool2d(&self, window: &Window) -> Var {
        self.windows(window, f32::MIN).max(&[-2, -1])
    }

    /// Returns the mean of the pixels of each window, without the border (PyTorch's `avg_pool2d` with
    /// `count_include_pad=False`).
    pub fn avg_pool2d(&self, window: &Window) -> Var {
        let image = &self.dims()[self.dims().len().saturating_sub(2)..];
        let ones = self.tape().constant(1.0).expand(Lead::Global, image);
        self.windows(window, 0.0).sum(&[-2, -1]) / ones.windows(window, 0.0).sum(&[-2, -1])
    }
}
