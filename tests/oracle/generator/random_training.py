"""Random losses, optimizers and whole trainings, with all their settings at once."""

import numpy
import torch

from . import models, random_layers
from .case import RULES, computes
from .optimizers import stepper


def rates(schedule, lr, count):
    """Returns the learning rates of the first steps, as PyTorch's schedulers give them."""
    if schedule is None:
        return [lr] * count
    warm = schedule.get("warm_up", 0)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr)
    inner = scheduler(optimizer, schedule, lr)
    found = [optimizer.param_groups[0]["lr"]]
    while len(found) < count:
        optimizer.step()
        # PyTorch's cosine would rise again, and its single cycle ends with an error.
        if len(found) < schedule.get("steps", count) + (schedule["kind"] != "one_cycle"):
            inner.step()
        found.append(optimizer.param_groups[0]["lr"])
    return ([found[0] * (step + 1) / warm for step in range(warm)] + found)[:count]


def scheduler(optimizer, schedule, lr):
    kinds = torch.optim.lr_scheduler
    match schedule["kind"]:
        case "step":
            return kinds.StepLR(optimizer, schedule["every"], schedule["factor"])
        case "cosine":
            return kinds.CosineAnnealingLR(optimizer, schedule["steps"], schedule["end"])
        case "restarts":
            return kinds.CosineAnnealingWarmRestarts(optimizer, schedule["first"], schedule["factor"], schedule["end"])
        case "polynomial":
            return kinds.PolynomialLR(optimizer, schedule["steps"], schedule["power"])
        case "one_cycle":
            return kinds.OneCycleLR(optimizer, lr, schedule["steps"], cycle_momentum=False)


def schedule(r, lr):
    kind = r.pick(["step", "cosine", "restarts", "polynomial", "one_cycle"])
    drawn = {
        "step": lambda: {"every": r.int(1, 3), "factor": r.number(0.1, 0.9)},
        "cosine": lambda: {"steps": r.int(1, 8), "end": r.pick([0.0, lr / 10])},
        "restarts": lambda: {"first": r.int(1, 3), "factor": r.int(1, 3), "end": r.pick([0.0, lr / 10])},
        "polynomial": lambda: {"steps": r.int(1, 8), "power": r.pick([0.5, 1.0, 2.0])},
        "one_cycle": lambda: {"steps": r.int(2, 9)},
    }[kind]()
    return {"kind": kind} | drawn | r.some(warm_up=lambda: r.int(1, 4))


def optimizer(r):
    """Draws an optimizer with its settings, as attributes with its name under `op`."""
    lr = r.pick([0.1, 0.03, 0.01])
    betas, decay = lambda: [r.pick([0.0, 0.5, 0.9]), r.pick([0.5, 0.9, 0.999])], lambda: r.pick([0.01, 0.1])
    epsilon, momentum = lambda: r.pick([1e-8, 1e-4, 0.1]), lambda: r.pick([0.5, 0.9, 0.99])
    adam = lambda: r.some(betas=betas, eps=epsilon, weight_decay=decay)
    op = r.pick([*OPTIMIZERS])
    attrs = {
        "sgd": lambda: r.some(weight_decay=decay),
        "sgd_momentum": lambda: {"momentum": momentum()} | r.some(weight_decay=decay),
        "sgd_nesterov": lambda: {"momentum": momentum(), "nesterov": True} | r.some(weight_decay=decay),
        "adam": adam,
        "adamw": adam,
        "rmsprop": lambda: r.some(
            alpha=lambda: r.pick([0.5, 0.9]), eps=epsilon, momentum=momentum, weight_decay=decay, centered=lambda: True
        ),
        "adagrad": lambda: r.some(lr_decay=lambda: r.pick([0.01, 1.0]), eps=epsilon, weight_decay=decay),
        "lamb": adam,
        "lars": lambda: r.some(momentum=momentum, weight_decay=decay, trust=lambda: r.pick([0.01, 1.0])),
        "adadelta": lambda: r.some(rho=lambda: r.pick([0.5, 0.95]), eps=lambda: r.pick([1e-6, 1e-2]), weight_decay=decay),
        "adamax": adam,
        "nadam": lambda: adam() | r.some(momentum_decay=lambda: r.pick([0.0, 0.1]), decoupled_weight_decay=lambda: True),
        "adafactor": lambda: {"eps": [2.0**-23, 1e-3]}
        | r.some(beta2_decay=lambda: r.pick([-0.5, -1.0]), d=lambda: r.pick([0.1, 2.0]), weight_decay=decay),
        "lion": lambda: r.some(betas=betas, weight_decay=decay),
        "muon": lambda: r.some(momentum=momentum, weight_decay=decay, nesterov=lambda: False, ns_steps=lambda: r.int(1, 4)),
    }[op]()
    clips = r.some(clip_grad_norm=lambda: r.pick([0.1, 1.0]), clip_grad_value=lambda: r.pick([0.05, 0.5]))
    return {"op": op, "lr": lr} | attrs | (clips if r.flag() else {}) | (r.some(schedule=lambda: schedule(r, lr)))


