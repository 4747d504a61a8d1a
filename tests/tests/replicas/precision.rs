//! Mixed precision: products of f16 numbers, f32 sums, and a loss scale that is part of the run's state.

use unisono::data::{Batch, Loader, Memory, Position};
use unisono::{
    Accuracy, AdamW, BatchNorm, Builder, Conv2d, Dense, Dropout, Error, Flatten, FromFn, LossScale, Lstm,
    MultiHeadAttention, Precision, Relu, Schedule, Sequential, Trainer,
};
use unisono_gpu::{Adapter, Backend};
use unisono_graph::{Run, Target};
use unisono_random::Draws;
use unisono_testkit::{adapters, left_out};
use unisono_tests::{CLASSES, loader, perceptron};

const SAMPLES: usize = 45;
const BATCH: usize = 20;
/// The number of steps: two full batches and a ragged one, twice.
const STEPS: usize = 6;

/// Returns images of 6 x 6 that are bright in one of three places.
fn images() -> Loader {
    let mut draws = Draws::of(4, "test", "images", 0, 0);
    let labels: Vec<i32> = (0..SAMPLES).map(|i| (i % CLASSES) as i32).collect();
    let pixel = |(label, at): (i32, usize)| if at / 12 == label as usize { 1.5 } else { 0.0 };
    let pixels = labels.iter().flat_map(|&label| (0..36).map(move |at| (label, at)));
    let pixels: Vec<f32> = pixels.map(|p| pixel(p) + draws.normal()).collect();
    Loader::new(Memory::labelled(pixels, [1, 6, 6], labels).unwrap()).shuffle(9).threads(1).batch(BATCH)
}

/// Returns a model with convolution, batch norm, dropout, attention, and a recurrent layer.
fn model() -> Builder {
    let model = Sequential::new()
        .add(Conv2d::new(6, 3).padding(1))
        .add(BatchNorm::new())
        .add(Relu)
        .add(Dropout::new(0.2))
        .add(FromFn::new("tokens", |_, x| x.reshape(&[6, 6, 6]).sum(&[2]) * 0.5))
        .add(MultiHeadAttention::new(2))
        .add(Lstm::new(7).last())
        .add(Dense::new(CLASSES));
    let builder = Trainer::builder(model).optimizer(AdamW::new(0.01)).metric(Accuracy).seed(5);
    builder.global_batch(BATCH).shards(5).digest_every(1).precision(Precision::Mixed)
}

fn batches(data: &Loader) -> Vec<Batch> {
    data.epochs(Position::default(), 2).unwrap().map(Result::unwrap).collect()
}

/// Returns a loss scale with which the first gradients are too large for f16.
fn too_large() -> LossScale {
    LossScale::Dynamic {
        initial: 2f32.powi(30),
        growth: 2.0,
        backoff: 2f32.powi(-9),
        interval: 3,
        least: 1.0,
        most: 2f32.powi(40),
    }
}

/// Runs all steps. Returns the state after every step, which steps were committed, and the trainer.
fn run(builder: Builder) -> (Vec<String>, Vec<bool>, Trainer) {
    let data = images();
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let (mut states, mut committed) = (vec![], vec![]);
    for batch in batches(&data) {
        committed.push(trainer.step(&batch).unwrap().committed);
        states.push(trainer.state_sha256().unwrap());
    }
    assert_eq!(states.len(), STEPS);
    (states, committed, trainer)
}

#[test]
fn any_number_of_replicas_gives_the_same_bits_skipped_steps_included() {
    for scale in [LossScale::default(), too_large()] {
        let (one, committed, trainer) = run(model().replicas(1).loss_scale(scale));
        let skipped = trainer.scaling().unwrap().skipped;
        assert_eq!(committed.iter().filter(|c| !**c).count() as u64, skipped);
        assert_eq!(skipped > 0, scale == too_large(), "{committed:?}");
        assert!(committed[STEPS - 1], "training goes on");
        for replicas in [2, 3, 5] {
            let (several, theirs, _) = run(model().replicas(replicas).loss_scale(scale));
            assert_eq!((&several, &theirs), (&one, &committed), "{replicas} replicas, {scale:?}");
        }
    }
}

