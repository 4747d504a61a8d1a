//! Setters that several layers have.

use crate::model::Context;

/// Setters of the windows of `$layer`, whose field `window` has a size in `$unit` for each axis.
macro_rules! window_setters {
    ($layer:ident, $size:ty, $unit:literal) => {
        impl $layer {
            #[doc = concat!("Sets the distance from one window to the next, in ", $unit, ". Default: 1.")]
            pub fn stride(mut self, stride: impl Into<$size>) -> Self {
                self.window.stride = stride.into().0;
                self
            }

            #[doc = concat!("Sets the width of the border, in ", $unit, ": zeros around the input of a")]
            /// convolution, and what is cut off the output of its transpose. Default: 0.
            pub fn padding(mut self, padding: impl Into<$size>) -> Self {
                self.window.padding = padding.into().0;
                self
            }

            #[doc = concat!("Sets the distance between neighbouring elements of a window, in ", $unit, ".")]
            /// Default: 1.
            pub fn dilation(mut self, dilation: impl Into<$size>) -> Self {
                self.window.dilation = dilation.into().0;
                self
            }
        }
    };
}

/// Setters of the weight and the bias of a convolution.
macro_rules! kernel_setters {
    ($layer:ident) => {
        impl $layer {
            /// Omits the bias. Default: the layer has one.
            pub fn no_bias(self) -> Self {
                Self { bias: false, ..self }
            }

            /// Sets the initial values of the weight. Default: Glorot uniform.
            pub fn initializer(self, initializer: Initializer) -> Self {
                Self { initializer, ..self }
            }
        }
    };
}

/// The setter of a convolution's groups, and [`kernel_setters`].
macro_rules! convolution_setters {
    ($layer:ident) => {
        impl $layer {
            /// Sets the number of groups that input and output channels are cut into; each group of outputs
            /// is computed from its own group of inputs. Default: 1. As many groups as channels make a
            /// depthwise convolution.
            pub fn groups(self, groups: usize) -> Self {
                Self { groups, ..self }
            }
        }

        $crate::model::layers::setters::kernel_setters!($layer);
    };
}

/// Constructors and setters of a maximum and an average over windows of `$input`, whose sizes are in `$unit`.
/// `$window` makes a window of a kernel size.
macro_rules! pool_setters {
    ($max:ident, $average:ident, $size:ty, $window:expr, $unit:literal, $input:literal) => {
        impl $max {
            #[doc = concat!("Creates a layer with this kernel size in ", $unit, ". By default the stride is the")]
            /// kernel size, and there is no padding.
            pub fn new(kernel: impl Into<$size>) -> Self {
                let mut window = $window(kernel);
                window.stride = window.kernel;
                Self { window }
            }
        }

        impl $average {
            #[doc = concat!("Creates a layer with this kernel size in ", $unit, ". By default the stride is the")]
            /// kernel size, and there is no padding.
            pub fn new(kernel: impl Into<$size>) -> Self {
                Self { window: $max::new(kernel).window, border: false }
            }

            /// Counts the padding as zeros in the mean (PyTorch's default). Default: the mean is that of the
            #[doc = concat!($input, "'s ", $unit, " only.")]
            pub fn count_include_pad(self) -> Self {
                Self { border: true, ..self }
            }
        }

        $crate::model::layers::setters::pool_setters!($max, $size, $unit, $input);
        $crate::model::layers::setters::pool_setters!($average, $size, $unit, $input);
    };
    ($layer:ident, $size:ty, $unit:literal, $input:literal) => {
        impl $layer {
            #[doc = concat!("Sets the distance from one window to the next, in ", $unit, ". Default: the")]
            /// kernel size.
            pub fn stride(mut self, stride: impl Into<$size>) -> Self {
                self.window.stride = stride.into().0;
                self
            }

            #[doc = concat!("Sets how many ", $unit, " are added on each side of the ", $input, ". Default: 0.")]
            pub fn padding(mut self, padding: impl Into<$size>) -> Self {
                self.window.padding = padding.into().0;
                self
            }
        }
    };
}

/// Computes `$layer`: it pools the last axes of an input by `$pool`, if the input has the shape that `$shape`
/// finds.
macro_rules! global_pool {
    ($layer:ident, $shape:ident, $pool:ident, $axes:expr) => {
        impl Forward for $layer {
            fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                if $shape(self.name(), cx, x).is_some() { x.$pool(&$axes) } else { x.clone() }
            }
        }
    };
}

/// Reports an error of a pool whose windows do not fit, or whose padding is above half of the kernel size,
/// because a window of padding alone has no largest element. Returns whether there is none.
pub(super) fn pool_fits<const AXES: usize>(
    layer: &str,
    cx: &Context,
    count: Result<[usize; AXES], String>,
    [padding, kernel]: [[usize; AXES]; 2],
) -> bool {
    match count {
        Err(problem) => cx.fail(layer, problem),
        Ok(_) if padding.iter().zip(&kernel).any(|(padding, kernel)| *padding > kernel / 2) => {
            cx.fail(layer, format!("padding {padding:?} is above half of {kernel:?}"));
        }
        Ok(_) => return true,
    }
    false
}

pub(super) use {convolution_setters, global_pool, kernel_setters, pool_setters, window_setters};
