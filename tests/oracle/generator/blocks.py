"""Cases of attention and of transformer blocks with settings, as descriptions of layers."""

from .case import Case, normal
from .models import build


def described(name, layer, shape, **more):
    """Returns the case of a layer for samples of a shape, with random weights."""
    weights = {key: normal(*t.shape, scale=0.4) for key, t in build(layer, shape).state_dict().items()}
    attrs = {"layer": layer, "training": True}
    return Case(name, "layer", {"x": normal(2, *shape)} | more | weights, attrs, tolerance=2e-5)


def attention(heads, **more):
    return {"heads": heads, "causal": False, "bias": True} | more


def block(heads, *, of={}, **more):
    return {"layer": "transformer_block", "attention": attention(heads, **of), "hidden": 12, "dropout": 0.0} | more


LLAMA = {"rms_norm": True, "gated": True, "no_bias": True, "activation": "silu", "epsilon": 1e-6}

CASES = [
    described("transformer_block/norm_last", block(2, norm_last=True, activation="relu", epsilon=1e-3), (5, 8)),
    described(
        "transformer_block/llama",
        block(4, of={"causal": True, "bias": False, "kv_heads": 2, "rotary": 10000.0}, **LLAMA),
        (5, 8),
    ),
    described(
        "transformer_block/decoder",
        block(2, of={"causal": True}, cross=True),
        (5, 8),
        context=normal(2, 3, 8),
    ),
    described(
        "transformer_block/decoder_norm_last",
        block(2, of={"causal": True}, cross=True, norm_last=True, activation="gelu_tanh"),
        (4, 6),
        context=normal(2, 7, 6),
    ),
    described("transformer_block/head_size", block(2, of={"head_size": 5}, activation="relu_squared"), (4, 6)),
    *[
        described(f"multi_head_attention/{name}", {"layer": "multi_head_attention"} | attention(2, **of), shape)
        for name, of, shape in (
            ("relative", {"relative": [32, 128], "head_size": 3}, (40, 6)),
            ("relative_causal", {"relative": [8, 20], "causal": True}, (30, 4)),
            ("relative_long", {"relative": [16, 100], "causal": True, "bias": False}, (270, 2)),
        )
    ],
]
