"""Random cases: ops, layers, losses, metrics, optimizers and whole trainings with settings, shapes and values that
nobody chose.

A case is computed in float64, and in float32 by PyTorch too. How far these two are apart is what rounding does to
the case, and its tolerance follows from that. A case that rounding spoils, or that PyTorch refuses, is drawn again.
"""

import hashlib

import numpy
import torch

from . import random_layers, random_ops, random_training
from .case import Case
from .draws import Draws
from .make import make, share
from .suite import Suite

KINDS = {
    "ops": random_ops.op,
    "layers": random_layers.layer,
    "losses": random_training.loss_case,
    "metrics": random_ops.metric,
    "optimizers": random_training.optimizer_case,
    "training": random_training.training,
}
# The least tolerance, and what it is of PyTorch's own error in float32. Trainings add the errors of their steps.
LEAST = {"training": 1e-4}
FACTOR = 40
# A larger error in float32 spoils a case.
SPOILT = 5e-6


def suite(kind, count, seed):
    """Returns a suite of random cases of a kind, and how many draws were thrown away."""
    made, thrown = Suite(kind), 0
    while len(made.cases) < count:
        name = f"{seed}/{len(made.cases)}"
        digest = hashlib.sha256(f"{kind}/{name}/{thrown}".encode()).digest()
        draws = Draws(numpy.random.default_rng(int.from_bytes(digest[:16], "little")))
        try:
            op, attrs, inputs = KINDS[kind](draws)
            inputs, expect, tolerance = computed(kind, op, attrs, inputs, draws.g)
        except (ValueError, RuntimeError, IndexError, AssertionError, ZeroDivisionError):
            thrown += 1
            continue
        if tolerance is None:
            thrown += 1
            continue
        made.put(Case(f"{op}/{name}", op, {}, attrs, tolerance), inputs, expect)
    return made, thrown


def computed(kind, op, attrs, inputs, generator):
    """Returns inputs with arriving gradients, what is expected, and the tolerance: None for a spoilt case."""
    torch.manual_seed(0)
    inputs, expect = make(op, attrs, inputs, generator)
    least = LEAST.get(kind, 1e-5)
    if not all(numpy.isfinite(array).all() for array in expect.values()):
        return inputs, expect, None
    if kind == "metrics":
        return inputs, expect, least
    torch.manual_seed(0)
    _, rounded = make(op, attrs, inputs, dtype=torch.float32)
    error = max(share(rounded[role], expect[role], 1.0) for role in expect)
    return inputs, expect, max(least, FACTOR * error) if error < SPOILT else None
