//! Every layer of the library as ONNX, held to the f64 interpreter by onnxruntime, where Python has it.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use unisono_checkpoint::Tensor;
use unisono_data::{FieldDType, FieldSpec};
use unisono_graph::{Array, DType, Feed, Frame, Type, interpret};

use super::*;
use crate::model::layers::examples;
use crate::{
    Conv2d, Dense, Embedding, Flatten, Layer, Lstm, MaxPool2d, Model, Outputs, Relu, RmsNorm, Sequential,
    TransformerBlock,
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

/// Writes a model, inputs, and what the interpreter makes of them.
fn write_case(dir: &Path, name: &str, model: &Model, inputs: &[(&str, Type)]) {
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
    let given =
        program.graph.inputs.iter().enumerate().map(|(at, input)| numbers(&input.ty, 0.1 + at as f64));
    let given: Vec<Array> = given.collect();
    let feed = Feed { frame: Frame { shards: vec![ROWS] }, inputs: given.clone(), states: states.clone() };
    let outcome = interpret(&program.graph, &feed);
    let tensor = |(state, array): (&unisono_graph::StateDecl, &Array)| {
        let values: Vec<f32> = array.data.iter().map(|x| *x as f32).collect();
        (state.name.clone(), Tensor::f32(&state.ty.dims, &values).unwrap())
    };
    let tensors: Tensors = program.graph.states.iter().zip(&states).map(tensor).collect();
    write(&dir.join(format!("{name}.onnx")), &program, &tensors).unwrap();
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
    assert!(refused(Box::new(sums)).contains("is made of all samples of a batch"));
    assert!(refused(Box::new(Dense::new(2))).contains("no values of \"weight\""));
}
