"""A U-Net (Ronneberger et al. 2015, with batch norms) that finds the pixels of discs in noise, none of rings'."""

import keras
import numpy as np
from keras import layers

from common import claim_last, flags, published

SIDE = 32


def main():
    run = flags(epochs=8, batch=32)
    published(network((64, 64, 3), 64, 2), 31_037_698)

    model = network((SIDE, SIDE, 1), 4, 2)
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False, name="iou")],
    )
    history = model.fit(
        *discs(512, 1),
        batch_size=run.batch,
        epochs=run.epochs,
        validation_data=discs(128, 2),
    )
    claim_last(run, 8, history, "iou", 0.85)


def network(shape, width, classes):
    """The first convolution has `width` channels."""
    image = keras.Input(shape)
    x, skips = double(image, width), []
    for times in (2, 4, 8, 16):
        skips.append(x)
        x = double(layers.MaxPooling2D()(x), times * width)
    for times in (8, 4, 2, 1):
        up = layers.Conv2DTranspose(times * width, 2, strides=2)(x)
        x = double(layers.Concatenate()([skips.pop(), up]), times * width)
    return keras.Model(image, layers.Conv2D(classes, 1)(x))


def double(x, channels):
    for _ in range(2):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return x


def discs(count, seed):
    """Pictures of a disc and a ring in noise, and for each pixel whether it is the disc's."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE]

    def far(top, left, size):
        off = np.hypot(rows - 6 - 20 * top, columns - 6 - 20 * left)
        return off - 3 - 3 * size

    x, y = [], []
    for _ in range(count):
        disc = far(*random.random(3)) < 0
        bright = disc | (np.abs(far(*random.random(3))) < 1)
        x.append(bright + 0.3 * random.standard_normal((SIDE, SIDE)))
        y.append(disc)
    return np.array(x, np.float32)[..., None], np.array(y, np.int32)


if __name__ == "__main__":
    main()
