"""The modified DeepLabv3+ of the climate runs: a ResNet-50 v2 encoder, atrous pooling, a decoder to full resolution."""

from typing import Any

from dlio_bench.benchmarks.model import Tensor
from dlio_bench.errors import UsageError

CLASSES = 3
UNITS = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # of the encoder's blocks: depth, units, stride of the last
OUTPUT_STRIDE = 8
RATES = (12, 24, 36)
HALF = 0.5  # stands for each batch normalisation: "activations in deep networks can overflow fp16's range"


def network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, rows, columns, 3]. Sides must be multiples of 8. There is no dropout, nor any normalisation.

    Without normalisation the published code loses the activation in front of each unit, too: it is left out here.
    UsageError for other sides.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    if shape[0] % OUTPUT_STRIDE or shape[1] % OUTPUT_STRIDE:
        raise UsageError(f"DeepLabv3+ takes images whose sides are multiples of 8, not {shape[0]} x {shape[1]}.")
    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    relu, join, add = keras().activations.relu, keras().layers.Concatenate(), keras().layers.Add()

    def scaled(x: Tensor, filters: int, kernel: int, stride: int = 1, dilation: int = 1) -> Tensor:
        x = made.conv(x, filters, kernel, stride=stride, dilation=dilation, bias=False)
        return relu(x * HALF)

    def unit(x: Tensor, depth: int, stride: int, dilation: int) -> tuple[Tensor, Tensor]:
        """(output, its first layer) of a residual unit of four times `depth` channels."""
        before = x * HALF
        if x.shape[-1] == 4 * depth:
            shortcut = x if stride == 1 else made.pool(x, "max", size=1, stride=stride)
        else:
            shortcut = made.conv(before, 4 * depth, 1, stride=stride)
        first = scaled(before, depth, 1)
        second = scaled(first, depth, 3, stride, dilation)
        return add([shortcut, made.conv(second, 4 * depth, 1)]), first

    low = x = made.pool(made.conv(made.inputs, made.channels(64), 7, stride=2), "max", size=3, stride=2, padding="same")
    reached, dilation = 4, 1
    for number, (depth, units, last) in enumerate(UNITS):
        for place in range(units):
            stride = last if place == units - 1 else 1
            if reached == OUTPUT_STRIDE:  # no smaller: wider apart instead
                x, first = unit(x, made.channels(depth), 1, dilation)
                dilation *= stride
            else:
                x, first = unit(x, made.channels(depth), stride, 1)
                reached *= stride
        if number == 0:
            low = first
    deep = made.channels(256)
    views = [scaled(x, deep, 1), *(scaled(x, deep, 3, dilation=rate) for rate in RATES)]
    whole = scaled(keras().layers.GlobalAveragePooling2D(keepdims=True)(x), deep, 1)
    views.append(keras().layers.UpSampling2D((x.shape[1], x.shape[2]))(whole))  # of one pixel, so no interpolation
    x = scaled(join(views), deep, 1)

    x = join([made.grow(x, deep), scaled(low, made.channels(48), 1)])
    x = scaled(scaled(x, deep, 3), deep, 3)
    x = made.grow(made.grow(x, deep), deep)
    fine = made.conv(made.inputs, made.channels(64), 3, initial="he_uniform")
    fine = made.conv(fine, made.channels(128), 3, initial="he_uniform")
    x = join([x, fine])
    x = made.conv(made.conv(x, deep, 3, initial="he_uniform"), deep, 3, initial="he_uniform")
    return made.model(made.conv(x, CLASSES, 1), "deeplab")
