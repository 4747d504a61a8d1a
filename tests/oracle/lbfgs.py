#!/usr/bin/env python3
"""Prints what PyTorch's LBFGS with the strong Wolfe line search does, for the tests of `Lbfgs`.

    python tests/oracle/lbfgs.py

It needs `pip install torch`. The numbers are in crates/unisono/src/optimizers/lbfgs/tests.rs (Rosenbrock's
function, in f64) and tests/tests/replicas/lbfgs.rs (a logistic regression on the digits, in f32 and f64).
"""

import csv
import gzip
import pathlib

import torch
from torch.nn import functional as F

DIGITS = pathlib.Path(__file__).parents[2] / "examples/data/digits.csv.gz"


def steps(parameters, loss, count, **settings):
    """Returns after each step: the loss before it, that after it, all iterations and all evaluations."""
    optimizer = torch.optim.LBFGS(parameters, line_search_fn="strong_wolfe", **settings)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(count):
        before = optimizer.step(closure).item()
        state = optimizer.state[parameters[0]]
        with torch.no_grad():
            yield before, loss().item(), state["n_iter"], state["func_evals"]


def rosenbrock(count, size, **settings):
    x = torch.tensor([-1.2, 1.0] * (size // 2), dtype=torch.float64, requires_grad=True)
    print("rosenbrock", size, settings)
    loss = lambda: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    for _, _, iterations, evaluations in steps([x], loss, count, **settings):
        print("   ", x.tolist(), iterations, evaluations)


def digits(dtype, count, **settings):
    """A logistic regression from zeros, with 0.0005 of the sum of the squared weights as a penalty."""
    with gzip.open(DIGITS, "rt") as file:
        rows = torch.tensor([[float(x) for x in row] for row in csv.reader(file)])
    x, y = (rows[:, :-1] / 16).to(dtype), rows[:, -1].long()
    weight = torch.zeros(10, 64, dtype=dtype, requires_grad=True)
    bias = torch.zeros(10, dtype=dtype, requires_grad=True)
    loss = lambda: F.cross_entropy(F.linear(x, weight, bias), y) + 0.0005 * weight.square().sum()
    print("digits", dtype, settings)
    for step in steps([weight, bias], loss, count, **settings):
        print("   ", *step)
    print("    norm of the weights", torch.linalg.vector_norm(weight).item())


rosenbrock(4, 2, max_iter=8)
rosenbrock(2, 2)
rosenbrock(3, 6, history_size=3, max_iter=10, lr=0.5)
rosenbrock(3, 6, history_size=5, max_eval=4)
for dtype in (torch.float32, torch.float64):
    digits(dtype, 4, max_iter=10, history_size=10)
    digits(dtype, 12)
