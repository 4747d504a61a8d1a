//! Where a classifier looks.

use unisono_graph::Var;

/// Returns where in a picture a classifier looks (Grad-CAM, Selvaraju et al. 2017): a heat for each place of
/// `features`, from 0 on.
///
/// The gradient of each sample's highest score with respect to the features, summed over the picture, weighs
/// the channels of the features, and what is positive of their sum is the heat. `scores` must be computed
/// from `features`: usually these are the last feature maps before the head. Make the heat an output of the
/// model, and read it with `Trainer::predict_outputs`.
///
/// Shapes: `features` `[B, c, h, w]`, `scores` `[B, classes]`, to `[B, h, w]`.
#[doc(alias("saliency", "heat map", "class activation map"))]
pub fn grad_cam(features: &Var, scores: &Var) -> Var {
    // Each sample gets the gradient of its own score, since no other sample's depends on its features.
    let score = scores.max(&[-1]).sum_shards();
    let weights = features.tape().gradients(&score, std::slice::from_ref(features)).remove(0);
    (weights.sum_keep(&[-2, -1]) * features).sum(&[1]).relu()
}

#[cfg(test)]
mod tests {
    use unisono_graph::{Array, Feed, Frame, Tape, Type, interpret};

    use super::grad_cam;

    /// With the mean over the picture and a matrix behind it, the gradient is a row of the matrix, divided by
    /// the number of places and summed over them: the row itself.
    #[test]
    fn the_heat_is_the_sum_of_the_channels_by_the_weights_of_the_best_class() {
        let tape = Tape::new();
        let features = tape.input("features", Type::sample(&[2, 2, 3]));
        let head = tape.input("head", Type::global(&[2, 2]));
        let scores = features.mean(&[-2, -1]).matmul(&head);
        tape.output("heat", &grad_cam(&features, &scores));
        let features = Array::generate(&[4, 2, 2, 3], |at| {
            (at.iter().fold(0, |number, place| 7 * number + place) as f64 * 0.7).sin()
        });
        // By class: the first is the first channel less half of the second one, the second the opposite.
        let head = Array::new(&[2, 2], vec![1.0, -1.0, -0.5, 0.5]);
        let frame = Frame { shards: vec![3, 1] };
        let feed = Feed { frame, inputs: vec![features.clone(), head.clone()], states: vec![] };
        let outcome = interpret(&tape.finish().unwrap(), &feed);
        let heat = &outcome.outputs["heat"];
        assert_eq!(heat.dims, [4, 2, 3]);
        let mut best = [0, 0];
        for sample in 0..4 {
            let channel = |c: usize| &features.data[(2 * sample + c) * 6..][..6];
            let mean = |c: usize| channel(c).iter().sum::<f64>() / 6.0;
            let score = |class: usize| mean(0) * head.data[class] + mean(1) * head.data[2 + class];
            let class = usize::from(score(1) > score(0));
            best[class] += 1;
            for place in 0..6 {
                let sum = channel(0)[place] * head.data[class] + channel(1)[place] * head.data[2 + class];
                let (found, expected) = (heat.data[6 * sample + place], sum.max(0.0));
                assert!((found - expected).abs() < 1e-12, "{sample}, {place}: {found} not {expected}");
            }
        }
        assert!(best[0] > 0 && best[1] > 0, "{best:?}");
    }
}
