//! Layers and values beside numbers of PyTorch, and beside the same made another way.

use super::*;

/// Returns what a function makes of samples `x`, `[samples, dims]`, in f64.
fn made(mode: Mode, dims: &[usize], x: &[f64], f: impl Fn(&mut Context, &Var) -> Var) -> Vec<f64> {
    let tape = Tape::new();
    let mut cx = Context::new(&tape, mode);
    let y = f(&mut cx, &tape.input("x", Type::sample(dims)));
    tape.output("y", &y);
    let asked = [cx.parameters(), cx.statistics()].concat();
    let graph = tape.finish().unwrap();
    let start = |s: &unisono_graph::StateDecl| {
        let own = asked.iter().find(|p| p.name == s.name).unwrap();
        let values = own.initializer.values(5, &s.name, &s.ty.dims).unwrap();
        Array::new(&s.ty.dims, values.iter().map(|&v| f64::from(v)).collect())
    };
    let states = graph.states.iter().map(start).collect();
    let samples = x.len() / dims.iter().product::<usize>();
    let key = unisono_graph::RandomKey { seed: 7, epoch: 1, position: 3 };
    let inputs = graph.inputs.iter().map(|input| match &*input.name {
        "x" => Array::new(&[&[samples], dims].concat(), x.to_vec()),
        _ => Array::new(&[8], key.words().map(f64::from).to_vec()),
    });
    let feed = Feed { frame: Frame { shards: vec![samples] }, inputs: inputs.collect(), states };
    interpret(&graph, &feed).outputs["y"].data.clone()
}

