//! A run's directory, as the run sees it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::{contents, names};
use unisono_checkpoint::{
    Best, Contents, Error, Options, StdDisk, Store, Tensor, Tensors, list, load, newest, read_tensors,
    write_model,
};

#[test]
fn the_last_three_are_kept_and_the_newest_is_found() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(newest(dir.path().join("nowhere")).unwrap(), None);
    let mut store = Store::open(dir.path().join("a/b")).unwrap();
    assert_eq!(store.newest().unwrap(), None);
    for step in [5, 10, 15, 20] {
        let saved = store.save(step, &contents(step)).unwrap();
        assert_eq!(saved.not_removed, []);
        assert_eq!(load(&saved.path).unwrap(), (step, contents(step)));
    }
    let steps: Vec<u64> = list(store.dir()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [20, 15, 10]);
    let loaded = store.newest().unwrap().unwrap();
    assert_eq!((loaded.step, loaded.contents), (20, contents(20)));
    let files = ["manifest.json", "model.safetensors", "optimizer.safetensors", "trainer.json"];
    assert_eq!(names(&loaded.path), files);

    store.clear().unwrap();
    assert_eq!(names(&store.dir().join("checkpoints")), [""; 0]);
}

#[test]
fn a_trainer_state_that_is_nested_too_deeply_to_be_read_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let nested = |deep: usize| {
        let trainer = (0..deep).fold(serde_json::json!(0), |value, _| serde_json::json!([value]));
        Contents { trainer, ..contents(1) }
    };
    let error = store.save(1, &nested(128)).unwrap_err();
    assert!(matches!(&error, Error::Unstorable { reason } if reason.contains("trainer.json")), "{error}");
    assert_eq!(store.newest().unwrap(), None);
    store.save(1, &nested(127)).unwrap();
    assert_eq!(store.newest().unwrap().unwrap().contents, nested(127));
}

#[test]
fn carries_have_a_file_of_their_own_where_there_are_any() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let none = contents(1);
    let carry = Tensor::f32(&[4, 2], &[0.5; 8]).unwrap();
    let some = Contents { carries: Tensors::from([("lstm.h".to_owned(), carry)]), ..contents(1) };
    assert_ne!(some.state_sha256(b""), none.state_sha256(b""));
    let path = store.save(1, &some).unwrap().path;
    let files = names(&path);
    assert_eq!(files[0], "carries.safetensors");
    assert_eq!(load(&path).unwrap(), (1, some.clone()));
    assert_eq!(read_tensors(path.join(&files[0])).unwrap(), some.carries);
    let bytes = fs::read(path.join(&files[0])).unwrap();
    fs::write(path.join(&files[0]), [&bytes[..bytes.len() - 1], &[1]].concat()).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("carries.safetensors"));
    fs::remove_file(path.join(&files[0])).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("carries.safetensors"));
    assert_eq!(names(&store.save(2, &none).unwrap().path).len(), files.len() - 1);
}

#[test]
fn milestones_and_the_best_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(1).every(4).best(Best::Highest(1));
    for (step, accuracy) in [(1, 0.1), (2, 0.9), (3, 0.5), (4, f64::NAN), (5, 0.9), (6, 0.2)] {
        let mut store = Store::open_with(dir.path(), options.clone(), Arc::new(StdDisk)).unwrap();
        store.save_with_metric(step, &contents(step), Some(&accuracy.into())).unwrap();
    }
    assert_eq!(names(&dir.path().join("checkpoints")), ["step-00000002", "step-00000004", "step-00000006"]);
    let store = Store::open_with(dir.path(), options, Arc::new(StdDisk)).unwrap();
    assert_eq!(store.best().unwrap().map(|(step, _)| step), Some(2));
    assert_eq!(store.newest().unwrap().unwrap().step, 6);
}

#[test]
fn what_is_broken_does_not_count_among_those_kept() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().keep(2);
    let mut store = Store::open_with(dir.path(), options, Arc::new(StdDisk)).unwrap();
    store.save(1, &contents(1)).unwrap();
    let broken = store.save(2, &contents(2)).unwrap().path;
    fs::write(broken.join("model.safetensors"), "short").unwrap();
    store.save(3, &contents(3)).unwrap();
    let steps = |dir| list(dir).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert_eq!(steps(dir.path()), [3, 2, 1]);
    store.save(4, &contents(4)).unwrap();
    assert_eq!(steps(dir.path()), [4, 3, 2]);
}

