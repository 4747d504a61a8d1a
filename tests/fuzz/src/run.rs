//! The readers of the crate `unisono`: what a run saves of itself, and the description of a model.

use serde_json::Value;
use unisono::{Context, DType, ExportedModel, Lead, Mode, SavedRun, Tape, Type};

use crate::checkpoint::{CARRIES, EMPTY, MODEL, OPTIMIZER, TRAINER, described, write};
use crate::scratch::{Scratch, flags};

/// One tensor, `0.h`, of two lanes.
const CARRIED: &[u8] =
    b"\x37\0\0\0\0\0\0\0{\"0.h\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}\0\0\0\0\0\0\0\0";

/// Reads `trainer.json` out of a checkpoint that is otherwise good. The checkpoint is of the step that the
/// text says, where it says one that a checkpoint may have.
pub(crate) fn trainer(scratch: &Scratch, bytes: &[u8]) {
    let (flags, text) = flags(bytes);
    let parsed: Value = match text.len() {
        0..=0xffff => serde_json::from_slice(text).unwrap_or_default(),
        _ => Value::Null,
    };
    let step = parsed["step"].as_u64().or_else(|| parsed["sections"]["position"]["value"]["step"].as_u64());
    let step = step.filter(|&step| step <= 1 << 53).unwrap_or(1);
    drop(parsed);
    scratch.remove("run");
    let files = [(MODEL, EMPTY), (OPTIMIZER, EMPTY), (TRAINER, text), (CARRIES, CARRIED)];
    write(scratch, "run", step, &files[..if flags & 1 > 0 { 4 } else { 3 }]);
    if let Ok(Some(run)) = SavedRun::newest(&scratch.path("run")) {
        assert_eq!(run.steps(), step);
        let settings = run.settings();
        assert!(settings.global_batch > 0 && settings.shards > 0);
    }
}

/// Builds the model that a description says, and traces it for small inputs. The first byte chooses the
/// input.
pub(crate) fn model(scratch: &Scratch, bytes: &[u8]) {
    let (flags, model) = flags(bytes);
    let head = br#"{"unisono":"0.1.0","input":[4],"output":[2],"loss":"mse","model":"#;
    let path = scratch.file("m.safetensors", EMPTY);
    scratch.file("m.json", &described(&[head, model, b"}"].concat()));
    let Ok(exported) = ExportedModel::open(path) else { return };
    let (dtype, dims) = match flags & 3 {
        0 => (DType::F32, vec![4]),
        1 => (DType::F32, vec![3, 8, 8]),
        2 => (DType::F32, vec![6, 4]),
        _ => (DType::I32, vec![5]),
    };
    for mode in [Mode::Train, Mode::Evaluate] {
        let tape = Tape::new();
        let x = tape.input("x", Type { dtype, lead: Lead::Sample, dims: dims.clone() });
        let y = Context::new(&tape, mode).apply("model", &*exported.layer(), &x);
        tape.output("y", &y);
        let _ = tape.finish().map_err(|error| error.to_string());
    }
}
