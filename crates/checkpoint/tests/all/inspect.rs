//! What the program `checkpoint` of the examples shows.

use std::fs;

use crate::common::contents;
use unisono_checkpoint::{Store, Tensor, inspect, read_tensors, write_model};

#[test]
fn a_run_is_listed_shown_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    store.save(1, &contents(1)).unwrap();
    let newest = store.save_with_metric(2, &contents(2), Some(&0.5.into())).unwrap().path;
    let listed = inspect::list(dir.path()).unwrap();
    assert_eq!(
        listed.iter().map(|listed| (listed.step, listed.metric)).collect::<Vec<_>>(),
        [(2, Some(0.5)), (1, None)]
    );
    assert!(
        listed[0].to_string().starts_with("step        2  ")
            && listed[0].to_string().ends_with("  metric 0.5")
    );

    store.trust(1).unwrap();
    let listed = inspect::list(dir.path()).unwrap();
    assert_eq!(listed.iter().map(|listed| listed.trusted).collect::<Vec<_>>(), [false, true]);
    assert!(listed[1].to_string().ends_with(" bytes  trusted"), "{}", listed[1]);
    assert_eq!(inspect::audited(dir.path()).unwrap(), inspect::Audited::default());

    for path in [dir.path(), &newest] {
        let shown = inspect::show(path).unwrap();
        assert_eq!((shown.step, &shown.path, shown.trainer), (Some(2), &newest, Some(contents(2).trainer)));
        let rows: Vec<String> =
            shown.tensors.iter().map(|row| format!("{} {} {}", row.file, row.name, row.info)).collect();
        let expected = [
            "model.safetensors dense.bias F32[2]",
            "model.safetensors dense.weight F32[2, 3]",
            "model.safetensors empty F32[0, 4]",
            "optimizer.safetensors count U32[]",
            "optimizer.safetensors dense.weight.m F32[2, 3]",
        ];
        assert_eq!(rows, expected);
        assert_eq!((shown.tensors[1].not_finite, shown.tensors[1].range), (1, Some((-0.0, 2.0))));
        assert_eq!((shown.tensors[0].norm, shown.tensors[2].range), (4.25f64.sqrt(), None));
    }
    assert!(
        inspect::show(dir.path())
            .unwrap()
            .to_string()
            .contains("  dense.bias      F32[2]               norm 2.06")
    );

    assert!(inspect::verify(dir.path()).unwrap().iter().all(|checked| checked.problem.is_none()));
    let model = newest.join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();
    let checked = inspect::verify(dir.path()).unwrap();
    assert!(checked[0].to_string().starts_with("broken  ") && checked[1].to_string().starts_with("ok      "));
    assert!(inspect::verify(&newest).unwrap()[0].problem.is_some());
    assert!(inspect::verify(&model).unwrap()[0].problem.is_none(), "as a file alone it is valid");
    assert_eq!(inspect::show(dir.path()).unwrap().step, Some(1), "the newest complete one");
    assert!(inspect::show(&newest).is_err());
}

#[test]
fn a_diff_names_each_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    Store::open(&a).unwrap().save(1, &contents(1)).unwrap();
    let mut other = contents(1);
    other.model.insert("dense.bias".into(), Tensor::f32(&[2], &[0.5, -2.0]).unwrap());
    other.model.insert("empty".into(), Tensor::f32(&[4, 0], &[]).unwrap());
    other.model.insert("new".into(), Tensor::f32(&[], &[0.0]).unwrap());
    other.optimizer.remove("count");
    other.trainer["epochs"][1] = 3.into();
    Store::open(&b).unwrap().save(1, &other).unwrap();

    assert!(inspect::diff(&a, &a).unwrap().is_empty());
    let diff = inspect::diff(&a, &b).unwrap();
    let expected = "only left   optimizer.safetensors: count
only right  model.safetensors: new
differs     model.safetensors: dense.bias F32[2]: 1 elements, by 1.000e0 at most, 8.944e-1 of the norm
differs     model.safetensors: empty: F32[0, 4], F32[4, 0]
trainer.json: epochs.1: 2, 3
2 tensors equal, 2 differ";
    assert_eq!(diff.to_string(), expected);

    // A lone file is compared with a checkpoint's model.
    let file = dir.path().join("m.safetensors");
    write_model(&file, &inspect::model(&a).unwrap()).unwrap();
    assert_eq!(read_tensors(&file).unwrap(), contents(1).model);
    assert!(inspect::diff(&file, &a).unwrap().is_empty());
    assert_eq!(inspect::diff(&b, &file).unwrap().changed[0].name, "dense.bias");
    let error = inspect::diff(dir.path().join("none"), &a).unwrap_err().to_string();
    assert!(error.contains("none: cannot read: "), "{error}");
}
