"""Networks that people know, with their published numbers of parameters."""

import math

import keras
from keras import layers, ops


def main():
    counted("ResNet-18", resnet18(), 11_689_512)
    counted("MobileNetV2", mobilenet_v2(), 3_504_872)
    counted("U-Net", unet(2), 31_037_698)
    counted("ViT-B/16", vit(), 86_567_656)
    counted("BERT", bert(), 109_482_240)
    counted("GPT-2", gpt2(), 124_439_808)


def counted(name, model, expected):
    found = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    print(f"{name:<12} {found:>11} parameters")
    if found != expected:
        raise SystemExit(f"{name} has {found}, not {expected}")


def normed(x, channels, kernel, stride=1):
    x = layers.ZeroPadding2D(kernel // 2)(x)
    x = layers.Conv2D(channels, kernel, strides=stride, use_bias=False)(x)
    return layers.BatchNormalization()(x)


def resnet18():
    """He et al. 2016."""

    def block(x, channels, stride, widens):
        inner = layers.ReLU()(normed(x, channels, 3, stride))
        inner = normed(inner, channels, 3)
        shortcut = normed(x, channels, 1, stride) if widens else x
        return layers.ReLU()(inner + shortcut)

    image = keras.Input((224, 224, 3))
    x = layers.ReLU()(normed(image, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for channels in (64, 128, 256, 512):
        widens = channels > 64
        x = block(x, channels, 1 + widens, widens)
        x = block(x, channels, 1, False)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(1000)(x))


def mobilenet_v2():
    """Sandler et al. 2018."""

    def block(x, to, expand, stride):
        if expand > 1:
            x = layers.ReLU(6)(normed(x, x.shape[-1] * expand, 1))
        x = layers.ZeroPadding2D(1)(x)
        x = layers.DepthwiseConv2D(3, strides=stride, use_bias=False)(x)
        x = layers.ReLU(6)(layers.BatchNormalization()(x))
        return normed(x, to, 1)

    stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    image = keras.Input((224, 224, 3))
    x = layers.ReLU(6)(normed(image, 32, 3, 2))
    for expand, to, times, stride in stages:
        x = block(x, to, expand, stride)
        for _ in range(1, times):
            x = x + block(x, to, expand, 1)
    x = layers.ReLU(6)(normed(x, 1280, 1))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(1000)(x))


def unet(classes):
    """Ronneberger et al. 2015, with batch norms."""

    def double(x, channels):
        for _ in range(2):
            x = layers.ReLU()(normed(x, channels, 3))
        return x

    image = keras.Input((64, 64, 3))
    x, skips = double(image, 64), []
    for channels in (128, 256, 512, 1024):
        skips.append(x)
        x = double(layers.MaxPooling2D()(x), channels)
    for channels in (512, 256, 128, 64):
        up = layers.Conv2DTranspose(channels, 2, strides=2)(x)
        x = double(layers.Concatenate()([skips.pop(), up]), channels)
    return keras.Model(image, layers.Conv2D(classes, 1)(x))


class Positions(layers.Layer):
    """Adds a vector for each position, after a class token if there is one."""

    def __init__(self, length, token=False):
        super().__init__()
        self.length, self.token = length, token

    def build(self, shape):
        self.positions = self.add_weight(shape=(self.length, shape[-1]))
        if self.token:
            self.class_ = self.add_weight(shape=(1, 1, shape[-1]))

    def call(self, x):
        if self.token:
            token = ops.tile(self.class_, (ops.shape(x)[0], 1, 1))
            x = ops.concatenate([token, x], axis=1)
        return x + self.positions[: x.shape[1]]


def transformer_block(x, causal=False):
    normed = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(12, 64)
    x = x + attention(normed, normed, use_causal_mask=causal)
    inner = layers.Dense(3072, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(768)(inner)


def vit():
    """Dosovitskiy et al. 2021."""
    image = keras.Input((224, 224, 3))
    x = layers.Conv2D(768, 16, strides=16)(image)
    x = layers.Reshape((196, 768))(x)
    x = Positions(197, token=True)(x)
    for _ in range(12):
        x = transformer_block(x)
    x = layers.LayerNormalization()(x)
    return keras.Model(image, layers.Dense(1000)(x[:, 0]))


def bert():
    """Devlin et al. 2019: the base model with its pooler."""
    ids = keras.Input((16,), dtype="int32")
    types = keras.Input((16,), dtype="int32")
    mask = keras.Input((16,), dtype="bool")
    x = layers.Embedding(30_522, 768)(ids) + layers.Embedding(2, 768)(types)
    x = layers.LayerNormalization()(Positions(512)(x))
    for _ in range(12):
        found = layers.MultiHeadAttention(12, 64)(
            x, x, attention_mask=ops.expand_dims(mask, 1)
        )
        x = layers.LayerNormalization()(x + found)
        inner = layers.Dense(3072, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(768)(inner))
    pooled = layers.Dense(768, activation="tanh")(x[:, 0])
    return keras.Model([ids, types, mask], pooled)


def gpt2():
    """Radford et al. 2019: the smallest model. The words' vectors are the head's weights too."""
    ids = keras.Input((16,), dtype="int32")
    words = keras.layers.ReversibleEmbedding(50_257, 768)
    x = Positions(1024)(words(ids))
    for _ in range(12):
        x = transformer_block(x, causal=True)
    x = layers.LayerNormalization()(x)
    return keras.Model(ids, words(x, reverse=True))


if __name__ == "__main__":
    main()
