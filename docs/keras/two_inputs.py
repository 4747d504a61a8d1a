"""Two inputs and two outputs: numbers and a category of made-up houses tell the price and whether one is sold."""

import keras
import numpy as np
from keras import layers

from common import claim, flags, split

HOUSES = 2000
CITIES = 12


def houses():
    random = np.random.default_rng(1)
    level = random.normal(size=CITIES)
    city = random.integers(CITIES, size=HOUSES)
    numbers = random.normal(size=(HOUSES, 3)).astype(np.float32)
    area, rooms, age = numbers.T
    fair = level[city] + 0.8 * area + 0.3 * area * rooms - 0.4 * age
    price = fair + 0.2 * random.normal(size=HOUSES)
    sold = area + rooms > age - 0.5
    return (
        numbers,
        city.astype(np.int32),
        price[:, None],
        sold[:, None].astype(np.float32),
    )


def main():
    run = flags(epochs=30, batch=64)
    train, held_out = split(run.seed, HOUSES * 4 // 5, *houses())

    numbers = keras.Input((3,), name="numbers")
    city = keras.Input((), dtype="int32", name="city")
    vector = layers.Embedding(CITIES, 4)(city)
    both = layers.Dense(16)(numbers) + layers.Dense(16)(vector)
    trunk = layers.Dense(32, activation="relu")(both)
    trunk = layers.Dense(32, activation="relu")(trunk)
    price = layers.Dense(1, name="price")(trunk)
    sold = layers.Dense(1, name="sold")(trunk)
    model = keras.Model([numbers, city], {"price": price, "sold": sold})
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-3),
        loss={
            "price": "mean_squared_error",
            "sold": keras.losses.BinaryCrossentropy(from_logits=True),
        },
        loss_weights={"price": 1.0, "sold": 0.5},
        metrics={
            "price": ["r2_score"],
            "sold": [keras.metrics.BinaryAccuracy(threshold=0.0)],
        },
    )
    history = model.fit(
        train[:2],
        {"price": train[2], "sold": train[3]},
        batch_size=run.batch,
        epochs=run.epochs,
        validation_data=(held_out[:2], {"price": held_out[2], "sold": held_out[3]}),
    ).history

    price = history["val_price_r2_score"][-1]
    sold = history["val_sold_binary_accuracy"][-1]
    print(
        f"held out: {100 * price:.1f}% of the price's variance, {100 * sold:.1f}% of the sales"
    )
    if run.epochs >= 30:
        claim("R2 of the price on the held-out part", price, 0.9)
        claim("accuracy of the sales on the held-out part", sold, 0.85)


if __name__ == "__main__":
    main()
