"""Computes a case in float64: outputs, and gradients of the sum over outputs of OUTPUT * gOUTPUT."""

import numpy
import torch

from .case import RULES


def make(op, attrs, inputs, generator=None, dtype=torch.float64):
    """Returns (inputs, expect) by role, as f32 and i32 arrays.

    Gradients that arrive at outputs are taken from `inputs`, or drawn where they are not in it.
    """
    rule = RULES[op]
    constant = {role: role.split(".")[-1] in rule.constants for role in inputs}
    tensors = {role: tensor(inputs[role], not constant[role], dtype) for role in rule.roles(inputs)}
    outputs = rule(tensors, attrs)
    inputs = dict(inputs)
    total = 0.0
    for role, output in outputs.items():
        if not output.requires_grad:
            continue
        if output.ndim == 0:
            total = total + output
            continue
        arriving = f"g{role}"
        if arriving not in inputs:
            inputs[arriving] = generator.standard_normal(tuple(output.shape)).astype(numpy.float32)
        total = total + (output * tensor(inputs[arriving], False, dtype)).sum()
    wanted = {role: t for role, t in tensors.items() if t.requires_grad}
    expect = {}
    if torch.is_tensor(total):
        gradients = torch.autograd.grad(total, list(wanted.values()))
        expect = {f"d{role}": rounded(gradient) for role, gradient in zip(wanted, gradients)}
    return inputs, expect | {role: rounded(output) for role, output in outputs.items()}


def tensor(array, gradient, dtype=torch.float64):
    """Returns floats as `dtype` with or without a gradient, and whole numbers as int64."""
    if array.dtype == numpy.float32:
        return torch.tensor(array, dtype=dtype, requires_grad=gradient)
    return torch.tensor(array, dtype=torch.int64)


def rounded(output):
    """Returns an f32 or i32 array."""
    array = output.detach().numpy()
    dtype = numpy.float32 if array.dtype.kind == "f" else numpy.int32
    # In row-major order: a file takes an array's memory as it lies, and that of a view lies otherwise.
    return array.astype(dtype, order="C")


def share(answer, expected, tolerance):
    """Returns the error over the tolerance, by the rule of the format. Passed if at most 1."""
    if answer.shape != expected.shape or answer.dtype != expected.dtype or not numpy.isfinite(answer).all():
        return float("inf")
    answer, expected = answer.astype(numpy.float64), expected.astype(numpy.float64)
    norm = numpy.linalg.norm(expected.ravel())
    return numpy.linalg.norm((answer - expected).ravel()) / (norm if norm > 0 else 1.0) / tolerance