/// Where the run is at shows in the learning rate of a step.
#[test]
fn a_run_that_goes_on_in_f32_knows_which_steps_its_optimizer_has_made() {
    let data = loader(60, 3).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let build = |precision| {
        let rate = Schedule::function(|step| 1e-3 * (step + 1) as f64).named("rising", 1);
        let builder = perceptron(8).optimizer(AdamW::new(rate)).global_batch(20).loss_scale(too_large());
        let mut trainer = builder.precision(precision).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer
    };
    let mut mixed = build(Precision::Mixed);
    mixed.fit(&data, None, 2).unwrap();
    let made = 6 - mixed.scaling().unwrap().skipped;
    assert!(0 < made && made < 6, "{made}");
    drop(mixed);
    let mut full = build(Precision::F32);
    full.force_resume().unwrap().unwrap();
    let step = full.step(&data.clone().batch(20).epoch(2).unwrap().next().unwrap().unwrap()).unwrap();
    assert_eq!((step.step, step.learning_rate), (6, Some(1e-3 * (made + 1) as f64)));
}

/// One replica is lost in a step that is skipped, and one in a step that is not.
#[test]
fn a_lost_replica_does_not_show_in_what_is_skipped() {
    let (one, committed, _) = run(model().replicas(1).loss_scale(too_large()));
    assert!(!committed[0] && committed[STEPS - 1]);
    for (replica, step) in [(1, 0), (0, STEPS - 1)] {
        let scope = format!("precision-{step}:");
        fail::cfg(format!("{scope}replica-{replica}:step-{step}"), "return(lose)").unwrap();
        let (states, theirs, trainer) = run(model().replicas(3).loss_scale(too_large()).fault_scope(&scope));
        assert_eq!((&states, &theirs), (&one, &committed), "replica {replica} lost at step {step}");
        assert_eq!(trainer.reports().iter().filter(|report| report.left.is_some()).count(), 1);
    }
}

/// Before a step is skipped, one replica runs it again to find what is not finite, with few shards at once if
/// memory is short.
#[test]
fn no_memory_to_look_again_does_not_show_in_what_is_skipped() {
    let data = loader(60, 3).unwrap();
    let states = |scope: &str| {
        let builder = perceptron(8).global_batch(20).precision(Precision::Mixed).loss_scale(too_large());
        let mut trainer = builder.replicas(1).fault_scope(scope).build(&data.fields().unwrap()).unwrap();
        let states: Vec<String> = batches(&data.clone().batch(20))
            .iter()
            .map(|batch| {
                trainer.step(batch).unwrap();
                trainer.state_sha256().unwrap()
            })
            .collect();
        assert!(trainer.reports()[0].left.is_none());
        (states, trainer.scaling().unwrap().skipped)
    };
    let expected = states("");
    assert!(expected.1 > 0);
    // The plan of the step is loaded first, the plan that shows its sums second.
    fail::cfg("look:replica-0:load", "1*off->1*return(out-of-memory)->off").unwrap();
    assert_eq!(states("look:"), expected);
}

#[test]
fn two_bytes_or_four_do_not_show() {
    for replicas in [1, 3] {
        let stored = |f16| run(model().replicas(replicas).f16_storage(f16)).0;
        assert_eq!(stored(true), stored(false), "{replicas} replicas");
    }
}

/// A `concat` has parts that are computed in their place and parts that are copied there, in rows of 11
/// elements and of 252. Another one has parts that f16 does not hold.
fn side_by_side() -> Builder {
    let rows = FromFn::new("rows", |_, h| h.relu().concat(&[&(-h).slice(-1, 1..6)], -1));
    let channels = FromFn::new("channels", |_, h| {
        let cut = h.slice(-1, 3..10);
        cut.concat(&[&-&cut, &cut.abs()], 1)
    });
    let wide = FromFn::new("wide", |_, h| h.concat(&[&h.tanh()], -1));
    let model = Sequential::new()
        .add(Conv2d::new(6, 3).padding(1).no_bias())
        .add(rows)
        .add(Conv2d::new(6, 3).padding(1).no_bias())
        .add(channels)
        .add(Conv2d::new(5, 3).no_bias())
        .add(Flatten)
        .add(wide)
        .add(Dense::new(CLASSES));
    let builder = Trainer::builder(model).optimizer(AdamW::new(0.01)).metric(Accuracy).seed(5);
    builder.global_batch(BATCH).shards(5).digest_every(1).precision(Precision::Mixed)
}

