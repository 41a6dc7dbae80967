"""Shapes that cannot be."""

import numpy as np
import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.shape import Shape


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="--shard 'socket' is not known"):
        Shape(8, 2, 1, shard="socket")
    with pytest.raises(UsageError, match="'wrap' is not known"):
        Shape(8, 2, 1, last="wrap")
    with pytest.raises(UsageError, match="6 ranks do not fill nodes of 4"):
        Shape(8, 6, 1, ranks_per_node=4)
    for bounds in ([0, 4], [1, 8], [0, 9, 8]):
        with pytest.raises(ValueError, match="bounds"):
            Shape(8, 2, 1, bounds=np.array(bounds))
