//! The trace of a run shows for every replica what it did, one thing at a time, without gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::Value;
use unisono_tests::{loader, perceptron};

#[test]
fn a_trace_shows_all_that_three_replicas_do_and_adds_up() {
    let data = loader(400, 5).unwrap();
    let builder = perceptron(256).replicas(3).global_batch(64).timeline().digest_every(1);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let began = Instant::now();
    trainer.fit(&data, None, 4).unwrap();
    trainer.check_replicas().unwrap();
    let wall = began.elapsed().as_secs_f64() * 1e6;

    let path = std::env::temp_dir().join(format!("unisono-trace-{}.json", std::process::id()));
    trainer.write_trace(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();

    let mut names = BTreeSet::new();
    let mut devices: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut lanes: BTreeMap<u64, Vec<(f64, f64, String, u64)>> = BTreeMap::new();
    for event in &events {
        let lane = event["tid"].as_u64().unwrap();
        assert_eq!(event["pid"].as_u64(), Some(0));
        match event["ph"].as_str().unwrap() {
            "M" => drop(names.insert(event["args"]["name"].as_str().unwrap().to_owned())),
            "X" => {
                let (at, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                let name = event["name"].as_str().unwrap().to_owned();
                if event["cat"] == "device" {
                    devices.entry(lane).or_default().push((at, length));
                    continue;
                }
                lanes.entry(lane).or_default().push((
                    at,
                    length,
                    name,
                    event["args"]["step"].as_u64().unwrap(),
                ));
            }
            other => panic!("{other}"),
        }
    }
    let has_clock = unisono::gpu::select::<&str>(&[]).unwrap()[0].features.timestamps;
    let wanted = ["device of replica", "replica"].map(|what| (0..3).map(move |i| format!("{what} {i} (")));
    let wanted: Vec<String> = wanted.into_iter().skip(usize::from(!has_clock)).flatten().collect();
    assert!(
        names.len() == wanted.len() && names.iter().zip(&wanted).all(|(n, w)| n.starts_with(w)),
        "{names:?}"
    );
    assert_eq!((lanes.len(), devices.len()), (3, if has_clock { 3 } else { 0 }));
    for (lane, mut slices) in lanes {
        slices.sort_by(|a, b| a.0.total_cmp(&b.0));
        let seen: BTreeSet<&str> = slices.iter().map(|slice| slice.2.as_str()).collect();
        let all = ["compute", "driver", "exchange", "input", "loading", "peers", "upload"];
        let all: Vec<&str> = all.into_iter().filter(|name| has_clock || *name != "driver").collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all, "lane {lane}");
        let steps: BTreeSet<u64> = slices.iter().filter(|s| s.2 == "compute").map(|slice| slice.3).collect();
        assert_eq!(steps.len(), 28, "lane {lane}: a slice for each step");
        for pair in slices.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0 + 0.01, "lane {lane}: {pair:?}");
        }
        // The time that the device worked by its own clock lies within the time that the replica reports as
        // work.
        let computed: f64 = slices.iter().filter(|s| s.2 == "compute").map(|slice| slice.1).sum();
        let worked: f64 = devices.get(&(lane + 1)).into_iter().flatten().map(|slice| slice.1).sum();
        assert!(
            !has_clock || computed > 0.0 && worked >= 0.99 * computed,
            "lane {lane}: {worked} us, {computed} us"
        );
        let (first, last) = (slices.first().unwrap(), slices.last().unwrap());
        let extent = last.0 + last.1 - first.0;
        let sum: f64 = slices.iter().map(|slice| slice.1).sum();
        assert!((sum / extent - 1.0).abs() < 0.05, "lane {lane}: {sum} us of {extent}");
        // The spans cover the time from before the first step to the end.
        assert!(extent > 0.95 * wall, "lane {lane}: {extent} us of {wall}");
    }
    let report = trainer.report();
    let diagnosis = report.diagnosis().unwrap();
    assert!(diagnosis.contains("% of the time") && report.to_string().contains(&diagnosis), "{report}");
}

/// What was to be written is still there for another try.
#[test]
fn a_trace_that_cannot_be_written_can_be_written_elsewhere() {
    let data = loader(40, 5).unwrap();
    let builder = perceptron(8).replicas(1).global_batch(16).timeline();
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.fit(&data, None, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let in_the_way = dir.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let error = trainer.write_trace(&in_the_way.join("trace.json")).unwrap_err();
    assert!(matches!(error, unisono::Error::Trace { .. }), "{error}");
    let steps = |trainer: &mut unisono::Trainer, name: &str| -> BTreeSet<u64> {
        let path = dir.path().join(name);
        trainer.write_trace(&path).unwrap();
        let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let slices = events.iter().filter(|event| event["name"] == "compute");
        slices.map(|slice| slice["args"]["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(steps(&mut trainer, "whole.json"), BTreeSet::from([0, 1, 2]));
    // A trace that was written is not written again.
    assert_eq!(steps(&mut trainer, "empty.json"), BTreeSet::new());
}