#[test]
fn what_lies_side_by_side_as_f16_does_not_show() {
    // Parts lie in the whole, so they are stored as the whole is.
    let parts = |trainer: &Trainer, layer: &str| {
        let program = trainer.program(unisono::ProgramId::Train);
        let all = program.largest_tensors(&Run::whole(&[4]), &Target::default(), usize::MAX);
        all.iter().filter(|(name, _)| name.starts_with(layer)).map(|(_, bytes)| *bytes).collect::<Vec<_>>()
    };
    for replicas in [1, 3] {
        let [(halves, _, narrow), (words, _, wide)] =
            [true, false].map(|f16| run(side_by_side().replicas(replicas).f16_storage(f16)));
        for (layer, count, times) in [("1.rows: ", 2, 2), ("3.channels: ", 3, 2), ("6.wide: ", 1, 1)] {
            let [narrow, wide] = [&narrow, &wide].map(|trainer| parts(trainer, layer));
            assert_eq!(narrow.iter().map(|bytes| times * bytes).collect::<Vec<_>>(), wide, "{layer}");
            assert_eq!(wide.len(), count, "{layer}");
        }
        assert_eq!(halves, words, "{replicas} replicas");
    }
}

/// Convolutions keep products and activations in half of the bytes. Batch norm's own values stay f32.
/// (Without the stride, a CPU would not store the products behind the second convolution's gradient in f32.)
#[test]
fn mixed_precision_takes_clearly_less_memory() {
    let data = images();
    let fields = data.fields().unwrap();
    let scratch = |precision, f16| {
        let model = Sequential::new()
            .add(Conv2d::new(16, 3).padding(1))
            .add(BatchNorm::new())
            .add(Relu)
            .add(Conv2d::new(16, 3).padding(1).stride([1, 2]))
            .add(BatchNorm::new())
            .add(Relu)
            .add(Flatten)
            .add(Dense::new(CLASSES));
        let builder = Trainer::builder(model).precision(precision).f16_storage(f16).replicas(1);
        builder.memory(&fields, &[1024]).unwrap()[0].clone()
    };
    let [full, wide, mixed] =
        [scratch(Precision::F32, true), scratch(Precision::Mixed, false), scratch(Precision::Mixed, true)];
    println!("f32: {full}\nmixed, stored as f32: {wide}\nmixed: {mixed}");
    assert_eq!(full.state, mixed.state);
    assert!(10 * mixed.scratch < 7 * full.scratch, "{mixed} instead of {full}");
    assert!(mixed.scratch < wide.scratch);
}

#[test]
fn an_overflow_changes_nothing_but_scale_and_position() {
    let data = images();
    let mut trainer = model().replicas(2).loss_scale(too_large()).build(&data.fields().unwrap()).unwrap();
    let tensors = |trainer: &mut Trainer| {
        let contents = trainer.contents().unwrap();
        (contents.model, contents.optimizer)
    };
    let before = tensors(&mut trainer);
    let batches = batches(&data);
    let step = trainer.step(&batches[0]).unwrap();
    assert!(!step.committed && step.now.loss.is_finite(), "{step:?}");
    assert_eq!(tensors(&mut trainer), before);
    let scaling = trainer.scaling().unwrap();
    assert_eq!((scaling.scale, scaling.good, scaling.skipped), (2f32.powi(21), 0, 1));
    assert_eq!((trainer.steps(), trainer.position()), (1, batches[0].after));
    let report = trainer.report().to_string();
    assert!(report.contains("a loss scale of 2097152, 1 steps skipped because of it"), "{report}");

    // AdamW's corrections count the steps that were taken. The first one moves by the learning rate, whenever
    // it comes.
    let start = trainer.tensor("7.bias").unwrap().unwrap();
    let mut at = 1;
    while !trainer.step(&batches[at]).unwrap().committed {
        at += 1;
    }
    let moved = trainer.tensor("7.bias").unwrap().unwrap();
    let most = moved.iter().zip(&start).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!((0.0099..0.0101).contains(&most), "{most}");
}

