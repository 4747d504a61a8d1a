"""Compares event files with the history of their run, as TensorBoard's own loader reads them.

    python tests/events/compare.py LOGDIR HISTORY

LOGDIR is what `TensorBoard::new` or `--logdir` was given, HISTORY has the lines of `JsonLines` or `--json`. Every
epoch must be there once, with the numbers of the history rounded to float32, bit for bit; every step must be there once.
"""

import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EVERYTHING = {name: 0 for name in ["scalars", "tensors", "histograms", "images", "compressedHistograms"]}


def load(path):
    run = EventAccumulator(str(path), size_guidance=EVERYTHING)
    run.Reload()
    return run


def bits(value):
    return struct.pack("<f", value)


def scalars(run, tag):
    return [(event.step, bits(event.value)) for event in run.Scalars(tag)]


def number(value):
    """The library writes what JSON has no number for as null."""
    return float("nan") if value is None else value


def compare(part, run, epochs):
    """Returns how many values of a run are those of the history."""
    known = {"train": "train_", "validation": "val_"}[part]
    names = [name for name in epochs[0] if name.startswith(known)]
    compared = 0
    for name in names:
        tag = "epoch/" + name.removeprefix(known)
        expected = [(epoch["steps"], bits(number(epoch[name]))) for epoch in epochs]
        found = scalars(run, tag)
        assert found == expected, f"{part}: {tag}: {found} is not {expected}"
        compared += len(found)
    tags = {tag for tag in run.Tags()["scalars"] if tag.startswith("epoch/")} - {"epoch/number"}
    assert len(tags) == len(names), f"{part}: {tags} and {names}"
    return compared


def main(logdir, history):
    lines = [json.loads(line) for line in Path(history).read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    train = load(Path(logdir) / "train")
    compared = compare("train", train, epochs)
    if any("val_loss" in epoch for epoch in epochs):
        compared += compare("validation", load(Path(logdir) / "validation"), epochs)
    for tag in [tag for tag in train.Tags()["scalars"] if tag.startswith("step/")]:
        steps = [step for step, _ in scalars(train, tag)]
        assert steps == list(range(1, epochs[-1]["steps"] + 1)), f"{tag}: steps {steps}"
        compared += len(steps)
    assert "model" in train.Tags()["tensors"], train.Tags()
    hyperparameters = train.SummaryMetadata("_hparams_/session_start_info")
    assert hyperparameters.plugin_data.plugin_name == "hparams"
    for tag in train.Tags()["histograms"]:
        for event in train.Histograms(tag):
            assert sum(event.histogram_value.bucket) == event.histogram_value.num > 0, tag
    print(f"{compared} values are those of the history; tags {json.dumps(train.Tags()['scalars'])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
