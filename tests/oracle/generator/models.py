"""Models as descriptions: what `Layer::description` writes, as PyTorch's modules with the same names of tensors."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .case import computes
from .layers import rotary

# Layers without parameters, as functions of the input and of the description.
FUNCTIONS = {
    "elu": lambda x, d: F.elu(x, d["alpha"]),
    "gelu": lambda x, d: F.gelu(x),
    "gelu_tanh": lambda x, d: F.gelu(x, approximate="tanh"),
    "hard_sigmoid": lambda x, d: F.hardsigmoid(x),
    "hard_swish": lambda x, d: F.hardswish(x),
    "hard_tanh": lambda x, d: F.hardtanh(x, d["low"], d["high"]),
    "leaky_relu": lambda x, d: F.leaky_relu(x, d["slope"]),
    "log_softmax": lambda x, d: x.log_softmax(-1),
    "mish": lambda x, d: F.mish(x),
    "relu6": lambda x, d: F.relu6(x),
    "relu": lambda x, d: F.relu(x),
    "selu": lambda x, d: F.selu(x),
    "sigmoid": lambda x, d: x.sigmoid(),
    "silu": lambda x, d: F.silu(x),
    "softmax": lambda x, d: x.softmax(-1),
    "softplus": lambda x, d: F.softplus(x),
    "tanh": lambda x, d: x.tanh(),
    "adaptive_avg_pool1d": lambda x, d: F.adaptive_avg_pool1d(x, d["size"]),
    "adaptive_avg_pool2d": lambda x, d: F.adaptive_avg_pool2d(x, d["size"]),
    "adaptive_max_pool1d": lambda x, d: F.adaptive_max_pool1d(x, d["size"]),
    "adaptive_max_pool2d": lambda x, d: F.adaptive_max_pool2d(x, d["size"]),
    "avg_pool1d": lambda x, d: F.avg_pool1d(x, *window1d(d), count_include_pad=d["border"]),
    "avg_pool2d": lambda x, d: F.avg_pool2d(x, *window2d(d), count_include_pad=d["border"]),
    "max_pool1d": lambda x, d: F.max_pool1d(x, *window1d(d)),
    "max_pool2d": lambda x, d: F.max_pool2d(x, *window2d(d), d["window"]["dilation"]),
    "global_avg_pool1d": lambda x, d: F.adaptive_avg_pool1d(x, 1).flatten(1),
    "global_avg_pool2d": lambda x, d: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "global_max_pool1d": lambda x, d: F.adaptive_max_pool1d(x, 1).flatten(1),
    "global_max_pool2d": lambda x, d: F.adaptive_max_pool2d(x, 1).flatten(1),
    "cropping2d": lambda x, d: F.pad(x, [-n for n in [*d["columns"], *d["rows"]]]),
    "zero_pad2d": lambda x, d: F.pad(x, [*d["columns"], *d["rows"]]),
    "flatten": lambda x, d: x.flatten(1),
    "upsample2d": lambda x, d: F.interpolate(
        x, scale_factor=d["factor"], mode="bilinear" if d["bilinear"] else "nearest"
    ),
}


def window1d(d):
    return d["kernel"], d["stride"], d["padding"]


def window2d(d):
    return d["window"]["kernel"], d["window"]["stride"], d["window"]["padding"]


class Function(nn.Module):
    def __init__(self, description):
        super().__init__()
        self.description = description

    def forward(self, x):
        return FUNCTIONS[self.description["layer"]](x, self.description)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    def _check_input_dim(self, x):
        pass


class InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    def forward(self, x):
        return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)


class CausalConv1d(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, [self.dilation[0] * (self.kernel_size[0] - 1), 0]))


class Recurrent(nn.Module):
    """The layer `nn.LSTM`, `nn.GRU` or `nn.RNN`, whose weights have no prefix.

    Steps whose mask is 0 are left out of the sequence, and their outputs are zeros.
    """

    def __init__(self, kind, description, inputs):
        super().__init__()
        shape = description["shape"]
        self.last, self.units, self.ways = shape["last"], shape["units"], 1 + shape["both_ways"]
        settings = {"num_layers": shape["layers"], "bias": shape["bias"], "bidirectional": shape["both_ways"]}
        self.inner = [kind(inputs, shape["units"], batch_first=True, **settings)]
        for name, parameter in self.inner[0].named_parameters():
            self.register_parameter(name, parameter)

    def run(self, x):
        y, state = torch.func.functional_call(self.inner[0], dict(self.named_parameters()), (x,))
        h = state[0] if isinstance(state, tuple) else state
        return torch.cat(list(h[-self.ways :]), -1) if self.last else y

    def forward(self, x, mask=None):
        if mask is None:
            return self.run(x)
        rows = []
        for sample, there in zip(x, mask != 0):
            out = x.new_zeros(self.ways * self.units) if self.last else x.new_zeros(len(x[0]), self.ways * self.units)
            if there.any():
                found = self.run(sample[there][None])[0]
                out = found if self.last else out.index_put((there.nonzero()[:, 0],), found)
            rows.append(out)
        return torch.stack(rows)


class Attention(nn.Module):
    """Self-attention, in which heads may share keys and values and positions may be rotations or distances.

    With a context it is attention to that.
    """

    def __init__(self, d, width):
        super().__init__()
        self.heads, self.causal, self.base = d["heads"], d["causal"], d.get("rotary")
        self.kv_heads = d.get("kv_heads") or d["heads"]
        self.relative = d.get("relative")
        size = d.get("head_size") or width // self.heads
        self.rows = [size * self.heads, *[size * self.kv_heads] * 2]
        self.in_proj_weight = nn.Parameter(torch.empty(sum(self.rows), width))
        self.in_proj_bias = nn.Parameter(torch.empty(sum(self.rows))) if d["bias"] else None
        if self.relative:
            self.relative_attention_bias = nn.Embedding(self.relative[0], self.heads)
        self.out_proj = nn.Linear(self.rows[0], width, bias=d["bias"])

    def forward(self, x, mask=None):
        plain = self.base is None and self.kv_heads == self.heads and self.rows[0] == x.shape[-1]
        if plain and not self.relative and mask is None:
            return self.plain(x)
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).split(self.rows, -1)
        q, k, v = [t.unflatten(-1, (h, -1)).transpose(1, 2) for t, h in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))]
        if self.base is not None:
            q, k = rotary(q, base=self.base), rotary(k, base=self.base)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        seen = (seen.tril() if self.causal else seen)[None, None]
        if mask is not None:
            seen = seen & (mask != 0)[:, None, None]
        y = self.by_distance(q, k, v, seen) if self.relative else masked_attention(q, k, v, seen)
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def by_distance(self, q, k, v, seen):
        """Adds a bias for each head and bucket of distances (Raffel et al. 2020; their `_relative_position_bucket`)."""
        place = torch.arange(q.shape[-2])
        after = place[None] - place[:, None]
        buckets, farthest = self.relative
        each = buckets if self.causal else buckets // 2
        distance = -after.clamp(max=0) if self.causal else after.abs()
        exact = each // 2
        far = exact + ((distance.clamp(min=1) / exact).log() / math.log(farthest / exact) * (each - exact) + 1e-6).long()
        bucket = torch.where(distance < exact, distance, far.clamp(max=each - 1))
        bucket = bucket if self.causal else bucket + (after > 0) * each
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)
        bias = bias.expand(len(q), -1, -1, -1).masked_fill(~seen, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)

    def plain(self, x):
        layer = nn.MultiheadAttention(x.shape[-1], self.heads, bias=self.in_proj_bias is not None, batch_first=True)
        own = {name: p for name, p in self.named_parameters()}
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.causal else None
        return torch.func.functional_call(layer, own, (x, x, x), {"attn_mask": mask, "need_weights": False})[0]


def masked_attention(q, k, v, seen):
    """Returns the attention of heads; queries that see nothing get zeros."""
    none = ~seen.any(-1, keepdim=True)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | none, enable_gqa=True)
    return y.masked_fill(none, 0.0)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class TransformerBlock(nn.Module):
    """PyTorch's `TransformerEncoderLayer` and `TransformerDecoderLayer` where they have the settings."""

    def __init__(self, d, width):
        super().__init__()
        self.d, hidden, bias = d, d["hidden"] or 4 * width, not d.get("no_bias")
        self.epsilon = d.get("epsilon") or 1e-5
        kind = nn.RMSNorm if d.get("rms_norm") else nn.LayerNorm
        self.norm1, self.norm2 = kind(width, self.epsilon), kind(width, self.epsilon)
        self.self_attn = Attention(d["attention"], width)
        if d.get("gated"):
            self.gate = nn.Linear(width, hidden, bias)
        self.linear1, self.linear2 = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)
        if d.get("cross"):
            self.multihead_attn = nn.MultiheadAttention(width, self.self_attn.heads, batch_first=True)
            self.norm3 = kind(width, self.epsilon)

    def forward(self, x, mask=None, context=None):
        if context is not None:
            return self.decoder(x, context)
        if not ({"rms_norm", "gated", "no_bias"} & set(self.d)) and set(self.d["attention"]) == {"heads", "causal", "bias"} and mask is None:
            return self.encoder(x)
        last = self.d.get("norm_last")
        x = x + self.self_attn(x if last else self.norm1(x), mask)
        x = self.norm1(x) if last else x
        h = x if last else self.norm2(x)
        act = ACTIVATIONS[self.d.get("activation", "gelu")]
        x = x + self.linear2(act(self.gate(h)) * self.linear1(h) if self.d.get("gated") else act(self.linear1(h)))
        return self.norm2(x) if last else x

    def settings(self, x):
        act = ACTIVATIONS[self.d.get("activation", "gelu")]
        settings = {"dropout": 0.0, "activation": act, "layer_norm_eps": self.epsilon, "batch_first": True}
        settings["norm_first"] = not self.d.get("norm_last")
        return (x.shape[-1], self.self_attn.heads, len(self.linear1.weight)), settings

    def causal(self, x):
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return causal if self.self_attn.causal else None

    def encoder(self, x):
        sizes, settings = self.settings(x)
        layer = nn.TransformerEncoderLayer(*sizes, **settings)
        return torch.func.functional_call(layer, dict(self.named_parameters()), (x, self.causal(x)))

    def decoder(self, x, context):
        sizes, settings = self.settings(x)
        layer = nn.TransformerDecoderLayer(*sizes, **settings)
        return torch.func.functional_call(layer, dict(self.named_parameters()), (x, context, self.causal(x)))


