"""Layers of the published networks in Keras: made late, seeded one by one, channels last."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

from dlio_bench.benchmarks.model import LAYERS, PRECISIONS, SINGLE, Tensor
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import unknown

LAST = "channels_last"
_SEEDS = (1 << 31) // LAYERS  # different ones of networks: Keras takes numbers of 31 bits


@cache
def keras() -> Any:
    """TensorFlow's Keras. EnvironmentFailure where TensorFlow is not installed."""
    os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's own settings say
    tf = tensorflow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as for TensorFlow itself
        return _with_layers(tf.keras)


def _with_layers(keras: Any) -> Any:
    """Load all that is used, now: Keras loads its parts late, and with warnings."""
    _ = keras.layers.Layer, keras.optimizers.Adam, keras.config.dtype_policy, keras.Model
    return keras


@contextmanager
def under_policy(precision: str) -> Iterator[None]:
    """Layers made inside compute in `precision`, one of PRECISIONS. UsageError for another."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    config = keras().config
    before = config.dtype_policy()
    config.set_dtype_policy(precision if precision == SINGLE else f"mixed_{precision}")
    try:
        yield
    finally:
        config.set_dtype_policy(before)


class Layers:
    """Makes the layers of one network; every initial weight and every mask has a number of its own to be drawn from.

    width: factor of all channels that `channels` gives. dropout: False leaves all dropout out.
    """

    def __init__(self, shape: Sequence[int], *, width: float, dropout: bool, seed: int) -> None:
        self._keras = keras()
        self._width, self._dropout = width, dropout
        self._seeds, self._masks = count(seed % _SEEDS * LAYERS), count()
        self.inputs = self._keras.Input(tuple(shape), name="inputs")
        self._keys = self._keras.Input((2,), dtype="int64", name="keys")

    def channels(self, published: int) -> int:
        """So many channels at this width, at least one."""
        return max(1, round(published * self._width))

    def conv(
        self,
        x: Tensor,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: str = "same",
        bias: bool = True,
        initial: str = "he_normal",
        first_bias: float = 0,
    ) -> Tensor:
        """A convolution over the two or three axes of x [n, ..., channels]."""
        made = self._keras.layers.Conv2D if len(x.shape) == 4 else self._keras.layers.Conv3D
        return made(
            filters,
            kernel,
            strides=stride,
            dilation_rate=dilation,
            padding=padding,
            use_bias=bias,
            kernel_initializer=self._initial(initial),
            bias_initializer=self._keras.initializers.Constant(first_bias),
            data_format=LAST,
        )(x)

    def separable(self, x: Tensor, filters: int, *, stride: int = 1, dilation: int = 1) -> Tensor:
        """A 3 x 3 convolution of each channel for itself, then one of 1 x 1, both without bias."""
        x = self._keras.layers.DepthwiseConv2D(
            3,
            strides=stride,
            dilation_rate=dilation,
            padding="same",
            use_bias=False,
            depthwise_initializer=self._initial("he_normal"),
            data_format=LAST,
        )(x)
        return self.conv(x, filters, 1, bias=False)

    def affine(self, x: Tensor) -> Tensor:
        """x times a number of each channel plus another: depthwise, of 1 x 1."""
        return self._keras.layers.DepthwiseConv2D(1, depthwise_initializer="ones", data_format=LAST)(x)

    def grow(self, x: Tensor, filters: int, *, initial: str = "he_uniform", bias: bool = True) -> Tensor:
        """A transposed 3 x 3 convolution that doubles both sides."""
        made = self._keras.layers.Conv2DTranspose(
            filters,
            3,
            strides=2,
            padding="same",
            use_bias=bias,
            kernel_initializer=self._initial(initial),
            data_format=LAST,
        )
        return made(x)

    def dense(self, x: Tensor, units: int, *, initial: Any = "he_normal", first_bias: float = 0) -> Tensor:
        """A fully connected layer over x [n, features]."""
        return self._keras.layers.Dense(
            units,
            kernel_initializer=self._initial(initial) if isinstance(initial, str) else initial,
            bias_initializer=self._keras.initializers.Constant(first_bias),
        )(x)

    def pool(self, x: Tensor, kind: str, *, size: int = 2, stride: int | None = None, padding: str = "valid") -> Tensor:
        """`kind` "max" or "average", over the two or three axes of x."""
        made = {"max": "MaxPooling", "average": "AveragePooling"}[kind] + f"{len(x.shape) - 2}D"
        return getattr(self._keras.layers, made)(size, strides=stride or size, padding=padding, data_format=LAST)(x)

    def drop(self, x: Tensor, rate: float) -> Tensor:
        """Dropout of a share `rate`, its masks drawn from the keys."""
        return _sample_dropout()(rate, next(self._masks))(x, self._keys) if self._dropout else x

    def noise(self, size: int) -> Tensor:
        """Standard normal numbers [n, size], drawn from the keys."""
        return _noise()(size)(self._keys)

    def leaky(self, x: Tensor, slope: float) -> Tensor:
        """The leaky ReLU. In two operations: TensorFlow 2.18 fails to optimise a graph that has its own one."""
        return self._keras.ops.maximum(x, slope * x)

    def idle(self, x: Tensor, channels: int) -> Tensor:
        """x, beside a 1 x 1 convolution of `channels` channels that is made and never used."""
        return _idle()(channels)(x)

    def seed(self) -> int:
        """The next number for an initial weight."""
        return next(self._seeds)

    def model(self, outputs: Tensor, name: str) -> Any:
        """The keras.Model from [inputs, keys] to the outputs as float32."""
        single = self._keras.layers.Activation("linear", dtype="float32")(outputs)
        return self._keras.Model([self.inputs, self._keys], single, name=name)

    def _initial(self, name: str) -> Any:
        made = {
            "he_normal": self._keras.initializers.HeNormal,
            "he_uniform": self._keras.initializers.HeUniform,
            "glorot_uniform": self._keras.initializers.GlorotUniform,
        }[name]
        return made(seed=self.seed())


@cache
def _idle() -> Any:
    class Idle(keras().layers.Layer):  # type: ignore[misc, name-defined, unused-ignore]  # Keras is not typed
        """The identity, with the weights of a 1 x 1 convolution that are counted and not trained."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.kernel = self.add_weight(shape=(1, 1, channels, channels), initializer="zeros", trainable=False)
            self.bias = self.add_weight(shape=(channels,), initializer="zeros", trainable=False)

        def call(self, x: Tensor) -> Tensor:
            return x

    return Idle