#[test]
fn a_scale_that_cannot_fall_is_an_error_and_nothing_happened() {
    let data = images();
    let mut trainer = model()
        .replicas(2)
        .loss_scale(LossScale::Fixed(2f32.powi(50)))
        .build(&data.fields().unwrap())
        .unwrap();
    let before = trainer.state_sha256().unwrap();
    let error = trainer.step(&batches(&data)[0]).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("step 0: the gradient of ") && !text.contains("first bad"), "{text}");
    assert_eq!(trainer.state_sha256().unwrap(), before);
}

/// A value of the forward pass that f16 cannot hold does not depend on the loss scale.
#[test]
fn a_loss_that_is_not_finite_is_an_error_at_once() {
    let large = FromFn::new("large", |_, x| x * 1e6);
    let model = Sequential::new().add(large).add(Dense::new(CLASSES));
    let data = loader(32, 2).unwrap();
    let builder = Trainer::builder(model).precision(Precision::Mixed).replicas(1);
    let error = builder.build(&data.fields().unwrap()).unwrap().fit(&data, None, 1).unwrap_err().to_string();
    assert!(error.starts_with("step 0: the loss of "), "{error}");
    assert!(error.contains(" is not finite; first bad tensor: ") && error.contains("round_half"), "{error}");
}

#[test]
fn a_run_goes_on_with_its_scale() {
    let data = images();
    let trainer =
        |replicas| model().replicas(replicas).loss_scale(too_large()).build(&data.fields().unwrap()).unwrap();
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut expected = trainer(2);
    expected.checkpoints(whole.path(), 0).unwrap();
    expected.fit(&data, None, 4).unwrap();
    for epochs in 1..=4 {
        let mut part = trainer(1 + epochs as usize % 3);
        part.checkpoints(parts.path(), 0).unwrap();
        part.resume().unwrap();
        part.fit(&data, None, epochs).unwrap();
        if epochs == 4 {
            assert_eq!(part.scaling(), expected.scaling());
            assert_eq!(part.state_sha256().unwrap(), expected.state_sha256().unwrap());
        }
    }
    assert!(expected.scaling().unwrap().skipped > 0);

    let refused = |builder: Builder, what: &str| {
        let mut other = builder.replicas(1).build(&data.fields().unwrap()).unwrap();
        other.checkpoints(parts.path(), 0).unwrap();
        let error = other.resume().unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(model().precision(Precision::F32), "the precision of the run is mixed, not f32");
    refused(model(), "the loss scale of the run is dynamic from 1073741824 (times 2");
}

#[test]
fn weights_trained_in_f32_are_a_start_for_mixed_precision() {
    let data = loader(90, 5).unwrap();
    let fields = data.fields().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let build = |precision| perceptron(16).precision(precision).replicas(1).build(&fields).unwrap();
    let mut full = build(Precision::F32);
    full.fit(&data, None, 8).unwrap();
    full.export(&path, unisono::checkpoint::WeightPrecision::F32).unwrap();
    let mut mixed = build(Precision::Mixed);
    mixed.load_model(&path, &unisono::checkpoint::Plan::new()).unwrap();
    assert_eq!(mixed.tensor("0.weight").unwrap().unwrap(), full.tensor("0.weight").unwrap().unwrap());
    let (a, b) = (full.predict(&data).unwrap(), mixed.predict(&data).unwrap());
    let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error > 0.0 && error < 0.02, "{error}");
    mixed.fit(&data, None, 1).unwrap();
}

#[test]
fn an_adapter_without_f16_is_refused_by_name() {
    let Some(without) =
        unisono_gpu::adapters(&[unisono_gpu::Backend::Gl]).into_iter().find(|a| !a.features.f16)
    else {
        left_out("no adapter is refused: every one here has f16");
        return;
    };
    let data = loader(10, 1).unwrap();
    let builder = || perceptron(4).adapter("gl").precision(Precision::Mixed).replicas(1);
    let error = builder().build(&data.fields().unwrap()).err().unwrap();
    let Error::NoF16 { adapter } = &error else { panic!("{error}") };
    assert_eq!(adapter, &without.label());
    assert!(error.to_string().contains("train in f32, or on another adapter"), "{error}");
    assert!(matches!(builder().memory(&data.fields().unwrap(), &[10]), Err(Error::NoF16 { .. })));
    let mut running =
        perceptron(4).precision(Precision::Mixed).replicas(1).build(&data.fields().unwrap()).unwrap();
    assert!(matches!(running.join("gl"), Err(Error::NoF16 { .. })));
}

