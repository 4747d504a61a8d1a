//! Weights of i8 with a scale for each output channel: written as PyTorch would, read back as their products,
//! and refused by name where something is wrong.

use std::collections::BTreeMap;

use proptest::prelude::*;
use unisono_checkpoint::{
    Export, Info, Plan, Stored, Tensor, TensorDType, TensorFile, Tensors, WeightPrecision, export_model,
    write_model,
};

fn one(name: &str, tensor: Tensor) -> Tensors {
    Tensors::from([(name.to_owned(), tensor)])
}

fn store(shape: &[usize], values: &[f32], axis: usize) -> Result<Stored, unisono_checkpoint::Error> {
    let tensors = one("w", Tensor::f32(shape, values).unwrap());
    WeightPrecision::I8.store(&tensors, &BTreeMap::from([("w".to_owned(), axis)]))
}

fn integers(tensor: &Tensor) -> Vec<i8> {
    assert_eq!(tensor.dtype(), TensorDType::I8);
    tensor.bytes().iter().map(|&byte| byte as i8).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_f32().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Takes `w` as a model of this shape would.
fn taken(tensors: &Tensors, shape: &[usize]) -> Result<Tensor, String> {
    let model = BTreeMap::from([("w".to_owned(), Info::f32(shape))]);
    let (tensors, report) = Plan::new().take(tensors, &model).map_err(|error| error.to_string())?;
    assert_eq!(report.converted, ["w"]);
    Ok(tensors["w"].clone())
}

/// torch 2.15: `q = torch.quantize_per_channel(w, w.abs().amax(1 - axis) / 127, zeros, axis, torch.qint8)`,
/// then `q.int_repr()` and the bits of `q.dequantize()`.
#[test]
fn integers_scales_and_products_are_those_of_pytorch() {
    let w = [0.5, -1.27, 0.3049999, 0.005, 3.0, 2.9, -0.011_811_024, 1.7, 1e-3, -1e-3, 5e-4, 2.5e-4];
    let rows = store(&[3, 4], &w, 0).unwrap().tensors;
    assert_eq!(rows["w_scale"].shape(), [3, 1]);
    assert_eq!(bits(&rows["w_scale"]), [0x3c23_d70a, 0x3cc1_8306, 0x3704_1aa4]);
    assert_eq!(integers(&rows["w"]), [50, -127, 30, 0, 127, 123, 0, 72, 127, -127, 64, 32]);
    let products = [
        0x3f00_0000,
        0xbfa2_8f5c,
        0x3e99_9999,
        0,
        0x4040_0000,
        0x4039_f3e8,
        0,
        0x3fd9_b367,
        0x3a83_126f,
        0xba83_126f,
        0x3a04_1aa4,
        0x3984_1aa4,
    ];
    assert_eq!(bits(&taken(&rows, &[3, 4]).unwrap()), products);
    let columns = store(&[3, 4], &w, 1).unwrap().tensors;
    assert_eq!(columns["w_scale"].shape(), [1, 4]);
    assert_eq!(bits(&columns["w_scale"]), [0x3cc1_8306, 0x3cbb_0fb9, 0x3b1d_63b9, 0x3c5b_503a]);
    assert_eq!(integers(&columns["w"]), [21, -56, 127, 0, 127, 127, -5, 127, 0, 0, 0, 0]);
    // Ties go to the even integer.
    let ties = store(&[1, 8], &[127.0, 0.5, 1.5, 2.5, -0.5, -3.5, 126.5, -126.5], 0).unwrap().tensors;
    assert_eq!(integers(&ties["w"]), [127, 0, 2, 2, 0, -4, 126, -126]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever the shape, the axis and the magnitude of a channel, from the smallest numbers to the largest.
    #[test]
    fn a_weight_comes_back_within_half_a_scale(
        dims in prop::array::uniform3(1usize..5),
        axis in 0usize..3,
        patterns in prop::collection::vec(any::<u32>(), 64),
        exponents in prop::collection::vec(0u32..255, 5),
    ) {
        let channel = |index: usize| index / dims[axis + 1..].iter().product::<usize>() % dims[axis];
        let value = |index: usize| {
            // Any sign and fraction; exponents at most eight below that of the channel.
            let exponent = exponents[channel(index)].saturating_sub(patterns[index] >> 23 & 7);
            f32::from_bits(patterns[index] & 0x807f_ffff | exponent << 23)
        };
        let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
        let stored = store(&dims, &values, axis).unwrap();
        let scales = stored.tensors["w_scale"].to_f32().unwrap();
        let found = taken(&stored.tensors, &dims).unwrap().to_f32().unwrap();
        let mut largest: f32 = 0.0;
        for (index, (w, back)) in values.iter().zip(&found).enumerate() {
            let (error, scale) = ((f64::from(*w) - f64::from(*back)).abs(), f64::from(scales[channel(index)]));
            prop_assert!(error <= scale / 2.0 * (1.0 + 1e-4), "{w:e} came back as {back:e}, scale {scale:e}");
            largest = largest.max((w - back).abs());
        }
        prop_assert_eq!(stored.rounded.first().map_or(0.0, |rounded| rounded.largest_error), largest);
    }
}

#[test]
fn channels_of_zeros_and_of_the_extremes_stay_finite() {
    let w = [0.0, -0.0, f32::MAX, -f32::MAX, f32::from_bits(1), 0.0];
    let stored = store(&[3, 2], &w, 0).unwrap().tensors;
    let scales = stored["w_scale"].to_f32().unwrap();
    assert_eq!((scales[0], scales[2]), (f32::MIN_POSITIVE, f32::MIN_POSITIVE));
    assert_eq!(integers(&stored["w"]), [0, 0, 127, -127, 0, 0]);
    let found = taken(&stored, &[3, 2]).unwrap().to_f32().unwrap();
    assert!(found.iter().all(|value| value.is_finite()) && found[2] > 0.999_999 * f32::MAX, "{found:?}");
}

#[test]
fn values_that_are_not_finite_are_refused_by_name() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let error = store(&[2, 2], &[0.0, 1.0, 2.0, value], 0).unwrap_err().to_string();
        let expected = format!("cannot be stored: w: channel 1 has the value {shown}, which i8 cannot hold");
        assert_eq!(error, expected);
    }
    let error = store(&[2, 2], &[0.0; 4], 2).unwrap_err().to_string();
    assert_eq!(error, "cannot be stored: w [2, 2] has no axis 2 of output channels");
    let none = WeightPrecision::I8.store(&one("w", Tensor::f32(&[1], &[1.0]).unwrap()), &BTreeMap::new());
    assert!(none.unwrap_err().to_string().contains("no tensor is a matrix or a kernel"));
    let mut taken = one("w", Tensor::f32(&[1, 1], &[1.0]).unwrap());
    taken.insert("w_scale".into(), Tensor::f32(&[1], &[1.0]).unwrap());
    let error = WeightPrecision::I8.store(&taken, &BTreeMap::from([("w".to_owned(), 0)])).unwrap_err();
    assert!(error.to_string().contains("w_scale is a tensor, so the scales of w"), "{error}");
}

