//! The layers, and the list that makes them known.
//!
//! A new layer is a file here that implements [`Forward`](crate::model::Forward), a `mod` line and an entry
//! in the list.

mod activations;
mod attention;
mod batch_norm;
mod conv2d;
mod conv_transpose2d;
mod dense;
mod dropout;
mod embedding;
mod flatten;
pub mod functional;
mod norms;
mod pool;
mod recompute;
mod recurrent;
mod residual;
mod sequential;
mod settings;
mod size;
mod transformer;

pub use recompute::Recompute;
pub use size::Size;

crate::model::description::layers! {
    activations::Elu = "elu": Elu::new(0.1),
    activations::Gelu = "gelu": Gelu,
    activations::GeluTanh = "gelu_tanh": GeluTanh,
    activations::LeakyRelu = "leaky_relu": LeakyRelu::new(0.2),
    activations::Relu = "relu": Relu,
    activations::Sigmoid = "sigmoid": Sigmoid,
    activations::Silu = "silu": Silu,
    activations::Softmax = "softmax": Softmax,
    activations::Softplus = "softplus": Softplus,
    activations::Tanh = "tanh": Tanh,
    attention::MultiHeadAttention = "multi_head_attention": MultiHeadAttention::new(2).causal().no_bias(),
    batch_norm::BatchNorm = "batch_norm": BatchNorm::new().momentum(0.3).epsilon(1e-3),
    conv2d::Conv2d = "conv2d":
        Conv2d::new(8, [3, 5]).stride(2).padding([1, 2]).dilation(3).groups(2).no_bias(),
    conv_transpose2d::ConvTranspose2d = "conv_transpose2d":
        ConvTranspose2d::new(4, 3).stride([3, 2]).padding(1).output_padding(1).dilation(2).groups(2),
    dense::Dense = "dense": Dense::new(7).input(5).no_bias(),
    dropout::Dropout = "dropout": Dropout::new(0.3),
    embedding::Embedding = "embedding": Embedding::new(3, 5),
    flatten::Flatten = "flatten": Flatten,
    norms::GroupNorm = "group_norm": GroupNorm::new(4).epsilon(1e-3),
    norms::LayerNorm = "layer_norm": LayerNorm::new().axes(2).epsilon(1e-3),
    norms::RmsNorm = "rms_norm": RmsNorm::new().axes(2).epsilon(1e-3),
    pool::AvgPool2d = "avg_pool2d": AvgPool2d::new(4).stride(3).padding(1).count_include_pad(),
    pool::GlobalAvgPool2d = "global_avg_pool2d": GlobalAvgPool2d,
    pool::MaxPool2d = "max_pool2d": MaxPool2d::new([2, 3]).stride(1).padding(1),
    recurrent::Gru = "gru": Gru::new(3).layers(2).bidirectional().last().no_bias().dropout(0.1),
    recurrent::Lstm = "lstm": Lstm::new(3).layers(2).stateful().no_bias().dropout(0.1),
    residual::Residual as ResidualDescription = "residual":
        Residual::new(Sequential::new().add(Relu).add(Tanh)).shortcut(Elu::new(0.1)),
    sequential::Sequential as SequentialDescription = "sequential":
        Sequential::new().add(Dense::new(3)).add(Residual::new(Relu)).add(Recompute::new(Tanh)),
    transformer::TransformerBlock = "transformer_block":
        TransformerBlock::new(2).causal().hidden(5).dropout(0.1),
}

#[cfg(test)]
mod tests;
