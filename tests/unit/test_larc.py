"""LARC: Adam over gradients that are scaled layer by layer. Needs TensorFlow."""

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.schedules import CLIPPED_AT_ONE, larc_adam
from dlio_bench.benchmarks.tensors import tensorflow

tf = tensorflow()


@pytest.mark.parametrize("clip", [None, CLIPPED_AT_ONE])
def test_larc_is_adam_over_scaled_gradients(clip: float | None) -> None:
    draw = np.random.default_rng(4)
    start = {"large": draw.normal(0, 1, (4, 5)), "small": draw.normal(0, 1e-4, (3,)), "zero": np.zeros(2)}
    rate, trust, least = 1e-3, 0.002, 1 / 16000
    expected = {name: value.copy() for name, value in start.items()}
    means = {name: np.zeros_like(value) for name, value in start.items()}
    squares = {name: np.zeros_like(value) for name, value in start.items()}
    variables = [tf.keras.Variable(value.astype(np.float32), name=name) for name, value in start.items()]
    optimizer = larc_adam(rate, clip=clip)
    for step in range(1, 6):
        gradients = {name: draw.normal(0, 10.0 ** draw.integers(-3, 2), value.shape) for name, value in start.items()}
        if step == 3:
            gradients["large"][:] = 0
        for name, gradient in gradients.items():
            norms = np.linalg.norm(expected[name]), np.linalg.norm(gradient)
            local = trust * norms[0] / norms[1] if min(norms) > 0 else least
            scaled = gradient * (min(local, rate) / rate if clip is None else min(local, clip))
            means[name] = 0.9 * means[name] + 0.1 * scaled
            squares[name] = 0.999 * squares[name] + 0.001 * scaled**2
            corrected = means[name] / (1 - 0.9**step), squares[name] / (1 - 0.999**step)
            # TensorFlow's epsilon is beside the uncorrected root
            expected[name] -= rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8 / np.sqrt(1 - 0.999**step))
        optimizer.apply([tf.constant(g, tf.float32) for g in gradients.values()], variables)
    for variable in variables:
        moved = variable.numpy() - start[variable.name]
        np.testing.assert_allclose(moved, expected[variable.name] - start[variable.name], rtol=1e-3, atol=1e-8)


def test_each_network_clips_as_its_code_did() -> None:
    models = {model.name: model for workload in WORKLOADS.values() for model in workload.models}
    clips = {name: models[name].optimizer().clip for name in ("tiramisu", "cosmoflow-sc18", "deeplab")}
    assert clips == {"tiramisu": 1.0, "cosmoflow-sc18": 1.0, "deeplab": None}
