"""Losses: the mean, or the weighted mean, over the whole batch."""

import numpy
import torch
import torch.nn.functional as F

from .case import Case, below, computes, given, normal, positive

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


@computes("kl_divergence", constants=("target",))
def kl_divergence(x, target, *, log_probabilities):
    return F.kl_div(x if log_probabilities else x.log_softmax(-1), target, reduction="batchmean")


@computes("poisson_nll", constants=("target",))
def poisson_nll(x, target, *, log_input, full, eps=1e-8):
    return F.poisson_nll_loss(x, target, log_input=log_input, full=full, eps=eps)


@computes("hinge", constants=("target",))
def hinge(x, target, *, margin=1.0, squared=False):
    missing = (margin - x * target).clamp(min=0)
    return (missing.square() if squared else missing).mean()


@computes("multi_margin")
def multi_margin(logits, labels, *, margin=1.0, p=1):
    return F.multi_margin_loss(logits, labels, p=p, margin=margin)


@computes("binary_focal", constants=("target",))
def binary_focal(x, target, *, gamma, alpha=None):
    p = x.sigmoid()
    wrong = p * (1 - target) + (1 - p) * target
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none") * wrong**gamma
    return loss.mean() if alpha is None else (loss * (alpha * target + (1 - alpha) * (1 - target))).mean()


@computes("dice", constants=("target",))
def dice(x, target, *, smooth, probabilities):
    p, axes = x if probabilities else x.sigmoid(), tuple(range(1, x.ndim))
    common, size = (p * target).sum(axes), p.sum(axes) + target.sum(axes)
    return (1 - (2 * common + smooth) / (size + smooth)).mean()


@computes("log_cosh", constants=("target",))
def log_cosh(x, target):
    return (x - target).cosh().log().mean()


@computes("cosine_distance", constants=("target",))
def cosine_distance(x, target):
    x, target = x.flatten(0, -2), target.flatten(0, -2)
    return F.cosine_embedding_loss(x, target, torch.ones(len(x)))


@computes("cosine_embedding", constants=("target",))
def cosine_embedding(x, target, *, margin):
    return F.cosine_embedding_loss(x[:, 0], x[:, 1], target, margin=margin)


@computes("contrastive", constants=("target",))
def contrastive(x, target, *, margin):
    distance = F.pairwise_distance(x[:, 0], x[:, 1])
    apart = (margin - distance).clamp(min=0)
    return ((target * distance.square() + (1 - target) * apart.square()) / 2).mean()


@computes("triplet_margin", constants=("target",))
def triplet_margin(x, target, *, margin):
    return F.triplet_margin_loss(x[:, 0], x[:, 1], x[:, 2], margin=margin)


@computes("nt_xent", constants=("target",))
def nt_xent(x, target, *, temperature):
    z = F.normalize(torch.cat([x[:, 0], x[:, 1]]), dim=-1)
    rows = len(x)
    likeness = (z @ z.T / temperature).masked_fill(torch.eye(2 * rows, dtype=torch.bool), -torch.inf)
    return F.cross_entropy(likeness, torch.arange(2 * rows).roll(rows))


@computes("in_batch_softmax", constants=("target",))
def in_batch_softmax(x, target, *, temperature):
    a, b = F.normalize(x[:, 0], dim=-1), F.normalize(x[:, 1], dim=-1)
    logits, own = a @ b.T / temperature, torch.arange(len(x))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


@computes("barlow_twins", constants=("target",))
def barlow_twins(x, target, *, off_diagonal):
    a, b = (F.batch_norm(view, None, None, training=True) for view in (x[:, 0], x[:, 1]))
    c = a.T @ b / len(x)
    diagonal = torch.diagonal(c)
    return (diagonal - 1).square().sum() + off_diagonal * (c.square().sum() - diagonal.square().sum())


@computes("triplet_hard")
def triplet_hard(x, labels, *, margin):
    far = (x[:, None] - x[None] + 1e-6).norm(dim=-1)
    same = labels[:, None] == labels[None]
    itself = torch.eye(len(x), dtype=torch.bool)
    positive = far.masked_fill(~same | itself, -torch.inf).amax(1)
    negative = far.masked_fill(same, torch.inf).amin(1)
    return (positive - negative + margin).clamp(min=0).mean()


@computes("ctc")
def ctc(logits, labels):
    steps, lengths = logits.shape[1], (labels > 0).sum(1)
    logs = logits.log_softmax(-1).transpose(0, 1)
    each = F.ctc_loss(logs, labels.clamp(min=0), torch.full_like(lengths, steps), lengths, reduction="none")
    return each.mean()


def labelled(scale, **more):
    return {"logits": normal(12, 7, scale=scale), "labels": below(7, 12)} | more


def pairs(scale=1, target=normal(6, 5)):
    return {"x": normal(6, 5, scale=scale), "target": target}


