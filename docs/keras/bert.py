"""BERT (Devlin et al. 2019: the base model with its pooler, and a small one) tells good reviews from bad ones."""

import keras
import numpy as np
from keras import layers, ops

from common import claim_last, flags, published, reviews, split

# The words of a review at most, with the mark at its start, whose place the head looks at. 0 is padding.
LONGEST = 32
START = 1


def main():
    run = flags(epochs=10, batch=32)
    published(encoder(16, words=30_522, width=768, blocks=12, heads=12), 109_482_240)

    texts, labels, words = reviews(run.data, START + 1, LONGEST - 1)
    x = keras.utils.pad_sequences([[START] + t for t in texts], LONGEST, padding="post")
    fields = [x, np.zeros_like(x), (x != 0).astype(np.float32)]
    parts = split(run.seed, len(x) * 4 // 5, *fields, labels)
    (*train, train_y), (*held_out, held_out_y) = parts
    small = encoder(LONGEST, words=words, width=32, blocks=2, heads=4)
    model = keras.Model(small.inputs, layers.Dense(2)(small.output))
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        train,
        train_y,
        batch_size=run.batch,
        epochs=run.epochs,
        validation_data=(held_out, held_out_y),
    )
    claim_last(run, 10, history, "accuracy", 0.9)


class Positions(layers.Layer):
    """Adds a vector for each position."""

    def build(self, shape):
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.positions = self.add_weight(shape=(512, shape[-1]), initializer=small)

    def call(self, x):
        return x + self.positions[: x.shape[1]]


def encoder(length, words, width, blocks, heads):
    ids = keras.Input((length,), dtype="int32")
    types = keras.Input((length,), dtype="int32")
    mask = keras.Input((length,))
    x = layers.Embedding(words, width)(ids) + layers.Embedding(2, width)(types)
    x = layers.LayerNormalization()(Positions()(x))
    for _ in range(blocks):
        attention = layers.MultiHeadAttention(heads, width // heads)
        found = attention(x, x, attention_mask=ops.expand_dims(mask, 1))
        x = layers.LayerNormalization()(x + found)
        inner = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(inner))
    pooled = layers.Dense(width, activation="tanh")(x[:, 0])
    return keras.Model([ids, types, mask], pooled)


if __name__ == "__main__":
    main()
