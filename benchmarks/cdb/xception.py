"""DeepCAM's network: DeepLabv3+ with an Xception encoder, batch-normalised, that ends in transposed convolutions.

Source: mlcommons/hpc @2c627d4, deepcam/src/deepCam/architecture/deeplab_xception.py, with an output stride of 16.
"""

from typing import Any

from dlio_bench.benchmarks.model import Tensor
from dlio_bench.errors import UsageError

CLASSES = 3
ENTRY = (128, 256, 728)  # channels of the blocks that halve the sides
MIDDLE, MIDDLE_BLOCKS, MIDDLE_LAYERS = 728, 16, 3
EXIT, LAST = 1024, (1536, 1536, 2048)
WIDER = 2  # dilation of the last convolutions
RATES = (6, 12, 18)
STRIDE, LEAST_STRIDE = 16, 8


def deepcam(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, rows, columns, 3]. There is no dropout.

    Sides that are multiples of 8 alone (the tiny dataset's, 48 x 72) are halved three times instead of four. UsageError
    for others.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    if shape[0] % LEAST_STRIDE or shape[1] % LEAST_STRIDE:
        raise UsageError(f"DeepCAM's network takes images whose sides are multiples of 8, not {shape[0]} x {shape[1]}.")
    four_times = not (shape[0] % STRIDE or shape[1] % STRIDE)
    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    layers, relu, join = keras().layers, keras().activations.relu, keras().layers.Concatenate()

    def normal(x: Tensor) -> Tensor:
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)  # PyTorch's defaults

    def conv(x: Tensor, filters: int, kernel: int, stride: int = 1, dilation: int = 1) -> Tensor:
        return normal(made.conv(x, filters, kernel, stride=stride, dilation=dilation, bias=False))

    def block(
        x: Tensor, filters: int, count: int, *, stride: int = 1, grow_first: bool = True, last: bool = False
    ) -> Tensor:
        """A residual unit of separable convolutions, an activation between any two of them."""
        shortcut = x if stride == 1 and x.shape[-1] == filters else conv(x, filters, 1, stride)
        sizes = [filters] * count if grow_first else [x.shape[-1]] * (count - 1) + [filters]
        for number, size in enumerate(sizes):
            x = normal(made.separable(x if number == 0 else relu(x), size))
        if stride != 1 or last:
            x = made.separable(x, filters, stride=stride)
        return layers.Add()([x, shortcut])

    def grow(x: Tensor, filters: int) -> Tensor:
        return relu(normal(made.grow(x, filters, initial="he_normal", bias=False)))

    first, second, third = map(made.channels, ENTRY)
    x = relu(conv(made.inputs, made.channels(32), 3, stride=2))
    x = relu(conv(x, made.channels(64), 3))
    low = block(x, first, 2, stride=2)
    x = relu(block(relu(low), second, 2, stride=2))
    x = relu(block(x, third, 2, stride=2 if four_times else 1, last=True))
    for _ in range(MIDDLE_BLOCKS):
        x = relu(block(x, made.channels(MIDDLE), MIDDLE_LAYERS))
    x = block(x, made.channels(EXIT), 2, grow_first=False, last=True)
    for filters in LAST:
        x = relu(normal(made.separable(x, made.channels(filters), dilation=WIDER)))

    deep = made.channels(256)
    views = [relu(conv(x, deep, 1)), *(relu(conv(x, deep, 3, dilation=rate)) for rate in RATES)]
    whole = made.conv(layers.GlobalAveragePooling2D(keepdims=True)(x), deep, 1, bias=False)
    whole = relu(made.affine(whole))
    views.append(layers.UpSampling2D((x.shape[1], x.shape[2]))(whole))  # of one pixel, so no interpolation
    x = relu(conv(join(views), deep, 1))

    x = grow(grow(x, deep), deep) if four_times else grow(x, deep)
    x = join([x, relu(conv(low, made.channels(48), 1))])
    x = relu(conv(relu(conv(x, deep, 3)), deep, 3))
    x = grow(made.conv(x, deep, 1), deep)
    return made.model(made.grow(x, CLASSES, initial="he_normal", bias=False), "deepcam")
