//! Files with parts of other heads, and fields that only some models read.

use unisono::checkpoint::{Tensor, Tensors, read_tensors, write_model};
use unisono::data::{Loader, Memory, Values};
use unisono::{Predictor, PredictorBuilder};
use unisono_models::{Bert, Pretrained, ResNet, T5};

use super::{Expected, case, in_file, predict, with_tensors};

fn builder() -> PredictorBuilder {
    Predictor::builder().replicas(1)
}

/// Tokens of the second segment get the second row of the table.
#[test]
fn bert_reads_the_segments_of_its_tokens() {
    let base = Pretrained::<Bert>::open(case("bert")).unwrap();
    let name = "bert.embeddings.token_type_embeddings.weight";
    let mut swapped = base.weights().clone();
    let rows = swapped[name].to_f32().unwrap();
    let (first, second) = rows.split_at(rows.len() / 2);
    swapped
        .insert(name.into(), Tensor::f32(base.weights()[name].shape(), &[second, first].concat()).unwrap());
    let swapped = base.with_weights(swapped).unwrap();
    let predict = |base: &Pretrained<Bert>, segments: Option<[i32; 4]>| {
        let data = Memory::new("x", [4], Values::I32(vec![3, 9, 4, 7])).unwrap();
        let data = match segments {
            Some(ids) => data.with("token_type_ids", [4], Values::I32(ids.to_vec())).unwrap(),
            None => data,
        };
        let loader = Loader::new(data);
        let mut predictor = base.predictor(builder(), &loader.fields().unwrap()).unwrap();
        predictor.predict(&loader).unwrap().get("output").unwrap().values.clone()
    };
    assert_eq!(predict(&base, None), predict(&base, Some([0; 4])));
    assert_eq!(predict(&base, Some([1; 4])), predict(&swapped, None));
    assert_eq!(predict(&base, Some([0, 0, 1, 1])), predict(&swapped, Some([1, 1, 0, 0])));
    assert_ne!(predict(&base, Some([0, 0, 1, 1])), predict(&base, None));
}

/// bert-base-uncased has a pooler and a head for the next sentence beside its head for words.
#[test]
fn parts_of_other_heads_are_kept_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let copy = |more: &[(&str, &str)]| {
        let mut all: Tensors = read_tensors(case("bert_masked").join("model.safetensors")).unwrap();
        let values = Tensor::f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        for name in ["bert.pooler.dense.weight", "cls.seq_relationship.weight"] {
            all.insert(name.into(), values.clone());
        }
        write_model(dir.path().join("model.safetensors"), &all).unwrap();
        let config = std::fs::read_to_string(case("bert_masked").join("config.json")).unwrap();
        let config = more.iter().fold(config, |config, (old, new)| config.replace(old, new));
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        all
    };
    let all = copy(&[]);
    let base = Pretrained::<Bert>::open(dir.path()).unwrap();
    assert_eq!(base.weights(), Pretrained::<Bert>::open(case("bert_masked")).unwrap().weights());
    let saved = tempfile::tempdir().unwrap();
    base.save_pretrained(saved.path()).unwrap();
    assert_eq!(in_file(saved.path()), all);
    // After training too, although the values may be those of a weight that was trained.
    let like = "bert.embeddings.LayerNorm.bias";
    let mut all = copy(&[]);
    all.insert("bert.pooler.dense.bias".into(), base.weights()[like].clone());
    write_model(dir.path().join("model.safetensors"), &all).unwrap();
    let base = Pretrained::<Bert>::open(dir.path()).unwrap();
    let mut trained = base.weights().clone();
    trained.insert(like.into(), Tensor::f32(base.weights()[like].shape(), &[7.0; 16]).unwrap());
    base.with_weights(trained).unwrap().save_pretrained(saved.path()).unwrap();
    assert_eq!(in_file(saved.path())["bert.pooler.dense.bias"], all["bert.pooler.dense.bias"]);
    copy(&[("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false")]);
    let error = Pretrained::<Bert>::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tie_word_embeddings is false"), "{error}");
}

/// A head that the config promises must be there. Newer versions of transformers write that heads are tied,
/// even where it is not.
#[test]
fn t5_has_a_head_of_its_own_if_the_config_or_the_file_says_so() {
    const HEAD: &str = "lm_head.weight";
    let open = |tied: bool, change: fn(&mut Tensors)| {
        let dir = with_tensors("t5_gated", change);
        let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
        let new = format!("\"tie_word_embeddings\": {tied}, \"scale_decoder_outputs\": false");
        let changed = config.replace("\"tie_word_embeddings\": false", &new);
        assert_ne!(changed, config);
        std::fs::write(dir.path().join("config.json"), changed).unwrap();
        Pretrained::<T5>::open(dir.path())
    };
    let missing = open(false, |all| drop(all.remove(HEAD))).unwrap_err().to_string();
    assert!(missing.ends_with("lm_head.weight  missing"), "{missing}");
    let tied = open(true, |all| drop(all.remove(HEAD))).unwrap();
    assert!(!tied.weights().contains_key(HEAD));
    let expected = Expected::read(&case("t5_gated"));
    let logits = |base: &Pretrained<T5>| predict(base, &expected, 1);
    let own = logits(&Pretrained::open(case("t5_gated")).unwrap());
    for says_tied in [true, false] {
        assert_eq!(logits(&open(says_tied, |_| {}).unwrap()), own, "tied: {says_tied}");
    }
    assert_ne!(logits(&tied), own);
    // A head with the same values is a parameter of its own only if the config says so.
    let copy = |all: &mut Tensors| drop(all.insert(HEAD.into(), all["shared.weight"].clone()));
    for says_tied in [true, false] {
        let base = open(says_tied, copy).unwrap();
        assert_eq!(base.weights().contains_key(HEAD), !says_tied);
        assert_eq!(logits(&base), logits(&tied));
    }
}

/// Their files have the same names and shapes as those of a plain ResNet.
#[test]
fn resnets_that_blur_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let all = in_file(&case("resnet_torchvision"));
    write_model(dir.path().join("model.safetensors"), &all).unwrap();
    let open = |architecture: &str| {
        let config = format!("{{\"architecture\": {architecture:?}}}");
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        Pretrained::<ResNet>::open(dir.path()).map(drop).map_err(|error| error.to_string())
    };
    assert!(open("resnet18").is_ok(), "{:?}", open("resnet18"));
    let error = open("resnetaa50").unwrap_err();
    assert!(
        error.contains("architecture is \"resnetaa50\", but only plain ResNets are supported"),
        "{error}"
    );
}
