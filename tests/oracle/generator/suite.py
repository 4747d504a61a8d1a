"""Reads and writes suites: NAME.json says what is computed, NAME.safetensors holds the tensors."""

import json
import platform
from pathlib import Path

import numpy
import safetensors
import torch
from safetensors.numpy import load_file, save

HOME = Path(__file__).resolve().parent.parent


def versions():
    """Returns what this runs on: the format's `source` of a suite, or of a case that was added to one."""
    return (
        f"PyTorch {torch.__version__}, CPU, float64, rounded to float32; "
        f"Python {platform.python_version()}, numpy {numpy.__version__}, "
        f"safetensors {safetensors.__version__}"
    )


class Suite:
    """The cases of a suite, in the order of its file, with their tensors."""

    def __init__(self, name):
        self.name, self.source, self.cases, self.tensors = name, versions(), {}, {}

    @classmethod
    def read(cls, name, directory=HOME):
        suite = cls(name)
        path = directory / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            suite.source = content["source"]
            suite.cases = {case["name"]: case for case in content["cases"]}
            suite.tensors = load_file(path.with_suffix(".safetensors"))
        return suite

    def arrays(self, name, part):
        """Returns the `inputs` or the `expect` of a case by role."""
        return {role: self.tensors[key] for role, key in self.cases[name][part].items()}

    def put(self, definition, inputs, expect):
        """Adds or replaces a case. It names its own source where that is not the suite's."""
        name = definition.name
        for part in ("inputs", "expect"):
            for key in self.cases.get(name, {}).get(part, {}).values():
                del self.tensors[key]
        case = {"name": name, "op": definition.op, "attrs": definition.attrs}
        for part, arrays in (("inputs", inputs), ("expect", expect)):
            case[part] = {role: f"{name}/{role}" for role in arrays}
            self.tensors.update({f"{name}/{role}": array for role, array in arrays.items()})
        case["tolerance"] = definition.tolerance
        if self.source != versions():
            case["source"] = versions()
        self.cases[name] = case

    def write(self, directory=HOME):
        directory.mkdir(parents=True, exist_ok=True)
        content = {"suite": self.name, "source": self.source, "cases": list(self.cases.values())}
        (directory / f"{self.name}.json").write_text(json.dumps(content, indent=1))
        (directory / f"{self.name}.safetensors").write_bytes(save(self.tensors))
