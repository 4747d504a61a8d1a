//! Whole runs with layers, losses and optimizers of other libraries: the same bytes on any number of
//! replicas and over a resume, labels of other shapes, and kernels in which no product reaches an
//! addition.

use std::path::Path;

use unisono::data::{Loader, Memory, Values};
use unisono::{
    Adadelta, Adafactor, Adamax, AdaptiveAvgPool2d, BinaryAccuracy, BinaryCrossEntropyWithLogits,
    BinaryFocal, Branches, Builder, Chain, Conv1d, Conv2d, Dense, DepthwiseConv2d, Dice, FromFn,
    GaussianNoise, GlobalMaxPool2d, Groups, HardSwish, Hinge, InstanceNorm, Lion, Loss, MaxPool1d,
    MultiHeadAttention, MultiMargin, Muon, NAdam, Optimizer, PRelu, Schedule, SeparableConv2d, Sequential,
    Sgd, SimpleRnn, Trainer, Upsample2d,
};
use unisono_graph::target::Machine;
use unisono_graph::{Run, Target};
use unisono_testkit::products;
use unisono_tests::{CLASSES, loader};

/// A reshape of a sample as a layer.
fn shaped(dims: &'static [usize]) -> FromFn<impl Fn(&mut unisono::Context, &unisono::Var) -> unisono::Var> {
    FromFn::new("shaped", move |_, x| x.reshape(dims))
}

fn images() -> Sequential {
    let branches = Branches::concat(1).add(Conv2d::new(2, 1)).add(DepthwiseConv2d::new(3).padding(1));
    Sequential::new()
        .add(Dense::new(50))
        .add(shaped(&[2, 5, 5]))
        .add(SeparableConv2d::new(4, 3).padding(1))
        .add(InstanceNorm::new().affine())
        .add(PRelu::new().per_channel())
        .add(GaussianNoise::new(0.1))
        .add(Upsample2d::new(2).bilinear())
        .add(AdaptiveAvgPool2d::new([4, 3]))
        .add(branches)
        .add(HardSwish)
        .add(GlobalMaxPool2d)
        .add(Dense::new(CLASSES))
}

fn sequences() -> Sequential {
    Sequential::new()
        .add(Dense::new(16))
        .add(shaped(&[4, 4]))
        .add(MultiHeadAttention::new(2).kv_heads(1).rotary().causal())
        .add(SimpleRnn::new(4))
        .add(FromFn::new("channels first", |_, x| x.permute(&[1, 0])))
        .add(Conv1d::new(4, 3).causal())
        .add(MaxPool1d::new(2))
        .add(shaped(&[8]))
        .add(Dense::new(CLASSES))
}

/// Returns optimizers for parts of the model, with averages of the weights around all of them.
fn optimizers() -> Chain {
    let part = |part: &'static str| move |name: &str| name.starts_with(part);
    Groups::new(NAdam::new(0.01).weight_decay(0.1).decoupled())
        .group(part("0.0."), Adadelta::new(1.0).weight_decay(0.01))
        .group(part("0.2."), Muon::new(0.02))
        .group(part("0.3."), Lion::new(0.003).weight_decay(0.1))
        .group(part("0.8."), Adafactor::new(0.05))
        .group(part("1.0."), Adamax::new(0.01))
        .group(part("1.2."), Adafactor::new(0.05).no_decay_for_biases_and_norms())
        .group(part("1.3."), Sgd::new(Schedule::cosine_restarts(0.1, 2, 2)))
        .average_weights(0.9)
}

fn builder() -> Builder {
    let model = Branches::sum().add(images()).add(sequences());
    let builder = Trainer::builder(model).loss(MultiMargin::new().squared()).optimizer(optimizers());
    builder.seed(11).global_batch(16).shards(7).digest_every(1)
}

/// Trains up to an epoch, from where the checkpoints in `dir` end. Returns the digest.
fn train(replicas: usize, epochs: u32, dir: Option<&Path>) -> String {
    let data = loader(32, 5).unwrap();
    let mut trainer = builder().replicas(replicas).build(&data.fields().unwrap()).unwrap();
    if let Some(dir) = dir {
        trainer.checkpoints(dir, 0).unwrap();
        assert_eq!(trainer.resume().unwrap().is_some(), epochs > 1);
    }
    trainer.fit(&data, None, epochs).unwrap();
    trainer.check_replicas().unwrap();
    assert!(trainer.history().iter().all(|epoch| epoch.train.loss.is_finite()), "{:?}", trainer.history());
    let [weight, average] = ["0.0.weight", "0.0.weight/average"].map(|name| trainer.tensor(name));
    assert_ne!(weight.unwrap().unwrap(), average.unwrap().unwrap());
    trainer.state_sha256().unwrap()
}

