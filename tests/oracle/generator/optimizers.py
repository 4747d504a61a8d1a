"""Optimizers: `y` is the weight `w` after a step on each of the gradients `g[0], g[1], ...`."""

from unittest import mock

import torch
from torch.optim import swa_utils

from .case import NOTES, Case, computes, normal


class Lars(torch.optim.Optimizer):
    """You et al. 2017, algorithm 1: a tensor's rate follows the ratio of its norm to its gradient's."""

    def __init__(self, params, lr, momentum=0.0, weight_decay=0.0, trust=0.001):
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                decay = group["weight_decay"]
                local = group["trust"] * w.norm() / (w.grad.norm() + decay * w.norm())
                if group.get("exempt") or w.norm() == 0 or w.grad.norm() == 0:
                    local = 1.0
                v = self.state[w].setdefault("v", torch.zeros_like(w))
                v.mul_(group["momentum"]).add_(group["lr"] * local * (w.grad + decay * w))
                w.sub_(v)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, with phi(x) = x and bias correction."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), eps, decay = group["betas"], group["eps"], group["weight_decay"]
            for w in group["params"]:
                state = self.state[w]
                if not state:
                    state.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
                state["t"] += 1
                state["m"].lerp_(w.grad, 1 - beta1)
                state["v"].lerp_(w.grad.square(), 1 - beta2)
                m, v = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - beta2 ** state["t"])
                update = m / (v.sqrt() + eps) + decay * w
                exempt = group.get("exempt") or w.norm() == 0 or update.norm() == 0
                w.sub_(group["lr"] * (1.0 if exempt else w.norm() / update.norm()) * update)


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                direction = torch.sign(beta1 * m + (1 - beta1) * w.grad)
                w.sub_(group["lr"] * (direction + group["weight_decay"] * w))
                m.mul_(beta2).add_((1 - beta2) * w.grad)


class Muon(torch.optim.Muon):
    """PyTorch's, without its rounding to bf16."""

    def step(self):
        with mock.patch.object(torch, "bfloat16", torch.float64):
            super().step()


# By op. Each takes the attributes of a case by name.
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "sgd_momentum": torch.optim.SGD,
    "sgd_nesterov": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "lamb": Lamb,
    "lars": Lars,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
    "lion": Lion,
    "muon": Muon,
}


def stepper(op, params, attrs, rate=None):
    """Returns a function that clips the gradients of `params` as `attrs` say, and takes a step.

    `params` are parameters or PyTorch's groups of them, and `rate` gives the learning rate of each step.
    """
    settings = {name: value for name, value in attrs.items() if name not in NOTES}
    norm, value = settings.pop("clip_grad_norm", None), settings.pop("clip_grad_value", None)
    restarts = settings.pop("restarts", None)
    optimizer = OPTIMIZERS[op](params, **settings)
    schedule = None
    if restarts is not None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, *restarts)

    every = [p for group in optimizer.param_groups for p in group["params"]]

    def step():
        if rate is not None:
            lr = rate()
            for group in optimizer.param_groups:
                group["lr"] = lr
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(every, norm)
        if value is not None:
            torch.nn.utils.clip_grad_value_(every, value)
        optimizer.step()
        if schedule is not None:
            schedule.step()

    return step


class Weight(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = torch.nn.Parameter(w.clone())


def averaged(tensors, attrs):
    """Returns the weight and its exponential moving average."""
    model = Weight(tensors["w"])
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(attrs["decay"]))
    step = stepper("sgd", [model.w], {"lr": attrs["lr"]})
    for g in tensors["g"]:
        model.w.grad = g.clone()
        step()
        average.update_parameters(model)
    return {"y": model.w.detach(), "average": average.module.w.detach()}


def after_steps(op):
    def run(tensors, attrs):
        w = tensors["w"].clone().requires_grad_()
        step = stepper(op, [w], attrs)
        for g in tensors["g"]:
            w.grad = g.clone()
            step()
        return {"y": w.detach()}

    return run


for op in OPTIMIZERS:
    computes(op, constants=("w", "g"), takes_all=True)(after_steps(op))

computes("average_weights", constants=("w", "g"), takes_all=True)(averaged)


def case(name, op=None, **attrs):
    return Case(name, op or name, {"w": normal(5, 4), "g": normal(6, 5, 4)}, attrs)


F64 = {"source": "PyTorch's Muon, with float64 in place of its bf16"}

CASES = [
    case("sgd", lr=0.1, steps=6),
    case("sgd_momentum", lr=0.1, momentum=0.9, steps=6),
    case("sgd_nesterov", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, steps=6),
    case("adam", lr=0.01, betas=[0.9, 0.999], eps=1e-8, steps=6),
    case("adamw", lr=0.01, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, steps=6),
    case("rmsprop", lr=0.01, alpha=0.99, eps=1e-8, steps=6),
    case("adagrad", lr=0.1, eps=1e-10, steps=6),
    case(
        "lamb",
        lr=0.01,
        betas=[0.9, 0.999],
        eps=1e-6,
        weight_decay=0.01,
        steps=6,
        source="You et al. 2020, algorithm 2, phi(x) = x, bias correction",
    ),
    case(
        "lars",
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        trust=0.001,
        steps=6,
        source="You et al. 2017, algorithm 1",
    ),
    case("clip_grad_norm", op="sgd", lr=0.1, clip_grad_norm=1.0, steps=6),
    case("adadelta/plain", op="adadelta", lr=1.0, rho=0.9, eps=1e-6, steps=6),
    case("adadelta/decay", op="adadelta", lr=0.5, rho=0.95, eps=1e-4, weight_decay=0.1, steps=6),
    case("adamax/plain", op="adamax", lr=0.01, betas=[0.9, 0.999], eps=1e-8, steps=6),
    case("adamax/decay", op="adamax", lr=0.01, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.1, steps=6),
    case("nadam/plain", op="nadam", lr=0.01, betas=[0.9, 0.999], eps=1e-8, steps=6),
    case("nadam/decay", op="nadam", lr=0.01, betas=[0.9, 0.95], momentum_decay=0.1, weight_decay=0.1, steps=6),
    case("nadam/decoupled", op="nadam", lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, steps=6),
    case("lion", lr=0.01, betas=[0.9, 0.99], weight_decay=0.1, steps=6, source="Chen et al. 2023, algorithm 2"),
    case("adafactor/matrix", op="adafactor", lr=0.3, eps=[2.0**-23, 1e-3], d=1.1, weight_decay=0.1, steps=6),
    Case(
        "adafactor/vector",
        "adafactor",
        {"w": normal(7), "g": normal(6, 7)},
        {"lr": 0.01, "beta2_decay": -0.5, "eps": [2.0**-23, 1e-3], "steps": 6},
    ),
    Case(
        "adafactor/cube",
        "adafactor",
        {"w": normal(3, 4, 2), "g": normal(6, 3, 4, 2)},
        {"lr": 0.01, "eps": [2.0**-23, 1e-3], "steps": 6},
    ),
    case("muon/tall", op="muon", lr=0.02, weight_decay=0.1, momentum=0.95, steps=6, **F64),
    Case(
        "muon/wide",
        "muon",
        {"w": normal(3, 7), "g": normal(6, 3, 7)},
        {"lr": 0.02, "momentum": 0.9, "nesterov": False, "ns_steps": 3, "steps": 6} | F64,
    ),
    case("average_weights", lr=0.1, decay=0.9, steps=6),
    case("cosine_restarts", op="sgd", lr=0.1, restarts=[2, 2, 0.01], steps=6),
]
