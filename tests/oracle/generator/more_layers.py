"""Layers of volumes, of films and of weights that are computed. Layouts are PyTorch's."""

import torch
import torch.nn.functional as F

from .case import Case, computes, given, normal


@computes("conv3d")
def conv3d(x, w, b, *, stride, padding, dilation, groups):
    return F.conv3d(x, w, b, stride, padding, dilation, groups)


@computes("conv_transpose3d")
def conv_transpose3d(x, w, b, *, stride, padding, output_padding, dilation, groups):
    return F.conv_transpose3d(x, w, b, stride, padding, output_padding, groups, dilation)


@computes("max_pool3d")
def max_pool3d(x, *, kernel, stride, padding):
    return F.max_pool3d(x, kernel, stride, padding)


@computes("avg_pool3d")
def avg_pool3d(x, *, kernel, stride, padding, count_include_pad):
    return F.avg_pool3d(x, kernel, stride, padding, count_include_pad=count_include_pad)


@computes("global_avg_pool3d")
def global_avg_pool3d(x):
    return F.adaptive_avg_pool3d(x, 1).flatten(1)


@computes("global_max_pool3d")
def global_max_pool3d(x):
    return F.adaptive_max_pool3d(x, 1).flatten(1)


@computes("local_response_norm")
def local_response_norm(x, *, size, alpha, beta, k):
    return F.local_response_norm(x, size, alpha, beta, k)


@computes("weight_norm")
def weight_norm(x, w, g, b):
    return F.conv2d(x, torch._weight_norm(w, g.reshape(-1, 1, 1, 1), 0), b)


@computes("spectral_norm", constants=("u",))
def spectral_norm(x, w, u, b, *, training):
    layer = torch.nn.utils.spectral_norm(torch.nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype)).train(training)
    # In use, its two vectors are those of the last step.
    u = u.clone() if training else F.normalize(u, dim=0)
    v = F.normalize(w.detach().T @ u, dim=0)
    y = torch.func.functional_call(layer, {"weight_orig": w, "weight_u": u, "weight_v": v, "bias": b}, (x,))
    # PyTorch has written the new vector into that which it was given.
    return {"y": y, "after.weight_u": u} if training else y


@computes("conv_lstm2d")
def conv_lstm2d(x, w_ih, w_hh, b):
    sides = [k // 2 for k in w_ih.shape[2:]]
    h = c = x.new_zeros(x.shape[0], w_hh.shape[1], *x.shape[3:])
    steps = []
    for picture in x.unbind(1):
        i, f, g, o = (F.conv2d(picture, w_ih, b, 1, sides) + F.conv2d(h, w_hh, None, 1, sides)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    return torch.stack(steps, 1)


@computes("mixture_of_experts")
def mixture_of_experts(x, router, w0, b0, w1, b1, w2, b2, w3, b3, *, k, keep):
    logits = x @ router.T
    chosen, numbers = logits.topk(k, -1)
    shares = logits.softmax(-1).gather(-1, numbers) if keep else chosen.softmax(-1)
    experts = torch.stack([x @ w.T + b for w, b in ((w0, b0), (w1, b1), (w2, b2), (w3, b3))], 2)
    picked = experts.gather(2, numbers[..., None].expand(*numbers.shape, experts.shape[-1]))
    return (shares[..., None] * picked).sum(2)


# x, w, stride, padding, dilation, groups
CONV = [
    ((2, 3, 4, 6, 5), (4, 3, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], 1),
    ((3, 4, 6, 7, 5), (6, 2, 3, 2, 1), [2, 1, 2], [1, 0, 0], [1, 2, 1], 2),
    ((2, 2, 3, 4, 4), (3, 2, 1, 3, 3), [1, 1, 1], [0, 1, 1], [1, 1, 1], 1),
]
# w, stride, padding, output_padding, dilation, groups
CONV_TRANSPOSE = [
    ((4, 3, 2, 3, 3), [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1),
    ((4, 3, 3, 3, 2), [2, 2, 1], [1, 1, 0], [1, 0, 0], [1, 1, 2], 2),
]
POOL = [([2, 2, 2], [2, 2, 2], [0, 0, 0]), ([3, 2, 3], [2, 1, 2], [1, 1, 1])]

CASES = [
    *[
        Case(
            f"conv3d/{i}",
            "conv3d",
            {"x": normal(*x), "w": normal(*w, scale=0.3), "b": normal(w[0])},
            {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
        )
        for i, (x, w, stride, padding, dilation, groups) in enumerate(CONV)
    ],
    *[
        Case(
            f"conv_transpose3d/{i}",
            "conv_transpose3d",
            {"x": normal(2, 4, 3, 4, 3), "w": normal(*w, scale=0.3), "b": normal(w[1] * groups)},
            {
                "stride": stride,
                "padding": padding,
                "output_padding": extra,
                "dilation": dilation,
                "groups": groups,
                "weight_layout": "[in, out/groups, kd, kh, kw]",
            },
        )
        for i, (w, stride, padding, extra, dilation, groups) in enumerate(CONV_TRANSPOSE)
    ],
    *[
        Case(
            f"{op}/{i}",
            op,
            {"x": normal(2, 3, 5, 6, 7)},
            {"kernel": kernel, "stride": stride, "padding": padding} | more,
        )
        for i, (kernel, stride, padding) in enumerate(POOL)
        for op, more in (("max_pool3d", {}), ("avg_pool3d", {"count_include_pad": i == 1}))
    ],
    Case("global_avg_pool3d", "global_avg_pool3d", {"x": normal(3, 5, 2, 3, 4)}),
    Case("global_max_pool3d", "global_max_pool3d", {"x": normal(3, 5, 2, 3, 4)}),
    *[
        Case(
            f"local_response_norm/{size}",
            "local_response_norm",
            {"x": normal(3, 5, 4, 3, scale=2)},
            {"size": size, "alpha": 0.5, "beta": 0.75, "k": k},
        )
        for size, k in [(5, 2.0), (2, 1.0), (9, 1.0)]
    ],
    Case(
        "weight_norm",
        "weight_norm",
        {"x": normal(3, 2, 5, 4), "w": normal(4, 2, 3, 3), "g": normal(4), "b": normal(4)},
    ),
    *[
        Case(
            f"spectral_norm/{name}",
            "spectral_norm",
            {"x": normal(5, 6), "w": normal(4, 6), "u": given([0.5, -0.5, 0.1, 0.7]), "b": normal(4)},
            {"training": training},
        )
        for name, training in (("training", True), ("in_use", False))
    ],
    Case(
        "conv_lstm2d",
        "conv_lstm2d",
        {
            "x": normal(3, 4, 2, 5, 4),
            "w_ih": normal(12, 2, 3, 3, scale=0.3),
            "w_hh": normal(12, 3, 3, 3, scale=0.3),
            "b": normal(12, scale=0.2),
        },
        {"gate_order": "i,f,g,o"},
        tolerance=2e-5,
    ),
    *[
        Case(
            f"mixture_of_experts/{k}{'-keep' if keep else ''}",
            "mixture_of_experts",
            {"x": normal(4, 3, 5), "router": normal(4, 5)}
            | {f"w{i}": normal(6, 5) for i in range(4)}
            | {f"b{i}": normal(6) for i in range(4)},
            {"k": k, "keep": keep},
        )
        for k, keep in [(2, False), (1, True), (4, False)]
    ],
]
