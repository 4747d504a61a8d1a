"""A vision transformer (Dosovitskiy et al. 2021: ViT-B/16, and a small one) on handwritten digits."""

import keras
from keras import layers, ops

from common import claim_last, digit_pictures, flags, published


def main():
    run = flags(epochs=15, batch=64)
    base = dict(patch=16, width=768, blocks=12, heads=12, classes=1000)
    published(transformer((224, 224, 3), **base), 86_567_656)

    train, held_out = digit_pictures(run.seed)
    small = dict(patch=2, width=32, blocks=2, heads=4, classes=10)
    model = transformer((8, 8, 1), **small)
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *train, batch_size=run.batch, epochs=run.epochs, validation_data=held_out
    )
    claim_last(run, 15, history, "accuracy", 0.93)


class Embedded(layers.Layer):
    """Puts a class token before the patches and adds a vector for each position."""

    def build(self, shape):
        _, length, width = shape
        self.token = self.add_weight(shape=(1, 1, width), initializer="zeros")
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.positions = self.add_weight(shape=(length + 1, width), initializer=small)

    def call(self, x):
        token = ops.tile(self.token, (ops.shape(x)[0], 1, 1))
        return ops.concatenate([token, x], axis=1) + self.positions


def transformer(shape, patch, width, blocks, heads, classes):
    image = keras.Input(shape)
    x = layers.Conv2D(width, patch, strides=patch)(image)
    x = Embedded()(layers.Reshape((-1, width))(x))
    for _ in range(blocks):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normed, normed)
        inner = layers.LayerNormalization()(x)
        inner = layers.Dense(4 * width, activation="gelu")(inner)
        x = x + layers.Dense(width)(inner)
    x = layers.LayerNormalization()(x)
    return keras.Model(image, layers.Dense(classes)(x[:, 0]))


if __name__ == "__main__":
    main()
