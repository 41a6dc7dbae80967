"""TensorFlow input pipelines at work: loaded late, limited in threads, delivering a plan, ended when left."""

import gc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Ids
from dlio_bench.benchmarks.pipeline import Plan
from dlio_bench.errors import BenchError, EnvironmentFailure


def tensorflow() -> Any:
    """The module, silent. EnvironmentFailure where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it tells of every library that it does not find
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies use what later versions of NumPy and Python deprecate
            import tensorflow  # type: ignore[import-untyped, unused-ignore]  # it has no complete types
    except ImportError as error:
        raise EnvironmentFailure(
            f"This reader needs TensorFlow (and so does training), which cannot be imported: {error}. Install it with "
            "`pip install 'dlio-bench[tensorflow]'`, or use another reader and emulated compute."
        ) from error
    return tensorflow


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


def array(tensor: Any) -> npt.NDArray[Any]:
    """A tensor of numbers as an array, without a copy; not to be written to."""
    return np.asarray(memoryview(tensor))


@dataclass
class Stretch:
    """Neighbouring batches of a plan that one dataset can cut: all of one size, the last at most that."""

    batches: list[tuple[int, Ids]] = field(default_factory=list)

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
        found: list[tuple[int, list[Ids]]] = []
        for epoch, ids in self.batches:
            if not found or found[-1][0] != epoch:
                found.append((epoch, []))
            found[-1][1].append(ids)
        return [(epoch, np.concatenate(parts)) for epoch, parts in found]


def stretches(plan: Plan) -> list[Stretch]:
    """The plan in as few stretches as can be: one, for the plans that are timed."""
    found: list[Stretch] = []
    for epoch, ids in plan:
        last = found[-1] if found else None
        if last is None or len(last.batches[-1][1]) < last.size or len(ids) > last.size:
            found.append(last := Stretch())
        last.batches.append((epoch, ids))
    return found


Take = Callable[[int, Ids, Any], Batch]  # (epoch, ids of the plan, an element of the dataset) -> the batch


@contextmanager
def delivered(
    plan: Plan, build: Callable[[Stretch], Any], take: Take, explain: Callable[[Stretch, str], BenchError]
) -> Iterator[Iterator[Batch]]:
    """The batches of a plan from the datasets that `build` makes of its stretches.

    Nothing is built before the first batch is asked for. `explain` makes an error of the library a failure that names
    the file. Leaving drops the iterator, which ends the library's threads and closes its files.
    """
    live: list[Any] = []

    def run() -> Iterator[Batch]:
        errors = tensorflow().errors.OpError
        for stretch in stretches(plan):
            live.append(iter(build(stretch)))
            for epoch, ids in stretch.batches:
                said = ""
                try:
                    batch = take(epoch, ids, next(live[0]))
                except StopIteration:
                    said = "it ended early."
                except errors as error:
                    said = str(error.message)
                if said:  # raised here, so that no trace keeps the library's iterator, and its files open
                    raise explain(stretch, said)
                yield batch
                del batch
            live.clear()

    batches = run()
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        live.clear()
        gc.collect()  # whatever still holds the iterator in a circle: its threads must end now


def again(stage: Callable[..., Any], values: Sequence[Any], options: Any) -> Any:
    """What a map of a dataset makes of one element: the same graph under the same options, so the same bits."""
    return next(iter(tensorflow().data.Dataset.from_tensors(tuple(values)).map(plain(stage)).with_options(options)))