/// The CPU and lavapipe add alike, and the CPU as `hopper` adds like an H200. Other units are of classes of
/// their own.
#[test]
fn a_matrix_unit_gives_one_state_whoever_computes() {
    let hopper = Adapter::cpu("hopper".parse().unwrap());
    let all = adapters().into_iter().chain(hopper);
    let units: Vec<Adapter> = all.filter_map(|own| own.with_matrix_units().ok()).collect();
    if units.iter().all(|adapter| adapter.backend == Backend::Cpu) {
        left_out("cooperative matrices are not run: no adapter lists them (lavapipe of Mesa 26.1 does)");
    }
    let mut known = None;
    for adapter in units {
        let name = match adapter.arithmetic {
            Some(arithmetic) => format!("cpu:{}", arithmetic.name()),
            None => format!("{}:{}", adapter.backend, adapter.name),
        };
        let builder = |precision: Precision, replicas| {
            let builder = model().shards(7).precision(precision).adapter(&name).replicas(replicas);
            builder.loss_scale(too_large())
        };
        let by_unit = |replicas| builder(Precision::mixed().matrix_units(), replicas);
        let (one, committed, _) = run(by_unit(1));
        assert_ne!(one, run(builder(Precision::Mixed, 1)).0, "{name}: no product was by the unit");
        for replicas in 2..=7 {
            let (several, theirs, _) = run(by_unit(replicas));
            assert_eq!((&several, &theirs), (&one, &committed), "{replicas} replicas on {name}");
        }
        let scope = format!("units-{}:", name.replace(':', "-"));
        fail::cfg(format!("{scope}replica-1:step-3"), "return(lose)").unwrap();
        let (states, _, trainer) = run(by_unit(3).fault_scope(&scope));
        assert_eq!(states, one, "a replica is lost on {name}");
        assert_eq!(trainer.reports().iter().filter(|report| report.left.is_some()).count(), 1);
        let (data, parts) = (images(), tempfile::tempdir().unwrap());
        for epochs in 1..=2 {
            let mut part = by_unit(1 + epochs as usize).build(&data.fields().unwrap()).unwrap();
            part.checkpoints(parts.path(), 0).unwrap();
            part.resume().unwrap();
            part.fit(&data, None, epochs).unwrap();
            if epochs == 2 {
                assert_eq!(&part.state_sha256().unwrap(), &one[STEPS - 1], "resumed on {name}");
            }
        }
        // Lavapipe's multiply-add rounds twice, and so does the CPU in the arithmetic `split`.
        if adapter.arithmetic.map_or(adapter.name.contains("llvmpipe"), |own| !own.fused) {
            assert_eq!(known.get_or_insert_with(|| one.clone()), &one, "{name}");
        }
    }
}

/// A unit that is slower than plain kernels is used, and a note says so.
#[test]
fn a_slow_matrix_unit_is_noted() {
    let is_used = |adapter: &Adapter| adapter.backend != Backend::Cpu && adapter.with_matrix_units().is_ok();
    let Some(adapter) = adapters().into_iter().find(is_used) else {
        left_out(
            "no slow unit is planted: no adapter lists cooperative matrices (lavapipe of Mesa 26.1 does)",
        );
        return;
    };
    let name = format!("{}:{}", adapter.backend, adapter.name);
    let notes = |precision, planted: &str| {
        fail::cfg("unit-pace", planted).unwrap();
        let builder = model().precision(precision).adapter(&name).replicas(1);
        let trainer = builder.build(&images().fields().unwrap()).unwrap();
        fail::remove("unit-pace");
        trainer
            .notes()
            .iter()
            .filter(|note| note.contains("the matrix unit of "))
            .cloned()
            .collect::<Vec<_>>()
    };
    let by_unit = Precision::mixed().matrix_units();
    let slow = notes(by_unit, "return(slow:100000)");
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert!(slow[0].contains("0.00 times as fast as plain kernels"), "{slow:?}");
    assert!(slow[0].contains(&adapter.label()) && slow[0].contains("because matrix units were asked for"));
    assert_eq!(notes(by_unit, "return(slow:0.00001)"), [""; 0]);
    assert_eq!(notes(Precision::Mixed, "return(slow:100000)"), [""; 0]);
}
