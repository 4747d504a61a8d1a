"""Random cases of single ops and of metrics."""

import numpy
import torch

from . import ops
from .case import computes
from .models import masked_attention

UNARY = [*ops.ELEMENTWISE, *ops.ELEMENTWISE_POSITIVE, *ops.STEPS, "leaky_relu", "pow", "clamp"]


def unary(r):
    op, shape = r.pick(UNARY), r.dims(1, 4)
    attrs, x = {}, r.values(*shape)
    if op in ops.ELEMENTWISE_POSITIVE:
        x = r.positive(*shape) * numpy.array(r.pick([1, 1, 100, 1e-3]), numpy.float32)
    elif op == "leaky_relu":
        attrs = {"slope": r.number(-0.5, 1.5)}
    elif op == "pow":
        attrs = {"exponent": r.pick([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0, 0.5, 1.5, 2.5, -0.5])}
        x = x if attrs["exponent"] in (0, 1, 2, 3, 4, 5) else r.positive(*shape)
    elif op == "clamp":
        low = r.pick([-1.0, -0.5, 0.0])
        attrs = {"low": low, "high": low + r.pick([0.5, 1.0, 2.0])}
    return op, attrs, {"x": x}


def binary(r):
    op, shape = r.pick(list(ops.BINARY)), r.dims(1, 4)
    other = [1 if r.flag(0.3) else n for n in shape][r.int(0, len(shape)) :]
    a, b = r.values(*shape), r.values(*other)
    if op == "div":
        b = numpy.asarray(r.positive(*other, least=0.3) * r.pick([1, -1]), numpy.float32)
    return op, {}, {"a": a, "b": b}


