"""Sentences of several lengths: a bidirectional LSTM over padded words, with masks, in buckets."""

import keras
import tensorflow as tf
from keras import layers

from common import claim, flags, reviews

LENGTHS = (8, 16, 32)


def buckets(texts, labels, batch):
    """Batches of similar length, each padded to its bucket's boundary."""
    spec = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
    data = tf.data.Dataset.from_generator(
        lambda: zip(texts, labels), output_signature=spec
    )
    return data.bucket_by_sequence_length(
        lambda x, y: tf.size(x),
        [length + 1 for length in LENGTHS],
        [batch] * (len(LENGTHS) + 1),
        pad_to_bucket_boundary=True,
    )


def main():
    run = flags(epochs=6, batch=32)
    texts, labels, words = reviews(run.data, 1, LENGTHS[-1])
    first = len(texts) * 4 // 5
    train = buckets(texts[:first], labels[:first], run.batch).shuffle(100)
    held_out = buckets(texts[first:], labels[first:], run.batch)

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
