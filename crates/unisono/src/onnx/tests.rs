//! Every layer of the library as ONNX, held to the f64 interpreter by onnxruntime, where Python has it.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use unisono_checkpoint::{Plan, Tensor};
use unisono_data::{FieldDType, FieldSpec};
use unisono_graph::{Array, DType, Feed, Frame, Type, interpret};

use super::*;
use crate::model::layers::examples;
use crate::{
    Conv2d, ConvTranspose2d, Dense, Embedding, Flatten, Layer, Lstm, MaxPool2d, Model, Outputs, Relu,
    RmsNorm, Sequential, TransformerBlock,
};

const ROWS: usize = 3;

/// Returns the axes of an input that a layer of the list takes.
fn input(layer: &str) -> Type {
    let dims: &[usize] = match layer {
        "dense" => &[5],
        "embedding" => return Type::sample(&[4]).of(DType::I32),
        "multi_head_attention" | "transformer_block" => &[5, 4],
        "gru" | "lstm" | "simple_rnn" => &[6, 4],
        "conv1d"
        | "conv_transpose1d"
        | "avg_pool1d"
        | "max_pool1d"
        | "global_avg_pool1d"
        | "global_max_pool1d"
        | "adaptive_avg_pool1d"
        | "adaptive_max_pool1d" => &[4, 11],
        "conv3d" | "conv_transpose3d" | "max_pool3d" | "avg_pool3d" | "global_avg_pool3d"
        | "global_max_pool3d" | "conv_lstm2d" => &[2, 4, 5, 6],
        "mixture_of_experts" | "weight_norm" => &[5],
        "sequential" | "residual" => &[3],
        "branches" => &[5],
        "layer_norm" | "rms_norm" => &[4, 6, 5],
        _ => &[4, 11, 13],
    };
    Type::sample(dims)
}

/// Returns numbers without symmetry.
fn wave(at: &[usize], phase: f64) -> f64 {
    at.iter().fold(phase, |sum, &i| sum * 1.7 + i as f64 * 0.9 + 0.3).sin()
}

fn numbers(ty: &Type, phase: f64) -> Array {
    let ids = |at: &[usize]| {
        if ty.dtype == DType::I32 { at.iter().sum::<usize>() as f64 % 3.0 } else { wave(at, phase) }
    };
    Array::generate(&Frame { shards: vec![ROWS] }.dims(ty), |at| f64::from(ids(at) as f32))
}

fn entry(array: &Array, dtype: DType) -> Value {
    let dtype = if dtype == DType::F32 { "f32" } else { "i32" };
    json!({ "shape": array.dims, "dtype": dtype, "values": array.data })
}

/// Writes a model, inputs, and what the interpreter makes of them, with the weights in each precision.
fn write_case(dir: &Path, name: &str, model: &Model, inputs: &[(&str, Type)]) {
    for precision in [WeightPrecision::F32, WeightPrecision::F16, WeightPrecision::I8] {
        write_in(dir, &format!("{name} {precision:?}"), model, inputs, precision);
    }
}

/// Writes a model in one precision. One without kernels is not written as i8.
fn write_in(dir: &Path, name: &str, model: &Model, inputs: &[(&str, Type)], precision: WeightPrecision) {
    let spec = |(name, ty): &(&str, Type)| FieldSpec {
        name: (*name).into(),
        dtype: if ty.dtype == DType::F32 { FieldDType::F32 } else { FieldDType::I32 },
        shape: ty.dims.clone(),
    };
    let fields = crate::compile::fields::Fields::all(&inputs.iter().map(spec).collect::<Vec<_>>());
    let program = PredictionProgram::trace(model, unisono_graph::Precision::F32, &fields).unwrap();
    let state = |(at, state): (usize, &unisono_graph::StateDecl)| {
        let is_scale = state.name.ends_with("running_var") || state.name.contains("norm");
        let value =
            |i: &[usize]| f64::from((0.4 * wave(i, at as f64) + f64::from(u8::from(is_scale))) as f32);
        Array::generate(&state.ty.dims, value)
    };
    let states: Vec<Array> = program.graph.states.iter().enumerate().map(state).collect();
    if precision == WeightPrecision::I8 && program.channels.is_empty() {
        return;
    }
    let tensor = |(state, array): (&unisono_graph::StateDecl, &Array)| {
        let values: Vec<f32> = array.data.iter().map(|x| *x as f32).collect();
        (state.name.clone(), Tensor::f32(&state.ty.dims, &values).unwrap())
    };
    let tensors: Tensors = program.graph.states.iter().zip(&states).map(tensor).collect();
    write(&dir.join(format!("{name}.onnx")), &program, &tensors, precision).unwrap();
    // The interpreter computes with what a loader reads.
    let stored = precision.store(&tensors, &program.channels).unwrap().tensors;
    let infos = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.info().clone())).collect();
    let (read, _) = Plan::new().take(&stored, &infos).unwrap();
    let state = |state: &unisono_graph::StateDecl| {
        let values = read[&state.name].to_f32().unwrap();
        Array { dims: state.ty.dims.clone(), data: values.into_iter().map(f64::from).collect() }
    };
    let states: Vec<Array> = program.graph.states.iter().map(state).collect();
    let given =
        program.graph.inputs.iter().enumerate().map(|(at, input)| numbers(&input.ty, 0.1 + at as f64));
    let given: Vec<Array> = given.collect();
    let feed = Feed { frame: Frame { shards: vec![ROWS] }, inputs: given.clone(), states };
    let outcome = interpret(&program.graph, &feed);
    let inputs = program.graph.inputs.iter().zip(&given);
    let inputs: serde_json::Map<String, Value> =
        inputs.map(|(input, array)| (input_name(input), entry(array, input.ty.dtype))).collect();
    let outputs = program.outputs.iter().map(|(name, ty)| {
        let found = &outcome.outputs[&crate::compile::programs::predicted(name)];
        (name.clone(), entry(found, ty.dtype))
    });
    let kept = outcome.carries.iter().map(|(name, found)| (carry_out(name), entry(found, DType::F32)));
    let outputs: serde_json::Map<String, Value> = outputs.chain(kept).collect();
    let case = json!({ "inputs": inputs, "outputs": outputs });
    std::fs::write(dir.join(format!("{name}.json")), case.to_string()).unwrap();
}

