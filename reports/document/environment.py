"""What a result says of the machines, and of how the job was started on them, as types."""

from typing import Annotated

from msgspec import Meta, Struct

from dlio_bench.reports.document.typed import Amount, Count


class Mount(Struct, frozen=True):
    """A mounted file system."""

    point: str
    type: str
    source: str
    options: list[str]


class NodeRoom(Struct, frozen=True, kw_only=True):
    """What a node offers to the plan, which is made for the smallest: memory and its tiers, in bytes. None: no tier."""

    memory_bytes: Count
    ram_tier_bytes: Count | None = None
    disk_tier_bytes: Count | None = None
    local_tier: str | None = None


class Host(Struct, frozen=True, kw_only=True):
    """A machine: enough to explain a number, no secrets. None: not known.

    client: version of the file system's client where it is no part of the kernel. network: links that are up.
    """

    host: str | None = None
    cpu: str | None = None
    cores: int | None = None
    cpu_quota: float | None = None
    cores_physical: int | None = None
    governor: str | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    kernel: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}
    libmpi: str | None = None
    mount: Mount | None = None
    client: str | None = None
    network: list[str] = []
    drives: list[str] = []
    stripe: dict[str, str] | None = None
    variables: dict[str, str] = {}
    room: NodeRoom | None = None
    clock_offset_seconds: float | None = None


class EmulatedPfs(Struct, frozen=True, kw_only=True):
    """The emulated parallel file system, and what it is in words."""

    says: str
    bandwidth: float | None = None
    per_node: float | None = None
    open_seconds: float = 0.0
    request_seconds: float = 0.0
    cache_bytes: int = 0
    cache_bandwidth: float | None = None
    opens: float | None = None
    via: str = "fuse"  # of results that do not say it: there was no other way
    shared_by: str = "requests"  # likewise


class Ceiling(Struct, frozen=True):
    """The rate that `dlio-bench storage` measured for samples of this size; None where it measured none."""

    bytes_per_second: Annotated[float, Meta(gt=0)] | None
    folder: str


class Launcher(Struct, frozen=True):
    """Who started the ranks, and how. retries: starts that ended in MPI_Init by signal 11, before any rank worked."""

    name: str
    argv: list[str] = []
    retries: Count = 0


class Environment(Struct, frozen=True, kw_only=True):
    """The machines, and how the job was started on them. restarts: how often the scheduler had begun the job again.

    interfaces: the network interface and address on which each host served samples to others; empty if none did.
    cores_per_rank: of the rank that has least; a core on which several ranks may run counts in equal parts.
    bound_processors: of the rank that may run on the fewest; None where ranks may run on all that their host has.
    """

    hosts: Annotated[dict[str, Host], Meta(min_length=1)]
    rank_hosts: list[str]
    rank_memory_bytes: Count | None = None
    cores_per_rank: Amount | None = None
    bound_processors: Count | None = None
    interfaces: dict[str, str] = {}
    tier_folders: list[str] = []
    emulated_pfs: EmulatedPfs | None = None
    launcher: Launcher | None = None
    mpi: str | None = None
    ceiling: Ceiling | None = None
    startup_seconds: Amount | None = None
    code_digest: str | None = None
    restarts: Count | None = None