class Residual(nn.Module):
    def __init__(self, inner, shortcut):
        super().__init__()
        self.inner, self.shortcut = inner, shortcut

    def forward(self, x):
        return self.inner(x) + (x if self.shortcut is None else self.shortcut(x))


class Branches(nn.ModuleList):
    def __init__(self, layers, axis):
        super().__init__(layers)
        self.axis = axis

    def forward(self, x):
        results = [layer(x) for layer in self]
        return sum(results[1:], results[0]) if self.axis is None else torch.cat(results, self.axis)


def separable(d, channels):
    inner = channels * d["depthwise"]["multiplier"]
    model = nn.Sequential()
    model.add_module("depthwise", conv2d(d["depthwise"], channels, inner, channels))
    model.add_module("pointwise", nn.Conv2d(inner, d["channels"], 1, bias=d["bias"]))
    return model


def conv1d(d, channels):
    kind = CausalConv1d if d["causal"] else nn.Conv1d
    return kind(channels, d["channels"], *window1d(d), d["dilation"], d["groups"], d["bias"])


def conv2d(d, channels, outputs, groups):
    return nn.Conv2d(channels, outputs, *window2d(d), d["window"]["dilation"], groups, d["bias"])


def conv_transpose2d(d, channels):
    extra, dilation = d["output_padding"], d["window"]["dilation"]
    return nn.ConvTranspose2d(
        channels, d["channels"], *window2d(d), extra, groups=d["groups"], bias=d["bias"], dilation=dilation
    )


