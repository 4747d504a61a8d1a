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
        "the plan wants only [\"encodr.*\", \"base.*\"], and no tensor of the model is called so"
    ));
    let error = Plan::new().only("encodr.*").partial().read(&file, &wants).unwrap_err();
    assert!(matches!(error, Error::Only { .. }), "{error}");
    let error = Plan::new().rename("a.*", "*.*").read(&file, &wants).unwrap_err().to_string();
    assert_eq!(error, "renaming \"a.*\" to \"*.*\": more stars than there are to fill them");
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
