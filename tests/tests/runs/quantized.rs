//! Weights of i8 and of f16: what is written is what was evaluated, and what a predictor and a trainer read,
//! on any number of replicas.

use std::path::Path;

use unisono::checkpoint::{Plan, Tensor, TensorDType, WeightPrecision, read_tensors, write_model};
use unisono::data::{Draws, Loader, Memory};
use unisono::{
    Accuracy, BatchNorm, Builder, Conv2d, ConvTranspose2d, Dense, Flatten, FromFn, Initializer, Layer,
    Optimizer, Predictor, Relu, Sequential, Sgd, Trainer,
};

const SAMPLES: usize = 24;

fn data() -> Loader {
    let mut draws = Draws::of(1, "quantized", "noise", 0, 0);
    let pixels: Vec<f32> = (0..SAMPLES * 32).map(|_| draws.range(-1.0, 1.0)).collect();
    let labels: Vec<i32> = (0..SAMPLES).map(|sample| (sample % 3) as i32).collect();
    Loader::new(Memory::labelled(pixels, [2, 4, 4], labels).unwrap())
}

fn model() -> Sequential {
    let features = Sequential::new().add(Conv2d::new(4, 3).padding(1)).add(BatchNorm::new()).add(Relu);
    features.add(ConvTranspose2d::new(3, 2)).add(Flatten).add(Dense::new(3))
}

fn builder(model: impl Layer + 'static, replicas: usize) -> Builder {
    Trainer::builder(model).global_batch(8).seed(1).replicas(replicas).metric(Accuracy)
}

fn trained(builder: Builder) -> Trainer {
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    trainer.fit(&data(), None, 2).unwrap();
    trainer
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn predicted(path: &Path, replicas: usize) -> Vec<u32> {
    let mut predictor = Predictor::builder().replicas(replicas).open(path).unwrap();
    bits(&predictor.predict(&data()).unwrap().get("output").unwrap().values)
}

#[test]
fn a_predictor_computes_with_integers_times_scales_on_any_number_of_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = trained(builder(model(), 2));
    for precision in [WeightPrecision::I8, WeightPrecision::F16] {
        let path = dir.path().join(format!("{precision:?}.safetensors"));
        let exported = trainer.export(&path, precision).unwrap();
        let file = read_tensors(&path).unwrap();
        if precision == WeightPrecision::I8 {
            let shapes = ["0.weight", "3.weight", "5.weight"].map(|name| {
                assert_eq!(file[name].dtype(), TensorDType::I8);
                file[&format!("{name}_scale")].shape().to_vec()
            });
            assert_eq!(shapes, [vec![4, 1, 1, 1], vec![1, 3, 1, 1], vec![3, 1]]);
            assert_eq!(file["0.bias"].dtype(), TensorDType::F32);
            assert_eq!(file["1.running_var"].dtype(), TensorDType::F32);
            assert_eq!(exported.rounded.len(), 3);
        }
        let mut other = builder(model(), 1).seed(2).build(&data().fields().unwrap()).unwrap();
        let report = other.load_model(&path, &Plan::new()).unwrap();
        assert!(report.converted.contains(&"5.weight".to_owned()), "{report:?}");
        // The weights are the products, each rounded once.
        if precision == WeightPrecision::I8 {
            let scales = file["5.weight_scale"].to_f32().unwrap();
            let integers = file["5.weight"].bytes().iter().map(|&byte| f32::from(byte as i8));
            let columns = file["5.weight"].shape()[1];
            let products: Vec<f32> = integers.enumerate().map(|(at, q)| q * scales[at / columns]).collect();
            assert_eq!(bits(&other.tensor("5.weight").unwrap().unwrap()), bits(&products));
        }
        let expected = bits(&other.predict(&data()).unwrap());
        for replicas in [1, 2, 3] {
            assert_eq!(predicted(&path, replicas), expected, "{replicas} replicas, {precision:?}");
        }
    }
}

