"""What layers compute, as functions of tensors and weights. Layouts are PyTorch's."""

import torch
import torch.nn.functional as F
from torch import nn

from . import more_layers
from .case import Case, computes, normal, positive


@computes("conv2d")
def conv2d(x, w, b, *, stride, padding, dilation, groups):
    return F.conv2d(x, w, b, stride, padding, dilation, groups)


@computes("conv_transpose2d")
def conv_transpose2d(x, w, b, *, stride, padding, output_padding, dilation, groups):
    return F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)


@computes("conv_transpose1d")
def conv_transpose1d(x, w, b, *, stride, padding, output_padding, dilation, groups):
    return F.conv_transpose1d(x, w, b, stride, padding, output_padding, groups, dilation)


@computes("max_pool2d")
def max_pool2d(x, *, kernel, stride, padding):
    return F.max_pool2d(x, kernel, stride, padding)


@computes("avg_pool2d")
def avg_pool2d(x, *, kernel, stride, padding, count_include_pad):
    return F.avg_pool2d(x, kernel, stride, padding, count_include_pad=count_include_pad)


@computes("global_avg_pool2d")
def global_avg_pool2d(x):
    return x.mean((-2, -1))


@computes("linear")
def linear(x, w, b):
    return F.linear(x, w, b)


@computes("batch_norm", constants=("rm", "rv"))
def batch_norm(x, w, b, rm, rv, *, training, eps, momentum=0.0):
    y = F.batch_norm(x, rm, rv, w, b, training, momentum, eps)
    # PyTorch has written the new running statistics into those that it was given.
    return {"y": y, "running_mean": rm, "running_var": rv} if training else y


@computes("layer_norm")
def layer_norm(x, w, b, *, normalized_shape, eps):
    return F.layer_norm(x, normalized_shape, w, b, eps)


@computes("rms_norm")
def rms_norm(x, w, *, normalized_shape, eps):
    return F.rms_norm(x, normalized_shape, w, eps)


@computes("group_norm")
def group_norm(x, w, b, *, groups, eps):
    return F.group_norm(x, groups, w, b, eps)


def recurrent(layer, x, weights, state):
    """Runs one layer of `nn.LSTM` or `nn.GRU` with these weights from this state: [batch, hidden] each."""
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    state = tuple(s[None] for s in state)
    state = state if len(state) > 1 else state[0]
    return torch.func.functional_call(layer, dict(zip(names, weights)), (x, state))


@computes("lstm")
def lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0, *, batch_first):
    layer = nn.LSTM(x.shape[-1], h0.shape[-1], batch_first=batch_first)
    y, (hn, cn) = recurrent(layer, x, [w_ih, w_hh, b_ih, b_hh], [h0, c0])
    return {"y": y, "hn": hn[0], "cn": cn[0]}


@computes("gru")
def gru(x, w_ih, w_hh, b_ih, b_hh, h0, *, batch_first):
    layer = nn.GRU(x.shape[-1], h0.shape[-1], batch_first=batch_first)
    y, hn = recurrent(layer, x, [w_ih, w_hh, b_ih, b_hh], [h0])
    return {"y": y, "hn": hn[0]}


@computes("rnn")
def rnn(x, w_ih, w_hh, b_ih, b_hh, h0, *, batch_first):
    layer = nn.RNN(x.shape[-1], h0.shape[-1], batch_first=batch_first)
    y, hn = recurrent(layer, x, [w_ih, w_hh, b_ih, b_hh], [h0])
    return {"y": y, "hn": hn[0]}


