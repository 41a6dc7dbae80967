"""What was predicted of each patch: the published text files, and how far two predictions agree.

Source: til_classification @c98db4c, u24_lymphocyte/prediction/lymphocyte/pred_by_external_model.py; anagainaru/
medical_DNN @49b98c0, quip_classification/correctness/README.md (Dice of the positive patches: 1.0).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlio_bench.atomic_files import write_whole
from dlio_bench.benchmarks.wsi.layout import PLACES
from dlio_bench.benchmarks.wsi.slides import Place
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import hdf5

Probabilities = npt.NDArray[np.float32]

FILE = "patch-level-lym.txt"
THRESHOLD = 0.42  # of a positive patch: sa_testers/config_vgg-mix_test_ext.ini


def probabilities(outputs: npt.NDArray[np.float32]) -> Probabilities:
    """The sigmoid of the last of the logits [patches, classes]: float32 [patches]."""
    return np.asarray(1 / (1 + np.exp(-outputs[:, -1].astype(np.float64))), dtype=np.float32)


def write(dataset: Dataset, by_tile: Mapping[int, Probabilities], folder: Path) -> None:
    """A folder for each slide that has a predicted tile, with FILE in it. OSError; DataError for a slide's file."""
    for number, entry in enumerate(dataset.manifest.files):
        tiles = [tile for tile in range(entry.samples) if entry.first + tile in by_tile]
        if not tiles:
            continue
        places = np.frombuffer(hdf5.read_field(dataset.path(number), PLACES), "<i4").reshape(-1, 4)
        text = "".join(
            line for tile in tiles for line in lines(Place(*places[tile].tolist()), by_tile[entry.first + tile])
        )
        slide = folder / Path(entry.name).stem
        slide.mkdir(parents=True, exist_ok=True)
        write_whole(slide / FILE, text.encode())


def lines(place: Place, values: Probabilities) -> Iterator[str]:
    """`x y probability` of each patch of a tile: its middle, in pixels of the slide."""
    side = round(len(values) ** 0.5)
    step = place.width / side
    for number, value in enumerate(values.tolist()):
        column, row = divmod(number, side)
        yield f"{round(place.x + (column + 0.5) * step)} {round(place.y + (row + 0.5) * step)} {value:.9g}\n"


def agreement(some: Mapping[int, Probabilities], others: Mapping[int, Probabilities]) -> dict[str, float]:
    """Dice coefficient of the positive patches of two predictions of the same tiles, and the largest difference.

    2 |A and B| / (|A| + |B|), 1 where neither has any.
    """
    ids = sorted(some)
    first, second = (np.concatenate([of[tile] for tile in ids]) for of in (some, others))
    positive = first >= THRESHOLD, second >= THRESHOLD
    both, either = np.count_nonzero(positive[0] & positive[1]), sum(map(np.count_nonzero, positive))
    return {"dice": 2 * both / either if either else 1.0, "difference": float(np.abs(first - second).max(initial=0))}