/// The numbers of PyTorch's documentation of `Upsample`, of its test `test_upsampling_bicubic2d`, and of
/// `interpolate` by its formulas.
#[test]
fn images_are_resized_as_pytorch_does() {
    let resized = |layer: Resize2d, dims: [usize; 2], x: &[f64]| {
        made(Mode::Evaluate, &[1, dims[0], dims[1]], x, move |cx, x| layer.forward(cx, x))
    };
    let near = |a: &[f64], b: &[f64]| {
        assert!(
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4),
            "{a:?} is not {b:?}"
        );
    };
    let square = [1.0, 2.0, 3.0, 4.0];
    let rows =
        [[1.0, 1.25, 1.75, 2.0], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3.0, 3.25, 3.75, 4.0]];
    near(&resized(Resize2d::new(4).bilinear(), [2, 2], &square), rows.as_flattened());
    let corners = [
        [1.0, 1.33333, 1.66667, 2.0],
        [1.66667, 2.0, 2.33333, 2.66667],
        [2.33333, 2.66667, 3.0, 3.33333],
        [3.0, 3.33333, 3.66667, 4.0],
    ];
    near(
        &resized(Resize2d::by([2.0, 2.0]).bilinear().align_corners(), [2, 2], &square),
        corners.as_flattened(),
    );
    let cubic = [
        [-0.31641, 0.01562, 0.56250, 0.89453],
        [0.34766, 0.67969, 1.22656, 1.55859],
        [1.44141, 1.77344, 2.32031, 2.65234],
        [2.10547, 2.43750, 2.98438, 3.31641],
    ];
    near(&resized(Resize2d::new(4).bicubic(), [2, 2], &[0.0, 1.0, 2.0, 3.0]), cubic.as_flattened());
    let line: Vec<f64> = (0..5).map(f64::from).collect();
    near(&resized(Resize2d::new([1, 3]), [1, 5], &line), &[0.0, 1.0, 3.0]);
    near(&resized(Resize2d::by([1.0, 1.7]), [1, 5], &line), &[0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    // PyTorch: floor(10 * 0.7), floor(10 * 1.3) and floor(50 * 2.1).
    for (from, factor, to) in [(10, 0.7, 7), (10, 1.3, 13), (50, 2.1, 105), (3, 0.5, 1)] {
        let row = vec![1.0; from];
        assert_eq!(resized(Resize2d::by([1.0, factor]), [1, from], &row).len(), to, "{from} by {factor}");
    }
    near(&resized(Resize2d::new([1, 3]).bilinear(), [1, 5], &line), &[0.33333, 2.0, 3.66667]);
    near(&resized(Resize2d::new([1, 1]).bilinear().align_corners(), [1, 5], &line), &[0.0]);
    for how in [Resize2d::new([3, 5]), Resize2d::new([3, 5]).bilinear(), Resize2d::new([3, 5]).bicubic()] {
        check(how, &[2, 4, 3], &[2, 3, 5], &[]);
        check(how.align_corners(), &[2, 4, 3], &[2, 3, 5], &[]);
    }
}

#[test]
fn sequences_are_transposed_as_images_of_one_row() {
    check(ConvTranspose1d::new(3, 4).stride(2), &[2, 3], &[3, 8], &["weight [2, 3, 4]", "bias [3]"]);
    let wide =
        ConvTranspose1d::new(6, 3).stride(3).padding(1).output_padding(2).dilation(2).groups(2).no_bias();
    check(wide.clone(), &[4, 3], &[6, 11], &["weight [4, 3, 3]"]);
    let row = ConvTranspose2d::new(6, [1, 3]).stride([1, 3]).padding([0, 1]).output_padding([0, 2]);
    let row = row.dilation([1, 2]).groups(2).no_bias();
    let x: Vec<f64> = (0..24).map(|i| wave(&[i], 0.2)).collect();
    let a = made(Mode::Train, &[4, 3], &x, |cx, x| wide.forward(cx, x));
    let b = made(Mode::Train, &[4, 3], &x, |cx, x| row.forward(cx, &x.reshape(&[4, 1, 3])));
    close(&a, &b);
}

#[test]
fn scales_of_channels() {
    check(LayerScale::new(0.1), &[2, 3], &[2, 3], &["gamma [3]"]);
    check(LayerScale::new(0.1).channels_first(), &[2, 3, 4], &[2, 3, 4], &["gamma [2]"]);
    let names = ["fc1.weight [2, 3, 1, 1]", "fc1.bias [2]", "fc2.weight [3, 2, 1, 1]", "fc2.bias [3]"];
    check(SqueezeExcite::new(2).silu(), &[3, 2, 2], &[3, 2, 2], &names);
    check(SqueezeExcite::new(2).hard_sigmoid(), &[3, 2, 2], &[3, 2, 2], &names);
    // Biases start at 0: where the mean of each channel is 0, the scale is sigmoid(0).
    let x = [1.0, -1.0, 2.0, -2.0];
    let y = made(Mode::Train, &[2, 1, 2], &x, |cx, x| SqueezeExcite::new(3).forward(cx, x));
    close(&y, &[0.5, -0.5, 1.0, -1.0]);
}

/// Each sample is kept as a whole or dropped as a whole.
#[test]
fn a_path_is_dropped_for_whole_samples() {
    let x: Vec<f64> = (1..=400).map(f64::from).collect();
    let drop = |mode, rate| made(mode, &[2], &x, move |cx, x| cx.apply("0", &DropPath::new(rate), x));
    let y = drop(Mode::Train, 0.25);
    let is_kept = |at: usize| y[at] != 0.0;
    let kept: Vec<usize> = (0..200).filter(|sample| is_kept(2 * sample)).collect();
    assert!((130..170).contains(&kept.len()), "{} of 200", kept.len());
    for sample in 0..200 {
        let factor = if is_kept(2 * sample) { 1.0 / f64::from(1.0f32 - 0.25) } else { 0.0 };
        close(&y[2 * sample..2 * sample + 2], &[x[2 * sample] * factor, x[2 * sample + 1] * factor]);
    }
    assert_eq!(drop(Mode::Evaluate, 0.25), x);
    assert_eq!(drop(Mode::Train, 0.0), x);
}

#[test]
fn a_layer_over_time_is_the_layer_at_each_step() {
    let names = ["inner.weight [2, 3]", "inner.bias [2]"];
    check(TimeDistributed::new(Dense::new(2)), &[4, 3], &[4, 2], &names);
    let convolution = TimeDistributed::new(Conv2d::new(2, 2));
    check(convolution, &[3, 1, 3, 3], &[3, 2, 2, 2], &["inner.weight [2, 1, 2, 2]", "inner.bias [2]"]);
    let dense = || Dense::new(2).initializer(Initializer::Values((0..6).map(|x| x as f32 - 2.5).collect()));
    let x: Vec<f64> = (0..24).map(|i| wave(&[i], 0.2)).collect();
    let each = made(Mode::Train, &[4, 3], &x, |cx, x| TimeDistributed::new(dense()).forward(cx, x));
    close(&each, &made(Mode::Train, &[4, 3], &x, |cx, x| dense().forward(cx, x)));
}

/// A sequence in two halves, the second of which starts from the state of the first, is the whole.
#[test]
fn recurrent_layers_start_from_a_state_and_return_it() {
    let x: Vec<f64> = (0..24).map(|i| wave(&[i], 0.2)).collect();
    type Run = fn(&mut Context, &Var, &[Var]) -> (Var, Vec<Var>);
    let runs: [Run; 3] = [
        |cx, x, start| Lstm::new(2).layers(2).with_state(cx, x, None, start),
        |cx, x, start| Gru::new(2).layers(3).with_state(cx, x, None, start),
        |cx, x, start| SimpleRnn::new(2).with_state(cx, x, None, start),
    ];
    for run in runs {
        let part = |cx: &mut Context, x: &Var, start: &[Var], last: &mut Vec<Var>| {
            cx.within("rnn", "rnn", |cx| {
                let (all, state) = run(cx, x, start);
                *last = state;
                all
            })
        };
        let whole = made(Mode::Train, &[4, 3], &x, |cx, x| part(cx, x, &[], &mut vec![]));
        let halves = made(Mode::Train, &[4, 3], &x, |cx, x| {
            let (mut state, mut last) = (vec![], vec![]);
            let first = part(cx, &x.slice(1, 0..2), &[], &mut state);
            let second = part(cx, &x.slice(1, 2..4), &state, &mut last);
            first.concat(&[&second], 1)
        });
        close(&halves, &whole);
    }
    let problem = |layer: Lstm, states: usize| {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[3, 4]));
        let start = vec![x.slice(1, 0..1).flatten(); states];
        layer.with_state(&mut Context::new(&tape, Mode::Train), &x, None, &start);
        tape.finish().map_or_else(|error| error.to_string(), |_| "it is taken".into())
    };
    assert_eq!(problem(Lstm::new(4).bidirectional(), 4), "it is taken");
    assert!(problem(Lstm::new(4), 1).contains("starts from 2 x 1 values [B, 4], got [B, 4]"));
    assert!(problem(Lstm::new(3), 2).contains("starts from 2 x 1 values [B, 3], got [B, 4], [B, 4]"));
    assert!(problem(Lstm::new(4).stateful(), 2).contains("got a stateful one"));
}

