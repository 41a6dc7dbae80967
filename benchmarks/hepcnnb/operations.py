"""Multiply-accumulates of the HEP-CNN: what a step costs where nobody published its time."""

FILTERS, KERNEL = 128, 3
# (side of the square image, channels in) of five 3 x 3 convolutions with 128 filters; the first four halve the side.
# Source: NERSC/DL-Parallel-IO @290ed4a, benchmarks/hep_cnn/networks/binary_classifier_tf.py l.345-545.
CONVOLUTIONS = ((224, 3), (112, FILTERS), (56, FILTERS), (28, FILTERS), (14, FILTERS))
CLASSES = 2
FORWARD_AND_BACKWARD = 3  # the backward pass computes two gradients, each at the cost of the forward pass


def forward_macs() -> int:
    """Multiply-accumulates of one image's forward pass."""
    convolutions = sum(side * side * KERNEL * KERNEL * channels * FILTERS for side, channels in CONVOLUTIONS)
    return convolutions + FILTERS * CLASSES


def step_seconds(batch: int, flops_per_second: float) -> float:
    """Seconds of a training step of `batch` images at that rate; a multiply-accumulate counts as two operations."""
    return batch * 2 * forward_macs() * FORWARD_AND_BACKWARD / flops_per_second
