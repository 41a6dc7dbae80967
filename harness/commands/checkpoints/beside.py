"""Checkpoints of a published size beside training input: what `run --checkpoint-load` has every trainer write."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench import recorder
from dlio_bench.batches import Batch
from dlio_bench.benchmarks.published_models.models import CheckpointModel
from dlio_bench.components import CODE
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.comm import Comm, together
from dlio_bench.harness.commands.checkpoints import sets
from dlio_bench.harness.commands.checkpoints.options import SHARDED
from dlio_bench.harness.commands.checkpoints.parts import Part, default_shards, parts, total
from dlio_bench.harness.commands.checkpoints.transfer import Content, Hands, placed
from dlio_bench.harness.machine.temp_folders import outlasted_folder
from dlio_bench.harness.storage import cache
from dlio_bench.harness.training.trainer import Left, Spent, Trainer
from dlio_bench.reports.document.trials import Inference, RankLoad, Reduced
from dlio_bench.units import format_bytes

FOLDER = "dlio-bench-checkpoint-load-"
KEPT = 2  # the newest, and the one before it: as checkpoints of a training are kept
WRITE = CODE["checkpoint write"]


class Beside(Struct, frozen=True):
    """What a trainer left, and the checkpoints that were written beside it."""

    inner: Left | None
    load: RankLoad

    @property
    def phases(self) -> tuple[str, ...]:
        """See Left."""
        return tuple({*(() if self.inner is None else self.inner.phases), "checkpoint"})

    @property
    def summary(self) -> Reduced | Inference | None:
        """See Left."""
        return None if self.inner is None else self.inner.summary

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """See Left."""
        return {} if self.inner is None else self.inner.arrays()


class BesideTrainer:
    """A trainer that also writes this rank's share of a checkpoint after every `every` steps. See Trainer.

    Ranks do not wait for each other within a checkpoint: they meet in the next step, as they do anyway.
    """

    def __init__(self, trainer: Trainer, comm: Comm, hands: Hands, chosen: list[Part], place: Path, every: int) -> None:
        self._trainer, self._comm, self._hands, self._place, self._every = trainer, comm, hands, place, every
        self._mine, self._theirs = placed(chosen, comm.rank), placed(chosen, (comm.rank + 1) % comm.size)
        self._number = 0  # of the checkpoint, over all trials: each has a content of its own
        self._step, self._first, self._load = 0, 0, RankLoad()

    @property
    def meets(self) -> bool:
        """See Trainer."""
        return self._trainer.meets

    @property
    def loss(self) -> float | None:
        """See Trainer."""
        return self._trainer.loss

    def begin(self, reader: str, trial: int, seed: int) -> None:
        """See Trainer."""
        self._trainer.begin(reader, trial, seed)
        self._step, self._first, self._load = 0, self._number, RankLoad()

    def step(self, batch: Batch) -> Spent:
        """See Trainer."""
        return self._trainer.step(batch)

    def save(self) -> None:
        """See Trainer. Every file is made durable."""
        self._trainer.save()
        self._step += 1
        if self._step % self._every:
            return
        self._number += 1
        began = time.perf_counter()
        folder = self._folder(self._number)
        folder.mkdir(exist_ok=True)
        if self._number - KEPT > self._first:
            self._forget(self._number - KEPT)
        written = self._hands.write(folder, self._mine, self._number, fsync=True)
        ended = time.perf_counter()
        if track := recorder.here():
            track.add(WRITE, began, ended, written.bytes)
        load = self._load
        load.seconds.append(ended - began)
        load.bytes.append(written.bytes)
        load.waited.append(written.waited)
        load.synced.append(written.synced)
        load.fsyncs.append(written.fsyncs)

    def finish(self) -> float:
        """See Trainer."""
        return self._trainer.finish()

    def forward(self, batch: Batch) -> None:
        """See Trainer."""
        self._trainer.forward(batch)

    def score(self) -> dict[str, float]:
        """See Trainer."""
        return self._trainer.score()

    def end(self) -> Beside:
        """See Trainer. All ranks call it together: another rank compares what each wrote last. DataError."""
        numbers = self._comm.allgather(self._number if self._load.seconds else 0)
        writer = (self._comm.rank + 1) % self._comm.size
        cached = together(self._comm, lambda: self._dropped(numbers[writer]))[self._comm.rank]
        compared = together(self._comm, lambda: self._compare(numbers[writer]))[self._comm.rank]
        for number in range(max(self._first, self._number - KEPT) + 1, self._number + 1):
            self._forget(number)
        return Beside(self._trainer.end(), replace(self._load, compared_bytes=compared, compared_cached=cached))

    def _dropped(self, number: int) -> int | None:
        """Have this host forget what it will read; bytes that it has in memory still, None: nobody can know.

        A writer on this host has left them there. They are durable, so that nothing of them is lost.
        """
        files = [self._folder(number) / file for file in dict.fromkeys(part.file for _, part in self._theirs)]
        if number == 0:
            return 0
        cache.drop(files)
        left = cache.residency(files)
        if left.memory_backed:
            return left.bytes
        return left.resident_bytes if left.attestable else None

    def _compare(self, number: int) -> int:
        """Bytes of the other rank's part of its last checkpoint; 0: it wrote none. It stays until all have compared."""
        return 0 if number == 0 else self._hands.compare(self._folder(number), self._theirs, number)

    def _folder(self, number: int) -> Path:
        return self._place / sets.name(number)

    def _forget(self, number: int) -> None:
        """Remove this rank's files of a checkpoint, and its folder with the last of them."""
        for _, part in self._mine:
            (self._folder(number) / part.file).unlink(missing_ok=True)
        with suppress(OSError):  # another rank has files there, or has removed it
            self._folder(number).rmdir()


@contextmanager
def beside(
    trainer: Trainer, comm: Comm, model: CheckpointModel, every: int, fraction: float, below: Path, seed: int
) -> Iterator[Trainer]:
    """The trainer, with checkpoints of a model beside it, in a folder in `below` that is gone afterwards.

    All ranks call it together. EnvironmentFailure where the checkpoints do not fit.
    """
    chosen = parts(model, comm.size, default_shards(model, comm.size), SHARDED, fraction)
    together(comm, lambda: _require_space(below, KEPT * total(chosen)) if comm.rank == 0 else None)
    with outlasted_folder(FOLDER, below) if comm.rank == 0 else nullcontext(below) as made:
        place = Path(comm.allgather(str(made))[0])
        with closing(Hands(Content(seed))) as hands:
            yield BesideTrainer(trainer, comm, hands, chosen, place, every)
        comm.barrier()  # nobody is at work in the folder


def _require_space(folder: Path, needed: int) -> None:
    free = free_bytes(folder)
    if free is not None and free < needed:
        raise EnvironmentFailure(
            f"--checkpoint-load: {KEPT} checkpoints in {folder}: {free} bytes are available, {needed} are required, "
            f"{needed - free} are missing ({format_bytes(needed - free)}). Free space there, name another folder with "
            "--checkpoint-load-dir, or ask for a smaller --checkpoint-load-fraction."
        )
