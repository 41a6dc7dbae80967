"""The digital twin: a network that is trained to predict the simulation's next output from the present one.

The deck's network was never published (`published.DECK`). This one is our own choice: three 3 x 3 x 3 convolutions of
CHANNELS, CHANNELS and 2 channels with ReLU between them, whose output is the change from one output to the next; Adam.
It is trained on cubes of CROP cells along an edge, which it takes from anywhere in the periodic space: a step costs the
same for every size of the simulation.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.networks import keras
from dlio_bench.benchmarks.tensors import tensorflow

NAME = "3-D convolutions 2-8-8-2 of 3x3x3, residual; our own choice, as none was published"
CHANNELS, KERNEL, LAYERS = 8, 3, 3
CROP, BATCH = 32, 4  # cells of an edge; cubes of a training step
MARGIN = LAYERS * (KERNEL // 2)  # cells around a cube that its prediction depends on
RATE = 1e-3  # of Adam
CHANGE = 1e-2  # of u and v from one output to the next: the unit of what the network predicts
STILL = 1e-10  # least mean square of the change between two states that the loss is a share of

State = npt.NDArray[np.float64]
"""[2, L, L, L]: u and v."""


class Twin:
    """One twin. Made and compiled before any clock starts; `reset` gives it its initial weights again."""

    def __init__(self, size: int, seed: int) -> None:
        """size: L of the states. EnvironmentFailure where TensorFlow is missing."""
        tf, layers = tensorflow(), keras().layers
        self._size, self._seed = size, seed
        self._crop = min(CROP, size)
        sides = self._crop + 2 * MARGIN
        inputs = keras().Input((sides, sides, sides, 2))
        made = inputs
        for number, channels in enumerate((CHANNELS, CHANNELS, 2)):
            last = number == LAYERS - 1
            weights = keras().initializers.HeNormal(seed=seed * LAYERS + number)
            made = layers.Conv3D(
                channels,
                KERNEL,
                activation=None if last else "relu",
                kernel_initializer="zeros" if last else weights,  # at first it predicts that nothing changes
            )(made)
        inner = layers.Cropping3D(MARGIN)(inputs)
        self._network = keras().Model(inputs, inner + CHANGE * made)
        self._initial = self._network.get_weights()
        self._optimizer = keras().optimizers.Adam(RATE)
        self._optimizer.build(self._network.trainable_variables)
        self._fresh = [np.array(variable) for variable in self._optimizer.variables]
        self.parameters = int(self._network.count_params())
        self._step = tf.function(self._objective, jit_compile=False, autograph=False)
        self._draws = self._cubes = 0
        still = np.ones((2, size, size, size))
        self.train(still, still, 1)
        self.reset()

    def reset(self) -> None:
        """Back to the initial weights and the first cubes."""
        self._network.set_weights(self._initial)
        for variable, value in zip(self._optimizer.variables, self._fresh, strict=True):
            variable.assign(value)
        self._draws = 0

    def train(self, before: State, after: State, steps: int) -> float:
        """So many steps on cubes of two states that follow each other; the last step's loss.

        loss: mean square error of the predictions over the mean square of the states' change, so that 1 is what
        predicting no change gets on average.
        """
        loss = float("nan")
        change = np.float32(max(float(np.mean(np.square(after - before))), STILL))
        for _ in range(steps):
            corners = self._corners()
            inputs = self._cut_cubes(before, corners, MARGIN)
            wanted = self._cut_cubes(after, corners, 0)
            loss = float(self._step(inputs, wanted, change))
        return loss

    def _corners(self) -> npt.NDArray[np.int64]:
        """The first cell of each cube of a step, [BATCH, 3], drawn from the seed."""
        words = np.random.Philox(key=self._seed, counter=self._draws << 64).random_raw(3 * BATCH)
        self._draws += 1
        return (words % np.uint64(self._size)).astype(np.int64).reshape(BATCH, 3)

    def _cut_cubes(self, state: State, corners: npt.NDArray[np.int64], margin: int) -> npt.NDArray[np.float32]:
        """The cubes with what surrounds them, float32 [BATCH, n, n, n, 2]."""
        reach = np.arange(-margin, self._crop + margin)
        sides = len(reach)
        cubes = np.empty((BATCH, sides, sides, sides, 2), np.float32)
        for cube, corner in zip(cubes, corners, strict=True):
            z, y, x = ((first + reach) % self._size for first in corner)
            cube[:] = np.moveaxis(state[:, z[:, None, None], y[None, :, None], x[None, None, :]], 0, -1)
        return cubes

    def _objective(self, inputs: Any, wanted: Any, change: Any) -> Any:
        tf = tensorflow()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self._network(inputs, training=True) - wanted)) / change
        variables = self._network.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss


def compute_alone(threads: int) -> None:
    """TensorFlow computes with so many threads. To be called before it computes anything."""
    config = tensorflow().config.threading
    config.set_intra_op_parallelism_threads(threads)
    config.set_inter_op_parallelism_threads(1)
