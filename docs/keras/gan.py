"""A generator and a critic learn a ring in the same steps."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from common import claim, flags

NOISE = 8
SAMPLES = 4000


def ring():
    random = np.random.default_rng(1)
    angle = random.uniform(0, 2 * np.pi, SAMPLES)
    radius = 1 + 0.05 * random.normal(size=SAMPLES)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(
        np.float32
    )


class Gan(keras.Model):
    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic
        self.of_critic = keras.metrics.Mean(name="critic")
        self.of_generator = keras.metrics.Mean(name="generator")

    def compile(self, generator, critic, loss):
        super().compile()
        self.for_generator, self.for_critic, self.loss_of = generator, critic, loss

    @property
    def metrics(self):
        return [self.of_critic, self.of_generator]

    def train_step(self, points):
        batch = tf.shape(points)[0]
        noise = tf.random.normal((batch, NOISE))
        ones, zeros = tf.ones((batch, 1)), tf.zeros((batch, 1))
        with tf.GradientTape() as tape:
            made = self.generator(noise, training=True)
            real, fake = self.critic(points, training=True), self.critic(
                made, training=True
            )
            loss = self.loss_of(ones, real) + self.loss_of(zeros, fake)
        weights = self.critic.trainable_weights
        self.for_critic.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.of_critic.update_state(loss)
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise, training=True), training=True)
            loss = self.loss_of(ones, fake)
        weights = self.generator.trainable_weights
        self.for_generator.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.of_generator.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def main():
    run = flags(epochs=60, batch=128)
    generator = keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(2),
        ]
    )
    critic = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(64),
            layers.LeakyReLU(0.2),
            layers.Dense(64),
            layers.LeakyReLU(0.2),
            layers.Dense(1),
        ]
    )
    gan = Gan(generator, critic)
    gan.compile(
        generator=keras.optimizers.Adam(1e-3, beta_1=0.5),
        critic=keras.optimizers.Adam(1e-3, beta_1=0.5),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    gan.fit(ring(), batch_size=run.batch, epochs=run.epochs)

    made = generator.predict(np.random.default_rng(2).normal(size=(1000, NOISE)))
    radius = np.linalg.norm(made, axis=1)
    near = (np.abs(radius - 1) < 0.3).mean()
    print(f"{100 * near:.1f}% of the points made are near the ring")
    if run.epochs >= 60:
        claim("share of points near the ring", near, 0.9)


if __name__ == "__main__":
    main()
