"""TensorFlow input pipelines at work: loaded late, limited in threads, delivering a plan, ended when left."""

import gc
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from dlio_bench import recorder
from dlio_bench.batches import Batch, Ids
from dlio_bench.benchmarks.pipeline import Plan
from dlio_bench.components import CODE
from dlio_bench.errors import BenchError, EnvironmentFailure

RECORDS = CODE["records"]
# Keras imports these where they are installed, for plots and for data frames: a quarter of the time that loading takes.
_UNUSED = ("matplotlib", "pandas")
own_process = True  # nobody else uses Keras in it; the library, which works in the process of a program, sets False
_FIX = "Install it with `pip install 'dlio-bench[tensorflow]'` (Python 3.11 or 3.12), or use another reader."


def require_tensorflow(reader: str) -> None:
    """EnvironmentFailure where TensorFlow is not installed, without loading it, which takes seconds."""
    if find_spec("tensorflow") is None:
        raise EnvironmentFailure(f"Reader '{reader}' needs TensorFlow, which is not installed. {_FIX}")


def tensorflow() -> Any:
    """The module, silent. EnvironmentFailure where it is not installed."""
    first = "tensorflow" not in sys.modules
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it tells of every library that it does not find
    os.environ.setdefault("KERAS_HOME", os.devnull)  # a node's home may be missing, and its settings change results
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies use what later versions of NumPy and Python deprecate
            if first:
                _load()
            import tensorflow  # type: ignore[import-untyped, unused-ignore]  # it has no complete types
    except ImportError as error:
        raise EnvironmentFailure(
            f"This reader needs TensorFlow (and so does training), which cannot be imported: {error}. {_FIX}"
        ) from error
    if first:
        gc.freeze()  # the objects that its modules are made of are never garbage: to look through them all takes long
    return tensorflow


def _load() -> None:
    """Import TensorFlow in 60 % of the time: without the collection of garbage, of which modules make none."""
    missing = [name for name in _UNUSED if own_process and name not in sys.modules]
    collecting = gc.isenabled()
    gc.disable()
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None: as if it were not installed
    try:
        import_module("tensorflow")
    finally:
        for name in missing:
            del sys.modules[name]
        if collecting:
            gc.enable()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def limited(inter: int, intra: int, *, ordered: bool = True) -> Any:
    """tf.data options: a pool of `inter` threads of its own, `intra` threads inside an op; order kept or not."""
    options = tensorflow().data.Options()
    options.threading.private_threadpool_size = inter
    options.threading.max_intra_op_parallelism = intra
    options.deterministic = ordered
    return options


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a dataset's map, traced as it is: AutoGraph would look for its source, and log that it failed."""
    wrapped: Callable[..., Any] = tensorflow().autograph.experimental.do_not_convert(function)
    return wrapped


def traced(stage: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a graph that is made once, for several maps."""
    function: Callable[..., Any] = tensorflow().function(stage, autograph=False)
    return function


def array(tensor: Any) -> npt.NDArray[Any]:
    """A tensor of numbers as an array, without a copy; not to be written to."""
    return np.asarray(memoryview(tensor))


class Stretch(Struct):
    """Neighbouring batches of a plan that one dataset can cut: all of one size, the last at most that.

    steps: the number of each batch within its epoch.
    """

    batches: list[tuple[int, Ids]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Samples of a batch."""
        return len(self.batches[0][1])

    @property
    def ids(self) -> Ids:
        """All ids in the order of the plan."""
        return np.concatenate([ids for _, ids in self.batches])

    @property
    def epochs(self) -> list[tuple[int, Ids]]:
        """(epoch, its ids) of each run of batches of one epoch."""
        parts_of: list[tuple[int, list[Ids]]] = []
        for epoch, ids in self.batches:
            if not parts_of or parts_of[-1][0] != epoch:
                parts_of.append((epoch, []))
            parts_of[-1][1].append(ids)
        return [(epoch, np.concatenate(parts)) for epoch, parts in parts_of]


def stretches(plan: Plan, *, anew: bool = False) -> list[Stretch]:
    """The stretch of each batch: one for all of training, where its batches are of one size, and one for each pass.

    Applications have a dataset for training, which goes on reading ahead while they validate, and another for
    validation, which starts anew with each pass. `anew`: the training dataset starts anew, too, once it has delivered
    all its samples, as in pipelines that put `repeat` behind all reading ahead: a sample that comes again begins a
    stretch. Epochs that are parts of one pass over the samples repeat none, so that their stretch goes on.
    """
    by_batch: list[Stretch] = []
    latest: dict[int, Stretch] = {}  # of training (0), or of a validation pass
    seen: set[int] = set()  # of training, in its latest stretch
    before: dict[int, int] = defaultdict(int)  # batches of an epoch
    for epoch, ids in plan:
        sequence = min(epoch, 0)
        last = latest.get(sequence)
        again = anew and sequence == 0 and not seen.isdisjoint(ids.tolist())
        if last is None or len(last.batches[-1][1]) < last.size or len(ids) > last.size or again:
            last = latest[sequence] = Stretch()
            seen = set() if sequence == 0 else seen
        last.batches.append((epoch, ids))
        last.steps.append(before[epoch])
        before[epoch] += 1
        if anew and sequence == 0:
            seen.update(ids.tolist())
        by_batch.append(last)
    return by_batch


# (epoch, ids of the plan, an element of the dataset) -> the batch, and the bytes that TensorFlow itself read for it
Take = Callable[[int, Ids, Any], tuple[Batch, int]]


@contextmanager
def delivered(
    plan: Plan,
    build: Callable[[Stretch], Any],
    take: Take,
    explain: Callable[[Stretch, str], BenchError],
    *,
    anew: bool = False,
) -> Iterator[Iterator[Batch]]:
    """The batches of a plan from the datasets that `build` makes of its stretches; `anew` as in `stretches`.

    Nothing is built before the first batch is asked for. `explain` makes an error of the library a failure that names
    the file. Leaving drops the iterator, which ends the library's threads and closes its files.
    """
    live: dict[int, list[Any]] = {}  # stretches under way: the iterator of each, and the batches that are left of it

    def run() -> Iterator[Batch]:
        errors = tensorflow().errors.OpError
        for (epoch, ids), stretch in zip(plan, stretches(plan, anew=anew), strict=True):
            state = live.setdefault(id(stretch), [])
            if not state:
                state += [iter(build(stretch)), len(stretch.batches)]
            problem, started = "", time.perf_counter()
            try:
                batch, size = take(epoch, ids, next(state[0]))
            except StopIteration:
                problem = "it ended early."
            except errors as error:
                problem = str(error.message)
            if problem:  # raised here, so that no trace keeps the library's iterator, and its files open
                raise explain(stretch, problem)
            if size and (track := recorder.here()):
                track.add(RECORDS, started, time.perf_counter(), size)
            yield batch
            del batch
            state[1] -= 1
            if not state[1]:
                live.pop(id(stretch)).clear()

    batches = run()
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        for state in live.values():
            state.clear()
        live.clear()
        gc.collect()  # whatever still holds the iterator in a circle: its threads must end now


def each(stage: Callable[..., Any], elements: Sequence[Sequence[Any]], options: Any) -> Iterator[Any]:
    """What a map of a dataset makes of some elements, one by one: the same graph under the same options, so the same
    bits. Setting up a dataset takes far longer than an element does: ask for many at once, of a stage that is `traced`.
    """
    columns = tuple(list(column) for column in zip(*elements, strict=True))
    yield from tensorflow().data.Dataset.from_tensor_slices(columns).map(plain(stage)).with_options(options)
