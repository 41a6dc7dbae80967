"""Placements that copy whole files to node-local storage before the first batch, from where a delivery reads them."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from dlio_bench import recorder
from dlio_bench.batches import Batch, Ids
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Outgoing, run_on_all_ranks
from dlio_bench.harness.plan.placement.files import Share
from dlio_bench.harness.plan.placement.rule import Placement
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, Reader, Tally, touch_buffer
from dlio_bench.harness.storage import tier
from dlio_bench.units import format_bytes

HAND_OVER = CODE["hand-over"]


class Staged:
    """Copies the files that its plan needs to the node's local tier, and lets `delivery` read the batches from there.

    The ranks stage together when they request the first batch, so the measured time includes it, as the stall of the
    first step. Every session starts with a new, empty folder; the last rank to leave removes it. Bytes read from the
    dataset's folder count in the plan's first epoch. All ranks must request batches, and call `requested_bytes`,
    together.
    """

    def __init__(
        self,
        delivery: Reader,
        copies: dict[int, Path],
        placement: Placement,
        context: RankContext,
        resources: Resources,
    ) -> None:
        """`copies`: filled here, and used by `delivery` to find a file's copy. UsageError when there is no tier."""
        assert placement.files is not None
        if context.tier is None:
            raise UsageError(
                f"{placement.name} copies files to node-local storage, but no folder on it is known. Give one that "
                "exists on every node with --local-tier."
            )
        self._tier = context.tier
        self._delivery, self._copies, self._context = delivery, copies, context
        self.sample_view = delivery.sample_view
        self._name, self._rule = placement.name, placement.files
        largest = max(entry.bytes for entry in self.sample_view.dataset.manifest.files)
        chunk = min(tier.CHUNK_BYTES, max(largest, 1))
        self._alignment = resources.alignment
        if self._alignment is not None:
            chunk = self._alignment.round_up(chunk)
        self._buffers = [memoryview(touch_buffer(chunk)) for _ in range(resources.threads)]
        # pieces from other ranks need their own buffer: one is received while another is sent
        self._inbox = memoryview(touch_buffer(chunk if self._rule.handed_over else 0))
        self._decided: tuple[Sequence[Planned], Share] | None = None

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return {**self._delivery.options, "staging_threads": len(self._buffers)}

    @property
    def processes(self) -> tuple[int, ...]:
        """See Reader.processes."""
        return self._delivery.processes

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes. All ranks call it together: the files that one reads depend on what all want."""
        share, files = self._share(plan), self.sample_view.dataset.manifest.files
        epoch_bytes = {_first_epoch(plan): sum(files[file].bytes for file in share.reads.tolist())}
        epochs: dict[int, list[Ids]] = defaultdict(list)
        for batch in plan:
            epochs[batch.epoch].append(batch.ids)
        for epoch, batches in epochs.items():
            ids = np.concatenate(batches)
            unstaged = ids[~np.isin(self._files(ids), share.kept)]
            epoch_bytes[epoch] = epoch_bytes.get(epoch, 0) + self.sample_view.stored_size(unstaged)
        return epoch_bytes

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        with ExitStack() as stack:
            stack.callback(self._forget)
            yield self._batches(plan, tally, stack)

    def _batches(self, plan: Sequence[Planned], tally: Tally, stack: ExitStack) -> Iterator[Batch]:
        share = self._share(plan)
        try:
            self._stage(share, tally.of(_first_epoch(plan)), stack)
        except BenchError:  # the same on every rank: all clean up before the first one to raise it ends the job
            stack.close()
            self._context.comm.barrier()
            raise
        yield from stack.enter_context(self._delivery.session(plan, tally))

    def _stage(self, share: Share, cost: Cost, stack: ExitStack) -> None:
        """Fill the node's folder. A BenchError of one rank is raised on all of them."""
        comm, held = self._context.comm, self._folder(stack)
        self._require_room(held, share)
        run_on_all_ranks(comm, lambda: self._copy(share.reads.tolist(), held, cost))
        if self._rule.handed_over:
            run_on_all_ranks(comm, lambda: self._hand_over(share, held, cost))
            for file in np.setdiff1d(share.reads, share.kept).tolist():
                held.copy_of(file).unlink()
        self._copies.update((file, held.copy_of(file)) for file in share.kept.tolist())

    def _forget(self) -> None:
        self._copies.clear()
        self._decided = None

    def _files(self, ids: Ids) -> Ids:
        return self.sample_view.dataset.locate(ids, self.sample_view.fields)[0]

    def _share(self, plan: Sequence[Planned]) -> Share:
        """This rank's part in staging the plan. The ranks exchange what they want once for each plan."""
        if self._decided is None or self._decided[0] is not plan:
            context = self._context
            wants = context.comm.allgather(self._wanted_files(plan)) if self._rule.by_wants else []
            files = self._files_to_replicate(plan)
            self._decided = plan, self._rule.share(wants, files, context.ranks_per_node, context.comm.rank)
        return self._decided[1]

    def _files_to_replicate(self, plan: Sequence[Planned]) -> int:
        """How many files: the training files, or all files up to the last split that the plan reads."""
        dataset = self.sample_view.dataset
        last = max((int(batch.ids.max()) for batch in plan if len(batch.ids)), default=0)
        last = max(self._context.comm.allgather(last))  # some ranks may read only training samples
        if last < dataset.training_samples:
            return len(dataset.training_files)
        split = dataset.part(dataset.manifest.files[int(dataset.locate(np.array([last]), ())[0][0])].split)
        assert split is not None
        return split.files.stop

    def _wanted_files(self, plan: Sequence[Planned]) -> Ids:
        nothing = np.zeros(0, dtype=np.int64)
        return np.unique(self._files(np.concatenate([nothing, *(batch.ids for batch in plan)])))

    def _folder(self, stack: ExitStack) -> tier.Hold:
        """The node's new folder. Its first rank makes it; all ranks wait until the others have joined."""
        context = self._context
        first = context.comm.rank % context.ranks_per_node == 0
        held: list[tier.Hold] = []

        def take(hold: tier.Hold) -> Path:
            stack.callback(hold.close)
            held.append(hold)
            return hold.folder

        digest = self.sample_view.dataset.digest
        folders = run_on_all_ranks(context.comm, lambda: take(tier.make(self._tier, digest)) if first else None)
        node_folder = folders[context.node * context.ranks_per_node]
        assert node_folder is not None
        run_on_all_ranks(context.comm, lambda: None if first else take(tier.hold(node_folder)))
        return held[0]

    def _require_room(self, held: tier.Hold, share: Share) -> None:
        """EnvironmentFailure, the same on every rank, if a disk has no room for the copies.

        Several nodes may be ranks of one machine and share a disk: their copies are added up.
        """
        entries = self.sample_view.dataset.manifest.files
        written = [*share.reads.tolist(), *(file for file, _ in share.receives)]

        def measure_room() -> tuple[tier.TierRoom, int]:
            room = tier.room(held)
            return room, sum(room.occupied_bytes(entries[file].bytes) for file in written)

        disks: dict[tuple[str, int], list[tuple[tier.TierRoom, int]]] = defaultdict(list)
        for room, needed in run_on_all_ranks(self._context.comm, measure_room):
            disks[room.disk].append((room, needed))
        for (host, _), parts in disks.items():
            needed, free = sum(part for _, part in parts), min(room.free for room, _ in parts)
            if needed > free:
                folders = sorted({room.folder for room, _ in parts})
                others = f" and {len(folders) - 1} more on the same disk" if len(folders) > 1 else ""
                raise EnvironmentFailure(
                    f"{self._name} needs {format_bytes(needed)} on the local tier {folders[0]}{others} on {host}, "
                    f"but {format_bytes(free)} are free. Free space there, give a larger folder with --local-tier, or "
                    "take more nodes."
                )

    def _copy(self, files: Sequence[int], held: tier.Hold, cost: Cost) -> None:
        """Copy these files from the dataset's folder, one thread for each buffer. The first error stops all threads."""
        dataset, waiting, turn, stop = self.sample_view.dataset, iter(files), threading.Lock(), threading.Event()
        errors: list[BaseException] = []
        counts = [Cost() for _ in self._buffers]

        def work(buffer: memoryview, copied: Cost) -> None:
            try:
                while not stop.is_set():
                    with turn:
                        file = next(waiting, None)
                    if file is None:
                        return
                    tier.copy(dataset, file, held, buffer, copied, stop.is_set, self._alignment)
            except BaseException as error:  # noqa: BLE001 - every failure is raised below, in the trainer's thread
                errors.append(error)
                stop.set()

        workers = [
            threading.Thread(target=work, args=pair, name=f"stager-{number}", daemon=True)
            for number, pair in enumerate(zip(self._buffers, counts, strict=True))
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            stop.set()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            for copied in counts:
                cost.add(copied)
        if errors:
            raise errors[0]

    def _hand_over(self, share: Share, held: tier.Hold, cost: Cost) -> None:
        """Send, piece by piece, files that other nodes keep, and receive theirs. A failure is raised at the end.

        A rank that has failed sends empty pieces and ignores what it receives, so that no rank waits for it.
        """
        entries = self.sample_view.dataset.manifest.files
        errors: list[BenchError] = []
        # pieces of one source come in the order of its files
        awaited: dict[int, Iterator[tuple[int, int, int]]] = {}
        for source in {source for _, source in share.receives}:
            files = [file for file, sender in share.receives if sender == source]
            awaited[source] = iter([(file, *piece) for file in files for piece in tier.pieces(entries[file].bytes)])

        def outgoing_pieces() -> Iterator[Outgoing]:
            for file, receiver in share.sends:
                for offset, length in tier.pieces(entries[file].bytes):
                    piece = self._buffers[0][: 0 if errors else length]
                    try:
                        tier.read_piece(held, file, piece, offset)
                    except BenchError as error:
                        errors.append(error)
                        piece = piece[:0]
                    cost.bytes_local += len(piece)
                    yield piece, [receiver]

        def store_arrived(source: int, content: memoryview) -> None:
            file, offset, length = next(awaited[source])
            cost.bytes_remote += len(content)
            try:
                if not errors and len(content) == length:
                    tier.write_piece(held, file, content, offset, entries[file].bytes)
            except BenchError as error:
                errors.append(error)

        expected = sum(len(tier.pieces(entries[file].bytes)) for file, _ in share.receives)
        started, before = time.perf_counter(), cost.bytes_remote
        self._context.comm.exchange(outgoing_pieces(), self._inbox, expected, store_arrived)
        if track := recorder.current_track():
            track.add(HAND_OVER, started, time.perf_counter(), cost.bytes_remote - before)
        if errors:
            raise errors[0]


def _first_epoch(plan: Sequence[Planned]) -> int:
    """The epoch that staging is counted in."""
    return plan[0].epoch if plan else 0