/// Lets onnxruntime run the models of a directory, where Python has it. `UNISONO_PYTHON` names another Python
/// than `python3`.
fn run_by_python(dir: &Path) {
    let python = std::env::var("UNISONO_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import onnxruntime, numpy"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        let install = "(install: pip install onnxruntime numpy)";
        return left_out(&format!("onnxruntime is not asked: {python} does not have it {install}"));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/compare.py");
    let compared = Command::new(&python).arg(script).arg(dir).output().unwrap();
    let shown = [compared.stdout, compared.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    eprintln!("{}", shown[0]);
    assert!(compared.status.success(), "{}", shown.concat());
}

/// Says on stderr what a test leaves out, also where it passes: the harness catches what `eprintln!` writes.
/// `cargo xtask test` lists it from the file that `UNISONO_LEFT_OUT` names.
fn left_out(what: &str) {
    let line = format!("left out: {what}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

#[test]
fn every_layer_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    for (name, layer) in examples() {
        write_case(dir.path(), name, &layer.into(), &[("x", input(name))]);
    }
    let pictures = Sequential::new()
        .add(Conv2d::new(4, 3).padding(1).stride(2))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(3));
    write_case(dir.path(), "pictures", &pictures.into(), &[("x", Type::sample(&[2, 9, 8]))]);
    let text = Sequential::new()
        .add(Embedding::new(3, 8))
        .add(TransformerBlock::new(2).causal())
        .add(RmsNorm::new())
        .add(Dense::new(3));
    write_case(dir.path(), "text", &text.into(), &[("x", Type::sample(&[5]).of(DType::I32))]);
    let two = Model::new(|cx, x| {
        let city = cx.apply("city", &Embedding::new(3, 4), &x["city"]);
        let both = city.concat(&[&x["numbers"]], -1);
        let [price, sold] = ["price", "sold"].map(|name| cx.apply(name, &Dense::new(1), &both));
        let masked = x["numbers"].greater(&price).select(&x["numbers"], &cx.tape().constant(0.5));
        Outputs::new().with("price", &price).with("sold", &sold.sigmoid()).with("masked", &masked)
    });
    let fields = [
        ("unused", Type::sample(&[2])),
        ("city", Type::sample(&[]).of(DType::I32)),
        ("numbers", Type::sample(&[2])),
    ];
    write_case(dir.path(), "two", &two, &fields);
    let ids = [("x", Type::sample(&[5]).of(DType::I32))];
    let shifted = Model::new(|cx, x| {
        let before = x["x"].pad(&[1], &[0]).slice(1, 0..5);
        Outputs::new().with("words", &cx.apply("words", &Embedding::new(3, 4), &before))
    });
    write_case(dir.path(), "shifted ids", &shifted, &ids);
    // An id of no row stands for the last one.
    let outside = Model::new(|cx, x| {
        let apart = &x["y"].slice(1, 0..5) - &x["y"].slice(1, 1..6);
        let far = &apart + &apart;
        let scores = cx.parameter("scores", &[5, 4], crate::Initializer::Zeros).expand(Lead::Sample, &[5, 4]);
        let words = cx.apply("words", &Embedding::new(3, 4), &far);
        Outputs::new().with("words", &words).with("taken", &scores.take(&far))
    });
    write_case(dir.path(), "ids outside", &outside, &[("y", Type::sample(&[6]).of(DType::I32))]);
    write_case(dir.path(), "lstm without carries", &Lstm::new(3).layers(2).into(), &[("x", input("lstm"))]);
    run_by_python(dir.path());
}

#[test]
fn what_has_no_counterpart_is_an_error() {
    let refused = |layer: Box<dyn Layer>| {
        let spec = FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![6, 4] };
        let fields = crate::compile::fields::Fields::all(&[spec]);
        let program = PredictionProgram::trace(&layer.into(), unisono_graph::Precision::F32, &fields);
        program.map_or_else(|error| error.to_string(), |p| onnx(&p, &Tensors::new()).unwrap_err())
    };
    let random = crate::FromFn::new("random", |_, x| x.dropout(0.5, "random"));
    assert!(refused(Box::new(random)).contains("the model draws"));
    let resident = crate::FromFn::new("resident", |_, x| {
        x.tape().keep_resident(0, x);
        x.clone()
    });
    assert!(refused(Box::new(resident)).contains("keeps memory on devices"));
    let sums = crate::FromFn::new("sums", |_, x| x - x.sum_shards());
    assert!(refused(Box::new(sums)).contains("depends on all samples of a batch"));
    assert!(refused(Box::new(Dense::new(2))).contains("no values of \"weight\""));
}

/// A kernel is an initializer of int8 and one of scales, which `DequantizeLinear` multiplies along the axis
/// of the output channels: the first of a dense layer, the second of a transposed convolution.
#[test]
fn kernels_of_i8_are_dequantized_along_their_channels() {
    let model = Sequential::new().add(ConvTranspose2d::new(3, 2)).add(Flatten).add(Dense::new(5));
    let spec = FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![2, 4, 4] };
    let fields = crate::compile::fields::Fields::all(&[spec]);
    let program = PredictionProgram::trace(&model.into(), unisono_graph::Precision::F32, &fields).unwrap();
    let ones = |state: &unisono_graph::StateDecl| {
        (state.name.clone(), Tensor::f32(&state.ty.dims, &vec![1.0; state.ty.count()]).unwrap())
    };
    let tensors: Tensors = program.graph.states.iter().map(ones).collect();
    let stored = WeightPrecision::I8.store(&tensors, &program.channels).unwrap().tensors;
    let file = onnx(&program, &stored).unwrap();
    // The fields of a node: two inputs, an output, a name, the operator, and the attribute of the axis.
    let node = |name: &str, axis: u8| {
        let text = |field: u8, text: &str| [&[field << 3 | 2, text.len() as u8], text.as_bytes()].concat();
        let weights = [text(1, &format!("weight {name}")), text(1, &format!("weight {name}_scale"))].concat();
        let attribute = [text(1, "axis"), vec![3 << 3, axis]].concat();
        (weights, attribute)
    };
    for (name, axis, channels) in [("0.weight", 1, 3), ("2.weight", 0, 5)] {
        let (weights, attribute) = node(name, axis);
        let at = file.windows(weights.len()).position(|part| part == weights).expect(name);
        let rest = &file[at + weights.len()..][..120];
        let text = String::from_utf8_lossy(rest);
        assert!(text.contains("DequantizeLinear"), "{name}: {text}");
        assert!(rest.windows(attribute.len()).any(|part| part == attribute), "{name}: {text}");
        assert_eq!(stored[&scale_name(name)].shape().iter().product::<usize>(), channels);
        // A tensor of int8, by its name and its elements, all of which are the largest.
        let count = tensors[name].shape().iter().product::<usize>();
        let data = [&[INT8 as u8, 8 << 3 | 2, 15][..], format!("weight {name}").as_bytes()].concat();
        let at = file.windows(data.len()).position(|part| part == data).expect("an initializer");
        let elements = &file[at + data.len()..];
        let start = elements.iter().position(|byte| *byte == 127).expect("elements");
        assert!(start < 5 && elements[start..start + count].iter().all(|byte| *byte == 127), "{name}");
    }
    assert_eq!(stored["0.bias"].dtype(), TensorDType::F32);
}

