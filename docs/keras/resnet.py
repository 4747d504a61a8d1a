"""ResNet-18 (He et al. 2016), an eighth as wide, on handwritten digits of 32x32 pixels."""

import keras
from keras import layers

from common import claim_last, digit_pictures, flags, published


def main():
    run = flags(epochs=6, batch=64)
    published(resnet18((224, 224, 3), 64, 1000), 11_689_512)

    train, held_out = digit_pictures(run.seed)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.UpSampling2D(4),
            resnet18((32, 32, 1), 8, 10),
        ]
    )
    model.summary()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *train, batch_size=run.batch, epochs=run.epochs, validation_data=held_out
    )
    claim_last(run, 6, history, "accuracy", 0.9)


def resnet18(shape, width, classes):
    """The first convolution has `width` channels."""
    image = keras.Input(shape)
    x = layers.ReLU()(normed(image, width, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for times in (1, 2, 4, 8):
        widens = times > 1
        x = block(x, times * width, 1 + widens, widens)
        x = block(x, times * width, 1, False)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(classes)(x))


def block(x, channels, stride, widens):
    inner = layers.ReLU()(normed(x, channels, 3, stride))
    inner = normed(inner, channels, 3)
    shortcut = normed(x, channels, 1, stride) if widens else x
    return layers.ReLU()(inner + shortcut)


def normed(x, channels, kernel, stride=1):
    x = layers.ZeroPadding2D(kernel // 2)(x)
    x = layers.Conv2D(channels, kernel, strides=stride, use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


if __name__ == "__main__":
    main()
