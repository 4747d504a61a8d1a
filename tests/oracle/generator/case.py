"""What a case is: its definition in a table, the draws of its inputs, and the rule that computes its op."""

import hashlib
import inspect
from dataclasses import dataclass, field

import numpy

# Attributes that explain a case to a reader. No rule takes them.
NOTES = {"why", "source", "weight_layout", "gate_order", "reduction", "running_var", "steps"}


@dataclass(frozen=True)
class Case:
    """A line of a table. `inputs` maps a role to its draw.

    Gradients that arrive at outputs are drawn without being named.
    """

    name: str
    op: str
    inputs: dict
    attrs: dict = field(default_factory=dict)
    tolerance: float = 1e-5

    def draw(self, suite, seed):
        """Returns the generator of this case and the inputs by role. Other cases do not change the draws."""
        digest = hashlib.sha256(f"{seed}/{suite}/{self.name}".encode()).digest()
        generator = numpy.random.default_rng(int.from_bytes(digest[:16], "little"))
        return generator, {role: draw(generator) for role, draw in self.inputs.items()}


def normal(*shape, scale=1.0, shift=0.0):
    """Draws f32 numbers of a normal distribution."""
    return lambda g: (shift + scale * g.standard_normal(shape)).astype(numpy.float32)


def positive(*shape, least=0.1):
    """Draws f32 numbers that are `least` or more: `least` plus the magnitude of a normal draw."""
    return lambda g: (least + numpy.abs(g.standard_normal(shape))).astype(numpy.float32)


def below(high, *shape):
    """Draws i32 numbers from 0 to `high` exclusively: ids, labels."""
    return lambda g: g.integers(0, high, shape).astype(numpy.int32)


def given(values, dtype=numpy.float32):
    """Draws nothing. The numbers are these."""
    return lambda g: numpy.array(values, dtype=dtype)


@dataclass(frozen=True)
class Rule:
    """How an op is computed: a function of tensors by role and of attributes by name."""

    function: object
    constants: tuple
    takes_all: bool

    def roles(self, inputs):
        """Returns the roles that are inputs of the op. The others are gradients that arrive at outputs."""
        if self.takes_all:
            return [role for role in inputs if role != "gy"]
        kinds = inspect.signature(self.function).parameters.values()
        names = [p.name for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD]
        return [role for role in inputs if role in names]

    def __call__(self, tensors, attrs):
        """Returns the outputs by role. An attribute that is neither the rule's nor a note is an error."""
        if self.takes_all:
            return self.function(tensors, attrs)
        attrs = {name: value for name, value in attrs.items() if name not in NOTES}
        outputs = self.function(**tensors, **attrs)
        return outputs if isinstance(outputs, dict) else {"y": outputs}


RULES = {}


def computes(*ops, constants=(), takes_all=False):
    """Registers a function as the rule of `ops`.

    Its parameters are the roles of the inputs, its keyword-only parameters the attributes. It returns the
    output `y`, or outputs by role. Floats among the inputs get gradients, except for `constants`. With
    `takes_all` it takes all inputs and all attributes as two dictionaries.
    """

    def register(function):
        for op in ops:
            assert op not in RULES, f"{op} has two rules"
            RULES[op] = Rule(function, tuple(constants), takes_all)
        return function

    return register
