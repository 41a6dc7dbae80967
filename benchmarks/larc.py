"""LARC in front of Adam, as the climate runs had it."""

from functools import cache
from typing import Any

from dlio_bench.benchmarks.model import Tensor
from dlio_bench.benchmarks.networks import keras
from dlio_bench.benchmarks.tensors import tensorflow

TRUST = 0.002  # eta: LARC_eta=0.002
LEAST = 1 / 16000  # the local rate where a norm is 0: LARC_epsilon=1./16000.


def larc_adam(rate: float, *, trust: float = TRUST, least: float = LEAST, epsilon: float = 1e-8) -> Any:
    """Adam over gradients that are scaled, variable by variable, by min(local rate, rate) / rate.

    The local rate is trust * |variable| / |gradient|, or `least` where one of the norms is 0; gradients are averages
    over the ranks. So no variable moves faster than Adam would move it, and one whose gradient is large for its size
    moves slower. epsilon: that of TensorFlow 1. Source: azrael417/ClimDeepLearn @5f99d04,
    semanticsegm/utils/common_helpers.py get_larc_optimizer, LARC_mode "clip".
    """
    return _larc_adam()(learning_rate=rate, epsilon=epsilon, trust=trust, least=least)


@cache
def _larc_adam() -> Any:
    tf, adam = tensorflow(), keras().optimizers.Adam

    class LarcAdam(adam):  # type: ignore[misc, valid-type, unused-ignore]  # Keras is not typed
        """See `larc_adam`."""

        def __init__(self, *, trust: float, least: float, **options: Any) -> None:
            super().__init__(**options)
            self.trust, self.least = trust, least

        def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
            """One variable's step, of Keras's optimisers."""
            rate = tf.cast(learning_rate, gradient.dtype)
            of_variable, of_gradient = tf.norm(tf.convert_to_tensor(variable)), tf.norm(gradient)
            both = (of_variable > 0) & (of_gradient > 0)
            local = tf.where(both, tf.math.divide_no_nan(self.trust * of_variable, of_gradient), self.least)
            super().update_step(gradient * (tf.minimum(local, rate) / rate), variable, learning_rate)

    return LarcAdam
