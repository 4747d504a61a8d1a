"""Trains on handwritten digits, exports the model, and predicts with it: whole arrays, and single rows of many threads."""

import queue
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
from keras import layers

from common import claim, digits, flags, split


class Server:
    """Puts single rows together into batches, within a bounded wait."""

    def __init__(self, model, wait, batch=128):
        self.model, self.wait, self.batch, self.rows = model, wait, batch, queue.Queue()
        self.latencies = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def predict(self, row):
        answer = Future()
        self.rows.put((row, time.monotonic(), answer))
        return answer.result()

    def run(self):
        while (first := self.rows.get()) is not None:
            waiting, until = [first], first[1] + self.wait
            while len(waiting) < self.batch:
                try:
                    row = self.rows.get(timeout=max(0, until - time.monotonic()))
                except queue.Empty:
                    break
                if row is None:
                    self.rows.put(None)
                    break
                waiting.append(row)
            predicted = self.model.predict_on_batch(
                np.stack([row for row, _, _ in waiting])
            )
            for (_, came, answer), value in zip(waiting, predicted):
                answer.set_result(value)
                self.latencies.append(time.monotonic() - came)

    def stop(self):
        self.rows.put(None)
        self.thread.join()


def main():
    run = flags(epochs=10, batch=64)
    x, y = digits()
    train, held_out = split(run.seed, len(x) * 4 // 5, x, y)
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*train, batch_size=run.batch, epochs=run.epochs, validation_data=held_out)
    accuracy = model.evaluate(*held_out, return_dict=True)["accuracy"]
    expected = model.predict(held_out[0])
    path = Path(tempfile.mkdtemp()) / "digits.keras"
    model.save(path)

    predictor = keras.saving.load_model(path)
    logits = predictor.predict(held_out[0], batch_size=128)
    if not np.allclose(logits, expected, atol=1e-5):
        raise SystemExit("the saved model predicts otherwise than the trained one")
    server = Server(predictor, wait=0.005)
    with ThreadPoolExecutor(64) as threads:
        rows = list(threads.map(server.predict, held_out[0][:64]))
    server.stop()
    if not np.allclose(rows, logits[:64], atol=1e-5):
        raise SystemExit("a single row is predicted otherwise than in its batch")
    print(f"latency: median {1e3 * np.median(server.latencies):.2f} ms")
    path.unlink()
    if run.epochs >= 10:
        claim("accuracy on the held-out part", accuracy, 0.94)


if __name__ == "__main__":
    main()
