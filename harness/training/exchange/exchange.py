"""The exchange that a trainer holds: gradients in, means out, now or a step late, never waiting for ever, and timed."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.errors import EnvironmentFailure, Stalled
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.training.exchange import horovod
from dlio_bench.harness.training.exchange.horovod import OverHorovod
from dlio_bench.harness.training.exchange.mpi import OverMpi
from dlio_bench.harness.training.exchange.options import ExchangeOptions, require_valid


class Pending:
    """A task. `started` and `ended`: in seconds of time.perf_counter."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._over = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self.started = self.ended = 0.0

    def run(self) -> None:
        """Do it, in whichever thread this is."""
        assert self._work is not None
        self.started = time.perf_counter()
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - raised where the outcome is asked for
            self._error = error
        self._work = None  # what it holds can go
        self.ended = time.perf_counter()
        self._over.set()

    def wait(self, seconds: float) -> Any:
        """Its outcome, or the error that ended it. TimeoutError where it is not over in time."""
        with life.waits(patience=seconds):
            if not self._over.wait(seconds):
                raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


class Background:
    """The thread. It is a daemon: what hangs in a library for ever must not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Pending | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Any]) -> Pending:
        """Do `work` after all that was begun before."""
        pending = Pending(work)
        self._queue.put(pending)
        return pending

    def close(self, seconds: float) -> None:
        """End the thread when it has done everything; it is left alone where that takes longer."""
        self._queue.put(None)
        self._thread.join(seconds)

    def run_and_wait(self, work: Callable[[], Any], seconds: float) -> Any:
        """Begin it and wait for its outcome, see Pending.wait."""
        return self.begin(work).wait(seconds)

    def _serve(self) -> None:
        while (pending := self._queue.get()) is not None:
            pending.run()
            del pending  # its waiter alone holds the outcome


class Choice(Struct, frozen=True):
    """A kind of exchange, and why it was taken, for the output."""

    kind: str
    why: str


def choose(comm: Comm, options: ExchangeOptions, load: Callable[[], Any] = horovod.load) -> Choice:
    """The same on every rank, which call it together. EnvironmentFailure where Horovod was asked for and is not there.

    `load` loads Horovod or raises EnvironmentFailure.
    """
    if comm.size == 1:
        return Choice("none", "one rank has nobody to exchange gradients with")
    if options.kind in ("mpi", "none"):
        return Choice(options.kind, "as asked")
    refusal = None
    for rank, reason in enumerate(run_on_all_ranks(comm, lambda: _refusal(load))):
        if reason is not None and refusal is None:
            refusal = f"rank {rank}: {reason}"
    if options.kind == "horovod":
        if refusal is not None:
            raise EnvironmentFailure(f"Gradients cannot be exchanged by Horovod as asked; {refusal}")
        return Choice("horovod", "as asked")
    if refusal is not None:
        return Choice("mpi", f"Horovod is not used; {refusal}")
    return Choice("horovod", "it is installed and matches TensorFlow")


def _refusal(load: Callable[[], Any]) -> str | None:
    try:
        load()
    except EnvironmentFailure as error:
        return str(error)
    return None


# A reduction that gives up by itself knows more than its waiter, so its error goes first.
GRACE = 2.0  # seconds
ALL_REDUCE = CODE["all-reduce"]
MOST_BYTES = 1 << 30  # of a broadcast at once; MPI counts in 32 bits


class Reducer(Protocol):
    """Averages gradients over the ranks, all of which call it together and in the same order."""

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        """(means in the gradients' shapes, float32; bytes added up). TimeoutError or EnvironmentFailure."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Alone:
    """Everybody keeps their own gradients."""

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        """See Reducer."""
        return list(gradients), 0

    def close(self) -> None:
        """See Reducer."""


class Reduction(Struct, frozen=True):
    """One all-reduce on this rank.

    started, ended: seconds of time.perf_counter, from the first copy into a buffer to the last out of it, waiting for
    the slowest rank included. exposed: seconds of it that the trainer's thread waited. nbytes: what was added up.
    """

    started: float
    ended: float
    exposed: float
    nbytes: int


class Exchange:
    """Gradients in, means over the ranks out. Made by `open_exchange`; used by one thread.

    choice: the kind and why. costs: the reductions whose means were handed out, in order; with a lag, entry i is of the
    gradients of step i and was waited for in step i + 1.
    """

    def __init__(
        self, comm: Comm, choice: Choice, open_reducer: Callable[[], Reducer], options: ExchangeOptions
    ) -> None:
        """EnvironmentFailure where the reducer cannot be opened, or where another rank does not come to it."""
        self.choice = choice
        self.costs: list[Reduction] = []
        self._comm, self._options = comm, options
        # another thread even without a lag: only another thread can abandon a library call that never returns
        self._thread = None if choice.kind == "none" else Background("gradient-exchange")
        self._reducer: Reducer = self._run_bounded("The start of gradient exchange", open_reducer)
        self._pending: Pending | None = None
        self._late: list[Any] | None = None  # means that are there and not yet handed out
        self._calls = 0

    def reduce(self, gradients: Sequence[Any]) -> list[Any]:
        """The means over the ranks, in the shapes of `gradients`: tensors, or float32 arrays that change two calls on.

        With a lag they are of the step before, and zeros in the first step. All ranks call it together. Gradients that
        are arrays are left alone until the next call. EnvironmentFailure where a rank has died or stands still.
        """
        entered = time.perf_counter()
        if not self._options.lag:
            self._begin(gradients)
            return self._finish(entered)
        means = self.pending_means(entered)
        self._late = None
        self._begin(gradients)
        return [np.zeros(tuple(gradient.shape), np.float32) for gradient in gradients] if means is None else means

    def pending_means(self, entered: float | None = None) -> list[Any] | None:
        """The means that the next `reduce` will hand out: a part of the state of a training; None if there are none."""
        if self._pending is not None:
            self._late = self._finish(time.perf_counter() if entered is None else entered)
        return self._late

    def resume(self, lagged: Sequence[npt.NDArray[Any]] | None) -> None:
        """Go on where `lagged` was taken."""
        self._late = None if lagged is None else list(lagged)

    def broadcast(self, values: Iterable[Any]) -> list[npt.NDArray[Any]]:
        """Rank 0's values (arrays, tensors or variables of any types), bit for bit, as arrays.

        All ranks call it together with as many, of the same shapes and types. Over MPI whatever the kind: Horovod knows
        no uint32, which Keras's seeds are. EnvironmentFailure.
        """
        copies = [np.array(value if isinstance(value, np.ndarray) else value.numpy(), order="C") for value in values]
        try:
            for copy in copies:
                content = copy.reshape(-1).view(np.uint8)
                for begin in range(0, len(content), MOST_BYTES):
                    with life.waits(patience=self._options.timeout):
                        self._comm.from_first(content[begin : begin + MOST_BYTES], self._options.timeout)
        except TimeoutError as error:
            raise self._stall_error("The broadcast of weights") from error
        return copies

    def close(self) -> None:
        """Wait for the reduction under way, drop its means, and end.

        All ranks call it together, and not after a failure. EnvironmentFailure where a rank does not come.
        """
        self.pending_means()
        if self._thread is not None:
            # a rank that ends Horovod ends it for all, and other nodes may still pass on their sums
            try:
                with life.waits(patience=self._options.timeout):
                    self._comm.all_sum(np.zeros(1, np.float32), np.zeros(1, np.float32), self._options.timeout)
            except TimeoutError as error:
                raise self._stall_error("The end of gradient exchange") from error
        self._run_bounded("The end of gradient exchange", self._reducer.close)
        if self._thread is not None:
            self._thread.close(GRACE)

    def _run_bounded(self, what: str, work: Callable[[], Any]) -> Any:
        """Something that all ranks do together, and that might never return."""
        if self._thread is None:
            return work()
        try:
            return self._thread.run_and_wait(work, self._options.timeout + GRACE)
        except TimeoutError as error:
            raise self._stall_error(what) from error

    def _begin(self, gradients: Sequence[Any]) -> None:
        given = list(gradients)
        self._calls += 1

        def work() -> Any:
            started = time.perf_counter()
            means, nbytes = self._reducer.reduce(given)
            if nbytes and (track := recorder.current_track()):
                track.add(ALL_REDUCE, started, time.perf_counter(), nbytes)
            return means, nbytes

        if self._thread is None:
            self._pending = Pending(work)
            self._pending.run()
        else:
            self._pending = self._thread.begin(work)

    def _finish(self, entered: float) -> list[Any]:
        pending, self._pending = self._pending, None
        assert pending is not None
        try:
            means, nbytes = pending.wait(self._options.timeout + GRACE)
        except TimeoutError as error:
            raise self._stall_error(f"Gradient exchange {self._calls}") from error
        exposed = time.perf_counter() - entered
        self.costs.append(Reduction(pending.started, pending.ended, exposed, nbytes))
        return list(means)

    def _stall_error(self, what: str) -> Stalled:
        return Stalled(
            f"{what} by {self.choice.kind} was not over after {self._options.timeout:g} s, says rank {self._comm.rank} "
            f"of {self._comm.size}: a rank has died or stands still, or is that much slower. The launcher's output "
            "names a rank that died; give slow ranks more time with --exchange-timeout, as in --exchange-timeout 5min."
        )


def open_exchange(comm: Comm, options: ExchangeOptions, load: Callable[[], Any] | None = None) -> Exchange:
    """The exchange of a job; all ranks call it together. UsageError; EnvironmentFailure.

    `load` stands in for the loading of Horovod.
    """
    require_valid(options)
    choice = choose(comm, options) if load is None else choose(comm, options, load)
    if choice.kind != "none" and not comm.several_threads():
        raise EnvironmentFailure(
            "Gradients are exchanged by a thread of their own, and this MPI library lets one thread talk alone "
            "(MPI_THREAD_MULTIPLE is missing). Load another MPI; `dlio-bench doctor` shows which is found."
        )
    reducers: dict[str, Callable[[], Reducer]] = {
        "none": Alone,
        "mpi": lambda: OverMpi(comm, options),
        "horovod": lambda: OverHorovod(comm, options),
    }
    return Exchange(comm, choice, reducers[choice.kind], options)