/// The report says what a trainer that loads the file measures, and the run stays what it is.
#[test]
fn a_comparison_tells_what_the_file_will_be_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for averages in [false, true] {
        let own = |replicas| {
            let own = builder(model(), replicas);
            if averages {
                own.optimizer(Sgd::new(0.1).average_weights(0.9)).use_average_weights()
            } else {
                own.optimizer(Sgd::new(0.1))
            }
        };
        let reports = [1, 3].map(|replicas| {
            let mut trainer = trained(own(replicas));
            let state = trainer.state_sha256().unwrap();
            let report = trainer.compare_precision(&data(), WeightPrecision::I8).unwrap();
            assert_eq!(trainer.state_sha256().unwrap(), state);
            assert_eq!(trainer.evaluate(&data()).unwrap(), report.before);
            let path = dir.path().join("model.safetensors");
            assert_eq!(trainer.export(&path, WeightPrecision::I8).unwrap().rounded, report.rounded);
            let mut other = builder(model(), 1).build(&data().fields().unwrap()).unwrap();
            other.load_model(&path, &Plan::new()).unwrap();
            assert_eq!(other.evaluate(&data()).unwrap(), report.after);
            // The run goes on as if nothing had been compared.
            let mut plain = trained(own(1));
            plain.fit(&data(), None, 4).unwrap();
            trainer.fit(&data(), None, 4).unwrap();
            assert_eq!(trainer.state_sha256().unwrap(), plain.state_sha256().unwrap());
            report
        });
        assert_eq!(reports[0], reports[1]);
        assert_ne!(reports[0].before.loss, reports[0].after.loss);
        let shown = reports[0].to_string();
        assert!(shown.starts_with("weights in I8: ") && shown.contains("\n5.weight"), "{shown}");
    }
}

/// A layer says which of its parameters are kernels, and on which axis their channels are. Others stay f32.
#[test]
fn own_layers_say_what_is_quantized() {
    let dir = tempfile::tempdir().unwrap();
    let own = |channels: usize| {
        FromFn::new("own", move |cx, x| {
            let x = x.flatten();
            let plain = cx.parameter("plain", &[32, 3], Initializer::default());
            x.matmul(&cx.kernel("kernel", &[32, 3], channels, Initializer::default())) + x.matmul(&plain)
        })
    };
    let path = dir.path().join("model.safetensors");
    let mut trainer = trained(builder(own(1), 1));
    trainer.export(&path, WeightPrecision::I8).unwrap();
    let mut file = read_tensors(&path).unwrap();
    assert_eq!((file["plain"].dtype(), file["kernel"].dtype()), (TensorDType::F32, TensorDType::I8));
    assert_eq!(file["kernel_scale"].shape(), [1, 3]);
    let expected = trainer.predict(&data()).unwrap();
    let fields = &data().fields().unwrap()[..1];
    let open =
        || Predictor::builder().replicas(1).open_model(Box::new(own(1)) as Box<dyn Layer>, fields, &path);
    let found = open().unwrap().predict(&data()).unwrap().get("output").unwrap().values.clone();
    let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart > 0.0 && apart < 0.05, "{apart}");

    // Scales that do not fit are an error of the file that names them.
    for scale in [Tensor::f32(&[3], &[1.0; 3]), Tensor::f32(&[1, 3], &[1.0, f32::NAN, 1.0])] {
        file.insert("kernel_scale".into(), scale.unwrap());
        write_model(&path, &file).unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains("model.safetensors: kernel_scale"), "{error}");
        let error = trainer.load_model(&path, &Plan::new()).err().unwrap().to_string();
        assert!(error.contains("model.safetensors: kernel_scale"), "{error}");
    }
    // An axis that is not there, and a model without kernels.
    let error = builder(own(2), 1).build(&data().fields().unwrap()).err().unwrap().to_string();
    assert!(error.contains("kernel [32, 3] has no axis 2 of output channels"), "{error}");
    let scaled = FromFn::new("scaled", |cx, x| {
        x.flatten().slice(-1, 0..3) * cx.parameter("scale", &[3], Initializer::Ones)
    });
    let error = trained(builder(scaled, 1)).export(&path, WeightPrecision::I8).unwrap_err().to_string();
    assert!(error.contains("no tensor is a matrix or a kernel"), "{error}");
}

/// What is refused is refused before anything is replaced.
#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut trainer = trained(builder(model(), 1));
    trainer.export(&path, WeightPrecision::I8).unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut values = trainer.tensor("5.weight").unwrap().unwrap();
    values[1] = f32::NAN;
    let error = trainer.set_tensor("5.weight", &values).unwrap_err().to_string();
    assert!(error.contains("value 1 for \"5.weight\" is NaN"), "{error}");
    trainer.export(&path, WeightPrecision::I8).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