/// The axis of a kernel's channels has an index for each bias, or for each of a group. Every weight of a
/// layer that is no norm is a kernel.
#[test]
fn kernels_have_a_channel_for_each_bias() {
    let mut compared = 0;
    for (layer, model) in examples() {
        let ty = input(layer);
        let dtype = if ty.dtype == DType::F32 { FieldDType::F32 } else { FieldDType::I32 };
        let fields =
            crate::compile::fields::Fields::all(&[FieldSpec { name: "x".into(), dtype, shape: ty.dims }]);
        let program =
            PredictionProgram::trace(&model.into(), unisono_graph::Precision::F32, &fields).unwrap();
        let states = &program.graph.states;
        for state in states.iter().filter(|state| state.name.contains("weight") && state.ty.dims.len() > 1) {
            let Some(&axis) = program.channels.get(&state.name) else {
                let is_known = layer.ends_with("layer_norm") || layer.ends_with("rms_norm");
                assert!(is_known || state.name.contains("relative"), "{layer}: {} is no kernel", state.name);
                continue;
            };
            let bias = state.name.replace("weight", "bias");
            let Some(bias) = states.iter().find(|own| own.name == bias) else { continue };
            let (biases, channels) = (bias.ty.dims[0], state.ty.dims[axis]);
            let in_groups = layer.contains("transpose") && biases.is_multiple_of(channels);
            assert!(
                biases == channels || in_groups,
                "{layer}: {} {:?}, axis {axis}",
                state.name,
                state.ty.dims
            );
            compared += 1;
        }
    }
    assert!(compared >= 12, "{compared}");
}
