"""A table: numbers, a category and values that are missing tell the price of made-up houses."""

import keras
import numpy as np
import pandas as pd
from keras import layers
from sklearn.metrics import r2_score

from common import DATA, claim, flags, split


def main():
    run = flags(epochs=40, batch=64)
    houses = pd.read_csv(run.data or DATA / "houses.csv")
    numbers = houses[["area", "rooms", "year"]]
    numbers = numbers.fillna(numbers.median()).to_numpy(np.float32)
    cities = sorted(houses["city"].unique())
    city = (
        houses["city"]
        .map({name: i for i, name in enumerate(cities)})
        .to_numpy(np.int32)
    )
    price = houses[["price"]].to_numpy(np.float32)
    train, held_out = split(run.seed, len(houses) * 4 // 5, numbers, city, price)
    x_mean, x_deviation = train[0].mean(axis=0), train[0].std(axis=0)
    y_mean, y_deviation = train[2].mean(), train[2].std()
    for part in (train, held_out):
        part[0] = (part[0] - x_mean) / x_deviation
        part[2] = (part[2] - y_mean) / y_deviation

    x = keras.Input((3,), name="x")
    id = keras.Input((), dtype="int32", name="city")
    vector = layers.Embedding(len(cities), 4)(id)
    trunk = layers.Concatenate()([x, vector])
    trunk = layers.Dense(32, activation="relu")(trunk)
    trunk = layers.Dense(32, activation="relu")(trunk)
    model = keras.Model([x, id], layers.Dense(1)(trunk))
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss="mean_squared_error",
        metrics=["mean_absolute_error", "r2_score"],
    )
    model.fit(
        train[:2],
        train[2],
        batch_size=run.batch,
        epochs=run.epochs,
        validation_data=(held_out[:2], held_out[2]),
    )

    predicted = model.predict(held_out[:2])
    r2 = r2_score(held_out[2], predicted)
    off = np.abs(predicted - held_out[2]).mean() * y_deviation
    print(
        f"held out: {100 * r2:.1f}% of the price's variance, {off:.1f} off on average"
    )
    if run.epochs >= 40 and run.data is None:
        claim("R2 of the price on the held-out part", r2, 0.9)


if __name__ == "__main__":
    main()
