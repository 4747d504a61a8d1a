"""Runs each .onnx file in a directory, and in those within, by onnxruntime on the inputs in the .json file beside
it, and compares the outputs. An input that is not there, as what a model carries, is zeros."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

TYPES = {"f32": np.float32, "i32": np.int32}


def array(entry):
    return np.array(entry["values"], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])


def given(inputs, samples, entries):
    """Returns the inputs of a model by name."""
    return {
        i.name: array(entries[i.name]) if i.name in entries else np.zeros([samples, *i.shape[1:]], np.float32)
        for i in inputs
    }


worst, wrong, models = 0.0, [], sorted(Path(sys.argv[1]).rglob("*.onnx"))
for path in models:
    name = path.relative_to(sys.argv[1])
    case = json.loads(path.with_suffix(".json").read_text())
    samples = next(iter(case["inputs"].values()))["shape"][0]
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs = given(session.get_inputs(), samples, case["inputs"])
        outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
    except Exception as error:
        wrong.append(f"{name}: {error}")
        continue
    for output, entry in case["outputs"].items():
        # An output that is called like an input has another name in the file.
        found = outputs[output if output in outputs else f"{output} out"].astype(np.float64)
        expected = array(entry).astype(np.float64)
        if found.shape != expected.shape:
            wrong.append(f"{name}: {output} is {found.shape}, not {expected.shape}")
            continue
        off = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)
        worst = max(worst, off)
        if not off <= 1e-5:
            wrong.append(f"{name}: {output} is off by {off:.2e} of its norm")
print(f"{len(models)} models, at most {worst:.2e} of the output's norm apart")
sys.exit("\n".join(wrong) if wrong or not models else 0)
