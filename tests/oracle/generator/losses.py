"""Losses: the mean, or the weighted mean, over the whole batch."""

import numpy
import torch.nn.functional as F

from .case import Case, below, computes, given, normal

MEAN = {"reduction": "mean"}


@computes("cross_entropy", constants=("weights",))
def cross_entropy(logits, labels, weights=None, *, label_smoothing=0.0, ignore_index=-100):
    settings = {"label_smoothing": label_smoothing, "ignore_index": ignore_index}
    if weights is None:
        return F.cross_entropy(logits, labels, **settings)
    each = F.cross_entropy(logits, labels, reduction="none", **settings)
    return (weights * each).sum() / weights.sum()


@computes("mse", constants=("target",))
def mse(x, target):
    return F.mse_loss(x, target)


@computes("l1", constants=("target",))
def l1(x, target):
    return F.l1_loss(x, target)


@computes("huber", constants=("target",))
def huber(x, target, *, delta):
    return F.huber_loss(x, target, delta=delta)


@computes("bce_with_logits", constants=("target",))
def bce_with_logits(x, target):
    return F.binary_cross_entropy_with_logits(x, target)


def labelled(scale, **more):
    return {"logits": normal(12, 7, scale=scale), "labels": below(7, 12)} | more


def pairs(scale=1, target=normal(6, 5)):
    return {"x": normal(6, 5, scale=scale), "target": target}


IGNORED = given([3, 5, 2, -100, 5, 2, 3, 6, -100, 2, 2, 5], numpy.int32)
WEIGHTS = given([1, 0.5, 2, 0, 1, 3, 0.25, 1, 1, 0.5, 1, 0.5])

CASES = [
    *[
        Case(f"cross_entropy/smoothing{s}", "cross_entropy", labelled(3), MEAN | {"label_smoothing": s})
        for s in (0.0, 0.1)
    ],
    Case(
        "cross_entropy/sample_weights",
        "cross_entropy",
        labelled(1, weights=WEIGHTS),
        {"reduction": "weighted mean: sum(w*l)/sum(w)"},
    ),
    Case(
        "cross_entropy/ignore_index",
        "cross_entropy",
        labelled(1, labels=IGNORED),
        MEAN | {"ignore_index": -100},
    ),
    Case("mse", "mse", pairs(), MEAN),
    Case("l1", "l1", pairs(), MEAN),
    Case("huber", "huber", pairs(2), MEAN | {"delta": 1.0}),
    Case(
        "bce_with_logits",
        "bce_with_logits",
        pairs(4, lambda g: g.integers(0, 2, (6, 5)).astype(numpy.float32)),
        MEAN,
    ),
]
