use std::sync::Arc;

use serde_json::json;
use unisono_checkpoint::{Tensor, Tensors};
use unisono_data::{LoaderState, Position};
use unisono_graph::Precision;

use super::*;
use crate::identity::part::Part;
use crate::objective::running::{Measured, OfMetric};
use crate::optimizers::lbfgs::curvature::{Curvature, Pair};
use crate::run::ancestry::Ancestor;
use crate::run::classes::SavedClass;
use crate::run::content::DataContent;
use crate::run::identity::RunIdentity;
use crate::{Epoch, Evaluation, LossScale, Metric};

/// A state whose sections have values that are not their defaults.
fn full() -> RunState {
    let mut state = RunState::default();
    fill(&mut state);
    let mut replay = unisono_data::Replay::new(3, 7);
    let sample = unisono_data::Sample::new().with("x", unisono_data::Field::f32([2], [0.5, -1.0]));
    (0..5).for_each(|_| replay.push(&sample).unwrap());
    replay.draw(2).unwrap();
    state.replay = KeptReplay::new(replay);
    let batch = unisono_data::Batch::of([("x", unisono_data::Field::f32([2, 2], [0.1, -1.0, 3.0, 0.7]))]);
    state.scales = Scales::of(&batch.unwrap(), 0..2);
    let pair = Pair { step: vec![0.1, -0.2], change: vec![3.0, 1e-300], inverse: 0.7 };
    state.lbfgs = KeptLbfgs::new(Curvature {
        iterations: 4,
        evaluations: 9,
        direction: vec![0.5, -1.5],
        length: 0.25,
        gradient: vec![-0.0, 2.0],
        scale: 0.125,
        pairs: vec![pair.clone(), Pair { inverse: 5.0, ..pair }],
    });
    state
}

/// One metric, the mean over samples.
fn metrics() -> Vec<Arc<dyn Metric>> {
    vec![Arc::new(crate::Accuracy)]
}

fn measured() -> Measured<'static> {
    let metrics = vec![OfMetric { values: &[1.0, 0.0], given: None, weights: None }];
    Measured { losses: &[1.5, 0.3], metrics, weights: None, several: vec![], penalty: 0.25 }
}

