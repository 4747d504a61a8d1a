"""What the programs share: where the data are, the digits, and a claim at the end of a run."""

import argparse
import gzip
from pathlib import Path

import keras
import numpy as np

DATA = Path(__file__).parents[2] / "examples" / "data"


def flags(epochs, batch):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args()
    keras.utils.set_random_seed(given.seed)
    return given


def digits(path=None):
    with gzip.open(path or DATA / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :-1], table[:, -1].astype(np.int32)


def split(seed, first, *arrays):
    order = np.random.default_rng(seed).permutation(len(arrays[0]))
    return [array[order[:first]] for array in arrays], [
        array[order[first:]] for array in arrays
    ]


def claim(what, got, least):
    if got < least:
        raise SystemExit(f"{what} is {got:.4f}, less than {least}")
