//! Replicas that are lost while texts are written, with the keys and values that they have.
//!
//! Alone in its process, because fault points without a scope would lose the replicas of other tests.

use std::path::Path;

use serde::Deserialize;
use unisono::Predictor;
use unisono_models::{Generate, Gpt2, Pretrained};

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Vec<i32>>,
    greedy: Vec<Vec<i32>>,
}

#[test]
fn texts_stay_the_same_when_replicas_are_lost() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/gpt2_long");
    let expected = std::fs::read(dir.join("generated.json")).unwrap();
    let Expected { prompts, greedy } = serde_json::from_slice(&expected).unwrap();
    let base = Pretrained::<Gpt2>::open(dir).unwrap();
    let builder = Predictor::builder().replicas(3).shards(4);
    let mut generator = base.generator_with(builder, base.weights(), Generate::new().most(24)).unwrap();
    // The first one is lost with the prompts, the second one in the middle of the texts.
    let points = ["replica-1:step-0", "replica-2:step-9"];
    points.iter().for_each(|point| fail::cfg(*point, "return(lose)").unwrap());
    assert_eq!(generator.tokens(&prompts).unwrap(), greedy);
    points.iter().for_each(fail::remove);
    let report = generator.predictor().report();
    let lost: Vec<usize> =
        report.replicas.iter().filter(|replica| replica.left.is_some()).map(|r| r.replica).collect();
    assert_eq!(lost, [1, 2]);
    assert!(report.replicas.iter().all(|replica| replica.left.is_some() || replica.resident == 0));
    // The one that is left goes on.
    assert_eq!(generator.tokens(&prompts).unwrap(), greedy);
    assert!(generator.programs() <= 4, "{} programs", generator.programs());
}