#[test]
fn a_file_with_scales_that_do_not_fit_is_refused_by_name() {
    let stored = store(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0).unwrap().tensors;
    let with = |scale: Tensor| {
        let mut tensors = stored.clone();
        tensors.insert("w_scale".into(), scale);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        write_model(&path, &tensors).unwrap();
        let model = BTreeMap::from([("w".to_owned(), Info::f32(&[3, 2]))]);
        let read = Plan::new().read(&TensorFile::open(&path).unwrap(), &model);
        let error =
            read.map(|(tensors, _)| tensors["w"].to_f32().unwrap()).map_err(|error| error.to_string());
        error.map_err(|error| error.split_once("m.safetensors: ").unwrap().1.to_owned())
    };
    let f32 = |shape: &[usize], values: &[f32]| Tensor::f32(shape, values).unwrap();
    for scale in [
        f32(&[3], &[1.0; 3]),
        f32(&[2, 1], &[1.0; 2]),
        f32(&[3, 2], &[1.0; 6]),
        f32(&[1, 3], &[1.0; 3]),
        f32(&[0, 1], &[]),
        f32(&[], &[1.0]),
        Tensor::new(TensorDType::F16, vec![3, 1], vec![0; 6]).unwrap(),
    ] {
        let expected = format!(
            "w_scale is {}, and the scales of w I8[3, 2] must be F32, with the length of w on one axis and 1 on the \
             others",
            scale.info()
        );
        assert_eq!(with(scale).unwrap_err(), expected);
    }
    for (scale, shown) in [(f32::NAN, "NaN"), (0.0, "0"), (-1.0, "-1"), (f32::INFINITY, "inf")] {
        let expected = format!("w_scale: channel 1 has the scale {shown}, which is not a positive number");
        assert_eq!(with(f32(&[3, 1], &[1.0, scale, 1.0])).unwrap_err(), expected);
    }
    let error = with(f32(&[3, 1], &[1.0, 1.0, 3e38])).unwrap_err();
    assert_eq!(error, "w: a value of channel 2 times its scale is inf");
    // One scale for the whole tensor, as other programs write it, is a scale of every channel.
    assert_eq!(with(f32(&[1, 1], &[2.0])).unwrap(), [128.0, 254.0, 190.0, 254.0, 212.0, 254.0]);
}