# Layers with parameters, by the description and the shape of a sample.
MODULES = {
    "dense": lambda d, s: nn.Linear(s[-1], d["units"], d["bias"]),
    "embedding": lambda d, s: nn.Embedding(d["rows"], d["width"]),
    "conv1d": lambda d, s: conv1d(d, s[0]),
    "conv2d": lambda d, s: conv2d(d, s[0], d["channels"], d["groups"]),
    "conv_transpose2d": lambda d, s: conv_transpose2d(d, s[0]),
    "depthwise_conv2d": lambda d, s: conv2d(d, s[0], s[0] * d["multiplier"], s[0]),
    "separable_conv2d": lambda d, s: separable(d, s[0]),
    "batch_norm": lambda d, s: BatchNorm(s[0], d["epsilon"], d["momentum"]),
    "layer_norm": lambda d, s: nn.LayerNorm(s[-d["axes"] :], d["epsilon"]),
    "rms_norm": lambda d, s: nn.RMSNorm(s[-d["axes"] :], d["epsilon"]),
    "group_norm": lambda d, s: nn.GroupNorm(d["groups"], s[0], d["epsilon"]),
    "instance_norm": lambda d, s: InstanceNorm(s[0], d["epsilon"], affine=d["affine"]),
    "p_relu": lambda d, s: nn.PReLU(s[0] if d["channels"] else 1),
    "lstm": lambda d, s: Recurrent(nn.LSTM, d, s[-1]),
    "gru": lambda d, s: Recurrent(nn.GRU, d, s[-1]),
    "simple_rnn": lambda d, s: Recurrent(nn.RNN, d, s[-1]),
    "multi_head_attention": lambda d, s: Attention(d, s[-1]),
    "transformer_block": lambda d, s: TransformerBlock(d, s[-1]),
    "residual": lambda d, s: Residual(build(d["inner"], s), d["shortcut"] and build(d["shortcut"], s)),
    "branches": lambda d, s: Branches([build(layer, s) for layer in d["layers"]], d["axis"]),
    "sequential": lambda d, s: sequential(d["layers"], s),
}