OPTIMIZERS = [
    "sgd", "sgd_momentum", "sgd_nesterov", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars", "adadelta", "adamax",
    "nadam", "adafactor", "lion", "muon",
]  # fmt: skip
# These are not PyTorch's, or have other defaults there.
DEFAULTS = {"lamb": {"weight_decay": 0.01}, "lars": {"momentum": 0.9}, "muon": {"weight_decay": 0.1}}


def steps_of(settings, groups, count):
    """Returns a function that takes a step of an optimizer on groups of parameters."""
    settings = dict(settings)
    op, lr, plan = settings.pop("op"), settings["lr"], settings.pop("schedule", None)
    all_rates = iter(rates(plan, lr, count))
    return stepper(op, groups, DEFAULTS.get(op, {}) | settings, lambda: next(all_rates))


@computes("optimizer", constants=("w", "g"), takes_all=True)
def optimized(tensors, attrs):
    w = tensors["w"].clone().requires_grad_()
    step = steps_of(attrs["optimizer"], [w], len(tensors["g"]))
    for g in tensors["g"]:
        w.grad = g.clone()
        step()
    return {"y": w.detach()}


def optimizer_case(r):
    settings, count = optimizer(r), r.int(1, 9)
    shape = r.dims(2, 2) if settings["op"] == "muon" else r.dims(1, 4)
    scale = numpy.float32(r.pick([1, 1, 1, 1e-3, 30]))
    g = r.values(count, *shape) * scale * (r.g.random((count, *shape)) < r.pick([1.0, 0.5])).astype(numpy.float32)
    return "optimizer", {"optimizer": settings}, {"w": r.values(*shape, plain=True), "g": g.astype(numpy.float32)}


# These have an axis of classes, over the rest of which PyTorch's functions take no mean.
CLASSES = ("cross_entropy", "multi_margin", "kl_divergence")


def loss_of(settings, x, target, weights=None):
    """Returns the mean loss of a batch. With weights it is the weighted mean of the losses of its samples.

    A sample with ignored labels weighs as much as it has others.
    """
    settings = dict(settings)
    op, ignored = settings.pop("op"), settings.get("ignore_index")
    rule = RULES[op].function

    def function(x, y):
        if op in CLASSES:
            x, y = x.flatten(0, -2), y.flatten() if y.ndim < x.ndim else y.flatten(0, -2)
        return rule(x, y, **settings)

    if weights is None:
        return function(x, target)
    total, sum_of_weights = 0.0, 0.0
    for row, weight in enumerate(weights.tolist()):
        y = target[row : row + 1]
        weight *= 1 if ignored is None else int((y != ignored).sum())
        if weight > 0:
            total, sum_of_weights = total + weight * function(x[row : row + 1], y), sum_of_weights + weight
    return total / sum_of_weights


@computes("loss", constants=("target", "weights"), takes_all=True)
def loss(tensors, attrs):
    x, target = tensors["x"], tensors["target"]
    if not target.is_floating_point() and attrs["loss"]["op"] in BINARY:
        target = target.to(x.dtype)
    if attrs["loss"]["op"] in BINARY:
        target = target.reshape(x.shape if target.numel() == x.numel() else len(x))
    return {"y": loss_of(attrs["loss"], x, target, tensors.get("weights"))}


BINARY = ("bce_with_logits", "binary_focal", "dice", "hinge", "cosine_embedding", "contrastive")
CLASSIFYING = ["cross_entropy", "cross_entropy", "cross_entropy", "multi_margin", "kl_divergence"]
REGRESSING = ["mse", "l1", "huber", "log_cosh", "poisson_nll", "cosine_distance", *BINARY[:4]]


