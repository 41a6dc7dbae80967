"""A loader as a dataset of TensorFlow or PyTorch."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.library.arrays import VARYING, Arrays, pick

if TYPE_CHECKING:
    import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]  # it has no complete types
    import torch

    from dlio_bench.harness.library.loader import Loader


def as_tf(
    loader: "Loader", batches: "Callable[[Loader], Iterator[Arrays]]", names: Sequence[str], *, even: bool
) -> "tf.data.Dataset":
    """See Loader.as_tf. `batches` begins to iterate over copies, whose memory TensorFlow takes without another copy.

    even: every batch has as many samples.
    """
    if find_spec("tensorflow") is None:
        raise EnvironmentFailure(
            "as_tf needs TensorFlow, which is not installed. Install it with pip install 'dlio-bench[tensorflow]' "
            "(Python 3.11 or 3.12)."
        )
    import tensorflow as tf

    samples = loader.batch if even else None
    specs = {name: _spec(tf, samples, *field) for name, field in (loader.fields | {"ids": ("<i8", ())}).items()}
    pick(specs, names)  # UsageError
    flat = tuple(names) or tuple(specs)
    fetched: list[Arrays] = []

    # TensorFlow never lets go of a function that it was given
    weakly = weakref.ref(loader)

    def numbers() -> Iterator[int]:
        fetched.clear()  # of an iteration that was given up
        alive = weakly()
        if alive is None:
            raise UsageError("The loader of this dataset is gone. Keep it as long as the dataset.")
        for step, arrays in enumerate(batches(alive)):
            fetched.append(arrays)
            yield step

    def lend(_: Any) -> list[Any]:
        arrays = fetched.pop(0)
        return [_tensor(tf, arrays[name]) for name in flat]

    def tensors(step: Any) -> Any:
        lent = tf.py_function(lend, [step], [specs[name].dtype for name in flat])
        for name, tensor in zip(flat, lent, strict=True):
            tensor.set_shape(specs[name].shape)
        return pick(dict(zip(flat, lent, strict=True)), names)

    # what a generator yields is copied once more; what a function returns is not
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64)).map(tensors)
    dataset.dlio_bench_loader = loader  # lives as long as the dataset
    # Not by assert_cardinality, which fails where an iteration begins in mid-epoch, and so ends early. Keras asks here:
    # without it Keras warns of an end of the data, and takes the length of its first epoch for that of all.
    steps = len(loader)
    dataset.cardinality = lambda: tf.constant(steps, tf.int64)
    return dataset


def is_tensorflows(error: BaseException) -> bool:
    """Whether it is an error of TensorFlow, which keeps the text alone of what a dataset's function raised."""
    return type(error).__module__.partition(".")[0] == "tensorflow"


def _spec(tf: Any, samples: int | None, dtype: str, shape: tuple[int, ...]) -> Any:
    if shape == VARYING:
        return tf.TensorSpec((samples,), tf.string)
    return tf.TensorSpec((samples, *shape), tf.as_dtype(np.dtype(dtype).newbyteorder("=")))


def _tensor(tf: Any, value: Any) -> Any:
    """A tensor in the memory of an array, which it keeps; of a list of arrays the strings of their bytes."""
    if isinstance(value, list):
        return tf.constant([part.tobytes() for part in value])
    return tf.experimental.dlpack.from_dlpack(value.__dlpack__())


def as_torch(
    loader: "Loader", batches: Callable[[], Iterator[Arrays]], names: Sequence[str]
) -> "torch.utils.data.IterableDataset[Any]":
    """See Loader.as_torch. `batches` begins to iterate over copies, whose memory the tensors share."""
    if find_spec("torch") is None:
        raise EnvironmentFailure(
            "as_torch needs PyTorch, which is not installed. Install it with pip install 'dlio-bench[torch]' "
            "--extra-index-url https://download.pytorch.org/whl/cpu (without GPUs)."
        )
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    pick(loader.fields | {"ids": ()}, names)

    def tensors(value: Any) -> Any:
        return [torch.from_numpy(part) for part in value] if isinstance(value, list) else torch.from_numpy(value)

    class Batches(IterableDataset[Any]):  # type: ignore[misc, unused-ignore]  # mypy may not see PyTorch
        """The batches of a loader as tensors."""

        def __iter__(self) -> Iterator[Any]:
            """From where the loader stands to the end of its epoch. UsageError in a worker of a DataLoader."""
            if get_worker_info() is not None:
                raise UsageError(
                    "The loader reads ahead by threads of its own, which workers do not have. Use "
                    "DataLoader(dataset, batch_size=None) with num_workers=0."
                )
            for arrays in batches():
                yield pick({name: tensors(value) for name, value in arrays.items()}, names)

        def __len__(self) -> int:
            """Batches of an epoch."""
            return len(loader)

    return Batches()
