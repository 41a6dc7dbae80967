"""A loader as a PyTorch dataset."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.library.arrays import Arrays, picked

if TYPE_CHECKING:
    import torch

    from dlio_bench.harness.library.loader import Loader


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

    picked(loader.fields | {"ids": ()}, names)

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
                yield picked({name: tensors(value) for name, value in arrays.items()}, names)

        def __len__(self) -> int:
            """Batches of an epoch."""
            return len(loader)

    return Batches()
