"""The observers of a rank: each one's moments lie around those of the next."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from dlio_bench.harness.commands.run.measured.checkpoints_beside import checkpoints_beside
from dlio_bench.harness.commands.run.measured.counting import Caches, Counters
from dlio_bench.harness.commands.run.measured.observer import Observer, Rank
from dlio_bench.harness.commands.run.measured.outlook import begun
from dlio_bench.harness.commands.run.measured.producing import Publishing
from dlio_bench.harness.commands.run.measured.recording import recorded
from dlio_bench.harness.commands.run.measured.runtime_rows import RuntimeTraces
from dlio_bench.harness.commands.run.measured.validation import Validating

OBSERVERS: tuple[Callable[[Rank], AbstractContextManager[Observer | None]], ...] = (
    Caches,  # brings caches into the state that was asked for
    recorded,  # the spans of --trace
    Publishing,  # what producers of streams have read
    RuntimeTraces,  # TensorFlow's operations
    Counters,  # bytes, processor time, clocks
    checkpoints_beside,  # --checkpoint-load
    Validating,  # passes over the validation split
    begun,  # what rank 0 tells while it is at work
)
