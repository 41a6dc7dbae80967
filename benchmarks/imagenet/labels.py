"""Classes of ImageNet's samples: evenly often, in random order, whatever the fill, the variant and the seed.

They depend on the sample's id alone, since the folders of the raw files are named after them.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import random_bytes

CLASSES = 1000
_STREAM = 2  # samples' own words are stream 0, those of the pool of strips stream 1


def label_of(sample: int) -> int:
    """1..1000. Of each thousand samples in turn, every class has one, in an order of its own."""
    block, place = divmod(sample, CLASSES)
    return int(_order(block)[place])


@lru_cache(maxsize=64)
def _order(block: int) -> npt.NDArray[np.int64]:
    words = random_bytes.words(random_bytes.source(0, block, _STREAM), CLASSES)
    return 1 + np.argsort(words, kind="stable")


def synset(label: int) -> str:
    """A class's name in the published form, n and eight digits; the numbers are ours."""
    return f"n{1_440_764 + 13_000 * label:08d}"