def build(description, shape):
    """Returns the module of a description for samples of a shape."""
    kind = description["layer"]
    return (MODULES[kind](description, shape) if kind in MODULES else Function(description)).double()


def sequential(layers, shape):
    model = nn.Sequential()
    for layer in layers:
        model.append(build(layer, shape))
        shape = output(model[-1], layer, shape)
    return model


def output(module, description, shape):
    """Returns the shape of what a module makes of a sample."""
    ids = description["layer"] == "embedding"
    x = torch.zeros(2, *shape, dtype=torch.int64 if ids else torch.float64)
    return tuple(module.eval()(x).shape[1:])


@computes("layer", constants=("mask", "running_mean", "running_var"), takes_all=True)
def layer(tensors, attrs):
    """Returns the output `y` of a layer and its statistics after the step, as `after.NAME`."""
    tensors = dict(tensors)
    x, mask, context = tensors.pop("x"), tensors.pop("mask", None), tensors.pop("context", None)
    module = build(attrs["layer"], tuple(x.shape[1:])).to(next(iter(tensors.values()), x).dtype)
    module.train(attrs["training"])
    statistics = {name for name, _ in module.named_buffers()}
    own = {name: t.detach().clone() if name in statistics else t for name, t in tensors.items()}
    more = {name: t for name, t in {"mask": mask, "context": context}.items() if t is not None}
    y = torch.func.functional_call(module, own, (x,), more)
    return {"y": y} | {f"after.{name}": t for name, t in own.items() if name in statistics}
