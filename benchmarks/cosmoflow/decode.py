"""What CosmoFlow makes of a record: float32 voxels, the logarithm of counts or counts over their mean, and targets."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.cosmoflow.generations import Early, early
from dlio_bench.benchmarks.cosmoflow.layout import REDSHIFTS, early_bytes, mlperf_bytes
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import example
from dlio_bench.errors import DataError

FIELDS = ("record",)
WHAT = "int16 counts as float32 log(x + 1), then y (sparticlesteve/cosmoflow-benchmark @559eafb, data/cosmo.py)"
WHAT_EARLY = "float32 voxels over their mean, then the label as z-scores (NERSC/CosmoFlow @28937fa: 'divided by mean')"


def side(dataset: Dataset) -> int:
    """Voxels along a side. DataError when the records' length is not that of a message of whole cubes."""
    message = dataset.manifest.fields[0].shape[0]
    generation = early(dataset)
    voxel, length = 2 * REDSHIFTS, mlperf_bytes
    if generation is not None:
        voxel, length = generation.itemsize, partial(early_bytes, generation)
    edge: int = round(max(message / voxel, 1) ** (1 / 3))
    while edge > 1 and edge**3 * voxel > message:
        edge -= 1
    if length(edge) != message:
        raise DataError(
            f"The records of {dataset.folder} have {message} bytes, which is no CosmoFlow sample of {edge}^3 voxels. "
            "Name the variant that the data are of."
        )
    return edge


def decode(dataset: Dataset) -> Decode:
    """Delivers float32 [side, side, side(, 4)] and the targets, float32 [4] (SC18: [3], before it [2])."""
    voxels = side(dataset) ** 3
    generation = early(dataset)
    if generation is not None:
        return Decode(FIELDS, 4 * (voxels + generation.targets), partial(_over_mean, generation), WHAT_EARLY)
    return Decode(FIELDS, 4 * (voxels * REDSHIFTS + PARAMETERS), _logarithm, WHAT)


def _logarithm(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
    del sample
    features = example.decode(parts[0])
    counts = _values(features, "x", "<i2")
    targets = features.get("y")
    if not isinstance(targets, np.ndarray) or targets.dtype != np.float32:
        raise DataError("The record has no float list 'y'.")
    voxels, rest = _split(out, counts.size, targets.size)
    with np.errstate(all="ignore"):  # a negative count is the application's business, as it is there
        np.add(counts, np.float32(1), out=voxels, casting="unsafe")
        np.log(voxels, out=voxels)
    rest[:] = targets


def _over_mean(generation: Early, sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
    del sample
    features = example.decode(parts[0])
    stored, targets = (_values(features, name, generation.dtype) for name in ("data_raw", "label_raw"))
    if targets.size != generation.targets:
        raise DataError(f"The record has {targets.size} targets, and {generation.targets} are expected.")
    voxels, rest = _split(out, stored.size, targets.size)
    with np.errstate(all="ignore"):
        np.divide(stored, stored.dtype.type(stored.mean(dtype=np.float64)), out=voxels, casting="same_kind")
        rest[:] = generation.scores(targets)


def _values(features: dict[str, example.Decoded], name: str, dtype: str) -> npt.NDArray[Any]:
    found = features.get(name)
    if not isinstance(found, list) or len(found) != 1 or len(found[0]) % np.dtype(dtype).itemsize:
        raise DataError(f"The record has no bytes '{name}' of {dtype} numbers.")
    return np.frombuffer(found[0], dtype=dtype)


def _split(out: memoryview, voxels: int, targets: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    if 4 * (voxels + targets) != len(out):
        raise DataError(f"The record holds {voxels} voxels and {targets} targets where {len(out) // 4} are expected.")
    whole = np.frombuffer(out, dtype="<f4")
    return whole[:voxels], whole[voxels:]
