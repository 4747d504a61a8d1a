"""Single ops, applied as functions of tensors."""

import torch
import torch.nn.functional as F

from .case import Case, below, computes, given, normal, positive

ELEMENTWISE = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "softplus": F.softplus,
    "elu": F.elu,
    "square": torch.square,
    "abs": torch.abs,
    "neg": torch.neg,
    "sin": torch.sin,
    "cos": torch.cos,
    "relu6": F.relu6,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "mish": F.mish,
    "selu": F.selu,
}
# These are defined for positive numbers only, or grow without bound near 0.
ELEMENTWISE_POSITIVE = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "div": torch.div,
}
REDUCTIONS = {"reduce_sum": torch.sum, "reduce_mean": torch.mean, "reduce_max": torch.amax}
# These are flat almost everywhere.
STEPS = {"floor": torch.floor, "round": torch.round}


def _unary(f):
    return lambda x: f(x)


def _binary(f):
    return lambda a, b: f(a, b)


def _reduction(f):
    return lambda x, *, axes, keep_dims: f(x, dim=tuple(axes), keepdim=keep_dims)


for op, f in (ELEMENTWISE | ELEMENTWISE_POSITIVE).items():
    computes(op)(_unary(f))
for op, f in BINARY.items():
    computes(op)(_binary(f))
for op, f in REDUCTIONS.items():
    computes(op)(_reduction(f))


@computes("leaky_relu")
def leaky_relu(x, *, slope):
    return F.leaky_relu(x, slope)


@computes("pow")
def power(x, *, exponent):
    return x**exponent


for op, f in STEPS.items():
    computes(op)(_unary(f))


@computes("clamp")
def clamp(x, *, low, high):
    return x.clamp(low, high)


def parts(y):
    return {"re": y.real, "im": y.imag}


@computes("rfft")
def rfft(x):
    return parts(torch.fft.rfft(x))


@computes("fft", "ifft")
def fft(a, b, *, inverse):
    return parts((torch.fft.ifft if inverse else torch.fft.fft)(torch.complex(a, b)))


@computes("irfft")
def irfft(a, b, *, n):
    return torch.fft.irfft(torch.complex(a, b), n)


@computes("stft")
def stft(x, window, *, hop):
    length = window.shape[-1]
    y = torch.stft(x, length, hop, window=window, center=False, onesided=True, return_complex=True)
    return parts(y.mT)


@computes("cumulative_sum")
def cumulative_sum(x, *, axis):
    return x.cumsum(axis)


@computes("reduce_min")
def reduce_min(x, *, axes, keep_dims):
    return x.amin(axes, keepdim=keep_dims)


@computes("argmin")
def argmin(x, *, axis):
    return x.argmin(axis)


@computes("gather")
def gather(x, index):
    return x.gather(-1, index)


@computes("topk")
def topk(x, *, k):
    # A stable order, so that the first of equal elements comes first, which torch.topk does not promise.
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return {"values": values[..., :k], "indices": indices[..., :k].to(x.dtype)}


@computes("einsum")
def einsum(a, b=None, c=None, *, equation, batched):
    return torch.einsum(equation, *[x for x in (a, b, c) if x is not None])


@computes("argmax")
def argmax(x, *, axis):
    return x.argmax(axis)


@computes("matmul")
def matmul(a, b):
    return a @ b


@computes("transpose")
def transpose(x, *, perm):
    return x.permute(perm)


@computes("concat")
def concat(a, b, *, axis):
    return torch.cat([a, b], axis)


@computes("slice")
def slice_of(x, *, axis, start, end):
    return x.narrow(axis, start, end - start)


@computes("pad")
def pad(x, *, before, after):
    pairs = list(zip(before, after))
    return F.pad(x, [n for pair in reversed(pairs) for n in pair])


@computes("broadcast_to")
def broadcast_to(x, *, shape):
    return x.broadcast_to(shape)


@computes("embedding")
def embedding(weight, ids):
    return F.embedding(ids, weight)


@computes("softmax")
def softmax(x, *, axis):
    return x.softmax(axis)


