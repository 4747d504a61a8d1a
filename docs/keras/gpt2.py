"""GPT-2 (Radford et al. 2019: the smallest model, and a much smaller one) learns to write reviews."""

import keras
import numpy as np
from keras import layers

from common import DATA, claim, flags, published

# The number of characters that a prediction depends on.
CONTEXT = 64


def main():
    run = flags(epochs=8, batch=16)
    smallest = dict(vocabulary=50_257, context=1024, width=768, blocks=12, heads=12)
    published(transformer(16, **smallest), 124_439_808)

    text = np.frombuffer((run.data or DATA / "reviews.tsv").read_bytes(), np.uint8)
    characters, text = np.unique(text, return_inverse=True)
    first = len(text) - len(text) // 10
    train, held_out = windows(text[:first]), windows(text[first:])
    size = dict(
        vocabulary=len(characters), context=CONTEXT, width=32, blocks=2, heads=4
    )
    model = transformer(CONTEXT, **size)
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-3, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(
        *train, batch_size=run.batch, epochs=run.epochs, validation_data=held_out
    )
    print(written(model, characters, "1\tthis", 200))
    nats = history.history["val_loss"][-1]
    pairs = bigram_nats(text[:first], text[first:], len(characters))
    print(f"held out: {nats:.3f} nats a character; a table of pairs: {pairs:.3f}")
    if run.epochs >= 8:
        claim("nats a character below the table's", pairs - nats, 0.3)


class Positions(layers.Layer):
    """Adds a vector for each position."""

    def __init__(self, context):
        super().__init__()
        self.context = context

    def build(self, shape):
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.positions = self.add_weight(
            shape=(self.context, shape[-1]), initializer=small
        )

    def call(self, x):
        return x + self.positions[: x.shape[1]]


def transformer(length, vocabulary, context, width, blocks, heads):
    ids = keras.Input((length,), dtype="int32")
    small = keras.initializers.RandomNormal(stddev=0.02)
    words = layers.ReversibleEmbedding(vocabulary, width, embeddings_initializer=small)
    x = Positions(context)(words(ids))
    for _ in range(blocks):
        normed = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(normed, normed, use_causal_mask=True)
        inner = layers.LayerNormalization()(x)
        inner = layers.Dense(4 * width, activation="gelu")(inner)
        x = x + layers.Dense(width)(inner)
    x = layers.LayerNormalization()(x)
    return keras.Model(ids, words(x, reverse=True))


def windows(text):
    count = (len(text) - 1) // CONTEXT
    cut = lambda start: text[start : start + count * CONTEXT].reshape(count, CONTEXT)
    return cut(0), cut(1)


def bigram_nats(known, held_out, size):
    counts = np.ones((size, size))
    np.add.at(counts, (known[:-1], known[1:]), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    return -np.log(chances[held_out[:-1], held_out[1:]]).mean()


def written(model, characters, start, length):
    ids = [int(np.searchsorted(characters, byte)) for byte in start.encode()]
    random = np.random.default_rng(42)
    for _ in range(length):
        window = ids[-CONTEXT:]
        padded = np.array([window + [0] * (CONTEXT - len(window))])
        logits = model.predict(padded, verbose=0)[0, len(window) - 1] / 0.7
        chances = np.exp(logits - logits.max())
        ids.append(random.choice(len(characters), p=chances / chances.sum()))
    return bytes(characters[ids]).decode()


if __name__ == "__main__":
    main()
