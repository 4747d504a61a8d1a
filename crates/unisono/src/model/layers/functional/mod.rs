//! What the layers compute, as functions of values. They are for models that bring their own weights or start
//! states.

mod attention;
mod batch_norm;
mod fourier;
mod grad_cam;
mod interpolate;
mod norm;
mod recurrent;
mod relative;
mod resample;
mod rotary;
mod sequence;
mod volume;

pub use attention::{
    scaled_dot_product_attention, scaled_dot_product_attention_biased, scaled_dot_product_attention_masked,
};
pub use batch_norm::{BatchNormed, batch_norm, batch_norm_with};
pub use fourier::{fft, ifft, irfft, rfft, stft};
pub use grad_cam::grad_cam;
pub use interpolate::{Interpolation, resize2d};
pub use norm::{group_norm, layer_norm, rms_norm};
pub use recurrent::{GruWeights, LstmWeights, RnnWeights, gru, lstm, rnn};
pub use relative::{RelativeBuckets, relative_position_bias};
pub use resample::{adaptive_avg_pool2d, adaptive_max_pool2d, upsample_bilinear, upsample_nearest};
pub use rotary::{repeat_heads, rotary, rotary_at, rotary_by, rotary_rates};
pub use sequence::{stack, unstack};
pub use volume::{Window3, avg_pool3d, conv_transpose3d, conv3d, max_pool3d};

pub(super) use recurrent::{Steps, gru_steps, lstm_cell, lstm_steps, rnn_steps};
pub(super) use sequence::{join, stack_steps};