def loss_settings(r, op):
    number = {
        "huber": lambda: {"delta": r.pick([0.1, 1.0, 3.0])},
        "kl_divergence": lambda: {"log_probabilities": r.flag()},
        "poisson_nll": lambda: {"log_input": r.flag(), "full": r.flag()} | r.some(eps=lambda: 1e-4),
        "hinge": lambda: r.some(margin=lambda: 0.5, squared=lambda: True),
        "multi_margin": lambda: r.some(margin=lambda: 0.5, p=lambda: 2),
        "binary_focal": lambda: {"gamma": r.pick([0.0, 0.5, 1.0, 2.0])} | r.some(alpha=lambda: r.pick([0.0, 0.3])),
        "dice": lambda: {"smooth": r.pick([1.0, 0.1]), "probabilities": r.flag()},
        "cosine_embedding": lambda: {"margin": r.pick([0.0, 0.3, -0.5])},
        "contrastive": lambda: {"margin": r.pick([0.5, 1.0, 4.0])},
        "triplet_margin": lambda: {"margin": r.pick([0.2, 1.0, 4.0])},
        "cross_entropy": lambda: r.some(label_smoothing=lambda: r.pick([0.1, 0.5]), ignore_index=lambda: r.pick([-100, -1, 0])),
    }
    return {"op": op} | number.get(op, dict)()


def probabilities(r, *shape):
    p = r.g.random(shape) * (r.g.random(shape) < 0.8) + 1e-3
    return (p / p.sum(-1, keepdims=True)).astype(numpy.float32)


def target_of(r, settings, shape):
    """Draws targets for outputs of a shape, batch first."""
    op, ignored = settings["op"], settings.get("ignore_index")
    if op == "kl_divergence":
        return probabilities(r, *shape)
    if op == "cross_entropy" and ignored is None and r.flag(0.3):
        return probabilities(r, *shape)
    if op in ("cross_entropy", "multi_margin"):
        labels = r.below(shape[-1], *shape[:-1])
        if ignored is None:
            return labels
        return numpy.where(r.g.random(labels.shape) < 0.3, ignored, labels).astype(numpy.int32)
    if op == "poisson_nll":
        return r.g.integers(0, 5, shape).astype(numpy.float32)
    if op == "hinge":
        return (2 * r.below(2, *shape) - 1).astype(r.pick([numpy.int32, numpy.float32]))
    if op in ("bce_with_logits", "binary_focal", "dice"):
        soft = r.g.random(shape).astype(numpy.float32)
        return r.pick([soft, r.below(2, *shape), r.below(2, *shape).astype(numpy.float32)])
    return r.values(*shape)


def sample_weights(r, rows):
    return (r.g.integers(0, 9, rows) / 4 + numpy.eye(1, rows)[0]).astype(numpy.float32)


def loss_case(r):
    rows, op = r.pick([1, 2, 5, 9, 17]), r.pick([*CLASSIFYING, *REGRESSING, *BINARY[4:], "triplet_margin", "ctc"])
    settings, vectors = loss_settings(r, op), {"cosine_embedding": 2, "contrastive": 2, "triplet_margin": 3}
    if op in vectors:
        inputs = {"x": r.values(rows, vectors[op], r.int(1, 6)), "target": r.values(rows)}
        if op != "triplet_margin":
            own = r.below(2, rows, *r.pick([[], [1]]))
            inputs["target"] = (2 * own - 1 if op == "cosine_embedding" else own).astype(r.pick([numpy.int32, numpy.float32]))
    elif op == "ctc":
        classes, steps = r.int(2, 6), r.int(1, 12)
        inputs = {"x": r.values(rows, steps, classes), "target": ctc_labels(r, rows, steps, classes)}
    else:
        shape = [rows, *r.dims(1, 3, 5)]
        x = r.values(*shape)
        if op == "poisson_nll" and not settings["log_input"]:
            x = r.positive(*shape)
        if op == "dice" and settings["probabilities"]:
            x = r.g.random(shape).astype(numpy.float32)
        if op == "kl_divergence" and settings["log_probabilities"]:
            x = numpy.log(probabilities(r, *shape))
        inputs = {"x": x, "target": target_of(r, settings, shape)}
        if op in BINARY and shape[-1] == 1 and r.flag():
            inputs["target"] = inputs["target"][..., 0]
    if r.flag():
        inputs["weights"] = sample_weights(r, rows)
    return "loss", {"loss": settings}, inputs


def ctc_labels(r, rows, steps, classes):
    """Draws rows of labels that so many steps can spell, padded with 0 or -1."""
    most = r.int(1, steps)
    labels = numpy.full((rows, most), r.pick([0, -1]), numpy.int32)
    for row in labels:
        own = r.g.integers(1, classes, r.int(0, most))
        while len(own) + (own[1:] == own[:-1]).sum() > steps:
            own = own[:-1]
        row[: len(own)] = own
    return labels


