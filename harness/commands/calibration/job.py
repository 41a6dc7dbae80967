"""The job of every rank of a calibration."""

from dlio_bench.harness.cluster.job import SavedJob


class Job(SavedJob, frozen=True):
    """One rank a node. files: names in `folder`, each of `file_bytes`; sizes: bytes of a read, ascending.

    mounts: node -> where it sees `folder` through an emulated file system (none: it reads there); board: its counters.
    local: folder of the node-local tier, None where there is none. workload: whose decoding is measured, None for none.
    streams: whether streams are measured where ADIOS2 is.
    """

    nodes: int
    threads: tuple[int, ...]
    sizes: tuple[int, ...]
    folder: str
    files: tuple[str, ...]
    file_bytes: int
    local: str | None
    workload: str | None
    seed: int
    mounts: tuple[str, ...] = ()
    board: str = ""
    streams: bool = True

    @property
    def ranks(self) -> int:
        """One of each node."""
        return self.nodes

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of nodes that read at once: 1, 2, 4, ... and all."""
        powers = (1 << power for power in range(self.nodes.bit_length()))
        return tuple(sorted({*(count for count in powers if count <= self.nodes), self.nodes}))
