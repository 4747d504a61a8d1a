"""Transfer learning: a network learns the digits 0 to 4, and its layers then learn 5 to 9 from few samples."""

import tempfile
from pathlib import Path

import keras
from keras import layers

from common import claim, digits, flags, split

HEAD = 4


def network():
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(64, name="base"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(32, activation="relu", name="middle"),
            layers.Dense(5, name="head"),
        ]
    )


def compiled(model, rate):
    model.compile(
        optimizer=keras.optimizers.AdamW(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def main():
    run = flags(epochs=12, batch=32)
    x, y = digits()
    x = x / 16
    known = y < 5
    before = network()
    compiled(before, 2e-3)
    before.fit(x[known], y[known], batch_size=run.batch, epochs=5)
    base = Path(tempfile.mkdtemp()) / "base.weights.h5"
    before.save_weights(base)

    new = (x[~known], y[~known] - 5)
    train, held_out = split(run.seed, len(new[0]) // 5, *new)
    model = network()
    model.load_weights(base)
    model.get_layer("head").set_weights(network().get_layer("head").get_weights())
    model.get_layer("norm").trainable = False
    for name in ("base", "middle"):
        model.get_layer(name).trainable = False
    compiled(model, 1e-2)
    head = min(HEAD, run.epochs)
    model.fit(*train, batch_size=run.batch, epochs=head, validation_data=held_out)
    for name in ("base", "middle"):
        model.get_layer(name).trainable = True
    compiled(model, 1e-3)
    model.fit(
        *train,
        batch_size=run.batch,
        initial_epoch=head,
        epochs=run.epochs,
        validation_data=held_out,
    )
    base.unlink()

    accuracy = model.evaluate(*held_out, return_dict=True)["accuracy"]
    print(
        f"held out: {100 * accuracy:.2f}% right after {len(train[0])} samples an epoch"
    )
    if run.epochs >= 12:
        claim("accuracy on the other digits that are held out", accuracy, 0.9)


if __name__ == "__main__":
    main()