@cache
def _noise() -> Any:
    tf = tensorflow()

    class Noise(keras().layers.Layer):  # type: ignore[misc, name-defined, unused-ignore]  # Keras is not typed
        """`size` standard normal numbers for each of the keys int64 [n, 2]: the same key gives the same numbers."""

        def __init__(self, size: int) -> None:
            super().__init__(dtype="float32")
            self.size = size

        def call(self, keys: Tensor) -> Tensor:
            def draw_noise(seed: Tensor) -> Tensor:
                return tf.random.stateless_normal((self.size,), seed, alg="philox")

            return tf.map_fn(draw_noise, keys, fn_output_signature=tf.float32)

        def compute_output_shape(self, keys_shape: Any) -> Any:
            return (keys_shape[0], self.size)

    return Noise


@cache
def _sample_dropout() -> Any:
    """The class of dropout layers whose masks depend on sample and step alone."""
    tf, layers = tensorflow(), keras().layers

    class SampleDropout(layers.Layer):  # type: ignore[misc, name-defined, unused-ignore]  # Keras is not typed
        """In training, a share `rate` of every sample's activations is 0, the others are scaled up to make up for it.

        `number` tells the dropout layers of a network apart; keys int64 [n, 2] are those of dlio_bench's `keys`.
        """

        def __init__(self, rate: float, number: int) -> None:
            super().__init__()
            self.rate, self.number = rate, number

        def call(self, x: Tensor, keys: Tensor, training: bool = False) -> Tensor:
            if not training:
                return x
            shape = tf.shape(x)[1:]
            seeds = keys + tf.constant([[0, self.number]], tf.int64)

            def draw_mask(seed: Tensor) -> Tensor:
                # one algorithm by name, so that processors and accelerators draw alike
                return tf.random.stateless_uniform(shape, seed, alg="philox") >= self.rate

            mask = tf.map_fn(draw_mask, seeds, fn_output_signature=tf.bool)
            return tf.where(mask, x / (1 - self.rate), tf.zeros_like(x))

        def compute_output_shape(self, x_shape: Any, keys_shape: Any) -> Any:
            del keys_shape
            return x_shape

    return SampleDropout
