//! What metrics and weights of losses may be, and models with many layers.

use unisono_data::{FieldDType, FieldSpec};
use unisono_graph::plan::Kernel;
use unisono_graph::{Array, Feed, Frame, Run, Target, interpret};

use super::*;
use crate::model::functional::OUTPUT;
use crate::{
    Dense, FromFn, Gru, Layer, Loss, Lstm, MeanSquaredError, Metric, Relu, Residual, Sequential, Sgd,
    SimpleRnn,
};

/// A metric as a function of the model's output, `[B, 3]`.
struct Own(fn(&Var) -> Var);

impl Metric for Own {
    fn name(&self) -> &str {
        "own"
    }
    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        (self.0)(output)
    }
}

/// A loss whose weights are a function of the targets, `[B, 3]`.
struct Weighted(fn(&Var) -> Var);

impl Loss for Weighted {
    fn name(&self) -> &str {
        "weighted"
    }
    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        (output - target).flatten().sum(&[-1])
    }
    fn weight(&self, target: &Var) -> Option<Var> {
        Some((self.0)(target))
    }
}

fn trace(
    model: impl Layer + 'static,
    loss: impl Loss + 'static,
    metric: Option<Own>,
) -> Result<Programs, Error> {
    trace_over(&[3], model, loss, metric)
}

/// Traces a model of samples of this shape, with targets of the shape `[3]`.
fn trace_over(
    shape: &[usize],
    model: impl Layer + 'static,
    loss: impl Loss + 'static,
    metric: Option<Own>,
) -> Result<Programs, Error> {
    let spec = |name: &str, shape: &[usize]| FieldSpec {
        name: name.into(),
        dtype: FieldDType::F32,
        shape: shape.to_vec(),
    };
    let mut parts = Parts::new(crate::Model::from(model));
    (parts.told.losses, parts.optimizer) = (vec![LossOn::only(loss)], Sgd::new(0.1).into());
    metric.into_iter().for_each(|metric| parts.told.measure(On::only(), Arc::new(metric)));
    let fields = Fields::of(&parts, &[spec("x", shape), spec("y", &[3])])?;
    Programs::trace(&parts, &fields, Layout::default())
}

fn problem(traced: Result<Programs, Error>) -> String {
    traced.map_or_else(|error| error.to_string(), |_| "it is taken".into())
}

