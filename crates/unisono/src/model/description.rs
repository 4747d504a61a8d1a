//! A model as data, and back.

use serde::{Deserialize, Serialize};

use crate::{
    AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, Dense, Dropout, Elu, Embedding, Flatten, Gelu, GeluTanh,
    GlobalAvgPool2d, GroupNorm, Gru, Layer, LayerNorm, LeakyRelu, Lstm, MaxPool2d, MultiHeadAttention, Relu,
    Residual, RmsNorm, Sequential, Sigmoid, Silu, Softmax, Softplus, Tanh, TransformerBlock,
};

/// What a model computes, as data: [`Layer::description`]. In JSON an object with the layer's name and its settings.
///
/// What weights start with is not in it, for they come from a file: a model that is built again starts with its layers'
/// defaults.
///
/// ```
/// use unisono::{Dense, Description, Layer, Relu, Sequential};
///
/// let model = Sequential::new().add(Dense::new(64)).add(Relu);
/// let json = serde_json::to_string(&model.description())?;
/// let layers = r#"[{"layer":"dense","units":64,"input":null,"bias":true},{"layer":"relu"}]"#;
/// assert_eq!(json, format!(r#"{{"layer":"sequential","layers":{layers}}}"#));
/// let again = serde_json::from_str::<Description>(&json)?.layer();
/// assert_eq!(again.name(), "sequential");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "layer", rename_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the layer of its name")]
pub enum Description {
    Sequential {
        layers: Vec<Description>,
    },
    Residual {
        inner: Box<Description>,
        shortcut: Option<Box<Description>>,
    },
    #[serde(rename = "avg_pool2d")]
    AvgPool2d(AvgPool2d),
    BatchNorm(BatchNorm),
    #[serde(rename = "conv2d")]
    Conv2d(Conv2d),
    #[serde(rename = "conv_transpose2d")]
    ConvTranspose2d(ConvTranspose2d),
    Dense(Dense),
    Dropout(Dropout),
    Elu(Elu),
    Embedding(Embedding),
    Flatten(Flatten),
    Gelu(Gelu),
    GeluTanh(GeluTanh),
    #[serde(rename = "global_avg_pool2d")]
    GlobalAvgPool2d(GlobalAvgPool2d),
    GroupNorm(GroupNorm),
    Gru(Gru),
    LayerNorm(LayerNorm),
    LeakyRelu(LeakyRelu),
    Lstm(Lstm),
    #[serde(rename = "max_pool2d")]
    MaxPool2d(MaxPool2d),
    MultiHeadAttention(MultiHeadAttention),
    Relu(Relu),
    RmsNorm(RmsNorm),
    Sigmoid(Sigmoid),
    Silu(Silu),
    Softmax(Softmax),
    Softplus(Softplus),
    Tanh(Tanh),
    TransformerBlock(TransformerBlock),
}

