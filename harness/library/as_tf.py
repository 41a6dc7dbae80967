"""A loader as a tf.data.Dataset."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.library.arrays import VARYING, Arrays, picked

if TYPE_CHECKING:
    import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]  # it has no complete types

    from dlio_bench.harness.library.loader import Loader


def as_tf(loader: "Loader", batches: Callable[[], Iterator[Arrays]], names: Sequence[str]) -> "tf.data.Dataset":
    """See Loader.as_tf. `batches` begins to iterate over copies, whose memory TensorFlow takes without another copy."""
    if find_spec("tensorflow") is None:
        raise EnvironmentFailure(
            "as_tf needs TensorFlow, which is not installed. Install it with pip install 'dlio-bench[tensorflow]'."
        )
    import tensorflow as tf

    samples = None if loader.last == "keep" else loader.batch

    def spec(dtype: str, shape: tuple[int, ...]) -> "tf.TensorSpec":
        if shape == VARYING:
            return tf.TensorSpec((samples,), tf.string)
        return tf.TensorSpec((samples, *shape), tf.as_dtype(np.dtype(dtype).newbyteorder("=")))

    def elements() -> Iterator[Any]:
        for arrays in batches():
            strings = {name: _strings(value) for name, value in arrays.items() if isinstance(value, list)}
            yield picked(arrays | strings, names)

    specs = {name: spec(*field) for name, field in loader.fields.items()} | {"ids": spec("<i8", ())}
    return tf.data.Dataset.from_generator(elements, output_signature=picked(specs, names))


def _strings(parts: Sequence[Any]) -> Any:
    """An object array [n] of the bytes of each."""
    strings = np.empty(len(parts), dtype=object)
    strings[:] = [part.tobytes() for part in parts]
    return strings
