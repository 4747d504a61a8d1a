//! Loading files of other writers and of other models.

use std::collections::BTreeMap;

use unisono_checkpoint::{Error, Info, Keras, Plan, Tensor, TensorDType, TensorFile, Tensors, write_model};

fn tensors(list: &[(&str, &[usize])]) -> Tensors {
    let tensor = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32).collect();
        Tensor::f32(shape, &values).unwrap()
    };
    list.iter().map(|(name, shape)| ((*name).to_owned(), tensor(shape))).collect()
}

fn model(list: &[(&str, &[usize])]) -> BTreeMap<String, Info> {
    list.iter().map(|(name, shape)| ((*name).to_owned(), Info::f32(shape))).collect()
}

#[test]
fn everything_that_does_not_fit_is_listed() {
    let file = tensors(&[
        ("module.a.w", &[2, 3]),
        ("module.b.w", &[4]),
        ("module.x", &[1]),
        ("c", &[1]),
        ("module.c", &[1]),
    ]);
    let wants = model(&[("a.w", &[3, 2]), ("b.w", &[5]), ("b.b", &[5]), ("c", &[1])]);
    let error = Plan::new().strip_prefix("module.").take(&file, &wants).unwrap_err();
    let expected = "tensors: does not fit the model:
missing: \"b.b\"
unexpected: \"module.x\"
size mismatch for a.w: F32[2, 3] in the file, F32[3, 2] in the model
size mismatch for b.w: F32[4] in the file, F32[5] in the model
several would be c: \"c\", \"module.c\"";
    assert_eq!(error.to_string(), expected);
    // Missing and unexpected tensors may be allowed; those that do not fit may not.
    assert!(Plan::new().strip_prefix("module.").partial().take(&file, &wants).is_err());
    let plan = Plan::new().strip_prefix("module.").partial().ignore("module.[ab]*").ignore("c");
    let error = plan.take(&file, &wants).unwrap_err();
    assert!(
        matches!(error, Error::Unfit { report, .. } if report.ambiguous.is_empty()),
        "brackets are plain"
    );
    let plan = Plan::new().strip_prefix("module.").partial().ignore("module.*.w").ignore("c");
    let (found, report) = plan.take(&file, &wants).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["c"]);
    assert_eq!((report.missing.len(), report.unexpected), (3, vec!["module.x".to_owned()]));
}

/// A model is loaded without a copy of it in memory.
#[test]
fn tensors_that_stay_as_they_are_share_their_bytes() {
    let memory = tensors(&[("a.w", &[2, 3]), ("b.w", &[3, 2])]);
    let plan = Plan::new().transpose("b.w");
    let (taken, _) = plan.take(&memory, &model(&[("a.w", &[2, 3]), ("b.w", &[2, 3])])).unwrap();
    for made in [taken, plan.arrange(&memory).unwrap()] {
        assert_eq!(made["a.w"].bytes().as_ptr(), memory["a.w"].bytes().as_ptr());
        assert_eq!(made["b.w"], Tensor::f32(&[2, 3], &[0.0, 2.0, 4.0, 1.0, 3.0, 5.0]).unwrap());
    }
}

#[test]
fn several_tensors_for_a_name_that_the_model_lacks_are_unexpected() {
    let file = tensors(&[("b.weight", &[2]), ("a.gamma", &[2]), ("a.kernel", &[2])]);
    let wants = model(&[("b.weight", &[2])]);
    let (found, report) = Plan::new().keras_names().partial().take(&file, &wants).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["b.weight"]);
    assert_eq!(report.unexpected, ["a.gamma", "a.kernel"]);
    let error = Plan::new().keras_names().take(&file, &wants).unwrap_err().to_string();
    assert!(error.ends_with("unexpected: \"a.gamma\", \"a.kernel\""), "{error}");
    let wants = model(&[("b.weight", &[2]), ("a.weight", &[2])]);
    let error = Plan::new().keras_names().partial().take(&file, &wants).unwrap_err().to_string();
    assert!(error.ends_with("several would be a.weight: \"a.gamma\", \"a.kernel\""), "{error}");
}

