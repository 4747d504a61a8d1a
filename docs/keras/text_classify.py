"""Sentences of several lengths: a bidirectional LSTM over padded words, with masks, in buckets."""

import keras
import numpy as np
from keras import layers

from common import claim, flags, reviews

LENGTHS = (8, 16, 32)


class Buckets(keras.utils.PyDataset):
    """Batches of similar length, each padded to its bucket's boundary."""

    def __init__(self, texts, labels, batch, shuffle):
        super().__init__()
        self.texts, self.labels, self.batch, self.shuffle = (
            texts,
            labels,
            batch,
            shuffle,
        )
        self.random = np.random.default_rng(42)
        self.on_epoch_end()

    def on_epoch_end(self):
        order = np.arange(len(self.texts))
        if self.shuffle:
            self.random.shuffle(order)
        self.batches = []
        for low, high in zip((0,) + LENGTHS, LENGTHS):
            own = [i for i in order if low < len(self.texts[i]) <= high]
            starts = range(0, len(own), self.batch)
            self.batches += [
                (own[start : start + self.batch], high) for start in starts
            ]
        if self.shuffle:
            self.random.shuffle(self.batches)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        rows, length = self.batches[index]
        x = np.zeros((len(rows), length), np.int32)
        for row, i in enumerate(rows):
            x[row, : len(self.texts[i])] = self.texts[i]
        return x, self.labels[rows]


def main():
    run = flags(epochs=6, batch=32)
    texts, labels, words = reviews(run.data, 1, LENGTHS[-1])
    first = len(texts) * 4 // 5
    train = Buckets(texts[:first], labels[:first], run.batch, shuffle=True)
    held_out = Buckets(texts[first:], labels[first:], run.batch, shuffle=False)

    model = keras.Sequential(
        [
            layers.Embedding(words, 16, mask_zero=True),
            layers.Bidirectional(layers.LSTM(16)),
            layers.Dense(2),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(train, epochs=run.epochs, validation_data=held_out).history

    right = history["val_accuracy"][-1]
    print(f"held out: {100 * right:.1f}% right")
    if run.epochs >= 6 and run.data is None:
        claim("accuracy on the held-out reviews", right, 0.9)


if __name__ == "__main__":
    main()