#[test]
fn constants_and_draws() {
    let x: Vec<f64> = vec![0.0; 400];
    let grey =
        made(Mode::Evaluate, &[2], &[1.0, 2.0, 3.0, 4.0], |cx, x| x * cx.constant("w", &[2], &[0.5, -1.0]));
    close(&grey, &[0.5, -2.0, 1.5, -4.0]);
    let tape = Tape::new();
    Context::new(&tape, Mode::Train).constant("w", &[2, 2], &[1.0]);
    assert!(tape.finish().unwrap_err().to_string().contains("w [2, 2] has 4 values, and 1 are given"));
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    for mode in [Mode::Train, Mode::Evaluate] {
        let uniform = made(mode, &[2], &x, |cx, _| cx.uniform(&[3]));
        assert_eq!(uniform.len(), 600);
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)) && (mean(&uniform) - 0.5).abs() < 0.05);
        let normal = made(mode, &[2], &x, |cx, _| cx.normal(&[]));
        assert!(
            mean(&normal).abs() < 0.2
                && (mean(&normal.iter().map(|x| x * x).collect::<Vec<_>>()) - 1.0).abs() < 0.3
        );
        let twice = made(mode, &[2], &x, |cx, _| cx.uniform(&[1]) - cx.uniform(&[1]));
        assert!(twice.iter().all(|x| *x != 0.0));
    }
}