#[test]
fn a_part_is_loaded_by_pattern_from_a_mapped_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    write_model(
        &path,
        &tensors(&[("encoder.0.weight", &[2]), ("encoder.1.weight", &[3]), ("head.weight", &[9])]),
    )
    .unwrap();
    let file = TensorFile::open(&path).unwrap();
    let wants = model(&[("encoder.0.weight", &[2]), ("encoder.1.weight", &[3]), ("head.weight", &[10])]);
    let (found, report) = Plan::new().only("encoder.*").read(&file, &wants).unwrap();
    assert_eq!(found, tensors(&[("encoder.0.weight", &[2]), ("encoder.1.weight", &[3])]));
    assert_eq!(report.to_string(), "all 2 tensors loaded");
    let error = Plan::new().read(&file, &wants).unwrap_err().to_string();
    assert!(
        error.ends_with("size mismatch for head.weight: F32[9] in the file, F32[10] in the model"),
        "{error}"
    );
    let error = Plan::new().only("encodr.*").only("base.*").read(&file, &wants).unwrap_err().to_string();
    assert!(error.ends_with(
        "the plan wants only [\"encodr.*\", \"base.*\"], but no tensor of the model has such a name"
    ));
    let error = Plan::new().only("encodr.*").partial().read(&file, &wants).unwrap_err();
    assert!(matches!(error, Error::Only { .. }), "{error}");
    let error = Plan::new().rename("a.*", "*.*").read(&file, &wants).unwrap_err().to_string();
    assert_eq!(error, "renaming \"a.*\" to \"*.*\": the new name has more stars than the old one");
}

#[test]
fn a_partial_plan_that_loads_nothing_is_an_error() {
    let file = tensors(&[("module.a", &[2])]);
    let wants = model(&[("a", &[2]), ("b", &[3])]);
    let error = Plan::new().partial().take(&file, &wants).unwrap_err();
    assert!(matches!(error, Error::Nothing { .. }), "{error}");
    assert!(error.to_string().ends_with("missing: \"a\", \"b\"\nunexpected: \"module.a\""), "{error}");
    // So is one that ignores everything, and one for a file without tensors.
    let ignoring = Plan::new().strip_prefix("module.").partial().ignore("*").take(&file, &wants);
    assert!(matches!(ignoring, Err(Error::Nothing { .. })));
    let empty = Plan::new().partial().take(&tensors(&[]), &wants);
    assert!(matches!(empty, Err(Error::Nothing { .. })));
    // One tensor is enough, and a model without tensors lacks none.
    let (found, _) = Plan::new().strip_prefix("module.").partial().take(&file, &wants).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
    assert!(Plan::new().partial().take(&file, &model(&[])).is_ok());
}

#[test]
fn floats_are_converted_and_integers_are_not() {
    let half = |bits: u16, dtype| Tensor::new(dtype, vec![1], bits.to_le_bytes().to_vec()).unwrap();
    let file = Tensors::from([
        ("a".to_owned(), half(0x3c00, TensorDType::F16)),
        ("b".to_owned(), half(0xbf80, TensorDType::Bf16)),
        ("n".to_owned(), Tensor::i32(&[1], &[1]).unwrap()),
    ]);
    let wants = model(&[("a", &[1]), ("b", &[1])]);
    let (found, report) = Plan::new().ignore("n").take(&file, &wants).unwrap();
    assert_eq!((found["a"].to_f32(), found["b"].to_f32()), (Some(vec![1.0]), Some(vec![-1.0])));
    assert_eq!(report.converted, ["a", "b"]);
    let error = Plan::new().take(&file, &model(&[("a", &[1]), ("b", &[1]), ("n", &[1])])).unwrap_err();
    assert!(error.to_string().ends_with("size mismatch for n: I32[1] in the file, F32[1] in the model"));
}