def drawn(low, high, *shape):
    """Draws whole numbers from `low` to `high` inclusively, as f32."""
    return lambda g: g.integers(low, high + 1, shape).astype(numpy.float32)


def sign(*shape):
    return lambda g: (2 * g.integers(0, 2, shape) - 1).astype(numpy.float32)


def distributions(*shape, none=0.0):
    """Draws probabilities that add up to 1 along the last axis, in which a share `none` is 0."""

    def draw(g):
        p = g.random(shape) * (g.random(shape) >= none) + 1e-3 * numpy.eye(*shape[-2:])
        return (p / p.sum(-1, keepdims=True)).astype(numpy.float32)

    return draw


def log_distributions(*shape):
    return lambda g: numpy.log(distributions(*shape)(g) + 1e-3).astype(numpy.float32)


def ctc_labels(g):
    """Draws rows of 20, 13 and 1 labels, padded with -1."""
    labels = g.integers(1, 7, (3, 20)).astype(numpy.int32)
    for row, length in enumerate([20, 13, 1]):
        labels[row, length:] = -1
    return labels


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
    Case(
        "kl_divergence/logits",
        "kl_divergence",
        pairs(2, distributions(6, 5, none=0.3)),
        {"log_probabilities": False},
    ),
    Case(
        "kl_divergence/log_probabilities",
        "kl_divergence",
        {"x": log_distributions(6, 5), "target": distributions(6, 5, none=0.3)},
        {"log_probabilities": True},
    ),
    *[
        Case(
            f"poisson_nll/{name}",
            "poisson_nll",
            {"x": normal(6, 5) if log else positive(6, 5), "target": drawn(0, 5, 6, 5)},
            MEAN | {"log_input": log, "full": full},
        )
        for name, log, full in [("log", True, False), ("rate", False, False), ("full", True, True)]
    ],
    Case("hinge/plain", "hinge", pairs(1, sign(6, 5)), MEAN),
    Case("hinge/squared", "hinge", pairs(1, sign(6, 5)), MEAN | {"margin": 0.5, "squared": True}),
    Case("multi_margin/plain", "multi_margin", labelled(1), MEAN),
    Case("multi_margin/squared", "multi_margin", labelled(1), MEAN | {"margin": 0.7, "p": 2}),
    *[
        Case(f"binary_focal/{name}", "binary_focal", pairs(3, target), MEAN | attrs)
        for name, target, attrs in [
            ("plain", drawn(0, 1, 6, 5), {"gamma": 2.0, "alpha": 0.25}),
            ("soft", lambda g: g.random((6, 5)).astype(numpy.float32), {"gamma": 1.5}),
            ("gamma0", drawn(0, 1, 6, 5), {"gamma": 0.0, "alpha": 0.7}),
        ]
    ],
    Case(
        "dice/logits",
        "dice",
        {"x": normal(5, 2, 4, 3, scale=2), "target": drawn(0, 1, 5, 2, 4, 3)},
        {"smooth": 1.0, "probabilities": False, "reduction": "mean over samples"},
    ),
    Case(
        "dice/probabilities",
        "dice",
        {"x": distributions(6, 5), "target": drawn(0, 1, 6, 5)},
        {"smooth": 0.1, "probabilities": True, "reduction": "mean over samples"},
    ),
    Case("log_cosh", "log_cosh", pairs(3), MEAN),
    Case("cosine_distance", "cosine_distance", pairs(), MEAN),
    *[
        Case(
            f"{op}/{margin}",
            op,
            {"x": normal(9, vectors, 4), "target": target},
            MEAN | {"margin": margin},
        )
        for op, vectors, target, margins in [
            ("cosine_embedding", 2, sign(9), (0.0, 0.3)),
            ("contrastive", 2, drawn(0, 1, 9), (1.0, 4.0)),
            ("triplet_margin", 3, normal(9), (0.2, 2.0)),
        ]
        for margin in margins
    ],
    *[
        Case(name, name, {"x": normal(8, 2, 5), "target": normal(8)}, MEAN | settings, tolerance=2e-5)
        for name, settings in [
            ("nt_xent", {"temperature": 0.5}),
            ("in_batch_softmax", {"temperature": 0.2}),
            ("barlow_twins", {"off_diagonal": 0.05}),
        ]
    ],
    Case(
        "triplet_hard",
        "triplet_hard",
        {"x": normal(8, 5), "labels": given([0, 1, 0, 2, 1, 2, 0, 1], numpy.int32)},
        MEAN | {"margin": 1.0},
        tolerance=2e-5,
    ),
    Case(
        "ctc/short",
        "ctc",
        {"logits": normal(4, 6, 5), "labels": given([[1, 2, 4], [3, 3, -1], [2, 0, 0], [0, 0, 0]], numpy.int32)},
        MEAN,
    ),
    Case("ctc/long", "ctc", {"logits": normal(3, 60, 7, scale=2), "labels": ctc_labels}, MEAN, tolerance=2e-5),
]