#[test]
fn broken_ones_are_skipped_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let paths = [1, 2, 3].map(|step| store.save(step, &contents(step)).unwrap().path);
    fs::remove_file(paths[2].join("trainer.json")).unwrap();
    let model = paths[1].join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, &bytes).unwrap();

    let loaded = store.newest().unwrap().unwrap();
    assert_eq!((loaded.step, loaded.contents), (1, contents(1)));
    let reasons: Vec<&str> = loaded.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    let no_file = fs::File::open(dir.path().join("nothing")).unwrap_err();
    let [gone, other] = ["step-00000003/trainer.json", "step-00000002/model.safetensors"];
    let [gone, other] = [gone, other].map(|path| path.replace('/', std::path::MAIN_SEPARATOR_STR));
    assert!(reasons[0].contains(&format!("{gone}: cannot read: {no_file}")), "{reasons:?}");
    assert!(reasons[1].ends_with(&format!("{other}: its SHA-256 is not the one in the manifest")));

    // The run resumed from step 1 comes to step 2 again. The broken checkpoints are moved aside and kept.
    let aside = store.save(2, &contents(2)).unwrap().set_aside;
    let [why_3, why_2] = &aside[..] else { panic!("{aside:?}") };
    assert!(
        why_3.path.ends_with("broken-step-00000003") && why_3.reason.contains("trainer.json: cannot read")
    );
    assert!(why_2.path.ends_with("broken-step-00000002") && why_2.reason.contains("its SHA-256 is not"));
    assert_eq!(store.newest().unwrap().unwrap().skipped, []);
    let kept = ["broken-step-00000002", "broken-step-00000003", "step-00000001", "step-00000002"];
    assert_eq!(names(&dir.path().join("checkpoints")), kept);

    for path in [&paths[0], &paths[1]] {
        fs::write(path.join("manifest.json"), "{}").unwrap();
    }
    let error = store.newest().unwrap_err();
    assert!(matches!(&error, Error::NoneComplete { skipped, .. } if skipped.len() == 2));
    assert!(error.to_string().contains("no complete checkpoint: "), "{error}");
}

#[test]
fn a_checkpoint_under_a_wrong_name_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::open(dir.path()).unwrap().save(1, &contents(1)).unwrap().path;
    fs::rename(&path, path.with_file_name("step-00000009")).unwrap();
    assert!(newest(dir.path()).unwrap_err().to_string().ends_with("manifest.json: is of step 1"));
}

#[test]
fn a_run_that_starts_anew_in_an_old_directory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    store.save(100, &contents(100)).unwrap();
    let error = store.save(20, &contents(20)).unwrap_err();
    assert!(matches!(error, Error::Behind { step: 20, newest: 100, .. }));
    assert!(error.to_string().ends_with("resume from it, or choose another directory"));
    assert_eq!(store.newest().unwrap().unwrap().step, 100);
}

#[test]
fn a_second_store_is_refused_while_the_first_lives() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }));
    assert!(error.to_string().ends_with(".lock: in use by another trainer, which holds its lock"), "{error}");
    drop(store);
    Store::open(dir.path()).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let mut hopeless = vec![file.clone(), file.join("run")];
    if Path::new("/proc/self").exists() {
        hopeless.push("/proc/run".into());
    }
    for dir in hopeless {
        let error = Store::open(&dir).unwrap_err().to_string();
        let culprit = if dir.starts_with(&file) { &file } else { &dir };
        assert!(error.starts_with(&format!("{}: cannot create a directory: ", culprit.display())), "{error}");
    }
    let checkpoints = dir.path().join("run/checkpoints");
    fs::create_dir(dir.path().join("run")).unwrap();
    fs::write(&checkpoints, "").unwrap();
    assert!(
        Store::open(dir.path().join("run"))
            .unwrap_err()
            .to_string()
            .contains("run/checkpoints: cannot create")
    );
}

#[test]
fn leftovers_of_a_killed_process_go_and_complete_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::open(dir.path()).unwrap().save(7, &contents(7)).unwrap().path;
    let checkpoints = dir.path().join("checkpoints");
    for name in [".tmp-step-00000008", ".tmp-gone-step-00000006", "notes"] {
        fs::create_dir(checkpoints.join(name)).unwrap();
        fs::write(checkpoints.join(name).join("manifest.json"), "{").unwrap();
    }
    // The process was killed between the two renames of a step that is saved again.
    fs::rename(&path, checkpoints.join(".old-step-00000007")).unwrap();
    assert_eq!(newest(dir.path()).unwrap().unwrap().contents, contents(7));
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(names(&checkpoints), ["notes", "step-00000007"]);
    assert_eq!(store.newest().unwrap().unwrap().contents, contents(7));
}

#[test]
fn the_final_model_is_a_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for step in [1, 2] {
        let path = store.write_model(&contents(step).model).unwrap();
        assert_eq!(read_tensors(&path).unwrap(), contents(step).model);
    }
    assert_eq!(names(dir.path()), [".lock", "checkpoints", "model.safetensors"]);
    let error = write_model(dir.path().join("nowhere/m.safetensors"), &contents(1).model).unwrap_err();
    let no_folder = fs::File::create(dir.path().join("nowhere/m")).unwrap_err();
    assert!(
        error.to_string().ends_with(&format!("nowhere: cannot write into this directory: {no_folder}")),
        "{error}"
    );
}

#[test]
fn trainer_state_keeps_its_bits() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let mut saved = contents(1);
    let mut bits = 0x3fb9_9999_9999_999au64;
    let numbers: Vec<f64> = (0..1000)
        .map(|_| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from_bits(bits)
        })
        .filter(|x| x.is_finite())
        .collect();
    saved.trainer["numbers"] = numbers.clone().into();
    store.save(1, &saved).unwrap();
    let loaded = store.newest().unwrap().unwrap().contents;
    let back = loaded.trainer["numbers"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().to_bits());
    assert!(back.eq(numbers.iter().map(|x| x.to_bits())));
    assert_eq!(loaded.state_sha256(b"1"), saved.state_sha256(b"1"));
}
