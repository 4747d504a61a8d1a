"""Random layers and small models of them, as descriptions."""

import numpy

from . import models

# What any sample of f32 can go through.
PLAIN = [
    "gelu", "gelu_tanh", "hard_sigmoid", "hard_swish", "log_softmax", "mish", "relu6", "relu", "selu", "sigmoid", "silu",
    "softmax", "softplus", "tanh",
]  # fmt: skip


def activation(r):
    kind = r.pick([*PLAIN, "elu", "leaky_relu", "hard_tanh"])
    if kind == "hard_tanh":
        low = r.number(-2, 1)
        return {"layer": kind, "low": low, "high": low + r.number(0.1, 2)}
    more = {"elu": {"alpha": r.number(-0.5, 2)}, "leaky_relu": {"slope": r.number(-0.5, 1.5)}}
    return {"layer": kind} | more.get(kind, {})


def window(r, pool=False):
    kernel = [r.int(1, 4), r.int(1, 4)]
    return {
        "kernel": kernel,
        "stride": [r.int(1, k + 2) for k in kernel],
        "dilation": [1, 1] if pool else [r.pick([1, 1, 2, 3]) for _ in kernel],
        "padding": [r.int(0, k // 2) if pool else r.int(0, 3) for k in kernel],
    }


def divisor(r, *numbers):
    return r.pick([n for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)])


def epsilon(r):
    return r.pick([1e-5, 1e-3, 0.1])


def normalization(r, shape):
    kind = r.pick(["batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm"])
    settings = {
        "batch_norm": lambda: {"momentum": r.pick([0.1, 0.3, 1.0])},
        "layer_norm": lambda: {"axes": r.int(1, len(shape))},
        "rms_norm": lambda: {"axes": r.int(1, len(shape))},
        "group_norm": lambda: {"groups": divisor(r, shape[0])},
        "instance_norm": lambda: {"affine": r.flag()},
    }
    return {"layer": kind, "epsilon": epsilon(r)} | settings[kind]()


def image(r, shape):
    channels, h, w = shape
    kind = r.pick([
        "conv2d", "conv2d", "conv2d", "depthwise_conv2d", "separable_conv2d", "conv_transpose2d", "conv_transpose2d",
        "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "global_avg_pool2d", "global_max_pool2d",
        "upsample2d", "zero_pad2d", "cropping2d",
    ])  # fmt: skip
    d, outputs = {"layer": kind}, r.int(1, 6)
    if kind == "conv2d":
        return d | {"channels": outputs, "window": window(r), "groups": divisor(r, channels, outputs), "bias": r.flag()}
    if kind == "conv_transpose2d":
        d |= {"channels": outputs, "window": window(r), "groups": divisor(r, channels, outputs), "bias": r.flag()}
        return d | {"output_padding": [r.int(0, s - 1) for s in d["window"]["stride"]]}
    if kind in ("depthwise_conv2d", "separable_conv2d"):
        depthwise = {"window": window(r), "multiplier": r.int(1, 3), "bias": r.flag() and kind == "depthwise_conv2d"}
        return d | (depthwise if kind == "depthwise_conv2d" else {"channels": outputs, "depthwise": depthwise, "bias": r.flag()})
    if kind == "max_pool2d":
        return d | {"window": window(r, pool=True)}
    if kind == "avg_pool2d":
        return d | {"window": window(r, pool=True), "border": r.flag()}
    if kind.startswith("adaptive"):
        return d | {"size": [r.int(1, h + 2), r.int(1, w + 2)]}
    if kind == "upsample2d":
        return d | {"factor": [r.int(1, 4), r.int(1, 3)], "bilinear": r.flag(0.7)}
    if kind == "zero_pad2d":
        return d | {"rows": [r.int(0, 2), r.int(0, 2)], "columns": [r.int(0, 2), r.int(0, 3)]}
    if kind == "cropping2d":
        return d | {"rows": [r.int(0, h // 2), r.int(0, (h - 1) // 2)], "columns": [r.int(0, w // 2), r.int(0, (w - 1) // 2)]}
    return d


def sequence(r, shape):
    """A sequence is channels of steps, or steps of features."""
    channels, length = shape
    kind = r.pick([
        "conv1d", "conv1d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d", "global_avg_pool1d",
        "global_max_pool1d", "lstm", "gru", "simple_rnn", "lstm", "gru", "multi_head_attention", "multi_head_attention",
        "transformer_block", "dense",
    ])  # fmt: skip
    d, kernel = {"layer": kind}, r.int(1, 4)
    if kind == "conv1d":
        outputs, causal = r.int(1, 6), r.flag(0.3)
        d |= {"channels": outputs, "kernel": kernel, "stride": r.int(1, kernel + 2), "dilation": r.pick([1, 1, 2, 3])}
        return d | {"padding": r.int(0, 3), "causal": causal, "groups": divisor(r, channels, outputs), "bias": r.flag()}
    if kind in ("max_pool1d", "avg_pool1d"):
        d |= {"kernel": kernel, "stride": r.int(1, kernel + 2), "padding": r.int(0, kernel // 2)}
        return d | ({"border": r.flag()} if kind == "avg_pool1d" else {})
    if kind.startswith("adaptive"):
        return d | {"size": r.int(1, length + 2)}
    if kind in ("lstm", "gru", "simple_rnn"):
        shape = {"units": r.int(1, 6), "layers": r.pick([1, 1, 2, 3]), "both_ways": r.flag(), "bias": r.flag(0.7)}
        return d | {"shape": shape | {"last": r.flag(), "stateful": False, "dropout": 0.0}}
    if kind == "multi_head_attention":
        return d | attention(r, length)
    if kind == "transformer_block":
        return d | block(r, length)
    return d | {"units": r.int(1, 6), "input": None, "bias": r.flag()} if kind == "dense" else d


def attention(r, width):
    heads = divisor(r, width)
    d = {"heads": heads, "causal": r.flag(), "bias": r.flag(0.7)}
    if r.flag(0.4):
        d["kv_heads"] = divisor(r, heads)
    if width // heads % 2 == 0 and r.flag(0.4):
        d["rotary"] = r.pick([10000.0, 100.0, 2.0])
    elif r.flag(0.2):
        d["head_size"] = r.int(1, 5)
    if r.flag(0.2):
        d["relative"] = r.pick([[8, 20], [4, 9], [32, 128]])
    return d


def block(r, width):
    """Draws a transformer block, often a plain one."""
    d = {"attention": attention(r, width), "hidden": r.pick([None, r.int(1, 9)]), "dropout": 0.0}
    if r.flag():
        return d | {"attention": d["attention"] | {"bias": True}}
    for setting in ("norm_last", "rms_norm", "gated"):
        if r.flag():
            d[setting] = True
    if r.flag():
        d["epsilon"] = r.pick([1e-6, 1e-3])
    if not d["attention"]["bias"]:
        d["no_bias"] = True
    return d | {"activation": r.pick([*models.ACTIVATIONS])}


def single(r, shape):
    """Draws one layer for samples of a shape."""
    if r.flag(0.15):
        return activation(r)
    if r.flag(0.15) and shape:
        return normalization(r, shape)
    if r.flag(0.07) and shape:
        return {"layer": "p_relu", "slope": 0.25, "channels": r.flag()}
    if len(shape) == 3:
        return image(r, shape)
    if len(shape) == 2:
        return sequence(r, shape)
    return {"layer": "dense", "units": r.int(1, 8), "input": r.pick([None, shape[-1]]), "bias": r.flag(0.7)}


def container(r, shape):
    """Draws a residual connection, or branches that are added or concatenated."""
    if r.flag():
        same = [activation(r), {"layer": "dense", "units": shape[-1], "input": None, "bias": r.flag()}, normalization(r, shape)]
        inner = {"layer": "sequential", "layers": [r.pick(same) for _ in range(r.int(0, 2))]}
        return {"layer": "residual", "inner": inner, "shortcut": r.pick([None, r.pick(same)])}
    axis = r.pick([None, len(shape), -1])
    units = [r.int(1, 4)] * 3 if axis is None else [r.int(1, 4) for _ in range(3)]
    layers = [{"layer": "dense", "units": n, "input": None, "bias": r.flag()} for n in units]
    return {"layer": "branches", "layers": layers[: r.int(1, 3)], "axis": axis}


def tower(r, shape, depth):
    """Draws so many layers one behind the other. Returns them with the shape behind them."""
    layers = []
    while len(layers) < depth:
        drawn = container(r, shape) if r.flag(0.15) else single(r, shape)
        try:
            behind = models.output(models.build(drawn, shape), drawn, shape)
        except (RuntimeError, ValueError, IndexError):
            continue
        if 0 < numpy.prod(behind) <= 600:
            layers, shape = [*layers, drawn], behind
    return layers, shape


def sample(r):
    """Draws the shape of a sample."""
    return tuple(r.dims(*r.pick([(1, 1), (2, 2), (2, 2), (3, 3), (3, 3), (3, 3)]), r.pick([4, 8])))


def tensors(r, description, shape):
    """Draws a module's tensors by name."""
    drawn = {}
    for name, t in models.build(description, shape).state_dict().items():
        if name.endswith("running_var"):
            drawn[name] = r.positive(*t.shape)
        elif t.is_floating_point():
            drawn[name] = r.values(*t.shape, plain=True) * numpy.float32(0.5)
    return drawn


def layer(r):
    """Draws a layer or a few, a batch for it, and its weights. Returns op, attributes and inputs."""
    shape, depth = sample(r), r.pick([1, 1, 1, 2, 3])
    rows = r.pick([1, 2, 3, 5, 9])
    inputs, front = {"x": r.values(rows, *shape)}, []
    if r.flag(0.05):
        ids = r.int(1, 9)
        front = [{"layer": "embedding", "rows": ids, "width": r.int(1, 6)}]
        inputs, shape = {"x": r.below(ids, rows, *shape[:2])}, shape[:2]
    inner = (*shape, front[0]["width"]) if front else shape
    layers = front + tower(r, inner, depth)[0]
    description = layers[0] if len(layers) == 1 else {"layer": "sequential", "layers": layers}
    takes_mask = ("lstm", "gru", "simple_rnn", "multi_head_attention", "transformer_block")
    # What a query that sees nothing gets is not promised where scores have a bias.
    if description["layer"] in takes_mask and "relative" not in str(description) and r.flag():
        inputs["mask"] = (r.g.random((rows, shape[0])) < 0.7).astype(numpy.float32)
    if "max_pool" in str(description) and not front:
        # Of equal elements PyTorch gives the first one the gradient, which is shared here.
        inputs["x"] = r.values(rows, *shape, plain=True)
    attrs = {"layer": description, "training": r.flag(0.7)}
    return "layer", attrs, inputs | tensors(r, description, shape)