impl Description {
    /// Builds the layer.
    pub fn layer(self) -> Box<dyn Layer> {
        match self {
            Self::Sequential { layers } => {
                let add = |model: Sequential, layer: Self| model.add(layer.layer());
                Box::new(layers.into_iter().fold(Sequential::new(), add))
            }
            Self::Residual { inner, shortcut } => {
                let residual = Residual::new(inner.layer());
                Box::new(match shortcut {
                    Some(shortcut) => residual.shortcut(shortcut.layer()),
                    None => residual,
                })
            }
            Self::AvgPool2d(layer) => Box::new(layer),
            Self::BatchNorm(layer) => Box::new(layer),
            Self::Conv2d(layer) => Box::new(layer),
            Self::ConvTranspose2d(layer) => Box::new(layer),
            Self::Dense(layer) => Box::new(layer),
            Self::Dropout(layer) => Box::new(layer),
            Self::Elu(layer) => Box::new(layer),
            Self::Embedding(layer) => Box::new(layer),
            Self::Flatten(layer) => Box::new(layer),
            Self::Gelu(layer) => Box::new(layer),
            Self::GeluTanh(layer) => Box::new(layer),
            Self::GlobalAvgPool2d(layer) => Box::new(layer),
            Self::GroupNorm(layer) => Box::new(layer),
            Self::Gru(layer) => Box::new(layer),
            Self::LayerNorm(layer) => Box::new(layer),
            Self::LeakyRelu(layer) => Box::new(layer),
            Self::Lstm(layer) => Box::new(layer),
            Self::MaxPool2d(layer) => Box::new(layer),
            Self::MultiHeadAttention(layer) => Box::new(layer),
            Self::Relu(layer) => Box::new(layer),
            Self::RmsNorm(layer) => Box::new(layer),
            Self::Sigmoid(layer) => Box::new(layer),
            Self::Silu(layer) => Box::new(layer),
            Self::Softmax(layer) => Box::new(layer),
            Self::Softplus(layer) => Box::new(layer),
            Self::Tanh(layer) => Box::new(layer),
            Self::TransformerBlock(layer) => Box::new(layer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recompute;

    /// One of each layer, with settings that are not its defaults.
    fn everything() -> Sequential {
        Sequential::new()
            .add(Conv2d::new(8, [3, 5]).stride(2).padding([1, 2]).groups(2).no_bias())
            .add(ConvTranspose2d::new(4, 3))
            .add(BatchNorm::new().momentum(0.3).epsilon(1e-3))
            .add(Residual::new(Sequential::new().add(Relu).add(Tanh)).shortcut(Elu::new(0.1)))
            .add(MaxPool2d::new([2, 3]).padding(1))
            .add(AvgPool2d::new(2).count_include_pad())
            .add(GlobalAvgPool2d)
            .add(GroupNorm::new(4))
            .add(LayerNorm::new())
            .add(RmsNorm::new())
            .add(Flatten)
            .add(Dropout::new(0.3))
            .add(Dense::new(7))
            .add(Embedding::new(3, 5))
            .add(Lstm::new(3))
            .add(Gru::new(3).stateful())
            .add(MultiHeadAttention::new(2))
            .add(Recompute::new(TransformerBlock::new(2)))
            .add(LeakyRelu::new(0.2))
            .add(Sequential::new().add(Gelu).add(GeluTanh).add(Silu).add(Softplus).add(Sigmoid).add(Softmax))
    }

    #[test]
    fn every_layer_comes_back_with_its_settings() {
        let json = serde_json::to_value(everything().description().expect("all are known")).unwrap();
        let again: Description = serde_json::from_value(json.clone()).unwrap();
        let built = again.layer().description().unwrap();
        assert_eq!(serde_json::to_value(built).unwrap(), json);
        let conv = &json["layers"][0];
        assert_eq!((&conv["layer"], &conv["groups"]), (&"conv2d".into(), &2.into()));
        assert_eq!(conv["window"]["kernel"], serde_json::json!([3, 5]));
        assert_eq!(json["layers"][15]["shape"]["stateful"], true);
        // Each is called what it calls itself.
        let names = |layers: &serde_json::Value| -> Vec<String> {
            layers.as_array().unwrap().iter().map(|l| l["layer"].as_str().unwrap().to_owned()).collect()
        };
        for (layer, name) in everything().layers().iter().zip(names(&json["layers"])) {
            assert_eq!(layer.name(), name);
        }
    }

    #[test]
    fn what_is_not_known_is_an_error_and_not_another_model() {
        for json in [
            r#"{"layer": "dense", "units": 7, "input": null, "bias": true, "activation": "relu"}"#,
            r#"{"layer": "conv7d"}"#,
            r#"{"layer": "dense"}"#,
            r#"{"layer": "sequential", "layers": [{}]}"#,
        ] {
            assert!(serde_json::from_str::<Description>(json).is_err(), "{json}");
        }
        let custom = crate::FromFn::new("own", |_, x| x.clone());
        assert!(Sequential::new().add(Relu).add(custom).description().is_none());
    }
}
