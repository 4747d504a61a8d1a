"""MobileNetV2 (Sandler et al. 2018), a quarter as wide, on handwritten digits of 32x32 pixels."""

import keras
from keras import layers

from common import claim_last, digit_pictures, flags, published

# For each stage: how much wider a block is inside, its channels, the number of blocks, the first one's stride.
STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def main():
    run = flags(epochs=8, batch=64)
    published(mobilenet_v2((224, 224, 3), 8, 1000), 3_504_872)

    train, held_out = digit_pictures(run.seed)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.UpSampling2D(4),
            mobilenet_v2((32, 32, 1), 2, 10),
        ]
    )
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *train, batch_size=run.batch, epochs=run.epochs, validation_data=held_out
    )
    claim_last(run, 8, history, "accuracy", 0.8)


def mobilenet_v2(shape, eighths, classes):
    """All channels are `eighths` of those in the paper."""
    image = keras.Input(shape)
    x = layers.ReLU(6)(normed(image, 4 * eighths, 3, 2))
    for expand, channels, blocks, stride in STAGES:
        to = channels * eighths // 8
        x = block(x, to, expand, stride)
        for _ in range(1, blocks):
            x = x + block(x, to, expand, 1)
    x = layers.ReLU(6)(normed(x, 160 * eighths, 1))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(classes)(x))


def block(x, to, expand, stride):
    if expand > 1:
        x = layers.ReLU(6)(normed(x, x.shape[-1] * expand, 1))
    x = layers.ZeroPadding2D(1)(x)
    x = layers.DepthwiseConv2D(3, strides=stride, use_bias=False)(x)
    x = layers.ReLU(6)(layers.BatchNormalization(momentum=0.9)(x))
    return normed(x, to, 1)


def normed(x, channels, kernel, stride=1):
    x = layers.ZeroPadding2D(kernel // 2)(x)
    x = layers.Conv2D(channels, kernel, strides=stride, use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


if __name__ == "__main__":
    main()
