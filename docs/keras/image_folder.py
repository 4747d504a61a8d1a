"""Pictures in folders, one a class, of which one is rare: convolutions, augmentation and weights of classes."""

from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.metrics import recall_score
from sklearn.utils.class_weight import compute_class_weight

from common import claim, flags

SIDE = 16


def main():
    run = flags(epochs=6, batch=32)
    # The Rust program makes the pictures, if none are given.
    folder = run.data or Path("/tmp/unisono-pictures-1")
    train, held_out = keras.utils.image_dataset_from_directory(
        folder,
        color_mode="grayscale",
        image_size=(SIDE, SIDE),
        batch_size=run.batch,
        seed=run.seed,
        validation_split=0.25,
        subset="both",
    )
    classes = len(train.class_names)
    labels = np.concatenate([y for _, y in train])
    weights = compute_class_weight("balanced", classes=np.arange(classes), y=labels)
    shift = layers.RandomTranslation(0.125, 0.125, "constant")
    augmented = train.map(lambda x, y: (shift(x, training=True), y))

    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        augmented,
        epochs=run.epochs,
        validation_data=held_out,
        class_weight=dict(enumerate(weights)),
    )

    x, y = (np.concatenate(part) for part in zip(*held_out))
    recall = recall_score(y, model.predict(x).argmax(axis=1), average="macro")
    counts = np.bincount(labels)
    print(
        f"held out: {100 * recall:.1f}% of each class are found, on average; {counts} pictures"
    )
    if run.epochs >= 6 and run.data is None:
        claim("mean recall on the held-out pictures", recall, 0.9)


if __name__ == "__main__":
    main()
