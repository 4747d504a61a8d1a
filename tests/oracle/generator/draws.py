"""Draws of settings, shapes and values."""

import numpy


class Draws:
    def __init__(self, generator):
        self.g = generator

    def int(self, low, high):
        """Returns a whole number from `low` to `high` inclusively."""
        return int(self.g.integers(low, high + 1))

    def flag(self, chance=0.5):
        return bool(self.g.random() < chance)

    def pick(self, choices):
        return choices[int(self.g.integers(len(choices)))]

    def number(self, low, high, digits=3):
        """Returns a number that a reader can take in."""
        return round(float(self.g.uniform(low, high)), digits)

    def dims(self, least, most, high=6):
        """Returns `least` to `most` lengths up to `high`, of which many are 1."""
        return [1 if self.flag(0.2) else self.int(1, high) for _ in range(self.int(least, most))]

    def some(self, **settings):
        """Returns about half of the settings, each drawn by its function; the others keep their defaults."""
        return {name: draw() for name, draw in settings.items() if self.flag()}

    def values(self, *shape, plain=False):
        """Draws f32 numbers: normal ones, large ones, small ones, or multiples of a half, many of them equal."""
        normal = numpy.asarray(self.g.standard_normal(shape))
        style = 0 if plain else self.int(0, 9)
        if style == 9:
            normal = normal * 20
        elif style == 8:
            normal = normal * 1e-2
        elif style >= 6:
            normal = numpy.round(normal * 2) / 2
        return numpy.asarray(normal, numpy.float32)

    def positive(self, *shape, least=0.1):
        return numpy.asarray(least + numpy.abs(self.g.standard_normal(shape)), numpy.float32)

    def below(self, high, *shape):
        """Draws i32 numbers from 0 to `high` exclusively. The first and the last one are frequent."""
        drawn = self.g.integers(0, high, shape)
        edge = self.g.random(shape)
        return numpy.where(edge < 0.1, 0, numpy.where(edge > 0.9, high - 1, drawn)).astype(numpy.int32)