#[test]
fn all_of_it_has_the_same_bytes_on_any_number_of_replicas_and_over_a_resume() {
    let expected = train(1, 2, None);
    let more: &[usize] = if std::env::var_os("UNISONO_LONG").is_some() { &[2, 3, 7] } else { &[] };
    for &replicas in more {
        assert_eq!(train(replicas, 2, None), expected, "{replicas} replicas");
    }
    let dir = tempfile::tempdir().unwrap();
    train(2, 1, Some(dir.path()));
    assert_eq!(train(1, 2, Some(dir.path())), expected, "an epoch on two replicas, one on one");
}

/// Returns 40 points on a line with labels of -1 or 0, and 1, in samples of these axes.
fn halves(low: f32, axes: &[usize], whole_numbers: bool) -> Loader {
    let points: Vec<f32> = (0..40).map(|i| (i as f32 - 19.5) / 10.0).collect();
    let labels: Vec<f32> = points.iter().map(|&x| if x > 0.0 { 1.0 } else { low }).collect();
    let labels = match whole_numbers {
        true => Values::I32(labels.iter().map(|&y| y as i32).collect()),
        false => Values::F32(labels),
    };
    let memory = Memory::new("x", [1], Values::F32(points)).unwrap();
    Loader::new(memory.with("y", axes, labels).unwrap()).threads(1)
}

/// Makes a loss and returns it with the label that stands for no.
type Make = fn() -> (Box<dyn Loss>, f32);

#[test]
fn binary_losses_train_on_labels_without_the_axis_of_the_logit() {
    let losses: [Make; 4] = [
        || (Box::new(BinaryCrossEntropyWithLogits), 0.0),
        || (Box::new(BinaryFocal::new()), 0.0),
        || (Box::new(Dice::new()), 0.0),
        || (Box::new(Hinge::new()), -1.0),
    ];
    for loss in losses {
        let name = loss().0.name().to_owned();
        let mut digests = Vec::new();
        for (axes, whole_numbers) in [(&[1usize][..], false), (&[], false), (&[], true)] {
            let (loss, low) = loss();
            let data = halves(low, axes, whole_numbers);
            let builder =
                Trainer::builder(Dense::new(1)).loss(loss).metric(BinaryAccuracy).optimizer(Sgd::new(0.5));
            let mut trainer =
                builder.replicas(1).global_batch(8).shards(2).build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, None, 10).unwrap();
            let accuracy = trainer.history().iter().last().unwrap().train.metrics[0].1;
            assert!(accuracy > 0.9, "{name}: {accuracy}");
            digests.push(trainer.tensor("weight").unwrap().unwrap());
        }
        assert!(digests.iter().all(|weight| weight == &digests[0]), "{name}: {digests:?}");
    }
    // A target that the loss cannot mean is an error that names it.
    let data = halves(-1.0, &[], true);
    let builder = Trainer::builder(Dense::new(1)).loss(BinaryCrossEntropyWithLogits);
    let mut trainer = builder.replicas(1).build(&data.fields().unwrap()).unwrap();
    let error = trainer.fit(&data, None, 1).unwrap_err().to_string();
    assert!(error.contains("target -1 is not in [0, 1]"), "{error}");
}

#[test]
fn no_product_reaches_an_addition() {
    let fields = loader(32, 5).unwrap().fields().unwrap();
    let trainer = builder().replicas(1).build(&fields).unwrap();
    for (_, program) in trainer.programs() {
        for machine in [Machine::Cpu, Machine::Gpu] {
            let target = Target { machine, max_workgroup_bytes: 1 << 20, ..Target::default() };
            let plan = program.plan(&Run::whole(&[3, 2]), &target).unwrap();
            for kernel in plan.kernels {
                if let Err(problems) = products::check(&kernel.wgsl) {
                    panic!("{}\n{}", problems.join("\n"), kernel.wgsl);
                }
            }
        }
    }
}