fn fill(state: &mut RunState) {
    let evaluation = Evaluation {
        loss: f64::INFINITY,
        metrics: vec![("accuracy".into(), 0.1 + 0.2)],
        samples: 7,
        ..Evaluation::default()
    };
    let epoch = Epoch { epoch: 0, steps: 5, train: evaluation, validation: None };
    let mut scaling = Scaling::new(LossScale::default());
    scaling.overflowed();
    let mut running = Running::default();
    running.add(&metrics(), &measured());
    let mut loader = Order::default();
    loader.set([("order".to_owned(), "shuffled".to_owned())].into());
    let mut carries = Carries::from(vec!["0.h".to_owned()]);
    let mut tensors = Tensors::from([("0.h".to_owned(), Tensor::f32(&[2, 1], &[0.5, -0.0]).unwrap())]);
    carries.take_tensors(1, &mut tensors).unwrap();
    let class: Vec<SavedClass> = serde_json::from_str(r#"[{"machine": "gpu a", "probe": "12"}]"#).unwrap();
    state.settings = RunSettings {
        seed: 42,
        precision: Precision::Mixed,
        loss: "cross-entropy".into(),
        metrics: vec!["accuracy".into()],
        ..RunSettings::default()
    };
    state.position = RunPosition {
        step: 6,
        weightless: 1,
        data: LoaderState { position: Position { epoch: 1, sample: 32 }, skipped: vec![3, 9] },
    };
    state.loss_scale = Some(scaling);
    state.classes = SavedClasses {
        class: Some(class),
        mixture: vec!["gpu a".into(), "gpu b".into()],
        arithmetic: Some(2),
    };
    state.data = Fingerprint(Some(0xddcc_3f60_a799_1d89));
    state.loader = loader;
    state.history = vec![epoch];
    state.running = running;
    state.carries = carries;
    state.identity = RunIdentity {
        optimizer: Part::of_settings([("lr".to_owned(), "0.1".to_owned())]),
        data: DataContent::NotCovered,
        not_covered: vec!["the code of map 'a'".into()],
        ancestors: vec![Ancestor { step: 3, differs: vec!["the seed".into()], ..Ancestor::default() }],
        ..RunIdentity::default()
    };
}

fn saved(state: &RunState) -> Contents {
    let mut contents = Contents::default();
    state.save(&mut contents).unwrap();
    // As it would come from a file.
    contents.trainer = contents.trainer.to_string().parse().unwrap();
    contents
}

#[test]
fn every_section_comes_back() {
    for state in [full(), RunState::default()] {
        let contents = saved(&state);
        let run = RunState::load(&contents).unwrap();
        assert_eq!(run.unisono, env!("CARGO_PKG_VERSION"));
        // A loader is seen by a trainer, not by a file.
        let mut expected = state.clone();
        let order: Order = serde_json::from_value(serde_json::to_value(&state.loader).unwrap()).unwrap();
        expected.loader = order;
        assert_eq!(run.state, expected);
        assert_eq!(run.state.digested(), state.digested());
        let written = contents.trainer["sections"].as_object().unwrap();
        let mut names = RunState::NAMES.to_vec();
        names.retain(|name| !["replay", "lbfgs", "scales"].contains(name) || state.replay.get().is_some());
        names.sort_unstable();
        assert_eq!(written.keys().collect::<Vec<_>>(), names);
    }
    let mut tensors = saved(&full()).carries;
    assert!(tensors.remove("replay/buffer").is_some());
    assert_eq!(tensors, full().digested_tensors().unwrap());
}

#[test]
fn a_section_that_is_unknown_or_missing_or_newer_is_named() {
    let whole = saved(&full());
    let problem = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut contents = whole.clone();
        change(&mut contents.trainer);
        RunState::load(&contents).unwrap_err()
    };
    let unknown = problem(&|t| t["sections"]["momentum"] = json!({"version": 1, "value": 0}));
    assert_eq!(unknown, "this version knows no section \"momentum\": a later version has written it");
    for name in RunState::NAMES {
        // Checkpoints of earlier versions have none of these.
        if !["identity", "control", "phases", "replay", "lbfgs", "scales"].contains(name) {
            let missing = problem(&|t| {
                t["sections"].as_object_mut().unwrap().remove(*name);
            });
            assert_eq!(missing, format!("the section {name:?} is missing"));
        }
        let newer = problem(&|t| t["sections"][name]["version"] = 9.into());
        let known = if ["running", "classes", "history"].contains(name) { 2 } else { 1 };
        assert_eq!(newer, format!("the section {name:?} has version 9, but only 1 to {known} are known"));
        let broken = problem(&|t| t["sections"][name]["value"] = 7.into());
        assert!(broken.starts_with(&format!("the section {name:?}: ")), "{broken}");
    }
    let scale = problem(&|t| t["sections"]["loss_scale"]["value"]["scale"] = 3.0.into());
    assert_eq!(scale, "the loss scale 3 is not a power of two");
    let skipped = problem(&|t| t["sections"]["loss_scale"]["value"]["skipped"] = 9.into());
    assert_eq!(skipped, "the loss scale skipped 9 of 5 steps");
    let good = problem(&|t| t["sections"]["loss_scale"]["value"]["good"] = u64::MAX.into());
    assert_eq!(good, format!("loss_scale.good is {}, which is not in 0..=6", u64::MAX));
    let epoch = problem(&|t| t["sections"]["position"]["value"]["epoch"] = u32::MAX.into());
    assert_eq!(epoch, format!("position.epoch is {}, which is not in 0..={}", u32::MAX, u32::MAX - 1));
    let class = problem(&|t| {
        t["sections"]["classes"]["value"].as_object_mut().unwrap().remove("class");
    });
    assert!(class.contains("missing field `class`"), "{class}");
    let more = problem(&|t| t["sections"]["running"]["value"]["more"] = 1.into());
    assert!(more.contains("unknown field `more`"), "{more}");
    let later = problem(&|t| t["version"] = 3.into());
    assert_eq!(later, "version 3 of trainer.json, but only 2 is known");
    assert_eq!(problem(&|t| *t = json!({})), "trainer.json has no version");

    let mut contents = whole.clone();
    contents.carries.insert("1.c".into(), Tensor::f32(&[1], &[0.0]).unwrap());
    let stray = RunState::load(&contents).unwrap_err();
    assert_eq!(stray, "no section knows the tensor \"1.c\" of carries.safetensors");
    contents.carries.clear();
    let lacking = RunState::load(&contents).unwrap_err();
    assert_eq!(lacking, "the section \"carries\": carries.safetensors has no tensor \"0.h\"");
}

/// A section that is not yet in checkpoints, and that has had two forms.
#[derive(Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Phase(String);

impl Section for Phase {
    const VERSION: u32 = 2;

    fn read(version: u32, value: serde_json::Value) -> Result<Self, String> {
        match version {
            1 => Ok(Self(format!("phase {value}"))),
            _ => serde_json::from_value(value).map_err(|error| error.to_string()),
        }
    }

    fn absent() -> Option<Self> {
        Some(Self("the only one".into()))
    }
}

#[test]
fn a_section_reads_its_older_versions_and_may_say_what_its_absence_means() {
    let take = |json: serde_json::Value| {
        Sections::parse(json, Tensors::new()).unwrap().take::<Phase>("phase").unwrap().0
    };
    assert_eq!(take(json!({"phase": {"version": 1, "value": 3}})), "phase 3");
    assert_eq!(take(json!({"phase": {"version": 2, "value": "warm-up"}})), "warm-up");
    assert_eq!(take(json!({})), "the only one");
}

