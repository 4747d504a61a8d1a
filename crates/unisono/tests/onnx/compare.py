"""Runs each NAME.onnx of a directory by onnxruntime on the inputs in NAME.json, and compares the outputs."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

TYPES = {"f32": np.float32, "i32": np.int32}


def array(entry):
    return np.array(entry["values"], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])


worst, wrong, models = 0.0, [], sorted(Path(sys.argv[1]).glob("*.onnx"))
for path in models:
    case = json.loads(path.with_suffix(".json").read_text())
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs = {name: array(entry) for name, entry in case["inputs"].items()}
        outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
    except Exception as error:
        wrong.append(f"{path.stem}: {error}")
        continue
    for name, entry in case["outputs"].items():
        expected, found = array(entry).astype(np.float64), outputs[name].astype(np.float64)
        if found.shape != expected.shape:
            wrong.append(f"{path.stem}: {name} is {found.shape}, not {expected.shape}")
            continue
        off = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)
        worst = max(worst, off)
        if not off <= 1e-5:
            wrong.append(f"{path.stem}: {name} is off by {off:.2e} of its norm")
print(f"{len(models)} models, at most {worst:.2e} of the output's norm apart")
sys.exit("\n".join(wrong) if wrong or not models else 0)
