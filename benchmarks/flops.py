"""Operation counts of a network, layer by layer."""

import math
from typing import Any


def forward_flops(network: Any) -> int:
    """Floating-point operations of one sample's forward pass; a multiply-accumulate counts as two.

    Convolutions, transposed convolutions and fully connected layers of a keras.Model; everything else (pooling,
    normalisation, activations) is left out, as in published counts. A training step costs three times as much: the
    backward pass computes two gradients, each at the cost of the forward pass.
    """
    return 2 * sum(_macs(layer) for layer in network.layers)


def _macs(layer: Any) -> int:
    kind = type(layer).__name__
    if kind in {"Conv2D", "Conv3D", "Dense"}:
        numbers = layer.output.shape[1:]  # each is a sum over the kernel's places and input channels
    elif kind == "Conv2DTranspose":
        numbers = layer.input.shape[1:]  # each goes to all places and output channels of the kernel
    else:
        return 0
    return math.prod([*numbers, *layer.kernel.shape[:-1]])