#[test]
fn differences_are_told_and_what_is_forced_is_the_trainers() {
    let mut own = full();
    let mut other = full();
    other.settings.seed = 7;
    other.settings.optimizer = "sgd".into();
    other.position.step = 9;
    other.loss_scale = Some(Scaling::new(LossScale::Fixed(8.0)));
    let differences = own.differences(&other);
    let told: Vec<(&str, bool)> = differences.iter().map(|d| (&*d.problem, d.forcible)).collect();
    assert_eq!(told[0], ("the seed of the run is 7, not 42", true));
    assert_eq!(told[1], ("the optimizer of the run is sgd, not none", false));
    assert!(told[2].0.starts_with("the loss scale of the run is fixed at 8, not dynamic "), "{told:?}");
    assert_eq!(told.len(), 3);
    own.resume(other);
    assert_eq!((own.settings.seed, own.position.step), (42, 9));
    assert_eq!(own.loss_scale, Some(Scaling::new(LossScale::default())));
}

/// The layout of the digested bytes is part of `state_sha256`: it may never change for runs that exist.
#[test]
fn the_digest_takes_position_and_loss_scale_in_this_order() {
    let mut expected = 1u32.to_le_bytes().to_vec();
    expected.extend(32u64.to_le_bytes());
    expected.extend(6u64.to_le_bytes());
    expected.extend([3u64, 9].iter().flat_map(|index| index.to_le_bytes()));
    let weightless = expected.len();
    expected.extend(32_768f32.to_bits().to_le_bytes());
    expected.extend(0u64.to_le_bytes());
    expected.extend(1u64.to_le_bytes());
    expected.extend([&b"lbfgs"[..], &4u64.to_le_bytes(), &9u64.to_le_bytes()].concat());
    let mut state = full();
    state.position.weightless = 0;
    assert_eq!(state.digested(), expected);
    expected.splice(weightless..weightless, [&b"weightless"[..], &1u64.to_le_bytes()].concat());
    assert_eq!(full().digested(), expected);
    assert_eq!(RunState::default().digested(), [0; 20]);
}

#[test]
fn a_hash_that_is_none_is_refused_by_its_name() {
    let whole = saved(&full());
    let problem = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut contents = whole.clone();
        change(&mut contents.trainer["sections"]["identity"]["value"]);
        RunState::load(&contents).unwrap_err()
    };
    let said =
        |name: &str| format!("the section \"identity\": {name} is not 64 lowercase hexadecimal digits");
    let (short, capital) = ("ab".repeat(31), "AB".repeat(32));
    assert_eq!(problem(&|t| t["sha256"] = "a\u{20ac}".repeat(16).into()), said("sha256"));
    assert_eq!(problem(&|t| t["optimizer"]["sha256"] = capital.clone().into()), said("optimizer.sha256"));
    assert_eq!(problem(&|t| t["loaded"] = json!([[3, short.clone()]])), said("loaded[0]"));
    assert_eq!(problem(&|t| t["ancestors"][0]["identity"] = "".into()), said("ancestors[0].identity"));
    let hashed = |sha256: &str, block: &str| json!({"hashed": {"sha256": sha256, "samples": 1, "block": 1, "blocks": [block]}});
    assert_eq!(problem(&|t| t["data"] = hashed(&short, "")), said("data.hashed.sha256"));
    let block = problem(&|t| t["data"] = hashed(&"ab".repeat(32), "x"));
    assert!(block.contains("data.hashed.blocks[0] is not 16 lowercase hexadecimal digits"), "{block}");
}

#[test]
fn memory_of_lbfgs_that_does_not_fit_is_named() {
    let damaged = |name: &str, tensor: Option<Tensor>| {
        let mut contents = saved(&full());
        contents.carries.remove(name);
        contents.carries.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
        RunState::load(&contents).unwrap_err()
    };
    let doubles = |shape: &[usize], value: f64| {
        let bytes = value.to_le_bytes().repeat(shape.iter().product());
        Some(Tensor::new(unisono_checkpoint::TensorDType::F64, shape.to_vec(), bytes).unwrap())
    };
    for (name, tensor, problem) in [
        ("lbfgs/last", None, "carries.safetensors has no tensor \"lbfgs/last\""),
        ("lbfgs/last", doubles(&[3, 2], 1.0), "lbfgs/last is [3, 2], not [2, values]"),
        ("lbfgs/steps", doubles(&[2, 3], 1.0), "lbfgs/steps is [2, 3], not [2, 2]"),
        ("lbfgs/changes", doubles(&[2, 2], f64::NAN), "lbfgs/changes has NaN"),
        ("lbfgs/numbers", doubles(&[1], 1.0), "lbfgs/numbers has 1 numbers, fewer than 2"),
        ("lbfgs/numbers", Some(Tensor::f32(&[4], &[0.0; 4]).unwrap()), "lbfgs/numbers is F32 [4], not F64"),
    ] {
        let error = damaged(name, tensor);
        assert!(error.starts_with("the section \"lbfgs\": ") && error.contains(problem), "{error}");
    }
}
