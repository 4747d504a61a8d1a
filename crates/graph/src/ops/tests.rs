//! The op that CONTRIBUTING.md shows as an example.

mod softsign;

use super::{Pointwise, registry};
use crate::reference::interpret;
use crate::{Array, Feed, Frame, StateKind, Tape};
use softsign::Softsign;

/// Its cases are as those of the registry: the gradient is that of the f64 reference by central differences.
#[test]
fn the_op_of_the_contributing_guide_works() {
    let cases = registry::pointwise(|| Softsign);
    assert_eq!(cases[0].values[0].as_deref(), Some(&[-3.0, -0.2, 0.5, 40.0][..]));
    let places: Vec<f64> = Softsign::CASES.iter().map(|case| case[0]).collect();
    let tape = Tape::new();
    let x = tape.state("x", &[places.len()], StateKind::Parameter);
    let y = x.softsign();
    let gradient = tape.gradients(&y.sum(&[0]), std::slice::from_ref(&x)).remove(0);
    tape.output("y", &y);
    tape.output("dx", &gradient);
    let states = vec![Array::new(&[places.len()], places.clone())];
    let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![], states };
    let outputs = interpret(&tape.finish().unwrap(), &feed).outputs;
    for (i, &place) in places.iter().enumerate() {
        let reference = |x: f64| Softsign.reference(&[x]);
        let slope = (reference(place + 1e-5) - reference(place - 1e-5)) / 2e-5;
        assert_eq!(outputs["y"].data[i], reference(place));
        assert!(
            (outputs["dx"].data[i] - slope).abs() < 1e-7,
            "{place}: {} not {slope}",
            outputs["dx"].data[i]
        );
    }
}