/// Each entry of the axes before the steps is a sequence of its own, also under a mask and from a state.
#[test]
fn recurrent_layers_take_several_sequences_for_each_sample() {
    type Layer = fn(&mut Context, &Var, Option<&Var>) -> Var;
    let layers: [Layer; 4] = [
        |cx, x, mask| Lstm::new(3).layers(2).masked(cx, x, mask),
        |cx, x, mask| Gru::new(3).bidirectional().last().masked(cx, x, mask),
        |cx, x, mask| SimpleRnn::new(3).last().masked(cx, x, mask),
        |cx, x, mask| {
            let start = x.slice(-2, 0..1).reshape(&[&x.dims()[..x.dims().len() - 2], &[2]].concat());
            Gru::new(2).with_state(cx, x, mask, &[start]).1[0].clone()
        },
    ];
    let x: Vec<f64> = (0..72).map(|i| wave(&[i], 0.2)).collect();
    for layer in layers {
        for is_masked in [false, true] {
            let run = |cx: &mut Context, x: &Var| {
                let first = x.slice(-1, 0..1).reshape(&x.dims()[..x.dims().len() - 1]);
                let mask = first.greater(&x.tape().constant(-0.2));
                layer(cx, x, is_masked.then_some(&mask)).flatten()
            };
            // Six samples of one sequence, and two samples of three.
            let one = made(Mode::Train, &[6, 2], &x, run);
            close(&made(Mode::Train, &[3, 6, 2], &x, run), &one);
            close(&made(Mode::Train, &[1, 3, 6, 2], &x, run), &one);
        }
    }
    let names = ["inner.weight_ih_l0 [8, 3]", "inner.weight_hh_l0 [8, 2]"];
    let biases = ["inner.bias_ih_l0 [8]", "inner.bias_hh_l0 [8]"];
    let rows = || TimeDistributed::new(Lstm::new(2).last());
    check(rows(), &[2, 4, 3], &[2, 2], &[names, biases].concat());
    let column = made(Mode::Train, &[3, 6, 2], &x, |cx, x| rows().forward(cx, x));
    close(&column, &made(Mode::Train, &[6, 2], &x, |cx, x| cx.apply("inner", &Lstm::new(2).last(), x)));
}

#[test]
fn recurrent_layers_can_start_as_those_of_keras_do() {
    let start = |layer: &dyn Layer, name: &str| {
        let traced = trace(layer, Type::sample(&[2, 5]), Mode::Train);
        let at = traced.graph.states.iter().position(|state| state.name == name).unwrap();
        traced.states[at].data.clone()
    };
    let lstm = Lstm::new(3).keras_initializers();
    let forget: Vec<f64> = (0..12).map(|row| f64::from(u8::from((3..6).contains(&row)))).collect();
    assert_eq!(start(&lstm, "bias_ih_l0"), forget);
    assert_eq!(start(&lstm, "bias_hh_l0"), vec![0.0; 12]);
    assert!(start(&lstm, "weight_ih_l0").iter().all(|x| x.abs() <= (6.0f64 / 17.0).sqrt()));
    let weight = start(&lstm, "weight_hh_l0");
    for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
        let product: f64 = (0..12).map(|row| weight[3 * row + i] * weight[3 * row + j]).sum();
        assert!((product - f64::from(u8::from(i == j))).abs() < 1e-6, "columns {i} and {j}: {product}");
    }
    assert_eq!(start(&Gru::new(3).keras_initializers(), "bias_ih_l0"), vec![0.0; 9]);
    let torch = start(&Lstm::new(3), "bias_hh_l0");
    assert!(torch.iter().any(|x| *x != 0.0) && torch.iter().all(|x| x.abs() <= (1.0f64 / 3.0).sqrt()));
}
