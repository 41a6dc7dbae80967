"""The two generations of CosmoFlow's data before MLPerf: `data_raw` and `label_raw` as bytes, 64 samples a file."""

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset

SAMPLES = 64  # a file


class Early(Struct, frozen=True):
    """One generation: cubes of `side` voxels and targets, both of numbers `dtype`, one message a sample.

    means, deviations: of the parameters, which the files hold and of which the pipeline makes z-scores.
    """

    variant: str
    side: int
    dtype: str
    targets: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    def encode_scores(self, scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        """What the files hold for z-scores."""
        return (scores.astype(np.float64) * self.deviations + self.means).astype(self.dtype)

    def scores(self, stored: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        """The z-scores of what the files hold."""
        return (stored - np.array(self.means, stored.dtype)) / np.array(self.deviations, stored.dtype)


# Sources: NERSC/CosmoFlow @28937fa, README-original, io_Cosmo.py and hyper_parameters_Cosmo.py; NERSC/cosmoflow-sims
# @0470136 io_Cosmo-3param.py, which writes the parameters Omega_m, sigma_8 and n_s as its list of simulations has them,
# and zsAVG and zsSTD of NERSC/CosmoFlow, branch AugTests @6e50963, whose reader scales them.
ORIGINAL = Early(
    "original-64", 64, "<f8", 2, (0.2995679839999999, 0.8610806619999997), (0.02905168635566176, 0.04023372385668218)
)
SC18 = Early("sc18", 128, "<f4", 3, (0.3, 0.8628, 0.95), (0.02853, 0.04887, 0.028))
EARLY = {row.variant: row for row in (ORIGINAL, SC18)}


def early(dataset: Dataset) -> Early | None:
    """The generation of a dataset's records; None for those of MLPerf."""
    return EARLY.get(dataset.manifest.variant)