#[test]
fn a_metric_that_is_no_number_for_each_sample_is_refused() {
    type Made = fn(&Var) -> Var;
    let refused: [(Made, &str); 7] = [
        (|x| x.clone(), "metric: own: gives [B, 3], not a number for each sample, which is [B]"),
        (|x| x.sum_keep(&[-1]), "metric: own: gives [B, 1], not a number for each sample"),
        (|x| x.sum(&[-1]).sum_samples(), "metric: own: gives [S; ], not a number for each sample"),
        (|x| x.sum(&[]).sum_shards(), "metric: own: gives [3], not a number for each sample"),
        (|x| x.sum(&[-1]).sum_shards(), "metric: own: gives a sum over all samples of a batch"),
        (|x| 1.0 - x.sum(&[-1]).sum_shards(), "metric: own: gives a sum over all samples of a batch"),
        (|x| x.sum(&[-1]) - x.sum(&[-1]).sum_shards(), "metric: own: depends on a sum over all samples"),
    ];
    for (metric, expected) in refused {
        let problem = problem(trace(Dense::new(3), MeanSquaredError, Some(Own(metric))));
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
}

#[test]
fn a_number_that_depends_on_no_sample_is_that_of_each() {
    let programs = trace(Dense::new(3), MeanSquaredError, Some(Own(|x| x.tape().constant(0.25)))).unwrap();
    for id in [ProgramId::Train, ProgramId::Evaluate] {
        let graph = programs.get(id).graph();
        let frame = Frame { shards: vec![3, 2] };
        let zeros = |ty: &Type| Array::generate(&frame.dims(ty), |_| 0.0);
        let inputs = graph.inputs.iter().map(|input| zeros(&input.ty)).collect();
        let states = graph.states.iter().map(|state| zeros(&state.ty)).collect();
        assert_eq!(
            interpret(graph, &Feed { frame, inputs, states }).outputs["own"].data,
            [0.25; 5],
            "{id:?}"
        );
    }
}

#[test]
fn weights_of_a_loss_that_are_no_number_for_each_sample_are_refused() {
    for (weight, expected) in [
        (
            (|y| y.clone()) as fn(&Var) -> Var,
            "loss: weighted: weighs with [B, 3], not a number for each sample",
        ),
        (|y| y.tape().constant(1.0), "loss: weighted: weighs with [], not a number for each sample"),
    ] {
        let problem = problem(trace(Dense::new(3), Weighted(weight), None));
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
    assert!(trace(Dense::new(3), Weighted(|y| y.flatten().sum(&[-1]).square()), None).is_ok());
}

#[test]
fn two_thousand_layers_are_built_on_a_small_stack() {
    let built = std::thread::Builder::new().stack_size(1 << 20).spawn(|| {
        let layers = |model: Sequential, _| model.add(Dense::new(3)).add(Relu);
        let model = (0..1_000).fold(Sequential::new(), layers);
        trace(model, MeanSquaredError, None).map(|programs| programs.train().states().len())
    });
    assert_eq!(built.unwrap().join().unwrap().unwrap(), 2_000);
}

#[test]
fn layers_inside_of_layers_end_in_an_error_before_the_stack_does() {
    let nested = |depth: usize| {
        let mut model: Box<dyn Layer> = Box::new(FromFn::new("same", |_, x| x.clone()));
        for _ in 0..depth {
            model = Box::new(Residual::new(model));
        }
        problem(trace(model, MeanSquaredError, None))
    };
    assert_eq!(nested(128), "it is taken");
    assert!(
        nested(129).contains("nesting: more than 128 layers are inside of one another"),
        "{}",
        nested(129)
    );
    assert!(nested(2_000).contains("nesting: more than 128 layers are inside of one another"));
}

#[test]
fn described_layers_inside_of_layers_end_in_an_error_before_the_stack_does() {
    for depth in [20, 60, 120, 1_000, 100_000] {
        let json = r#"{"layer":"residual","shortcut":null,"inner":"#.repeat(depth) + r#"{"layer":"relu"}"#;
        let json = json + &"}".repeat(depth);
        let read = serde_json::from_str::<crate::Description>(&json);
        let taken = read.map(|description| problem(trace(description.layer(), MeanSquaredError, None)));
        match taken {
            Ok(problem) => assert_eq!(problem, "it is taken", "{depth}"),
            Err(error) => {
                assert!(depth > 120 && error.to_string().contains("recursion limit"), "{depth}: {error}");
            }
        }
    }
}

#[test]
fn fields_that_evaluations_alone_take_are_there_and_a_weight_is_one_number_of_a_sample() {
    let spec = |(name, shape): (&str, &[usize])| FieldSpec {
        name: name.into(),
        dtype: FieldDType::F32,
        shape: shape.to_vec(),
    };
    let fields = |more: (&str, &[usize]), model: fn(&Var, &mut Context, &Inputs) -> Var| {
        let mut parts = Parts::new(crate::Model::new(move |cx, x| {
            let scores = cx.apply("scores", &Dense::new(3), &x["x"]);
            Outputs::new().with(OUTPUT, &model(&scores, cx, x))
        }));
        (parts.told.losses, parts.optimizer) = (vec![LossOn::only(MeanSquaredError)], Sgd::new(0.1).into());
        let fields = Fields::of(&parts, &[("x", &[3][..]), ("y", &[3]), more].map(spec))?;
        Programs::trace(&parts, &fields, Layout::default()).map(|_| fields)
    };
    let masked = fields(
        ("mask", &[3]),
        |scores, cx, x| {
            if cx.is_training() { scores.clone() } else { scores * &x["mask"] }
        },
    );
    assert!(masked.unwrap().get("mask").is_some());
    let weighed = fields(("w", &[3]), |scores, _, x| scores * &x["w"]);
    let error = weighed.err().unwrap().to_string();
    assert_eq!(
        error,
        "field \"w\": expected [B] (weights of labels are a field of another name, see Builder::sample_weights_of), got [B, 3]"
    );
}

/// All time steps of a recurrent layer share their kernels, since the place where a step's slices begin is a
/// param and not part of the kernel's text. The kernels load gates as whole vectors.
#[test]
fn all_steps_of_a_recurrent_layer_have_the_same_kernels() {
    type Layers = fn() -> Sequential;
    let kernels = |make: Layers, steps: usize| {
        let programs = trace_over(&[steps, 4], make().add(Dense::new(3)), MeanSquaredError, None).unwrap();
        programs.get(ProgramId::Train).plan(&Run::whole(&[2, 2]), &Target::default()).unwrap().kernels
    };
    let layers: [(&str, Layers); 4] = [
        ("lstm", || Sequential::new().add(Lstm::new(8).last())),
        ("two lstms, both ways", || Sequential::new().add(Lstm::new(8).layers(2).bidirectional().last())),
        ("gru", || Sequential::new().add(Gru::new(8).last())),
        ("rnn", || Sequential::new().add(SimpleRnn::new(8).last())),
    ];
    for (name, make) in layers {
        let (few, many) = (kernels(make, 6), kernels(make, 24));
        let names = |kernels: &[Kernel]| kernels.iter().map(|kernel| kernel.name.clone()).collect::<Vec<_>>();
        // A sum over the steps, such as a bias's gradient, may take more kernels where it has more terms.
        assert!(many.len() <= few.len() + 4, "{name}: {:?} and {:?}", names(&few), names(&many));
        let gates: Vec<_> = many.iter().filter(|kernel| kernel.name.contains("sigmoid")).collect();
        assert_eq!(gates.is_empty(), name == "rnn");
        for kernel in gates {
            let loads_words = (0..8).any(|binding| kernel.wgsl.contains(&format!("fn w{binding}(")));
            assert!(!loads_words, "{name}: {}", kernel.wgsl);
        }
    }
}
