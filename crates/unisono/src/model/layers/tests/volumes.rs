//! Layers of volumes and films, and layers whose weights are computed.

use super::*;

#[test]
fn layers_of_volumes() {
    let weight = ["weight [4, 2, 3, 3, 3]", "bias [4]"];
    check(Conv3d::new(4, 3).padding(1), &[2, 3, 4, 3], &[4, 3, 4, 3], &weight);
    let wide = Conv3d::new(4, (1, 3, 2)).groups(2).stride([1, 2, 1]).padding([0, 1, 2]).dilation([1, 1, 2]);
    check(wide.no_bias(), &[2, 2, 5, 4], &[4, 2, 3, 6], &["weight [4, 1, 1, 3, 2]"]);
    let back = ConvTranspose3d::new(6, [3, 2, 3]).stride(2).padding([1, 0, 1]).output_padding(1).groups(2);
    check(back, &[4, 2, 3, 1], &[6, 4, 7, 2], &["weight [4, 3, 3, 2, 3]", "bias [6]"]);
    check(MaxPool3d::new(2), &[2, 2, 5, 4], &[2, 1, 2, 2], &[]);
    check(AvgPool3d::new(3).stride(2).padding(1), &[2, 3, 5, 4], &[2, 2, 3, 2], &[]);
    check(AvgPool3d::new(2).count_include_pad(), &[2, 2, 4, 4], &[2, 1, 2, 2], &[]);
    check(GlobalAvgPool3d, &[3, 2, 2, 3], &[3], &[]);
    check(GlobalMaxPool3d, &[3, 2, 2, 3], &[3], &[]);
}

/// A volume with a depth of 1, and a kernel of that depth, are an image.
#[test]
fn a_flat_volume_is_an_image() {
    let run = |layer: &dyn Layer, dims: &[usize]| {
        let mut traced = trace(layer, Type::sample(dims), Mode::Train);
        for state in &mut traced.states {
            state.data = (0..state.data.len()).map(|i| wave(&[i], 0.2)).collect();
        }
        let x = Array::new(&[&[2], dims].concat(), (0..60).map(|i| wave(&[i], 0.1)).collect());
        traced.run(&[1, 1], &x).outputs["y"].data.clone()
    };
    close(
        &run(&Conv3d::new(4, [1, 3, 2]).stride([1, 2, 1]).padding([0, 1, 0]), &[2, 1, 5, 3]),
        &run(&Conv2d::new(4, [3, 2]).stride([2, 1]).padding([1, 0]), &[2, 5, 3]),
    );
    close(
        &run(&ConvTranspose3d::new(4, [1, 3, 2]).stride([1, 2, 1]), &[2, 1, 5, 3]),
        &run(&ConvTranspose2d::new(4, [3, 2]).stride([2, 1]), &[2, 5, 3]),
    );
    close(&run(&MaxPool3d::new([1, 2, 3]), &[2, 1, 5, 3]), &run(&MaxPool2d::new([2, 3]), &[2, 5, 3]));
    close(&run(&AvgPool3d::new([1, 2, 3]), &[2, 1, 5, 3]), &run(&AvgPool2d::new([2, 3]), &[2, 5, 3]));
}

#[test]
fn films_and_experts() {
    let gates = ["weight_ih [12, 2, 3, 3]", "weight_hh [12, 3, 3, 3]", "bias [12]"];
    check(ConvLstm2d::new(3, 3), &[3, 2, 4, 3], &[3, 3, 4, 3], &gates);
    check(ConvLstm2d::new(3, 3).last().no_bias(), &[2, 2, 4, 3], &[3, 4, 3], &gates[..2]);
    let experts = [
        "router.weight [3, 4]",
        "experts.0.weight [5, 4]",
        "experts.0.bias [5]",
        "experts.1.weight [5, 4]",
        "experts.1.bias [5]",
        "experts.2.weight [5, 4]",
        "experts.2.bias [5]",
    ];
    let mixture = |k: usize| {
        let dense = || Dense::new(5);
        MixtureOfExperts::new(k).add(dense()).add(dense()).add(dense())
    };
    check(mixture(2), &[4], &[5], &experts);
    check(mixture(2).keep_probabilities(), &[3, 4], &[3, 5], &experts);
    check(mixture(3), &[3, 4], &[3, 5], &experts);
    check(LocalResponseNorm::new(3).alpha(0.5), &[5, 2, 2], &[5, 2, 2], &[]);
    check(LocalResponseNorm::new(9).alpha(0.5), &[5], &[5], &[]);
}

#[test]
fn weights_of_inner_layers_are_normalized_and_no_others() {
    let names = ["weight [4, 2, 3, 3]", "weight_g [4]", "bias [4]"];
    check(WeightNorm::new(Conv2d::new(4, 3)), &[2, 4, 3], &[4, 2, 1], &names);
    let within = Sequential::new().add(WeightNorm::new(Dense::new(3))).add(Dense::new(2));
    let names = ["0.weight [3, 4]", "0.weight_g [3]", "0.bias [3]", "1.weight [2, 3]", "1.bias [2]"];
    check(within, &[4], &[2], &names);
    for mode in [Mode::Train, Mode::Evaluate] {
        let traced = trace(&SpectralNorm::new(Dense::new(3)), Type::sample(&[4]), mode);
        assert_eq!(traced.names, ["weight [3, 4]", "weight_u [3]", "bias [3]"]);
    }
}

#[test]
fn weights_of_parts_are_normalized_by_their_names() {
    let attention = MultiHeadAttention::new(2);
    let traced = trace(&SpectralNorm::new(attention), Type::sample(&[3, 4]), Mode::Train);
    let normalized: Vec<&str> = traced.names.iter().filter_map(|name| name.strip_suffix(" [12]")).collect();
    assert!(normalized.contains(&"in_proj_weight_u"), "{:?}", traced.names);
    assert!(traced.names.iter().any(|name| name == "out_proj.weight_u [4]"), "{:?}", traced.names);
}

/// With enough iterations the largest singular value of what is used is 1.
#[test]
fn a_spectral_norm_is_that_of_the_largest_singular_value() {
    let layer = SpectralNorm::new(Dense::new(2).no_bias()).iterations(60);
    let mut traced = trace(&layer, Type::sample(&[2]), Mode::Train);
    // The singular values of [[3, 0], [4, 5]] are sqrt(45) and sqrt(5).
    traced.states[0].data = vec![3.0, 0.0, 4.0, 5.0];
    traced.states[1].data = vec![1.0, 0.3];
    let x = Array::new(&[2, 2], vec![1.0, 0.0, 0.0, 1.0]);
    let y = traced.run(&[1, 1], &x).outputs["y"].data.clone();
    let expected = [3.0, 4.0, 0.0, 5.0].map(|w: f64| w / 45f64.sqrt());
    close(&y, &expected);
}
