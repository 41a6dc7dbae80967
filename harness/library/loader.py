"""The loader: batches of a dataset as arrays, in the order of a plan that is known to the last sample."""

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError, out_of_memory, remedy
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.library.arguments import whole
from dlio_bench.harness.library.arrays import Arrays, Column, CopyPool, leave_out, split_batch
from dlio_bench.harness.library.course import SampleSchedule, Session
from dlio_bench.harness.library.ranks import Borrowed
from dlio_bench.harness.plan.shape import KEEP
from dlio_bench.harness.readers.session import Reader

if TYPE_CHECKING:
    from types import TracebackType

    import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]  # it has no complete types
    import torch

VERSION = 1  # of a state


class Loader:
    """Batches of a dataset, as `dlio_bench.load` opens it; a context manager. Use it in one thread.

    `for batch in loader` gives the batches of one epoch from where the loader stands: of a whole epoch, or of the rest
    of one after a `break` or `load_state_dict`. The next `for` gives the next epoch. While a program is busy elsewhere,
    readers go on filling the staging buffer, across the end of an epoch too.

    A batch is a dict: field -> array [n, ...] (or a list of n arrays, where their lengths differ), and `ids` -> int64
    [n], the samples' numbers in the dataset. **It is valid until the next batch is asked for**: its arrays share the
    reader's memory, which is then filled anew. `load(..., copy=True)` gives batches that stay.

    Where several ranks share a dataset all of them open, iterate, move and close their loaders together. A failure is a
    class of dlio_bench.errors; after one, the loader can only be closed.
    """

    def __init__(
        self,
        comm: Comm,
        reader: Reader,
        course: SampleSchedule,
        columns: Sequence[Column],
        digest: str,
        *,
        copy: bool,
        skipped: dict[int, str] | None = None,
    ) -> None:
        self._comm, self._course, self._columns, self._digest = comm, course, columns, digest
        self._reader: Reader | None = reader  # until it is closed: its buffers go with it
        self._sample_view, self._options = reader.sample_view, reader.options
        self._copies, self._copy = CopyPool(), copy
        self._skipped = skipped  # filled by the threads that decode; None: what cannot be decoded is an error
        self._steps = course.steps
        self._epoch = self._step = self._iterations = 0
        self._closed = False
        self._failure: Exception | None = None  # what ended it
        self._process = os.getpid()
        self._session: list[Session] = []  # one at most
        self._finalizer = weakref.finalize(self, _abandon, self._session)

    @property
    def batch(self) -> int:
        """Samples of a batch on this rank; with last="keep" the last batch of an epoch may have fewer."""
        return self._course.shape.batch

    @property
    def last(self) -> str:
        """What becomes of samples that do not fill the last step: drop, pad or keep."""
        return self._course.shape.last

    @property
    def epochs(self) -> int:
        """Epochs that it delivers in all."""
        return self._course.epochs

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0 on."""
        return self._epoch

    @property
    def step(self) -> int:
        """The number of the next batch in its epoch, from 0 on."""
        return self._step

    @property
    def rank(self) -> int:
        """This process's number among the ranks that share the samples."""
        return self._comm.rank

    @property
    def ranks(self) -> int:
        """How many ranks share the samples."""
        return self._comm.size

    @property
    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> (dtype, shape of one sample) of each array; (-1,): the length differs from sample to sample."""
        return {column.name: (column.dtype.str, column.shape) for column in self._columns}

    @property
    def options(self) -> dict[str, int]:
        """What the reader uses: threads, slots of its staging buffer, bytes of its tiers."""
        return self._options

    @property
    def skipped(self) -> dict[int, str]:
        """With on_error="skip" what this rank leaves out, of batches read ahead too: id -> file and reason."""
        return dict(self._skipped or {})

    def __len__(self) -> int:
        """Batches of an epoch, the same on all ranks."""
        return self._steps

    def __iter__(self) -> Iterator[Arrays]:
        """The batches from here to the end of the epoch. UsageError after the last epoch, and for a closed loader."""
        self._require_open()
        if self._epoch == self.epochs:
            raise UsageError(
                f"The loader has delivered all of its {self.epochs} epochs. Open it with more epochs=, or go back with "
                "set_epoch."
            )
        self._iterations += 1
        return self._iterate(self._iterations, self._epoch)

    def _iterate(self, iteration: int, epoch: int) -> Iterator[Arrays]:
        while self._epoch == epoch:
            self._require_open()
            if iteration != self._iterations:
                raise UsageError("A later loop over this loader has gone on from here: iterate in one place at a time.")
            yield self._next()

    def _next(self) -> Arrays:
        with self._failing():
            if isinstance(self._comm, Borrowed):
                self._comm.require_all()
            assert self._reader is not None
            if not self._session:
                self._session.append(Session(self._reader, self._course, self._comm.rank, self._epoch, self._step))
            arrays = split_batch(self._session[0].next(), self._columns, self._sample_view)
            if self._skipped:
                arrays = leave_out(arrays, self._skipped)
        self._epoch, self._step = divmod(self._epoch * self._steps + self._step + 1, self._steps)
        return self._copies.copy_arrays(arrays) if self._copy else arrays

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, from 0 on; nothing to do where the loader stands there. UsageError."""
        epoch = whole("epoch", epoch)
        if not 0 <= epoch < self.epochs:
            raise UsageError(f"set_epoch({epoch}): the loader has the epochs 0 to {self.epochs - 1}.")
        self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: what `load_state_dict` of the next program needs to go on with the next sample.

        Numbers and texts alone. All ranks have the same: one may save it for all.
        """
        return {"version": VERSION, **self._identity(), "epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a loader stood. UsageError for a state of another dataset, reader, seed, batch or rank count."""
        if not isinstance(state, Mapping):
            raise UsageError(f"load_state_dict takes what state_dict gave, and not {state!r}.")
        here = {"version": VERSION, **self._identity()}
        for name, value in here.items():
            if state.get(name) != value:
                raise UsageError(
                    f"The state is of a loader with {name} {state.get(name)!r}, and this one has {value!r}: it would "
                    "go on with other samples. Open the loader as it was opened then, or begin anew."
                )
        epoch, step = state.get("epoch"), state.get("step")
        if not (type(epoch) is int and type(step) is int and 0 <= epoch <= self.epochs and 0 <= step < self._steps):
            raise UsageError(
                f"The state is of step {step!r} of epoch {epoch!r}, and this loader has {self.epochs} epochs of "
                f"{self._steps} steps. Open it with as many epochs= as before, or more."
            )
        self._move(epoch, step)

    def _identity(self) -> dict[str, Any]:
        """What decides which samples come when."""
        shape = self._course.shape
        return {
            "dataset": self._digest,
            "reader": self._course.reader,
            "seed": self._course.seed,
            "ranks": shape.ranks,
            "ranks_per_node": shape.ranks_per_node,
            "batch": shape.batch,
            "last": shape.last,
            "first": shape.first,
            "samples": shape.samples,
        }

    def _move(self, epoch: int, step: int) -> None:
        self._require_open()
        if (epoch, step) != (self._epoch, self._step):
            with self._failing():
                while self._session:
                    self._session.pop().end()
        self._epoch, self._step = epoch, step
        self._iterations += 1

    def close(self) -> None:
        """End all threads, give back memory, files and sockets. All ranks close together; a second time is harmless."""
        if self._closed or not self._is_here():
            return
        with self._failing():
            while self._session:
                self._session.pop().end()
            if isinstance(self._comm, Borrowed):
                self._comm.close()
        self._forget()

    def _forget(self) -> None:
        self._closed, self._reader, self._copies = True, None, CopyPool()
        self._finalizer.detach()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What fails inside ends the loader, and leaves it as an error of dlio_bench.errors."""
        try:
            yield
        except BaseException as error:
            told = _as_our_error(error)
            self._failure = told if isinstance(told, Exception) else None  # a Ctrl-C is the program's own
            self._abandon(told)
            if told is error:
                raise
            raise told from error

    def _abandon(self, why: BaseException) -> None:
        """This rank cannot go on. The others learn of it when they next ask for a batch, or wait."""
        if self._closed or not self._is_here():
            return
        self._forget()
        if isinstance(self._comm, Borrowed):
            self._comm.fail(str(why) or type(why).__name__)
        _abandon(self._session)

    def _is_here(self) -> bool:
        """Whether this is the process that has its threads, and no copy of it made by fork."""
        return self._process == os.getpid()

    def _require_open(self) -> None:
        if not self._is_here():
            raise UsageError(
                "The loader was opened by another process, which has its threads. Open one in this process."
            )
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise UsageError("The loader is closed. Open another one with dlio_bench.load.")

    def __enter__(self) -> "Loader":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        """Close it; after an exception without waiting for the other ranks, which are told.

        In place of TensorFlow's error for a failure of the loader comes the failure itself.
        """
        del kind, trace
        if error is None:
            self.close()
            return
        self._abandon(error)
        from dlio_bench.harness.library.frameworks import is_tensorflows  # it knows the types of this file

        if self._failure is not None and is_tensorflows(error):
            raise self._failure from error

    def as_tf(self, *names: str) -> "tf.data.Dataset":
        """A tf.data.Dataset; each time it is iterated it gives what `for batch in loader` would, as tensors that stay.

        An element is a dict of all arrays, `ids` among them; with names it is a tuple of these, as ("data", "label")
        for Keras' `fit`. Samples of varying length are a tensor of strings. Its cardinality is the batches of an epoch.
        EnvironmentFailure without TensorFlow.
        """

        even = self.last != KEEP and self._skipped is None
        from dlio_bench.harness.library.frameworks import as_tf

        return as_tf(self, Loader._iter_copies, names, even=even)

    def as_torch(self, *names: str) -> "torch.utils.data.IterableDataset[Any]":
        """A torch IterableDataset, for DataLoader(dataset, batch_size=None); as `as_tf`.

        Samples of varying length are a list of tensors. EnvironmentFailure without PyTorch.
        """
        from dlio_bench.harness.library.frameworks import as_torch

        return as_torch(self, self._iter_copies, names)

    def _iter_copies(self) -> Iterator[Arrays]:
        """As `iter`, but batches stay valid, whatever `copy` is."""
        batches = iter(self)
        return batches if self._copy else map(self._copies.copy_arrays, batches)


def _as_our_error(error: BaseException) -> BaseException:
    """The error of dlio_bench.errors for a failure of the system; others as they are."""
    if isinstance(error, BenchError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename or 'A file'} on {host_name()}"
        return EnvironmentFailure(f"{where}: {error.strerror or error}. {remedy(error)}.")
    if isinstance(error, MemoryError):
        return out_of_memory(error, f"in a loader on {host_name()}", "a smaller batch or a smaller staging buffer")
    return error


def _abandon(session: list[Session]) -> None:
    """End what was left open. A thread of the session, in which the garbage collector may call this, cannot do it."""
    while session:
        end = session.pop().abandon
        if threading.current_thread().name.startswith(("reader", "peers")):
            threading.Thread(target=end, name="loader-end", daemon=True).start()
        else:
            end()