@computes("scaled_dot_product_attention")
def attention(q, k, v, *, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@computes("grouped_query_attention")
def grouped_query_attention(q, k, v, *, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


@computes("rotary")
def rotary(x, *, base):
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
    # Each pair is a complex number, which a product with e^(i angle) rotates.
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


@computes("conv1d")
def conv1d(x, w, b, *, stride, padding, dilation, groups):
    return F.conv1d(x, w, b, stride, padding, dilation, groups)


@computes("separable_conv2d")
def separable_conv2d(x, depthwise, pointwise, b, *, stride, padding):
    inner = F.conv2d(x, depthwise, None, stride, padding, groups=x.shape[1])
    return F.conv2d(inner, pointwise, b)


@computes("max_pool1d")
def max_pool1d(x, *, kernel, stride, padding):
    return F.max_pool1d(x, kernel, stride, padding)


@computes("avg_pool1d")
def avg_pool1d(x, *, kernel, stride, padding, count_include_pad):
    return F.avg_pool1d(x, kernel, stride, padding, count_include_pad=count_include_pad)


@computes("global_max_pool2d")
def global_max_pool2d(x):
    return F.adaptive_max_pool2d(x, 1).flatten(1)


@computes("global_avg_pool1d")
def global_avg_pool1d(x):
    return F.adaptive_avg_pool1d(x, 1).flatten(1)


@computes("global_max_pool1d")
def global_max_pool1d(x):
    return F.adaptive_max_pool1d(x, 1).flatten(1)


@computes("adaptive_avg_pool2d")
def adaptive_avg_pool2d(x, *, size):
    return F.adaptive_avg_pool2d(x, size)


@computes("adaptive_max_pool2d")
def adaptive_max_pool2d(x, *, size):
    return F.adaptive_max_pool2d(x, size)


@computes("adaptive_avg_pool1d")
def adaptive_avg_pool1d(x, *, size):
    return F.adaptive_avg_pool1d(x, size)


@computes("adaptive_max_pool1d")
def adaptive_max_pool1d(x, *, size):
    return F.adaptive_max_pool1d(x, size)


@computes("upsample")
def upsample(x, *, factor, mode):
    return F.interpolate(x, scale_factor=factor, mode=mode)


@computes("resize2d")
def resize2d(x, *, size, mode, align_corners):
    corners = {} if mode == "nearest" else {"align_corners": align_corners}
    return F.interpolate(x, size=size, mode=mode, **corners)


@computes("layer_scale")
def layer_scale(x, w):
    return x * w


@computes("squeeze_excite")
def squeeze_excite(x, w1, b1, w2, b2):
    scale = F.conv2d(F.relu(F.conv2d(F.adaptive_avg_pool2d(x, 1), w1, b1)), w2, b2)
    return x * scale.sigmoid()


@computes("border")
def border(x, *, rows, columns):
    return F.pad(x, [*columns, *rows])


@computes("prelu")
def prelu(x, w):
    return F.prelu(x, w)


@computes("instance_norm")
def instance_norm(x, w=None, b=None, *, eps):
    return F.instance_norm(x, weight=w, bias=b, eps=eps)


@computes("depthwise_conv2d")
def depthwise_conv2d(x, w, b, *, stride, padding, dilation):
    return F.conv2d(x, w, b, stride, padding, dilation, groups=x.shape[1])


@computes("causal_conv1d")
def causal_conv1d(x, w, b, *, stride, dilation):
    return F.conv1d(F.pad(x, [dilation * (w.shape[-1] - 1), 0]), w, b, stride, 0, dilation)


@computes("hard_tanh")
def hard_tanh(x, *, low, high):
    return F.hardtanh(x, low, high)


@computes("multi_head_attention")
def multi_head_attention(x, w, b, out_w, out_b, *, heads, causal):
    layer = nn.MultiheadAttention(x.shape[-1], heads, batch_first=True)
    weights = {"in_proj_weight": w, "in_proj_bias": b, "out_proj.weight": out_w, "out_proj.bias": out_b}
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if causal else None
    return torch.func.functional_call(layer, weights, (x, x, x), {"attn_mask": mask, "need_weights": False})[0]


# The roles of a block's weights, with PyTorch's names for them.
BLOCK = {
    "norm1_w": "norm1.weight",
    "norm1_b": "norm1.bias",
    "w": "self_attn.in_proj_weight",
    "b": "self_attn.in_proj_bias",
    "out_w": "self_attn.out_proj.weight",
    "out_b": "self_attn.out_proj.bias",
    "norm2_w": "norm2.weight",
    "norm2_b": "norm2.bias",
    "inner_w": "linear1.weight",
    "inner_b": "linear1.bias",
    "outer_w": "linear2.weight",
    "outer_b": "linear2.bias",
}


@computes("transformer_block")
def transformer_block(
    x, norm1_w, norm1_b, w, b, out_w, out_b, norm2_w, norm2_b, inner_w, inner_b, outer_w, outer_b, *, heads
):
    own = locals()
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(x.shape[-1], heads, len(inner_b), **settings)
    return torch.func.functional_call(layer, {name: own[role] for role, name in BLOCK.items()}, (x,))


# x, w, stride, padding, dilation, groups
CONV = [
    ((2, 3, 8, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    ((2, 3, 9, 7), (5, 3, 3, 3), [2, 2], [0, 0], [1, 1], 1),
    ((1, 4, 6, 6), (6, 4, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    ((2, 4, 7, 7), (8, 2, 5, 3), [1, 2], [2, 1], [1, 1], 2),
    ((2, 6, 8, 8), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], 6),
    ((2, 2, 9, 9), (3, 2, 3, 3), [1, 1], [2, 2], [2, 2], 1),
    ((8, 16, 14, 14), (32, 16, 3, 3), [1, 1], [1, 1], [1, 1], 1),
]
# w, stride, padding, output_padding, groups
CONV_TRANSPOSE = [
    ((4, 6, 3, 3), [2, 2], [0, 0], [0, 0], 1),
    ((4, 3, 3, 3), [2, 2], [1, 1], [1, 1], 2),
]
POOL = [([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1])]
TRAINING = {"training": True, "momentum": 0.1, "eps": 1e-5}
UNBIASED = {"running_var": "unbiased, as PyTorch updates it"}


def affine(n, *names):
    return {name: normal(n) for name in names}


def statistics(n):
    return {"rm": normal(n), "rv": positive(n, least=0.5)}


def gates(rows, inputs, hidden, *states):
    weights = {"w_ih": normal(rows, inputs, scale=0.4), "w_hh": normal(rows, hidden, scale=0.4)}
    biases = {"b_ih": normal(rows, scale=0.2), "b_hh": normal(rows, scale=0.2)}
    return {"x": normal(4, 5, inputs)} | weights | biases | {s: normal(4, hidden, scale=0.5) for s in states}


def projections(width):
    into = {"w": normal(3 * width, width, scale=0.4), "b": normal(3 * width, scale=0.2)}
    return into | {"out_w": normal(width, width, scale=0.4), "out_b": normal(width, scale=0.2)}


def queries(*shape):
    return {role: normal(*shape) for role in "qkv"}


CASES = [
    *[
        Case(
            f"conv2d/{i}",
            "conv2d",
            {"x": normal(*x), "w": normal(*w, scale=0.3), "b": normal(w[0])},
            {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
        )
        for i, (x, w, stride, padding, dilation, groups) in enumerate(CONV)
    ],
    *[
        Case(
            f"conv_transpose2d/{i}",
            "conv_transpose2d",
            {"x": normal(2, 4, 5, 6), "w": normal(*w, scale=0.3), "b": normal(w[1] * groups)},
            {
                "stride": stride,
                "padding": padding,
                "output_padding": extra,
                "dilation": [1, 1],
                "groups": groups,
                "weight_layout": "[in, out/groups, kh, kw]",
            },
        )
        for i, (w, stride, padding, extra, groups) in enumerate(CONV_TRANSPOSE)
    ],
    *[
        Case(
            f"{op}/{i}",
            op,
            {"x": normal(2, 3, 9, 8)},
            {"kernel": kernel, "stride": stride, "padding": padding} | more,
        )
        for i, (kernel, stride, padding) in enumerate(POOL)
        for op, more in (("max_pool2d", {}), ("avg_pool2d", {"count_include_pad": False}))
    ],
    Case("global_avg_pool2d", "global_avg_pool2d", {"x": normal(3, 5, 6, 7)}),
    Case(
        "linear",
        "linear",
        {"x": normal(9, 13), "w": normal(11, 13), "b": normal(11)},
        {"weight_layout": "[out, in]"},
    ),
    *[
        case
        for shape in ((8, 4), (3, 4, 5, 5), (32, 3, 2, 2))
        for name, n in [("x".join(map(str, shape)), shape[1])]
        for case in (
            Case(
                f"batch_norm/train{name}",
                "batch_norm",
                {"x": normal(*shape, scale=2, shift=0.9)} | affine(n, "w", "b") | statistics(n),
                TRAINING | UNBIASED,
                tolerance=2e-5,
            ),
            Case(
                f"batch_norm/eval{name}",
                "batch_norm",
                {"x": normal(*shape)} | affine(n, "w", "b") | statistics(n),
                {"training": False, "eps": 1e-5},
            ),
        )
    ],
    Case(
        "batch_norm/offset1000",
        "batch_norm",
        {"x": normal(64, 3, shift=1000)} | affine(3, "w", "b") | statistics(3),
        TRAINING | {"why": "a large mean must not cancel the variance away"},
        tolerance=5e-3,
    ),
    Case(
        "layer_norm",
        "layer_norm",
        {"x": normal(3, 4, 12)} | affine(12, "w", "b"),
        {"normalized_shape": [12], "eps": 1e-5},
        tolerance=2e-5,
    ),
    Case(
        "rms_norm",
        "rms_norm",
        {"x": normal(3, 4, 12)} | affine(12, "w"),
        {"normalized_shape": [12], "eps": 1e-5},
        tolerance=2e-5,
    ),
    Case(
        "group_norm",
        "group_norm",
        {"x": normal(2, 6, 4, 5)} | affine(6, "w", "b"),
        {"groups": 3, "eps": 1e-5},
        tolerance=2e-5,
    ),
    Case(
        "lstm",
        "lstm",
        gates(32, 3, 8, "h0", "c0"),
        {"batch_first": True, "gate_order": "i,f,g,o"},
        tolerance=2e-5,
    ),
    Case(
        "gru",
        "gru",
        gates(24, 3, 8, "h0"),
        {"batch_first": True, "gate_order": "r,z,n (PyTorch's: n uses r*(W_hn h + b_hn))"},
        tolerance=2e-5,
    ),
    *[
        Case(f"attention/{name}", "scaled_dot_product_attention", queries(*shape), attrs, tolerance=2e-5)
        for name, shape, attrs in [
            ("full", (2, 3, 6, 8), {"causal": False}),
            ("causal", (2, 3, 6, 8), {"causal": True}),
            (
                "long_causal",
                (1, 2, 2048, 16),
                {"causal": True, "why": "the whole score matrix must not be held"},
            ),
        ]
    ],
    *[
        Case(
            f"conv1d/{i}",
            "conv1d",
            {"x": normal(*x), "w": normal(*w, scale=0.3), "b": normal(w[0])},
            {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
        )
        for i, (x, w, stride, padding, dilation, groups) in enumerate(
            [
                ((3, 3, 12), (5, 3, 3), 1, 1, 1, 1),
                ((2, 4, 17), (6, 2, 4), 3, 2, 2, 2),
                ((3, 6, 9), (6, 1, 3), 1, 0, 1, 6),
            ]
        )
    ],
    Case(
        "depthwise_conv2d",
        "conv2d",
        {"x": normal(2, 3, 7, 8), "w": normal(6, 1, 3, 3, scale=0.3), "b": normal(6)},
        {"stride": [2, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 3},
    ),
    Case(
        "separable_conv2d",
        "separable_conv2d",
        {
            "x": normal(2, 3, 7, 8),
            "depthwise": normal(6, 1, 3, 3, scale=0.3),
            "pointwise": normal(5, 6, 1, 1, scale=0.3),
            "b": normal(5),
        },
        {"stride": [1, 2], "padding": [1, 0]},
    ),
    *[
        Case(
            f"{op}/{i}",
            op,
            {"x": normal(2, 3, 11)},
            {"kernel": kernel, "stride": stride, "padding": padding} | more,
        )
        for i, (kernel, stride, padding) in enumerate([(2, 2, 0), (3, 2, 1)])
        for op, more in (("max_pool1d", {}), ("avg_pool1d", {"count_include_pad": i == 1}))
    ],
    Case("global_max_pool2d", "global_max_pool2d", {"x": normal(3, 5, 6, 7)}),
    Case("global_avg_pool1d", "global_avg_pool1d", {"x": normal(3, 5, 6)}),
    Case("global_max_pool1d", "global_max_pool1d", {"x": normal(3, 5, 6)}),
    *[
        Case(f"adaptive_avg_pool2d/{h}x{w}", "adaptive_avg_pool2d", {"x": normal(2, 3, 9, 8)}, {"size": [h, w]})
        for h, w in [(3, 4), (5, 3), (1, 1), (9, 10)]
    ],
    *[
        Case(
            f"upsample/{mode}{down}x{across}",
            "upsample",
            {"x": normal(2, 3, 4, 5)},
            {"factor": [down, across], "mode": mode},
        )
        for mode in ("nearest", "bilinear")
        for down, across in [(2, 2), (3, 4)]
    ],
    *[
        Case(
            f"conv_transpose1d/{i}",
            "conv_transpose1d",
            {"x": normal(2, 4, 7), "w": normal(*w, scale=0.3), "b": normal(w[1] * groups)},
            {
                "stride": stride,
                "padding": padding,
                "output_padding": extra,
                "dilation": dilation,
                "groups": groups,
                "weight_layout": "[in, out/groups, k]",
            },
        )
        for i, (w, stride, padding, extra, dilation, groups) in enumerate(
            [((4, 3, 3), 1, 0, 0, 1, 1), ((4, 2, 4), 2, 1, 1, 1, 2), ((4, 5, 3), 3, 2, 1, 2, 1)]
        )
    ],
    *[
        Case(
            f"resize2d/{mode}{'-corners' if corners else ''}/{h}x{w}",
            "resize2d",
            {"x": normal(2, 3, 5, 6)},
            {"size": [h, w], "mode": mode, "align_corners": corners},
        )
        for mode, corners in [("nearest", False), ("bilinear", False), ("bilinear", True), ("bicubic", False),
                              ("bicubic", True)]
        for h, w in [(9, 10), (3, 4), (7, 2)]
    ],
    Case("layer_scale", "layer_scale", {"x": normal(3, 4, 5), "w": normal(5)}),
    Case(
        "squeeze_excite",
        "squeeze_excite",
        {"x": normal(2, 6, 4, 5), "w1": normal(3, 6, 1, 1), "b1": normal(3), "w2": normal(6, 3, 1, 1), "b2": normal(6)},
    ),
    Case("zero_pad2d", "border", {"x": normal(2, 3, 4, 5)}, {"rows": [1, 2], "columns": [0, 3]}),
    Case("cropping2d", "border", {"x": normal(2, 3, 6, 5)}, {"rows": [-1, -2], "columns": [0, -3]}),
    Case("prelu/one", "prelu", {"x": normal(4, 3, 5), "w": normal(1)}),
    Case("prelu/channels", "prelu", {"x": normal(4, 3, 5), "w": normal(3)}),
    Case("instance_norm/plain", "instance_norm", {"x": normal(3, 4, 5, 6, shift=2)}, {"eps": 1e-5}, tolerance=2e-5),
    Case(
        "instance_norm/affine",
        "instance_norm",
        {"x": normal(3, 4, 9)} | affine(4, "w", "b"),
        {"eps": 1e-3},
        tolerance=2e-5,
    ),
    Case("rnn", "rnn", gates(8, 3, 8, "h0"), {"batch_first": True}, tolerance=2e-5),
    *[
        Case(
            f"grouped_query_attention/{heads}",
            "grouped_query_attention",
            {"q": normal(2, 6, 5, 4), "k": normal(2, heads, 5, 4), "v": normal(2, heads, 5, 4)},
            {"causal": heads == 2},
            tolerance=2e-5,
        )
        for heads in (1, 2)
    ],
    Case("rotary/short", "rotary", {"x": normal(2, 3, 7, 8)}, {"base": 10000.0}),
    Case("rotary/long", "rotary", {"x": normal(1, 2, 300, 16)}, {"base": 500.0}, tolerance=5e-5),
    *[
        Case(f"adaptive_max_pool2d/{h}x{w}", "adaptive_max_pool2d", {"x": normal(2, 3, 9, 8)}, {"size": [h, w]})
        for h, w in [(3, 4), (5, 3), (1, 1), (9, 10)]
    ],
    *[
        Case(f"{op}/{size}", op, {"x": normal(3, 2, 11)}, {"size": size})
        for op in ("adaptive_avg_pool1d", "adaptive_max_pool1d")
        for size in (1, 4, 11, 14)
    ],
    Case(
        "depthwise_conv2d/multiplier",
        "depthwise_conv2d",
        {"x": normal(2, 3, 9, 7), "w": normal(6, 1, 3, 2, scale=0.3), "b": normal(6)},
        {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2]},
    ),
    Case(
        "conv1d/causal",
        "causal_conv1d",
        {"x": normal(2, 3, 13), "w": normal(4, 3, 3, scale=0.3), "b": normal(4)},
        {"stride": 2, "dilation": 2},
    ),
    Case("hard_tanh", "hard_tanh", {"x": normal(5, 7, scale=2)}, {"low": -0.5, "high": 2.0}),
    *[
        Case(
            f"multi_head_attention/{name}",
            "multi_head_attention",
            {"x": normal(2, 5, 8)} | projections(8),
            {"heads": heads, "causal": causal},
            tolerance=2e-5,
        )
        for name, heads, causal in (("full", 2, False), ("causal", 4, True))
    ],
    Case(
        "transformer_block",
        "transformer_block",
        {"x": normal(2, 5, 8)}
        | projections(8)
        | affine(8, "norm1_w", "norm1_b", "norm2_w", "norm2_b")
        | {"inner_w": normal(12, 8, scale=0.3), "inner_b": normal(12)}
        | {"outer_w": normal(8, 12, scale=0.3), "outer_b": normal(8)},
        {"heads": 2},
        tolerance=2e-5,
    ),
    *more_layers.CASES,
]
