"""Checkpoints of a published size beside training input: what `run --checkpoint-load` has every trainer write."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec.structs import replace

from dlio_bench import recorder
from dlio_bench.batches import Batch
from dlio_bench.benchmarks.published_models.models import models_by_name
from dlio_bench.components import CODE
from dlio_bench.datagen.random_bytes import SEED_LIMIT
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.commands.checkpoints import sets
from dlio_bench.harness.commands.checkpoints.options import SHARDED
from dlio_bench.harness.commands.checkpoints.parts import FilePart, default_shards, parts, total
from dlio_bench.harness.commands.checkpoints.transfer import Content, Hands, parts_of_rank
from dlio_bench.harness.commands.run.measured.observer import After, Observer, Rank, Running, Segment
from dlio_bench.harness.machine.temp_folders import outliving_folder
from dlio_bench.harness.storage import cache
from dlio_bench.reports.document.trials import RankLoad
from dlio_bench.units import format_bytes

FOLDER = "dlio-bench-checkpoint-load-"
KEPT = 2  # the newest, and the one before it: as checkpoints of a training are kept
WRITE = CODE["checkpoint write"]


class CheckpointsBeside(Observer):
    """Writes this rank's share of a checkpoint after every `every` steps, in the phase in which trainers save theirs.

    Ranks do not wait for each other within a checkpoint: they meet in the next step, as they do anyway.
    """

    phases = ("checkpoint",)

    def __init__(self, comm: Comm, hands: Hands, chosen: list[FilePart], place: Path, every: int) -> None:
        self._comm, self._hands, self._place, self._every = comm, hands, place, every
        self._mine, self._theirs = parts_of_rank(chosen, comm.rank), parts_of_rank(chosen, (comm.rank + 1) % comm.size)
        self._number = 0  # of the checkpoint, over all trials: each has a content of its own
        self._step, self._first, self._load = 0, 0, RankLoad()

    def before_trial(self, trial: Running) -> None:  # noqa: ARG002 - an Observer's
        """See Observer."""
        self._step, self._first, self._load = 0, self._number, RankLoad()

    def after_step(self, segment: Segment) -> Mapping[int, After]:
        """See Observer. Steps that deliver nothing to this rank do not count, so that it asks for all."""
        clock = segment.log.clock

        def save(step: int, _: Iterator[Batch | None]) -> None:
            self._step += 1
            if self._step % self._every == 0:
                self.save()
                clock[step, -1] = time.perf_counter()

        return dict.fromkeys(range(len(clock)), save)

    def save(self) -> None:
        """Write a checkpoint. Every file is made durable."""
        self._number += 1
        began = time.perf_counter()
        folder = self._folder(self._number)
        folder.mkdir(exist_ok=True)
        if self._number - KEPT > self._first:
            self._forget(self._number - KEPT)
        written = self._hands.write(folder, self._mine, self._number, fsync=True)
        ended = time.perf_counter()
        if track := recorder.current_track():
            track.add(WRITE, began, ended, written.bytes)
        load = self._load
        load.seconds.append(ended - began)
        load.bytes.append(written.bytes)
        load.waited.append(written.waited)
        load.synced.append(written.synced)
        load.fsyncs.append(written.fsyncs)

    def after_trial(self, trial: Running) -> None:
        """See Observer. All ranks call it together: another rank compares what each wrote last. DataError."""
        numbers = self._comm.allgather(self._number if self._load.seconds else 0)
        writer = (self._comm.rank + 1) % self._comm.size
        cached = run_on_all_ranks(self._comm, lambda: self._drop_from_cache(numbers[writer]))[self._comm.rank]
        compared = run_on_all_ranks(self._comm, lambda: self._compare(numbers[writer]))[self._comm.rank]
        for number in range(max(self._first, self._number - KEPT) + 1, self._number + 1):
            self._forget(number)
        trial.times.load = replace(self._load, compared_bytes=compared, compared_cached=cached)

    def _drop_from_cache(self, number: int) -> int | None:
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
def checkpoints_beside(rank: Rank) -> Iterator[CheckpointsBeside | None]:
    """Checkpoints of the model that --checkpoint-load names, in a folder that is gone afterwards.

    All ranks call it together. EnvironmentFailure where the checkpoints do not fit.
    """
    options, comm = rank.job.options, rank.comm
    if not options.checkpoint_load:
        yield None
        return
    model, below = models_by_name()[options.checkpoint_load], Path(options.checkpoint_load_dir or rank.folder.parent)
    chosen = parts(model, comm.size, default_shards(model, comm.size), SHARDED, options.checkpoint_load_fraction)
    run_on_all_ranks(comm, lambda: _require_space(below, KEPT * total(chosen)) if comm.rank == 0 else None)
    with outliving_folder(FOLDER, below) if comm.rank == 0 else nullcontext(below) as made:
        place = Path(comm.allgather(str(made))[0])
        with closing(Hands(Content(rank.job.seed % SEED_LIMIT))) as hands:
            yield CheckpointsBeside(comm, hands, chosen, place, options.checkpoint_load_every)
        comm.barrier()  # nobody is at work in the folder


def _require_space(folder: Path, needed: int) -> None:
    free = free_bytes(folder)
    if free is not None and free < needed:
        raise EnvironmentFailure(
            f"--checkpoint-load: {KEPT} checkpoints in {folder}: {free} bytes are available, {needed} are required, "
            f"{needed - free} are missing ({format_bytes(needed - free)}). Free space there, name another folder with "
            "--checkpoint-load-dir, or ask for a smaller --checkpoint-load-fraction."
        )