/// Without its scales a tensor of i8 is what it was before: one of another type than the model's.
#[test]
fn integers_without_scales_are_no_weights() {
    let mut stored = store(&[1, 2], &[1.0, 2.0], 0).unwrap().tensors;
    stored.remove("w_scale");
    let error = taken(&stored, &[1, 2]).unwrap_err();
    assert!(error.contains("size mismatch for w: I8[1, 2] in the file, F32[1, 2] in the model"), "{error}");
}

/// Beside an axis of length 0, others may be of any length.
#[test]
fn a_tensor_without_elements_has_none_however_long_its_axes_are() {
    let shape = [0, 1 << 40, 1 << 40];
    let integers = Tensor::new(TensorDType::I8, shape.to_vec(), Vec::new()).unwrap();
    let mut tensors = one("w", integers);
    tensors.insert("w_scale".into(), Tensor::f32(&[1, 1, 1], &[0.5]).unwrap());
    assert_eq!(taken(&tensors, &shape).unwrap(), Tensor::f32(&shape, &[]).unwrap());
    let stored = store(&shape, &[], 0).unwrap();
    assert_eq!(stored.tensors["w"].shape(), shape);
    let error = store(&[0, 1 << 60], &[], 1).unwrap_err().to_string();
    assert!(error.contains("no memory for a scale of each channel"), "{error}");
}

/// Rules see the product: a plan does not have to know that a file is quantized.
#[test]
fn rules_apply_to_the_products() {
    let stored = store(&[2, 3], &[1.0, 2.0, 127.0, 4.0, 5.0, 127.0], 0).unwrap().tensors;
    let model = BTreeMap::from([("a".to_owned(), Info::f32(&[3, 1])), ("b".to_owned(), Info::f32(&[3, 1]))]);
    let plan = Plan::new().transpose("w").split("w", 1, &["a", "b"]);
    let (tensors, report) = plan.take(&stored, &model).unwrap();
    assert_eq!(tensors["b"].to_f32().unwrap(), [4.0, 5.0, 127.0]);
    assert_eq!((report.converted.len(), report.unexpected.len()), (2, 0));
    assert_eq!(plan.arrange(&stored).unwrap(), tensors);
    // Both are left alone if one is ignored.
    let error = Plan::new().ignore("w_scale").take(&stored, &model).unwrap_err().to_string();
    assert!(error.contains("unexpected: \"w\""), "{error}");
}

/// A quantized file can be written again, as it is or as floats.
#[test]
fn a_quantized_model_is_exported_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = one("w", Tensor::f32(&[2, 2], &[1.0, 2.0, 3.0, 4.1]).unwrap());
    model.insert("b".into(), Tensor::f32(&[2], &[0.1, 0.2]).unwrap());
    model.insert("n".into(), Tensor::i32(&[1], &[7]).unwrap());
    let channels = BTreeMap::from([("w".to_owned(), 0)]);
    let export = |name: &str, tensors: &Tensors, precision| {
        let export = Export::default().precision(precision).channels(channels.clone());
        let exported = export_model(dir.path().join(name), tensors, &export).unwrap();
        assert_eq!(std::fs::metadata(&exported.weights).unwrap().len(), exported.bytes);
        (unisono_checkpoint::read_tensors(&exported.weights).unwrap(), exported.rounded)
    };
    let (quantized, rounded) = export("q", &model, WeightPrecision::I8);
    assert_eq!((&quantized["b"], &quantized["n"]), (&model["b"], &model["n"]));
    assert_eq!((rounded.len(), &*rounded[0].name, rounded[0].largest), (1, "w", 4.1));
    let (again, rounded) = export("again", &quantized, WeightPrecision::I8);
    assert_eq!((again, rounded.len()), (quantized.clone(), 0));
    let (floats, rounded) = export("floats", &quantized, WeightPrecision::F32);
    assert_eq!((floats.len(), rounded.len()), (3, 0));
    assert_eq!(floats["w"], taken(&one_pair(&quantized), &[2, 2]).unwrap());
    let (halves, _) = export("halves", &quantized, WeightPrecision::F16);
    assert_eq!((halves["w"].dtype(), halves.len()), (TensorDType::F16, 3));
}

fn one_pair(tensors: &Tensors) -> Tensors {
    tensors.iter().filter(|(name, _)| name.starts_with('w')).map(|(n, t)| (n.clone(), t.clone())).collect()
}
