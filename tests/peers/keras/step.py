"""Times the training of one of the benchmark's models with Keras on TensorFlow, and prints a line of JSON: the seconds from
the start of the process to the end of the first step, and the median of the steps after it in milliseconds.

A step is what Unisono's `bench` times: a batch in host memory goes in, forward, backward and AdamW run, and the loss comes
back.
"""

import time

START = time.perf_counter()

import argparse
import json
import statistics

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser(description="Times training with Keras")
parser.add_argument("--model", choices=["mlp", "cnn"], required=True)
parser.add_argument("--steps", type=int, default=50, help="steps to take the median of; 0 for the first step alone")
parser.add_argument("--warmup", type=int, default=10, help="steps between the first and those")
flags = parser.parse_args()

if flags.model == "mlp":
    batch, shape = 128, (784,)
    body = [layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
else:
    batch, shape = 32, (28, 28, 1)
    body = []
    for channels in (16, 32):
        body += [layers.Conv2D(channels, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
    body += [layers.Flatten(), layers.Dense(128, activation="relu")]
model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(1e-3), loss)

draws = np.random.default_rng(42)
batches = [
    (draws.standard_normal((batch, *shape), dtype=np.float32), draws.integers(0, 10, batch).astype(np.int32))
    for _ in range(4)
]


def step(number):
    x, y = batches[number % len(batches)]
    return float(model.train_on_batch(x, y))


step(0)
first = time.perf_counter() - START
for number in range(flags.warmup if flags.steps else 0):
    step(number)
times = []
for number in range(flags.steps):
    start = time.perf_counter()
    step(number)
    times.append(time.perf_counter() - start)
median = 1e3 * statistics.median(times) if times else 0.0
print(json.dumps({"adapter": "TensorFlow", "first_step_s": first, "step_ms": median}))
