"""Mean, maximum, minimum and standard deviation of a channel, the same to the last bit on every machine.

Sums of floats depend on the order of addition, and so on the processor. Values are therefore rounded to a fixed
point, which is exact arithmetic, and added as integers: to 2^-40 for the mean, to 2^-20 for the squares (an unbiased
rounding; over a million values it changes the standard deviation by less than float32 resolves).
"""

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct

_MEAN_BITS, _SQUARE_BITS = 40, 20  # 2^20 values below 2 then sum to less than 2^61 and 2^62


class ChannelStats(Struct, frozen=True):
    """Running sums over float32 values with |x| < 2, at most 2^20 of them at a time."""

    count: int = 0
    total: int = 0  # in units of 2^-40
    squares: int = 0  # in units of 2^-40
    largest: float = -math.inf
    smallest: float = math.inf

    def plus(self, values: npt.NDArray[np.float32]) -> "ChannelStats":
        """These sums with `values` added."""
        wide = values.astype(np.float64)
        coarse = np.rint(wide * 2.0**_SQUARE_BITS).astype(np.int64)
        fine = np.rint(np.multiply(wide, 2.0**_MEAN_BITS, out=wide), out=wide).astype(np.int64)
        return ChannelStats(
            count=self.count + values.size,
            total=self.total + int(fine.sum()),
            squares=self.squares + int(np.square(coarse, out=coarse).sum()),
            largest=max(self.largest, float(values.max())),
            smallest=min(self.smallest, float(values.min())),
        )

    def row(self) -> tuple[float, float, float, float]:
        """mean, max, min, standard deviation: the published column order."""
        mean = self.total / self.count / 2.0**_MEAN_BITS
        # count * squares - total^2 in integers: no cancellation
        spread = self.count * self.squares * 2 ** (2 * (_MEAN_BITS - _SQUARE_BITS)) - self.total**2
        return mean, self.largest, self.smallest, math.sqrt(max(spread, 0)) / self.count / 2.0**_MEAN_BITS


def known_distribution() -> npt.NDArray[np.float32]:
    """The same four figures of the random fill itself: float32 [4].

    Its values are +-m * 2^(e - 127), e uniform in 0..127 and m uniform in [1, 2), so that the mean is 0 and the mean
    square E[m^2] * sum(4^-k) / 128 = 7/3 * 4/3 / 128 = 7/288.
    """
    return np.array([0.0, 2 - 2**-23, -(2 - 2**-23), math.sqrt(7 / 288)], dtype="<f4")
