"""What the programs share: where the data are, the digits, and a claim at the end of a run."""

import argparse
import gzip
import math
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


def digit_pictures(seed):
    """Pictures [8, 8, 1] from 0 to 1: four fifths to train on, and those held out."""
    x, y = digits()
    return split(seed, len(x) * 4 // 5, x.reshape(-1, 8, 8, 1) / 16, y)


def reviews(path, first, longest):
    """Words as ids from `first` of each review, labels, and the number of ids."""
    ids, texts, labels = {}, [], []
    for line in (path or DATA / "reviews.tsv").read_text().splitlines():
        label, words = line.split("\t")
        words = words.split()[:longest]
        texts.append([ids.setdefault(word, len(ids) + first) for word in words])
        labels.append(int(label))
    return texts, np.array(labels), len(ids) + first


def split(seed, first, *arrays):
    order = np.random.default_rng(seed).permutation(len(arrays[0]))
    return [array[order[:first]] for array in arrays], [
        array[order[first:]] for array in arrays
    ]


def claim(what, got, least):
    if got < least:
        raise SystemExit(f"{what} is {got:.4f}, less than {least}")


def published(model, expected):
    """Compares a network's parameters with those of its paper."""
    found = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    print(f"at its published size it has {found} parameters")
    if found != expected:
        raise SystemExit(f"{found} parameters, not {expected}")


def claim_last(run, epochs, history, metric, least):
    """Says a metric of the held-out samples, and compares it after a whole run."""
    got = history.history["val_" + metric][-1]
    print(f"held out: {metric} {100 * got:.2f}%")
    if run.epochs >= epochs:
        claim(f"{metric} on the held-out part", got, least)
