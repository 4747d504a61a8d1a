"""One tower compares two of the handwritten digits."""

import keras
import numpy as np
from keras import layers, ops

from common import claim, digits, flags


def pairs(x, y, seed, count):
    """Half of the pairs are of one class."""
    random = np.random.default_rng(seed)
    left = random.integers(len(x), size=count)
    right = random.integers(len(x), size=count)
    for at in range(0, count, 2):
        right[at] = random.choice(np.flatnonzero(y == y[left[at]]))
    same = (y[left] == y[right]).astype(np.float32)[:, None]
    return [x[left] / 16, x[right] / 16], same


def main():
    run = flags(epochs=20, batch=64)
    x, y = digits(run.data)
    # The digits of the pairs that are held out are in no other pair.
    train, same = pairs(x[:1400], y[:1400], 1, 6000)
    held_out, held_out_same = pairs(x[1400:], y[1400:], 2, 1500)

    tower = keras.Sequential(
        [layers.Dense(128, activation="relu"), layers.Dropout(0.1), layers.Dense(32)]
    )
    left, right = keras.Input((64,)), keras.Input((64,))
    apart = tower(left) - tower(right)
    model = keras.Model([left, right], layers.Dense(1)(ops.square(apart)))
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    history = model.fit(
        train,
        same,
        batch_size=run.batch,
        epochs=run.epochs,
        validation_data=(held_out, held_out_same),
    ).history

    right = history["val_binary_accuracy"][-1]
    print(f"held out: {100 * right:.2f}% of the pairs are right")
    if run.epochs >= 20 and run.data is None:
        claim("accuracy on the held-out pairs", right, 0.88)


if __name__ == "__main__":
    main()
