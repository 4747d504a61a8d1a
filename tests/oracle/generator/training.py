"""Whole training runs, by one process on whole batches.

The conformance runner (tests/src/conformance/training.rs) reads the same texts `model`, `loss` and
`optimizer`.
"""

import re

import numpy
import torch
from torch import nn

from . import random_training
from .case import RULES, Case, below, computes, given, normal
from .optimizers import stepper


class Steps:
    """A recurrent layer that returns what it says at each step, or at the last alone; not its state."""

    last = False

    def forward(self, x):
        steps = super().forward(x)[0]
        return steps[:, -1] if self.last else steps


class Lstm(Steps, nn.LSTM):
    pass


class Gru(Steps, nn.GRU):
    pass


def lstm(inputs, hidden):
    return Lstm(inputs, hidden, batch_first=True)


def gru(inputs, hidden):
    return Gru(inputs, hidden, batch_first=True)


def conv2d(inputs, outputs, kernel, pad=0, stride=1, groups=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups)


# By the word of a model's text. Arguments are numbers, or a name and a number.
LAYERS = {
    "linear": nn.Linear,
    "conv2d": conv2d,
    "max_pool": nn.MaxPool2d,
    "avg_pool": nn.AvgPool2d,
    "batch_norm": nn.BatchNorm2d,
    "layer_norm": nn.LayerNorm,
    "rms_norm": nn.RMSNorm,
    "group_norm": nn.GroupNorm,
    "embedding": nn.Embedding,
    "lstm": lstm,
    "gru": gru,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
}


def build(text):
    """Returns the model of a text such as `conv2d(2,6,3,pad 1) relu`, in float64."""
    modules = []
    for word, arguments in re.findall(r"(\w+)(?:\(([^)]*)\))?", text):
        if word == "last":
            modules[-1].last = True
        elif word != "step":
            pieces = [a.split() for a in (arguments or "").split(",")]
            numbers = [int(p[0]) for p in pieces if len(p) == 1 and p[0].isdigit()]
            named = {p[0]: int(p[1]) for p in pieces if len(p) == 2 and p[1].isdigit()}
            modules.append(LAYERS[word](*numbers, **named))
    return nn.Sequential(*modules).double()


def state(model):
    """Returns the model's tensors by name. A batch norm's counter is none of them."""
    return {name: t for name, t in model.state_dict().items() if t.is_floating_point()}


def settings(text):
    """Reads `adamw lr 0.01 betas 0.9 0.999`: a name, then attributes, each a number, numbers or a flag."""
    name, *words = re.split(r"[ ,]+", text)
    attrs, values = {}, []
    for word in words:
        if re.fullmatch(r"[-+.0-9].*", word):
            values.append(float(word))
        else:
            values = attrs[word] = []
    attrs.pop("mean", None)
    return name, {key: v if len(v) > 1 else v[0] if v else True for key, v in attrs.items()}


def uphill(model, rho, loss):
    """Replaces the gradients by those at the distance `rho` along them (Foret et al. 2021)."""
    parameters = list(model.parameters())
    length = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in parameters]))
    moves = [rho * p.grad / length for p in parameters]
    for sign in (1, -1):
        with torch.no_grad():
            for p, move in zip(parameters, moves):
                p += sign * move
        if sign == 1:
            model.zero_grad()
            loss().backward()


@computes("train", takes_all=True)
def train(tensors, attrs):
    if isinstance(attrs["model"], dict):
        return random_training.train(tensors, attrs)
    model = build(attrs["model"])
    init = {role: t for role, t in tensors.items() if role.startswith("init.")}
    own = state(model)
    assert [t.shape for t in init.values()] == [
        t.shape for t in own.values()
    ], f"{list(init)} for {list(own)}"
    model.load_state_dict(dict(zip(own, (t.detach() for t in init.values()))), strict=False)
    loss, loss_attrs = settings(attrs["loss"])
    optimizer, optimizer_attrs = settings(attrs["optimizer"])
    rho = optimizer_attrs.pop("sharpness", None)
    step = stepper(optimizer, list(model.parameters()), optimizer_attrs)
    model.train()
    losses = []
    while f"x{len(losses)}" in tensors:
        x, y = (tensors[f"{role}{len(losses)}"].detach() for role in "xy")
        model.zero_grad()
        value = RULES[loss].function(model(x), y, **loss_attrs)
        value.backward()
        if rho:
            uphill(model, rho, lambda: RULES[loss].function(model(x), y, **loss_attrs))
        step()
        losses.append(value.detach())
    final = {role.replace("init.", "final.", 1): t for role, t in zip(init, state(model).values())}
    return final | {"losses": torch.stack(losses)}


def run(name, model, loss, optimizer, x, y, names=None, notes=None):
    """Defines five batches of 16 samples and one of 5, and the first weights as PyTorch draws them.

    `x` and `y` draw that many samples; `names` says how tensors are named instead of by their layer's place.
    """
    inputs = {}
    for i, rows in enumerate([16] * 5 + [5]):
        inputs |= {f"x{i}": x(rows), f"y{i}": y(rows)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(name.encode()[:7], "little"))
        first = state(build(model))
    for key, tensor in first.items():
        place, rest = key.split(".", 1)
        inputs[f"init.{(names or {}).get(place, place)}.{rest}"] = given(tensor.numpy())
    attrs = {"model": model, "loss": loss, "optimizer": optimizer} | (notes or {}) | {"last_batch": 5}
    return Case(name, "train", inputs, attrs, tolerance=2e-4)


CASES = [
    run(
        "mlp_adamw",
        "linear(12,24) relu linear(24,5)",
        "cross_entropy mean",
        "adamw lr 0.01 betas 0.9 0.999 eps 1e-8 weight_decay 0.01",
        x=lambda n: normal(n, 12),
        y=lambda n: below(5, n),
    ),
    run(
        "cnn_batchnorm_sgd",
        "conv2d(2,6,3,pad 1) batch_norm(6) relu max_pool(2) flatten linear(96,4)",
        "cross_entropy mean",
        "sgd lr 0.05 momentum 0.9",
        x=lambda n: normal(n, 2, 8, 8),
        y=lambda n: below(4, n),
        notes={"batch_norm": "statistics of the whole batch; running_var unbiased; momentum 0.1; eps 1e-5"},
    ),
    run(
        "mlp_sam",
        "linear(12,24) tanh linear(24,5)",
        "cross_entropy mean",
        "sgd lr 0.05 momentum 0.9 sharpness 0.5",
        x=lambda n: normal(n, 12),
        y=lambda n: below(5, n),
    ),
    run(
        "lstm_adam",
        "lstm(3,10, batch first), last step, linear(10,2)",
        "mse mean",
        "adam lr 0.01",
        x=lambda n: normal(n, 6, 3),
        y=lambda n: normal(n, 2),
        names={"0": "rnn", "1": "out"},
    ),
    run(
        "embedding_padding_adam",
        "embedding(7,5,padding_idx 2) flatten linear(20,3)",
        "cross_entropy mean",
        "adam lr 0.05",
        x=lambda n: below(7, n, 4),
        y=lambda n: below(3, n),
    ),
]
