//! The layers, and the list that makes them known.
//!
//! A new layer is a file here that implements [`Forward`](crate::model::Forward), a `mod` line and an entry
//! in the list.

mod activation;
mod activations;
mod adaptive_pool;
mod attention;
mod batch_norm;
mod border;
mod branches;
mod constrained;
mod conv1d;
mod conv2d;
mod conv3d;
mod conv_lstm;
mod conv_transpose1d;
mod conv_transpose2d;
mod dense;
mod drop_path;
mod dropout;
mod embedding;
mod flatten;
pub mod functional;
mod gaussian_noise;
mod layer_scale;
mod local_response_norm;
mod mixture;
mod norms;
mod p_relu;
mod pool;
mod pool1d;
mod pool3d;
mod recompute;
mod recurrent;
mod resample;
mod residual;
mod resize;
mod separable;
mod sequential;
mod setters;
mod settings;
mod size;
mod squeeze_excite;
mod time_distributed;
mod transformer;

pub use activation::Activation;
pub use functional::{Interpolation, Window3};
pub use recompute::Recompute;
pub use size::{Size, Size3};

crate::model::description::layers! {
    activations::Elu = "elu": Elu::new(0.1),
    activations::Gelu = "gelu": Gelu,
    activations::GeluTanh = "gelu_tanh": GeluTanh,
    activations::HardSigmoid = "hard_sigmoid": HardSigmoid,
    activations::HardSwish = "hard_swish": HardSwish,
    activations::HardTanh = "hard_tanh": HardTanh::new(-0.5, 2.0),
    activations::LeakyRelu = "leaky_relu": LeakyRelu::new(0.2),
    activations::LogSoftmax = "log_softmax": LogSoftmax,
    activations::Mish = "mish": Mish,
    activations::Relu6 = "relu6": Relu6,
    activations::Relu = "relu": Relu,
    activations::Selu = "selu": Selu,
    activations::Sigmoid = "sigmoid": Sigmoid,
    activations::Silu = "silu": Silu,
    activations::Softmax = "softmax": Softmax,
    activations::Softplus = "softplus": Softplus,
    activations::Tanh = "tanh": Tanh,
    adaptive_pool::AdaptiveAvgPool1d = "adaptive_avg_pool1d": AdaptiveAvgPool1d::new(3),
    adaptive_pool::AdaptiveAvgPool2d = "adaptive_avg_pool2d": AdaptiveAvgPool2d::new([3, 5]),
    adaptive_pool::AdaptiveMaxPool1d = "adaptive_max_pool1d": AdaptiveMaxPool1d::new(3),
    adaptive_pool::AdaptiveMaxPool2d = "adaptive_max_pool2d": AdaptiveMaxPool2d::new([3, 5]),
    attention::MultiHeadAttention = "multi_head_attention":
        MultiHeadAttention::new(2).causal().no_bias().head_size(3).relative_positions(8, 20),
    batch_norm::BatchNorm = "batch_norm": BatchNorm::new().momentum(0.3).epsilon(1e-3),
    border::Cropping2d = "cropping2d": Cropping2d::sides([1, 2], [0, 3]),
    border::ZeroPad2d = "zero_pad2d": ZeroPad2d::sides([1, 2], [0, 3]),
    branches::Branches as BranchesDescription = "branches": Branches::concat(1).add(Relu).add(Dense::new(3)),
    constrained::SpectralNorm as SpectralNormDescription = "spectral_norm":
        SpectralNorm::new(Conv2d::new(4, 3).padding(1)).iterations(2),
    constrained::WeightNorm as WeightNormDescription = "weight_norm":
        WeightNorm::new(Sequential::new().add(Dense::new(3)).add(Relu)),
    conv1d::Conv1d = "conv1d":
        Conv1d::new(8, 3).stride(2).padding(1).dilation(3).causal().groups(2).no_bias(),
    conv2d::Conv2d = "conv2d":
        Conv2d::new(8, [3, 5]).stride(2).padding([1, 2]).dilation(3).groups(2).no_bias(),
    conv3d::Conv3d = "conv3d":
        Conv3d::new(4, [2, 3, 1]).stride([1, 2, 1]).padding(1).dilation([2, 1, 1]).groups(2).no_bias(),
    conv3d::ConvTranspose3d = "conv_transpose3d":
        ConvTranspose3d::new(4, [2, 3, 1]).stride(2).padding([0, 1, 0]).output_padding([1, 0, 1])
            .dilation([1, 2, 1]).groups(2),
    conv_lstm::ConvLstm2d = "conv_lstm2d": ConvLstm2d::new(2, [3, 1]).no_bias().last(),
    conv_transpose1d::ConvTranspose1d = "conv_transpose1d":
        ConvTranspose1d::new(4, 3).stride(3).padding(1).output_padding(1).dilation(2).groups(2).no_bias(),
    conv_transpose2d::ConvTranspose2d = "conv_transpose2d":
        ConvTranspose2d::new(4, 3).stride([3, 2]).padding(1).output_padding(1).dilation(2).groups(2),
    dense::Dense = "dense": Dense::new(7).input(5).no_bias(),
    drop_path::DropPath = "drop_path": DropPath::new(0.3),
    dropout::Dropout = "dropout": Dropout::new(0.3),
    embedding::Embedding = "embedding": Embedding::new(3, 5).padding_idx(1),
    flatten::Flatten = "flatten": Flatten,
    gaussian_noise::GaussianNoise = "gaussian_noise": GaussianNoise::new(0.3),
    layer_scale::LayerScale = "layer_scale": LayerScale::new(0.1).channels_first(),
    local_response_norm::LocalResponseNorm = "local_response_norm":
        LocalResponseNorm::new(4).alpha(0.3).beta(0.5).k(2.0),
    mixture::MixtureOfExperts as MixtureOfExpertsDescription = "mixture_of_experts":
        MixtureOfExperts::new(2).add(Dense::new(3)).add(Dense::new(3)).add(Dense::new(3)).keep_probabilities()
            .balance(0.5),
    norms::GroupNorm = "group_norm": GroupNorm::new(4).epsilon(1e-3),
    norms::InstanceNorm = "instance_norm": InstanceNorm::new().affine().epsilon(1e-3),
    norms::LayerNorm = "layer_norm": LayerNorm::new().axes(2).epsilon(1e-3),
    norms::RmsNorm = "rms_norm": RmsNorm::new().axes(2).epsilon(1e-3),
    pool::AvgPool2d = "avg_pool2d": AvgPool2d::new(4).stride(3).padding(1).count_include_pad(),
    pool::GlobalAvgPool2d = "global_avg_pool2d": GlobalAvgPool2d,
    pool::GlobalMaxPool2d = "global_max_pool2d": GlobalMaxPool2d,
    pool::MaxPool2d = "max_pool2d": MaxPool2d::new([2, 3]).stride(1).padding(1),
    pool1d::AvgPool1d = "avg_pool1d": AvgPool1d::new(4).stride(3).padding(1).count_include_pad(),
    pool1d::GlobalAvgPool1d = "global_avg_pool1d": GlobalAvgPool1d,
    pool1d::GlobalMaxPool1d = "global_max_pool1d": GlobalMaxPool1d,
    pool1d::MaxPool1d = "max_pool1d": MaxPool1d::new(3).stride(1).padding(1),
    pool3d::AvgPool3d = "avg_pool3d": AvgPool3d::new(2).stride([1, 2, 1]).padding(1).count_include_pad(),
    pool3d::GlobalAvgPool3d = "global_avg_pool3d": GlobalAvgPool3d,
    pool3d::GlobalMaxPool3d = "global_max_pool3d": GlobalMaxPool3d,
    pool3d::MaxPool3d = "max_pool3d": MaxPool3d::new([1, 2, 3]).stride(1).padding([0, 1, 1]),
    p_relu::PRelu = "p_relu": PRelu::new().slope(0.1).per_channel(),
    recurrent::Gru = "gru": Gru::new(3).layers(2).bidirectional().last().no_bias().dropout(0.1),
    recurrent::Lstm = "lstm": Lstm::new(3).layers(2).stateful().no_bias().dropout(0.1),
    recurrent::SimpleRnn = "simple_rnn": SimpleRnn::new(3).layers(2).last().no_bias(),
    resample::Upsample2d = "upsample2d": Upsample2d::new([2, 3]).bilinear(),
    resize::Resize2d = "resize2d": Resize2d::by([1.5, 0.75]).bicubic().align_corners(),
    residual::Residual as ResidualDescription = "residual":
        Residual::new(Sequential::new().add(Relu).add(Tanh)).shortcut(Elu::new(0.1)),
    separable::DepthwiseConv2d = "depthwise_conv2d":
        DepthwiseConv2d::new([3, 5]).multiplier(2).stride(2).padding([1, 2]).dilation(3).no_bias(),
    separable::SeparableConv2d = "separable_conv2d":
        SeparableConv2d::new(8, 3).multiplier(2).stride(2).padding(1).no_bias(),
    sequential::Sequential as SequentialDescription = "sequential":
        Sequential::new().add(Dense::new(3)).add(Residual::new(Relu)).add(Recompute::new(Tanh)),
    squeeze_excite::SqueezeExcite = "squeeze_excite": SqueezeExcite::new(3).silu().hard_sigmoid(),
    time_distributed::TimeDistributed as TimeDistributedDescription = "time_distributed":
        TimeDistributed::new(Sequential::new().add(Dense::new(3)).add(Relu)),
    transformer::TransformerBlock = "transformer_block":
        TransformerBlock::new(2).causal().kv_heads(1).rotary().hidden(5).dropout(0.1).norm_last().rms_norm()
            .epsilon(1e-3).activation(Activation::Silu).gated().no_bias(),
}

#[cfg(test)]
mod tests;
