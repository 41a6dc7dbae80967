"""PyTorch's DataLoader, as its users set it up: a map-style dataset, worker processes, batches in the plan's order.

Each worker reads a whole batch with this project's extent reader (`__getitems__`) straight into shared memory, which
the trainer's process maps: what a careful user of PyTorch writes, so that a difference to other readers comes from the
DataLoader and not from the format. Workers live as long as a session. As in a training script, an epoch is one pass
over the loader: nothing of the next is read before it begins.
"""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.batches import Batch, Block
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import PlainReader, Planned, SampleView, Tally
from dlio_bench.processes import fork_server

PREFETCH = 2  # batches that each worker reads ahead: PyTorch's default
_WORKER = "dlio_bench.harness.readers.torch_samples"
_FIX = "Install it with `pip install 'dlio-bench[torch]'`, or use another reader."


def is_installed() -> bool:
    """Whether PyTorch is installed, without loading it, which takes a second."""
    return find_spec("torch") is not None


def require_torch(reader: str) -> None:
    """EnvironmentFailure where PyTorch is not installed."""
    if not is_installed():
        raise EnvironmentFailure(f"Reader '{reader}' needs PyTorch, which is not installed. {_FIX}")


def pytorch() -> Any:
    """torch.utils.data. EnvironmentFailure where it cannot be imported."""
    try:
        with ignore_warnings():
            import torch.utils.data
    except ImportError as error:
        raise EnvironmentFailure(f"This reader needs PyTorch, which cannot be imported: {error}. {_FIX}") from error
    return torch.utils.data


class TorchLoader(PlainReader):
    """DataLoader with up to `threads` worker processes, as far as `staging_bytes` hold a batch of each."""

    def __init__(self, sample_view: SampleView, resources: Resources) -> None:
        """Load PyTorch. EnvironmentFailure where it is not installed."""
        self.sample_view = sample_view
        self._data = pytorch()
        self._check = resources.options.check_crc
        batches = max(1, resources.staging_bytes // max(1, resources.batch_bytes))
        self._workers = max(1, min(resources.threads, batches))
        self._prefetch = max(1, min(PREFETCH, batches // self._workers))
        self.options = {"threads": 0, "processes": self._workers, "prefetch": self._prefetch}
        self._context = fork_server(_WORKER)

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        steps: list[list[int]] = [[]] * self._workers  # the next pass: at first nothing, until all workers are there
        loader = self._loader(steps)
        try:
            with working(loader) as self.processes:
                yield self._batches(plan, tally, loader, steps)
        finally:
            self.processes = self.processes[:1]

    def _loader(self, steps: list[list[int]]) -> Any:
        from dlio_bench.harness.readers import torch_samples

        view = self.sample_view
        samples = torch_samples.TorchSamples(
            view.dataset, view.view, decoded=view.decode is not None, check=self._check
        )
        with ignore_warnings():
            return self._data.DataLoader(
                samples,
                batch_sampler=steps,
                num_workers=self._workers,
                prefetch_factor=self._prefetch,
                collate_fn=torch_samples.as_it_is,
                worker_init_fn=torch_samples.begin,
                multiprocessing_context=self._context,
                persistent_workers=True,
            )

    def _batches(self, plan: Sequence[Planned], tally: Tally, loader: Any, steps: list[list[int]]) -> Iterator[Batch]:
        for epoch, batches in groupby(plan, key=lambda batch: batch.epoch):
            of_epoch = list(batches)
            steps[:] = [batch.ids.tolist() for batch in of_epoch]
            with explain_failures():
                delivered = iter(loader)
            for batch in of_epoch:
                with explain_failures():
                    collated = next(delivered)
                if isinstance(collated, BenchError):
                    raise collated
                ids, content, cost = collated
                tally.of(epoch).add(cost)
                if not np.array_equal(ids, batch.ids):
                    raise DataError(f"PyTorch's DataLoader delivered samples {ids[:4]}... for {batch.ids[:4]}...")
                yield Batch(batch.ids, (Block(content.numpy(), batch.starts),))


@contextmanager
def working(loader: Any) -> Iterator[tuple[int, ...]]:
    """Start a DataLoader's workers, by a first pass that is to be empty, and end them.

    Gives the processes whose reads count: the server that forks the workers, which counts the reads of those that have
    ended, and the workers.
    """
    threads = set(threading.enumerate())
    try:
        with explain_failures(), ignore_warnings():
            for _ in loader:
                pass
        workers = [worker.pid for worker in loader._iterator._workers]
        yield (_parent(workers[0]), *workers)
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()  # the loader has no public way to end them at a given moment
        for thread in set(threading.enumerate()) - threads:
            thread.join()  # those that hand ids to the workers


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """PyTorch warns of more workers than processors, which wait for storage here; its dependencies of each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def explain_failures() -> Iterator[None]:
    """EnvironmentFailure where a worker has ended."""
    try:
        yield
    except RuntimeError as error:
        raise EnvironmentFailure(
            f"A worker process of PyTorch's DataLoader is gone: {str(error).splitlines()[0]} The kernel ends processes "
            "when memory or /dev/shm runs out (see dmesg, df /dev/shm); fewer --threads need less."
        ) from error


def _parent(process: int) -> int:
    """proc(5): behind the name in parentheses come the state and the parent."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