def train(tensors, attrs):
    """Trains the model of a description. Returns its last tensors, its losses, and averages where they are kept."""
    first = {role.removeprefix("init."): t.detach() for role, t in tensors.items() if role.startswith("init.")}
    shape, dtype = tuple(tensors["x0"].shape[1:]), next(iter(first.values())).dtype
    model = models.build(attrs["model"], shape).to(dtype)
    model.load_state_dict(first, strict=False)
    settings = dict(attrs["optimizer"])
    decay, frozen, exempt = settings.pop("average", None), settings.pop("freeze", None), settings.pop("exempt", False)
    trained = {n: p for n, p in model.named_parameters() if frozen is None or not n.startswith(frozen)}
    assert trained
    plain = [p for p in trained.values() if p.ndim < 2]
    groups = [{"params": [p for p in trained.values() if p.ndim >= 2 or not exempt]}]
    if exempt:
        groups.append({"params": plain, "weight_decay": 0.0, "exempt": True})
    count = sum(role[0] == "x" for role in tensors)
    step = steps_of(settings, [group for group in groups if group["params"]], count)
    averages, losses = {}, []
    model.train()
    for i in range(count):
        x, y = tensors[f"x{i}"].detach(), tensors[f"y{i}"].detach()
        weights = tensors.get(f"w{i}")
        weights = None if weights is None else weights.detach()
        if classes := attrs.get("class_weights"):
            own = torch.tensor([classes[c] if 0 <= c < len(classes) else 0.0 for c in y.tolist()], dtype=dtype)
            weights = own if weights is None else weights * own
        model.zero_grad()
        value = loss({"x": model(x), "target": y} | ({} if weights is None else {"weights": weights}), attrs)["y"]
        value.backward()
        step()
        losses.append(value.detach())
        if decay is not None:
            for name, p in trained.items():
                now = p.detach().clone()
                averages[name] = now if i == 0 else decay * averages[name] + (1 - decay) * now
    final = {f"final.{name}": t for name, t in model.state_dict().items() if t.is_floating_point()}
    final |= {f"average.{name}": t for name, t in averages.items()}
    return final | {"losses": torch.stack(losses)}


def training(r):
    """Draws a model with a head for its loss, batches of which the last may be smaller, and an optimizer."""
    shape = random_layers.sample(r)
    layers, behind = random_layers.tower(r, shape, r.int(1, 3))
    classifies, attrs = r.flag(0.6), {}
    op = r.pick(CLASSIFYING if classifies else REGRESSING)
    settings = loss_settings(r, op) | ({"log_probabilities": False} if op == "kl_divergence" else {})
    if op == "dice":
        settings["probabilities"] = False
    if op == "poisson_nll":
        settings["log_input"] = True
    if len(behind) > 1 and r.flag(0.7):
        layers.append({"layer": "flatten"})
        behind = (int(numpy.prod(behind)),)
    units = r.int(2 if classifies else 1, 5)
    layers.append({"layer": "dense", "units": units, "input": None, "bias": r.flag(0.8)})
    behind = (*behind[:-1], units)
    description = {"layer": "sequential", "layers": layers}
    rows = r.int(2, 12)
    sizes = [rows] * r.int(1, 4) + [r.int(1, rows)]
    kind = None
    inputs = {}
    for i, size in enumerate(sizes):
        target = target_of(r, settings, (size, *behind))
        kind = kind or (target.ndim, target.dtype)
        while (target.ndim, target.dtype) != kind:
            target = target_of(r, settings, (size, *behind))
        inputs |= {f"x{i}": r.values(size, *shape, plain=True), f"y{i}": target}
    if r.flag(0.4):
        inputs |= {f"w{i}": sample_weights(r, size) for i, size in enumerate(sizes)}
    if op in ("cross_entropy", "multi_margin") and len(behind) == 1 and inputs["y0"].dtype == numpy.int32 and r.flag(0.4):
        attrs["class_weights"] = [r.number(0.1, 3) for _ in range(units)]
    inputs |= {f"init.{name}": t for name, t in random_layers.tensors(r, description, shape).items()}
    attrs |= {"model": description, "loss": settings, "optimizer": optimizer(r)}
    attrs["optimizer"] |= r.some(average=lambda: r.pick([0.5, 0.9]), exempt=lambda: True)
    if len(layers) > 1 and r.flag(0.2):
        attrs["optimizer"]["freeze"] = "0."
    return "train", attrs | {"replicas": [1, r.int(2, 5)]}, inputs
