"""Makes the files of `torch/` with PyTorch: python make_torch.py crates/checkpoint/tests/torch"""

import collections
import json
import pathlib
import sys

import torch

target = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
weights = collections.OrderedDict(
    {
        "layer.weight": base * 0.5,
        "layer.transposed": base.t(),
        "layer.part": base[1:3, ::2],
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([[1.5], [-2.0]], dtype=torch.bfloat16),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "count": torch.tensor(7),
        "small": torch.tensor([-3, 4], dtype=torch.int32),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "tied": base,
        "tied again": base,
    }
)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 3)).sum().backward()
optimizer.step()
files = {
    "weights.pt": weights,
    "checkpoint.pt": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.5},
    "parameter.pt": {"weight": torch.nn.Parameter(base[:1])},
}
expected = {}


def note(name, value, into):
    if isinstance(value, torch.Tensor):
        into[name] = [str(value.dtype), list(value.shape), value.detach().double().flatten().tolist()]
    elif isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            note(f"{name}.{key}" if name else str(key), inner, into)


for name, value in files.items():
    torch.save(value, target / name)
    expected[name] = {}
    note("", value, expected[name])
torch.save(torch.nn.Linear(2, 2), target / "module.pt")
(target / "expected.json").write_text(json.dumps(expected))
