#!/usr/bin/env python3
"""Makes houses.csv and reviews.tsv, the made-up data of the examples. Standard library only; always the same bytes."""

import math
import random
from pathlib import Path

HERE = Path(__file__).parent


def houses():
    draw = random.Random(1)
    cities = {"Bern": 0.9, "Gent": 0.2, "Graz": -0.4, "Lyon": 0.3, "Oulu": -0.8, "Turin": -0.2}
    lines = ["area,rooms,year,city,price"]
    for _ in range(1500):
        city = draw.choice(sorted(cities))
        area = max(25.0, draw.gauss(95, 30))
        rooms = max(1, round(area / 28 + draw.gauss(0, 0.7)))
        year = draw.randint(1900, 2020)
        price = 120 + 2.4 * area + 12 * rooms + 60 * cities[city] + 0.5 * (year - 1960) + draw.gauss(0, 12)
        shown = "" if draw.random() < 0.03 else f"{area:.1f}"
        lines.append(f"{shown},{rooms},{year},{city},{price:.1f}")
    (HERE / "houses.csv").write_text("\n".join(lines) + "\n")


def reviews():
    draw = random.Random(2)
    good = "good great fine lovely funny warm bright clever".split()
    bad = "bad dull poor cold slow weak silly flat".split()
    things = "film story cast music plot end scene play book song".split()
    filler = "the a this that was is and really very so with its all day night we saw it".split()
    lines = []
    for _ in range(1200):
        positive = draw.random() < 0.5
        negated = draw.random() < 0.4
        word = draw.choice(good if positive != negated else bad)
        core = (["not"] if negated else []) + [word]
        before = [draw.choice(filler) for _ in range(draw.randint(0, 8))]
        after = [draw.choice(filler + things) for _ in range(int(draw.expovariate(0.25)) % 18)]
        lines.append(f"{int(positive)}\t{' '.join(before + core + [draw.choice(things)] + after)}")
    (HERE / "reviews.tsv").write_text("\n".join(lines) + "\n")


houses()
reviews()