@computes("log_softmax")
def log_softmax(x, *, axis):
    return x.log_softmax(axis)

# equation, operands, those with samples
EINSUM = [
    ("bij,bjk->bik", [(4, 3, 5), (4, 5, 6)], "ab"),
    ("bhqd,bhkd->bhqk", [(3, 2, 5, 4), (3, 2, 6, 4)], "ab"),
    ("bqhd,bkhd->bhqk", [(3, 5, 2, 4), (3, 6, 2, 4)], "ab"),
    ("bi,oi->bo", [(5, 4), (3, 4)], "a"),
    ("oi,bi->bo", [(3, 4), (5, 4)], "b"),
    ("bhi,hio->bho", [(4, 2, 3), (2, 3, 5)], "a"),
    ("bi,bj->bij", [(4, 3), (4, 5)], "ab"),
    ("bi,bi->b", [(4, 7), (4, 7)], "ab"),
    ("bij,bi->bij", [(4, 3, 2), (4, 3)], "ab"),
    ("bi,oij,bj->bo", [(4, 3), (5, 3, 2), (4, 2)], "ac"),
    ("bij->bji", [(4, 3, 2)], "a"),
    ("bij->b", [(4, 3, 2)], "a"),
    ("bii->bi", [(4, 3, 3)], "a"),
    ("ii->", [(5, 5)], ""),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)], ""),
    ("ijk,kjl->il", [(3, 4, 5), (5, 4, 2)], ""),
    ("ij,kj->j", [(3, 4), (5, 4)], ""),
]

