"""Learning rates over the steps of a training, and LARC in front of Adam, as the climate runs and CosmoFlow had it."""

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import Any

from dlio_bench.benchmarks.model import Course, Tensor
from dlio_bench.benchmarks.networks import keras
from dlio_bench.benchmarks.tensors import tensorflow

COSMOFLOW_DECAY = {32: 0.25, 64: 0.125}
RESNET_PARTS = ((30, 1.0), (60, 0.1), (80, 0.01))  # (up to epoch, factor); 0.001 from then on
RESNET_LAST = 0.001


def constant(rate: float) -> Callable[[int, Course], float]:
    """The same rate at every step."""

    def at(step: int, course: Course) -> float:
        del step, course
        return rate

    return at


def linear(first: float, last: float, epochs: int) -> Callable[[int, Course], float]:
    """From `first` to `last` over so many epochs, step by step: a polynomial decay of power 1; `last` from then on."""

    def at(step: int, course: Course) -> float:
        done = min(step / (epochs * course.steps_per_epoch), 1.0)
        return first + done * (last - first)

    return at


def cosmoflow(step: int, course: Course) -> float:
    """1e-3 for batches of 64 and in proportion; warmed up over four epochs; a quarter and an eighth of it late.

    The rate changes from epoch to epoch: at the start of the warm-up it is 1e-3 whatever the batch, and the decay
    named for an epoch begins with the one after it. Source: mlcommons/hpc @9d014c8, cosmoflow/utils/optimizers.py
    _lr_schedule and cosmoflow/configs/cosmo.yaml.
    """
    base, warmup = 1e-3, 4
    peak, epoch = base * course.batch / 64, course.epoch(step)
    if epoch < warmup:
        return base + epoch * (peak - base) / warmup
    passed = [factor for start, factor in COSMOFLOW_DECAY.items() if start < epoch]
    return peak * (passed[-1] if passed else 1)


def resnet(step: int, course: Course) -> float:
    """0.1 for batches of 256 and in proportion; warmed up from 0 over five epochs; a tenth after 30, 60 and 80.

    Source: tensorflow/models @2010193, official/vision/image_classification/resnet/common.py,
    PiecewiseConstantDecayWithWarmup: within the warm-up the rate grows with every step.
    """
    peak, warmup = 0.1 * course.batch / 256, 5 * course.steps_per_epoch
    if step < warmup:
        return peak * step / warmup
    # a part holds up to and with the first step behind it, as tf.compat.v1.train.piecewise_constant has it
    place = bisect_right([epoch * course.steps_per_epoch for epoch, _ in RESNET_PARTS], step - 1)
    factors = [factor for _, factor in RESNET_PARTS] + [RESNET_LAST]
    return peak * factors[place]


TRUST = 0.002  # eta: LARC_eta=0.002
LEAST = 1 / 16000  # the local rate where a norm is 0: LARC_epsilon=1./16000.
CLIPPED_AT_ONE = 1.0


def larc_adam(rate: float, *, clip: float | None = None) -> Any:
    """Adam over gradients that are scaled, variable by variable, by a local rate that is clipped.

    The local rate is TRUST * |variable| / |gradient|, or LEAST where one of the norms is 0; gradients are averages over
    the ranks. clip None: the factor is min(local rate, rate) / rate, that of azrael417/ClimDeepLearn since @5f99d04 (26
    November 2018; semanticsegm/utils/common_helpers.py get_larc_optimizer, LARC_mode "clip"): no variable moves faster
    than Adam would move it. Else it is min(local rate, clip): CLIPPED_AT_ONE in the code before (climseg_helpers.py,
    branch gb_update_stable @2b8ea11) and in CosmoFlow's of April and August 2018. The epsilon is that of TensorFlow 1.
    """
    return _larc_adam()(learning_rate=rate, epsilon=1e-8, clip=clip)


@cache
def _larc_adam() -> Any:
    tf, adam = tensorflow(), keras().optimizers.Adam

    class LarcAdam(adam):  # type: ignore[misc, valid-type, unused-ignore]  # Keras is not typed
        """See `larc_adam`."""

        def __init__(self, *, clip: float | None, **options: Any) -> None:
            super().__init__(**options)
            self.clip = clip

        def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
            """One variable's step, of Keras's optimisers."""
            of_variable, of_gradient = tf.norm(tf.convert_to_tensor(variable)), tf.norm(gradient)
            both = (of_variable > 0) & (of_gradient > 0)
            local = tf.where(both, tf.math.divide_no_nan(TRUST * of_variable, of_gradient), LEAST)
            rate = tf.cast(learning_rate, gradient.dtype)
            factor = tf.minimum(local, rate) / rate if self.clip is None else tf.minimum(local, self.clip)
            super().update_step(gradient * factor, variable, learning_rate)

    return LarcAdam
