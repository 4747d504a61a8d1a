//! Low-rank matrices on everything that a pattern can match, for each architecture.

use unisono::{AdamW, Optimizer, Trainer};
use unisono_models::{
    Architecture, Bert, DistilBert, Gpt2, Llama, Lora, MobileNetV2, Pretrained, ResNet, T5, UNet, Vit,
    Whisper,
};

use super::{Expected, case, loss};

/// Parts of the names of tables.
const TABLES: [&str; 5] = ["embed", "wte", "wpe", "shared", "relative_attention_bias"];

/// Adapts all layers, trains the matrices for a step, merges and saves them. Returns the number of layers.
fn all_layers<M: Architecture>(name: &str) -> usize {
    let dir = case(name);
    let (expected, base) = (Expected::read(&dir), Pretrained::<M>::open(&dir).unwrap());
    let adapted = base.clone().with(Lora::rank(2).on("*"));
    adapted.check().unwrap();
    let layers: Vec<&str> = adapted.layers().collect();
    let last = |layer: &str| layer.rsplit('.').next().unwrap().to_owned();
    let table = layers.iter().find(|layer| TABLES.iter().any(|table| last(layer).contains(table)));
    assert_eq!(table, None, "{name}");
    let optimizer = AdamW::new(1e-2).freeze(Lora::freezes);
    let builder = Trainer::builder(adapted.model()).optimizer(optimizer).loss(loss());
    let builder = builder.global_batch(4).shards(4).replicas(1);
    let mut trainer = builder.build(&expected.loader().fields().unwrap()).unwrap();
    adapted.load(&mut trainer).unwrap();
    trainer.step(&expected.batch()).unwrap();
    let weights = trainer.weights().unwrap();
    let merged = adapted.merged(&weights).unwrap_or_else(|error| panic!("{name}: {error}"));
    let model = base.with_weights(merged).unwrap();
    // Every layer that has matrices has learned, apart from those that have no influence on the loss.
    let is_new = |layer: &&&str| {
        let name = format!("{layer}.weight");
        model.weights()[&name].floats() != base.weights()[&name].floats()
    };
    assert!(2 * layers.iter().filter(is_new).count() > layers.len(), "{name}: {layers:?}");
    let saved = tempfile::tempdir().unwrap();
    adapted.save_adapter(saved.path(), &weights).unwrap();
    let again = base.with_adapter(saved.path()).unwrap();
    assert!(again.layers().eq(layers.iter().copied()), "{name}");
    layers.len()
}

#[test]
fn every_layer_of_a_text_model_is_adapted_and_no_table_is() {
    assert_eq!(all_layers::<Gpt2>("gpt2"), 8);
    all_layers::<Llama>("llama");
    all_layers::<Bert>("bert");
    all_layers::<Bert>("bert_masked");
    all_layers::<DistilBert>("distilbert");
    all_layers::<T5>("t5");
    all_layers::<T5>("t5_gated");
}

/// The positions of Whisper's encoder are stored and not trained.
#[test]
fn every_layer_of_a_model_of_sounds_or_images_is_adapted_and_no_table_is() {
    all_layers::<Whisper>("whisper");
    all_layers::<Vit>("vit");
    all_layers::<Vit>("vit_torchvision");
    all_layers::<Vit>("vit_timm");
    all_layers::<ResNet>("resnet_basic");
    all_layers::<ResNet>("resnet_torchvision");
    all_layers::<MobileNetV2>("mobilenet_transformers");
}

/// All weights of a U-Net are kernels of convolutions.
#[test]
fn a_model_without_linear_layers_is_refused() {
    let base = Pretrained::<UNet>::open(case("unet")).unwrap();
    let error = base.with(Lora::rank(2).on("*")).check().unwrap_err().to_string();
    assert_eq!(error, "lora: the model has no linear layer");
}