def reduction(r):
    shape = r.dims(1, 4, 9)
    op = r.pick(["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "argmax", "argmin"])
    if op.startswith("arg"):
        return op, {"axis": r.int(-len(shape), len(shape) - 1)}, {"x": r.values(*shape)}
    axes = sorted(r.g.permutation(len(shape))[: r.int(1, len(shape))].tolist())
    axes = [axis - len(shape) if r.flag(0.3) else axis for axis in axes]
    return op, {"axes": axes, "keep_dims": r.flag()}, {"x": r.values(*shape)}


def along_axis(r):
    shape = r.dims(1, 4, 12)
    op = r.pick(["softmax", "log_softmax", "cumulative_sum"])
    least = 1 if op == "cumulative_sum" and len(shape) > 1 else 0
    return op, {"axis": r.int(least, len(shape) - 1)}, {"x": r.values(*shape)}


def matmul(r):
    m, k, n = (r.pick([1, 2, 3, 5, 8, 17, 33, 64, 65]) for _ in range(3))
    batch = r.dims(0, 2, 4)
    shared = r.flag(0.3)
    return "matmul", {}, {
        "a": r.values(*batch, m, k, plain=True),
        "b": r.values(*([] if shared else batch), k, n, plain=True),
    }


def moved(r):
    shape = r.dims(2, 4)
    rank, x = len(shape), r.values(*shape)
    op = r.pick(["transpose", "concat", "slice", "pad", "broadcast_to"])
    axis = r.int(0, rank - 1)
    if op == "transpose":
        return op, {"perm": r.g.permutation(rank).tolist()}, {"x": x}
    if op == "concat":
        other = [r.int(1, 5) if i == axis else n for i, n in enumerate(shape)]
        return op, {"axis": axis - rank * r.flag()}, {"a": x, "b": r.values(*other)}
    if op == "slice":
        start = r.int(0, shape[axis] - 1)
        return op, {"axis": axis, "start": start, "end": r.int(start + 1, shape[axis])}, {"x": x}
    if op == "pad":
        before, after = ([r.int(0, 3) * r.flag() for _ in shape] for _ in range(2))
        return op, {"before": before, "after": after}, {"x": x}
    kept = [1 if r.flag() else n for n in shape][r.int(0, rank - 1) :]
    return op, {"shape": shape}, {"x": r.values(*kept)}


def looked_up(r):
    op = r.pick(["gather", "embedding", "topk"])
    shape = r.dims(2, 3)
    if op == "gather":
        wide = [*shape[:-1], r.int(1, 9)]
        return op, {}, {"x": r.values(*shape), "index": r.below(shape[-1], *wide)}
    if op == "embedding":
        rows = r.int(1, 40)
        return op, {}, {"weight": r.values(rows, r.int(1, 20)), "ids": r.below(rows, *shape)}
    width = r.int(1, 30)
    return op, {"k": r.int(1, width)}, {"x": r.values(*shape[:-1], width)}


def einsum(r):
    """Draws a batch letter, if there is one, and up to four letters for each operand."""
    sizes = {letter: r.int(1, 5) for letter in "bijkl"}
    count, with_batch = r.int(1, 3), r.flag(0.7)
    operands, batched = [], ""
    for role in "abc"[:count]:
        own = [r.pick("ijkl") for _ in range(r.int(1, 3))] if r.flag(0.2) else r.g.permutation(list("ijkl"))[: r.int(1, 4)]
        lead = with_batch and (r.flag(0.8) or role == "abc"[count - 1] and not batched)
        batched += role * lead
        operands.append("b" * lead + "".join(own))
    there = sorted(set("".join(operands)) - {"b"})
    result = "b" * bool(batched) + "".join(r.g.permutation(there)[: r.int(0, len(there))])
    inputs = {role: r.values(*[sizes[c] for c in own], plain=True) for role, own in zip("abc", operands)}
    return "einsum", {"equation": ",".join(operands) + "->" + result, "batched": batched}, inputs


@computes("masked_attention", constants=("mask",))
def attention_of(q, k, v, mask=None, *, causal):
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    seen = (seen.tril() if causal else seen).expand(1, 1, -1, -1)
    return masked_attention(q, k, v, seen if mask is None else seen & (mask != 0))


def attention(r):
    batch, heads, queries, keys = r.int(1, 4), r.int(1, 3), r.pick([1, 2, 5, 9, 40]), r.pick([1, 3, 5, 9, 40])
    width, values = (r.pick([1, 2, 4, 7, 16, 33]) for _ in range(2))
    inputs = {
        "q": r.values(batch, heads, queries, width, plain=True),
        "k": r.values(batch, heads, keys, width, plain=True),
        "v": r.values(batch, heads, keys, values, plain=True),
    }
    if r.flag():
        shape = [batch, r.pick([1, heads]), r.pick([1, queries]), r.pick([1, keys])]
        inputs["mask"] = (r.g.random(shape) < 0.7).astype(numpy.float32)
    return "masked_attention", {"causal": r.flag()}, inputs


OPS = [unary, unary, binary, binary, reduction, along_axis, matmul, moved, moved, looked_up, einsum, attention]


def op(r):
    return r.pick(OPS)(r)


def metric(r):
    return r.pick([counted, labelled, area, regression, accuracy, top_k])(r)


def weighted(r, inputs):
    if r.flag(0.4):
        inputs["weights"] = (r.g.integers(1, 9, len(inputs["x"])) / 4).astype(numpy.float32)
    return inputs


def scores(r, *shape):
    return r.values(*shape)


def classified(r, classes, ignored):
    """Draws logits and labels of classes, some of which may not occur."""
    rows, places = r.int(2, 40), r.pick([[], [], [3]])
    target = r.below(max(1, classes - r.int(0, 1)), rows, *places)
    if ignored is not None:
        target = numpy.where(r.g.random(target.shape) < 0.25, ignored, target).astype(numpy.int32)
    return {"x": scores(r, rows, *places, classes), "target": target}


def counted(r):
    op = r.pick(["precision", "recall", "fbeta", "iou"])
    attrs = {"beta": r.pick([0.5, 1.0, 2.0])} if op == "fbeta" else {}
    if r.flag(0.3):
        shape = r.pick([[r.int(2, 40)], [r.int(2, 40), 1], [r.int(2, 20), 3]])
        attrs |= {"average": "binary"} | r.some(threshold=lambda: r.pick([0.2, 0.5, 0.9]))
        return op, attrs, weighted(r, {"x": scores(r, *shape), "target": r.below(2, *shape)})
    attrs |= {"average": r.pick(["macro", "micro", "weighted"]), "classes": r.int(2, 6)}
    if r.flag(0.3):
        rows = r.int(2, 30)
        target = r.below(2, rows, attrs["classes"])
        attrs |= {"multilabel": True} | r.some(threshold=lambda: r.pick([0.2, 0.9]))
        return op, attrs, weighted(r, {"x": scores(r, rows, attrs["classes"]), "target": target})
    ignored = r.pick([None, None, -100, 0, 1])
    attrs |= {} if ignored is None else {"ignore_index": ignored}
    return op, attrs, weighted(r, classified(r, attrs["classes"], ignored))


def labelled(r):
    op = r.pick(["confusion_matrix", "matthews"])
    if r.flag(0.3):
        rows = r.int(2, 40)
        attrs = r.some(threshold=lambda: r.pick([0.2, 0.5, 0.9]))
        return op, attrs, weighted(r, {"x": scores(r, rows), "target": r.below(2, rows)})
    attrs, ignored = {"classes": r.int(2, 6)}, r.pick([None, None, -100, 1])
    attrs |= {} if ignored is None else {"ignore_index": ignored}
    return op, attrs, weighted(r, classified(r, attrs["classes"], ignored))


def area(r):
    curve, rows = r.pick(["roc", "pr"]), r.int(2, 60)
    if r.flag(0.3):
        classes = r.int(2, 4)
        # Softmax of large logits is 1 in float32, which makes ties.
        inputs = {"x": r.values(rows, classes, plain=True), "target": r.below(classes, rows)}
        return "auc", {"curve": curve, "classes": classes}, weighted(r, inputs)
    shape = r.pick([[rows], [rows, 1], [rows, 3]])
    return "auc", {"curve": curve}, weighted(r, {"x": scores(r, *shape), "target": r.below(2, *shape)})


def regression(r):
    op = r.pick(["mean_squared_error", "mean_absolute_error", "root_mean_squared_error", "r2"])
    shape = [r.int(2, 30), *r.dims(0, 2, 4)]
    return op, {}, weighted(r, {"x": r.values(*shape), "target": r.values(*shape)})


def accuracy(r):
    if r.flag(0.3):
        shape = [r.int(1, 30), *r.dims(0, 1, 4)]
        inputs = {"x": scores(r, *shape), "target": r.below(2, *shape)}
        return "binary_accuracy", {}, inputs if len(shape) > 1 else weighted(r, inputs)
    classes, rows = r.int(2, 9), r.int(1, 30)
    target = r.below(classes, rows) if r.flag(0.7) else numpy.eye(classes, dtype=numpy.float32)[r.below(classes, rows)]
    return "accuracy", {}, weighted(r, {"x": scores(r, rows, classes), "target": target})


def top_k(r):
    if r.flag(0.3):
        classes, ignored = r.int(1, 9), r.pick([None, -1, 0])
        attrs = {} if ignored is None else {"ignore_index": ignored}
        rows = [r.int(1, 9), r.int(1, 5)]
        target = r.below(classes, *rows)
        if ignored == -1:
            target = numpy.where(r.g.random(rows) < 0.3, -1, target).astype(numpy.int32)
        return "perplexity", attrs, {"x": r.values(*rows, classes), "target": target}
    classes, rows = r.int(3, 9), r.int(2, 30)
    return "top_k", {"k": r.int(1, classes - 1)}, weighted(r, {"x": scores(r, rows, classes), "target": r.below(classes, rows)})