CASES = [
    *[Case(f"unary/{op}", op, {"x": normal(4, 9, scale=2)}) for op in ELEMENTWISE],
    Case("unary/leaky_relu", "leaky_relu", {"x": normal(4, 9)}, {"slope": 0.01}),
    *[Case(f"unary/{op}", op, {"x": positive(4, 9)}) for op in ELEMENTWISE_POSITIVE],
    Case("unary/tanh_large", "tanh", {"x": given([-100, -30, -9, 0, 9, 30, 100])}),
    Case("unary/sigmoid_large", "sigmoid", {"x": given([-80, -30, -9, 0, 9, 30, 80])}),
    *[
        Case(
            f"binary/{op}/{i}",
            op,
            {"a": normal(*a), "b": positive(*b, least=0.4) if op == "div" else normal(*b)},
        )
        for op in BINARY
        for i, (a, b) in enumerate([((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((2, 3, 1), (3, 5))])
    ],
    Case("binary/pow", "pow", {"x": normal(4, 9)}, {"exponent": 3.0}),
    *[
        Case(
            f"reduce/{op.removeprefix('reduce_')}/{'_'.join(map(str, axes))}/{'keep' if keep else 'drop'}",
            op,
            {"x": normal(4, 6, 5)},
            {"axes": axes, "keep_dims": keep},
        )
        for op in REDUCTIONS
        for axes in ([0], [1], [2], [0, 2], [0, 1, 2])
        for keep in (False, True)
    ],
    Case("reduce/sum_long", "reduce_sum", {"x": normal(2, 200003)}, {"axes": [1], "keep_dims": False}),
    Case(
        "matmul/long_k",
        "matmul",
        {"a": normal(2, 70001), "b": normal(70001, 3)},
        {"why": "an inner size beyond one invocation's loop budget on llvmpipe"},
    ),
    Case("reduce/argmax", "argmax", {"x": normal(6, 11)}, {"axis": 1}),
    *[
        Case(f"matmul/{m}x{k}x{n}", "matmul", {"a": normal(m, k), "b": normal(k, n)})
        for m, k, n in [(4, 5, 6), (64, 64, 64), (33, 65, 17), (1, 7, 128), (128, 300, 10)]
    ],
    *[
        Case(f"matmul/batched{i}", "matmul", {"a": normal(*a), "b": normal(*b)})
        for i, (a, b) in enumerate(
            [((3, 4, 5), (3, 5, 6)), ((2, 3, 4, 5), (2, 3, 5, 7)), ((2, 3, 4), (4, 5))]
        )
    ],
    Case("shape/transpose", "transpose", {"x": normal(4, 6, 5)}, {"perm": [1, 0, 2]}),
    Case("shape/concat", "concat", {"a": normal(2, 3, 4), "b": normal(2, 5, 4)}, {"axis": 1}),
    Case("shape/slice", "slice", {"x": normal(3, 7, 2)}, {"axis": 1, "start": 2, "end": 5}),
    Case("shape/pad2d", "pad", {"x": normal(2, 3, 4, 5)}, {"before": [0, 0, 1, 2], "after": [0, 0, 3, 0]}),
    Case("shape/broadcast", "broadcast_to", {"x": normal(4, 1)}, {"shape": [3, 4, 5]}),
    Case("gather/embedding", "embedding", {"weight": normal(5, 4), "ids": below(5, 2, 3)}),
    Case("gather/embedding_repeats", "embedding", {"weight": normal(50, 16), "ids": below(50, 8, 40)}),
    Case("softmax/-1", "softmax", {"x": normal(4, 6, 9, scale=3)}, {"axis": -1}),
    Case("softmax/1", "softmax", {"x": normal(4, 6, 9, scale=3)}, {"axis": 1}),
    Case("softmax/log", "log_softmax", {"x": normal(7, 33, scale=9)}, {"axis": -1}),
    Case("softmax/huge", "softmax", {"x": given([[1000, 999, -1000], [-1e30, 0, 1]])}, {"axis": -1}),
    *[Case(f"unary/{op}", op, {"x": normal(4, 9, scale=3)}) for op in STEPS],
    Case("unary/round_halves", "round", {"x": given([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])}),
    Case("unary/clamp", "clamp", {"x": normal(4, 9)}, {"low": -0.5, "high": 0.8}),
    *[
        Case(f"cumulative_sum/{n}_{axis}", "cumulative_sum", {"x": normal(3, n, 4)}, {"axis": axis})
        for n, axis in [(1, 1), (7, 1), (7, -1), (300, 1)]
    ],
    Case("reduce/min/drop", "reduce_min", {"x": normal(4, 6, 5)}, {"axes": [1], "keep_dims": False}),
    Case("reduce/min/keep", "reduce_min", {"x": normal(4, 6, 5)}, {"axes": [1, 2], "keep_dims": True}),
    Case("reduce/argmin", "argmin", {"x": normal(6, 11)}, {"axis": 1}),
    Case("gather/rows", "gather", {"x": normal(5, 7), "index": below(7, 5, 4)}),
    Case("gather/batched", "gather", {"x": normal(3, 2, 6), "index": below(6, 3, 2, 9)}),
    *[Case(f"topk/{k}of{n}", "topk", {"x": normal(4, 3, n)}, {"k": k}) for k, n in [(1, 7), (3, 7), (7, 7), (5, 300)]],
    Case("topk/ties", "topk", {"x": given([[1, 3, 3, 2, 3], [0, 0, 0, 0, 0], [-1, -1, -2, -1, 5]])}, {"k": 4}),
    *[
        Case(
            f"einsum/{i}",
            "einsum",
            {role: normal(*shape) for role, shape in zip("abc", shapes)},
            {"equation": equation, "batched": batched},
        )
        for i, (equation, shapes, batched) in enumerate(EINSUM)
    ],
    *[Case(f"rfft/{n}", "rfft", {"x": normal(3, 2, n)}) for n in (1, 8, 15, 60)],
    *[
        Case(f"{op}/{n}", op, {"a": normal(3, n), "b": normal(3, n)}, {"inverse": op == "ifft"})
        for op in ("fft", "ifft")
        for n in (7, 12)
    ],
    *[
        Case(f"irfft/{n}", "irfft", {"a": normal(3, n // 2 + 1), "b": normal(3, n // 2 + 1)}, {"n": n})
        for n in (9, 16)
    ],
    Case("stft", "stft", {"x": normal(3, 40), "window": normal(16)}, {"hop": 5}),
]
