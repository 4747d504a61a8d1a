//! Setters that several layers have.

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

pub(super) use {convolution_setters, kernel_setters, window_setters};