#[test]
fn a_keras_model_loads() {
    let file = tensors(&[
        ("conv/kernel:0", &[1, 2, 2, 3]),
        ("conv/bias:0", &[3]),
        ("bn/gamma:0", &[3]),
        ("bn/beta:0", &[3]),
        ("bn/moving_mean:0", &[3]),
        ("bn/moving_variance:0", &[3]),
        ("dense/kernel:0", &[2, 3]),
    ]);
    let wants = model(&[
        ("conv.weight", &[3, 2, 1, 2]),
        ("conv.bias", &[3]),
        ("bn.weight", &[3]),
        ("bn.bias", &[3]),
        ("bn.running_mean", &[3]),
        ("bn.running_var", &[3]),
        ("dense.weight", &[3, 2]),
    ]);
    let (found, report) = Plan::new().keras(Keras::new()).keras_names().take(&file, &wants).unwrap();
    assert_eq!(report.loaded.len(), 7);
    assert_eq!(found["dense.weight"].to_f32(), Some(vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    // Without the option the shapes do not fit.
    let error = Plan::new().keras_names().take(&file, &wants).unwrap_err().to_string();
    assert!(error.contains("dense.weight: F32[2, 3] in the file, F32[3, 2] in the model"), "{error}");
}

/// Returns the descriptions of tensors.
fn infos(tensors: &Tensors) -> BTreeMap<String, Info> {
    tensors.iter().map(|(name, tensor)| (name.clone(), tensor.info().clone())).collect()
}

/// A tensor's name, shape and values.
type Named = (&'static str, Vec<usize>, Vec<f32>);

/// A plan with all rules for layouts, the file that it is for, and what it makes of it.
fn laid_out() -> (Plan, Tensors, Vec<Named>) {
    let plan = Plan::new()
        .rename("blocks.*.attn.*", "layer.*.*")
        .split("*.qkv.weight", 0, &["*.q", "*.k", "*.v"])
        .split_lengths("*.kv", 1, &[("*.keys", 1), ("*.values", 2)])
        .transpose("*.values")
        .merge(&["*.up", "*.gate"], 0, "*.both")
        .reshape("token", &[2, 2])
        .permute("image", &[2, 0, 1])
        .ignore("counter");
    let file = tensors(&[
        ("blocks.0.attn.qkv.weight", &[3, 2]),
        ("blocks.0.attn.kv", &[2, 3]),
        ("blocks.0.attn.gate", &[1, 2]),
        ("blocks.0.attn.up", &[2, 2]),
        ("blocks.1.attn.up", &[1]),
        ("token", &[1, 4]),
        ("image", &[1, 2, 3]),
        ("counter", &[1]),
    ]);
    let made = vec![
        ("image", vec![3, 1, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
        ("layer.0.both", vec![3, 2], vec![0.0, 1.0, 2.0, 3.0, 0.0, 1.0]),
        ("layer.0.k", vec![1, 2], vec![2.0, 3.0]),
        ("layer.0.keys", vec![2, 1], vec![0.0, 3.0]),
        ("layer.0.q", vec![1, 2], vec![0.0, 1.0]),
        ("layer.0.v", vec![1, 2], vec![4.0, 5.0]),
        ("layer.0.values", vec![2, 2], vec![1.0, 4.0, 2.0, 5.0]),
        // Its gate is missing, so nothing is merged.
        ("layer.1.up", vec![1], vec![0.0]),
        ("token", vec![2, 2], vec![0.0, 1.0, 2.0, 3.0]),
    ];
    (plan, file, made)
}

#[test]
fn tensors_are_split_merged_turned_and_reshaped() {
    let (plan, file, made) = laid_out();
    let made = made
        .into_iter()
        .map(|(name, shape, values)| (name.to_owned(), Tensor::f32(&shape, &values).unwrap()));
    let made: Tensors = made.collect();
    assert_eq!(plan.arrange(&file).unwrap(), made);
    let (found, report) = plan.take(&file, &infos(&made)).unwrap();
    assert_eq!((found, report.is_exact()), (made, true));

    // From a mapped file, of another type than the model's.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let half = Tensor::new(TensorDType::Bf16, vec![2, 1], vec![0x80, 0x3f, 0x00, 0x40]).unwrap();
    write_model(&path, &Tensors::from([("w".to_owned(), half)])).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let (found, report) = Plan::new().transpose("w").read(&file, &model(&[("w", &[1, 2])])).unwrap();
    assert_eq!((found["w"].to_f32().unwrap(), report.converted.len()), (vec![1.0, 2.0], 1));
}

#[test]
fn a_plan_leads_back() {
    let (plan, mut file, _) = laid_out();
    let model = plan.arrange(&file).unwrap();
    file.remove("counter");
    let mut shapes = infos(&file);
    assert_eq!(plan.revert(&model, &shapes).unwrap(), file);
    // The types are those of the model.
    shapes.values_mut().for_each(|info| info.dtype = TensorDType::F16);
    assert_eq!(plan.revert(&model, &shapes).unwrap(), file);
    // Keras's layout leads back too.
    let keras = Plan::new().keras(Keras::new().depthwise("d/kernel")).keras_names();
    let file = tensors(&[("a/kernel", &[2, 3]), ("d/kernel", &[3, 3, 2, 2]), ("a/bias", &[3])]);
    let model = keras.arrange(&file).unwrap();
    assert_eq!(model["a.weight"].shape(), [3, 2]);
    assert_eq!(keras.revert(&model, &infos(&file)).unwrap(), file);
}

#[test]
fn what_does_not_lead_back_is_listed() {
    let (plan, file, _) = laid_out();
    let whole = plan.arrange(&file).unwrap();
    let mut model = whole.clone();
    model.remove("layer.0.k");
    model.insert("more".into(), Tensor::f32(&[1], &[0.0]).unwrap());
    model.insert("token".into(), Tensor::f32(&[4], &[0.0; 4]).unwrap());
    let error = plan.revert(&model, &infos(&file)).unwrap_err().to_string();
    let expected = "tensors: does not fit the model:
missing: \"layer.0.k\"
unexpected: \"more\"
size mismatch for token: F32[2, 2] in the file, F32[4] in the model";
    assert_eq!(error, expected);
    let mut mixed = whole.clone();
    mixed.insert("layer.0.k".into(), Tensor::i32(&[1, 2], &[1, 2]).unwrap());
    let error = plan.revert(&mixed, &infos(&file)).unwrap_err().to_string();
    assert!(error.ends_with("the parts of blocks.0.attn.qkv.weight have different types"), "{error}");
    let error = plan.except("*.k").revert(&whole, &infos(&file)).unwrap_err().to_string();
    assert!(error.ends_with("the model has only a part of blocks.0.attn.qkv.weight"), "{error}");
}

#[test]
fn rules_that_do_not_fit_name_the_tensor() {
    let file = tensors(&[("h.0.w", &[4]), ("h.1.w", &[3]), ("a", &[2, 1]), ("b", &[1, 3])]);
    let error = |plan: Plan| plan.arrange(&file).unwrap_err().to_string();
    assert_eq!(
        error(Plan::new().transpose("h.*")),
        "tensors: the plan cannot transpose h.0.w: [4] has no two axes"
    );
    let halves = error(Plan::new().split("h.*.w", 0, &["h.*.a", "h.*.b"]));
    assert_eq!(halves, "tensors: the plan cannot split h.1.w: axis 0 of [3] does not divide into [1, 1]");
    let joined = error(Plan::new().merge(&["a", "b"], 0, "c"));
    assert_eq!(
        joined,
        "tensors: the plan cannot merge c: F32[2, 1] and F32[1, 3] cannot be joined along axis 0"
    );
    assert!(error(Plan::new().merge(&["*", "a"], 0, "c")).contains("a part belongs to several tensors"));
    assert!(
        error(Plan::new().split("a", 0, &["*"]))
            .starts_with("renaming \"a\" to \"*\": the new name has more stars")
    );
    assert!(
        error(Plan::new().merge(&["a", "*"], 0, "b"))
            .starts_with("renaming \"a\" to \"*\": the new name has more stars")
    );
    assert_eq!(error(Plan::new().rename("h.*", "a")), "tensors: several tensors are a by the plan");
    assert!(error(Plan::new().reshape("a", &[3])).ends_with("reshape a: [2, 1] has other elements than [3]"));
    assert!(error(Plan::new().permute("a", &[1])).ends_with("[1] does not order the axes of [2, 1]"));
}

#[test]
fn a_new_head_is_excepted() {
    let file = tensors(&[("body", &[2]), ("head.w", &[7])]);
    let wants = model(&[("body", &[2]), ("head.w", &[3])]);
    let (found, report) = Plan::new().except("head.*").take(&file, &wants).unwrap();
    assert_eq!((found.len(), report.loaded, report.missing.len()), (1, vec!["body".to_owned()], 0));
    let error = Plan::new().except("classifier.*").take(&file, &wants).unwrap_err().to_string();
    assert_eq!(error, "tensors: the plan excepts classifier.*, but no tensor of the model has such a name");
    let error = Plan::new().only("head.*").except("head.*").take(&file, &wants).unwrap_err();
    assert!(matches!(error, Error::Only { .. }), "{error}");
}

#[test]
fn a_split_tensor_that_the_model_lacks_is_unexpected_once() {
    let file = tensors(&[("qkv", &[3]), ("w", &[1])]);
    let plan = Plan::new().split("qkv", 0, &["q", "k", "v"]).partial();
    let (_, report) = plan.take(&file, &model(&[("w", &[1])])).unwrap();
    assert_eq!(report.unexpected, ["qkv"]);
}
