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
from dlio_bench.batches import ALIGNMENT, Batch, Block, Ids
from dlio_bench.benchmarks.model import Part, Tensor
from dlio_bench.benchmarks.pipeline import Plan
from dlio_bench.components import CODE
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure

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


def thread_options(inter: int, intra: int, *, ordered: bool = True) -> Any:
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


def graph_of(stage: Callable[..., Any]) -> Callable[..., Any]:
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
def plan_batches(
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
            if size and (track := recorder.current_track()):
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
    bits. Setting up a dataset takes far longer than an element does: ask for many at once, of a graph.
    """
    columns = tuple(list(column) for column in zip(*elements, strict=True))
    yield from tensorflow().data.Dataset.from_tensor_slices(columns).map(plain(stage)).with_options(options)


WORD = 4  # bytes of a number


def lend(batch: Batch) -> tuple[Tensor, ...]:
    """The blocks of a batch as float32 [n, words] each, on the host.

    They share the batch's memory, and so are valid as long as it is: until the next batch is asked for. Memory that is
    read-only or does not start on 64 bytes cannot be shared and is copied (`shared` tells). DataError for samples
    that are not all of one size, or no whole numbers of four bytes.
    """
    return tuple(_block_tensor(block, len(batch.ids)) for block in batch.blocks)


def shares_memory(batch: Batch) -> bool:
    """Whether `lend` copies nothing of this batch."""
    return all(_can_share(block) for block in batch.blocks)


def unpack(lent: Sequence[Tensor], parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """The parts of all samples, [n, *part.shape] each: a sample is its row of the first tensor, then of the next.

    TensorFlow operations. A part that is alone in its tensor, and the parts of a single sample, are views; others are
    copied once, as anything is that the network is to read in one piece. DataError when the sizes do not fit.
    """
    tf = tensorflow()
    widths = [int(tensor.shape[1]) for tensor in lent]
    if sum(widths) != sum(part.words for part in parts):
        raise DataError(
            f"Samples of {WORD * sum(widths)} bytes were delivered where {' + '.join(part.name for part in parts)} "
            f"have {WORD * sum(part.words for part in parts)}. Deliver decoded samples (--decode)."
        )
    parts_read, at, start = [], 0, 0
    for part in parts:
        if start == widths[at]:
            at, start = at + 1, 0
        if start + part.words > widths[at]:
            raise DataError(f"'{part.name}' is cut in two by the blocks of the batch, which a pipeline must not do.")
        flat = _columns(tf, lent[at], start, part.words)
        if part.dtype != "float32":
            flat = tf.bitcast(flat, part.dtype)
        parts_read.append(tf.reshape(flat, (-1, *part.shape)))
        start += part.words
    return tuple(parts_read)


def _columns(tf: Any, tensor: Tensor, start: int, words: int) -> Tensor:
    """`words` columns from `start` on, flat."""
    if words == tensor.shape[1]:
        return tensor
    if tensor.shape[0] == 1:
        return tf.reshape(tensor, (-1,))[start : start + words]  # a slice of the first axis shares memory
    return tensor[:, start : start + words]


def _block_tensor(block: Block, samples: int) -> Tensor:
    tf = tensorflow()
    size, rest = divmod(block.data.size, samples)
    if rest or size % WORD or (np.diff(block.starts) != size).any():
        raise DataError("Samples of different sizes cannot be made one tensor. Deliver decoded samples (--decode).")
    numbers = block.data.view(np.float32).reshape(samples, size // WORD)
    if _can_share(block):
        return tf.experimental.dlpack.from_dlpack(numbers.__dlpack__())
    return tf.constant(numbers)


def _can_share(block: Block) -> bool:
    return bool(block.data.flags.writeable) and block.data.ctypes.data % ALIGNMENT == 0
