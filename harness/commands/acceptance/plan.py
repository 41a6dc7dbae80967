"""The plan of an acceptance campaign: the types of its TOML file, and how a file becomes a plan."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from dlio_bench.errors import BenchError, UsageError, unknown
from dlio_bench.harness.cluster.launchers import LAUNCHERS
from dlio_bench.harness.cluster.watch import parse_timeout
from dlio_bench.harness.ground import user_files
from dlio_bench.reports.acceptance import System
from dlio_bench.units import parse_bytes

FEWEST_TRIALS = 5  # intervals need five, and MLPerf Storage asks for five runs (Submission_guidelines.md, v2.0)

Number = Annotated[int, Meta(ge=1, le=1_000_000)]
Word = Annotated[str, Meta(min_length=1)]
Nodes: TypeAlias = Annotated[tuple[Number | Word, ...], Meta(min_length=1)]
PerNode: TypeAlias = Annotated[tuple[Number, ...], Meta(min_length=1)]


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; a key that it does not know is refused."""


class Dataset(_Table, frozen=True):
    """How large the datasets are, and who makes them where. The larger of both rules counts.

    times_memory: training data over the memory of all hosts together. steps: of an epoch at the largest scale.
    """

    folder: Word | None = None
    times_memory: Annotated[float, Meta(ge=0, le=1000)] = 5.0  # MLPerf Storage; NERSC-10's IOR asks for 1.5
    steps: Number | None = None
    at_most_published: bool = False  # take the whole published dataset where the rules ask for more
    fill: Literal["random", "physical"] = "random"
    nodes: Number | None = None  # ranks that write; None: processes of this machine
    ranks_per_node: Number | None = None


class Ceiling(_Table, frozen=True):
    """How `dlio-bench storage` measures what the storage gives to any reader."""

    ranks: PerNode = (1,)
    threads: PerNode = (1, 4, 16)
    trials: Number = 5
    size: Word | None = None
    io: Word | None = None


class Run(_Table, frozen=True):
    """One workload with its readers; a run is made for each node count and each number of ranks a node.

    The keys from `variant` on are the options of `dlio-bench run` of the same names.
    """

    workload: Word
    readers: Annotated[tuple[Word, ...], Meta(min_length=1)]
    nodes: Nodes | None = None
    ranks_per_node: PerNode | None = None
    data: Word | None = None
    tiny: bool = False
    variant: Word | None = None
    compute: Word | None = None
    batch: Number | None = None
    epochs: Number | None = None
    steps: Number | None = None
    sync: Word | None = None
    threads: Number | None = None
    staging: Word | None = None
    tiers: Word | None = None
    local_tier: Word | None = None
    io: Word | None = None
    emulate_pfs: Word | None = None
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None

    @property
    def given_options(self) -> dict[str, str | int]:
        """The options of `run` that the table gives, by name."""
        first = self.__struct_fields__.index("variant")
        values = {name: getattr(self, name) for name in self.__struct_fields__[first:]}
        return {name: value for name, value in values.items() if value is not None}


class Checkpoints(_Table, frozen=True):
    """Checkpoints of one model, written and read in `folder` at each node count and each number of ranks a node.

    The keys from `fraction` on are the options of `dlio-bench checkpoint` of the same names.
    """

    model: Word
    folder: Word
    nodes: Nodes | None = None
    ranks_per_node: PerNode | None = None
    fraction: Word | None = None
    layout: Word = "sharded"
    shards: Number | None = None
    checkpoints: Number | None = None


class CampaignPlan(_Table, frozen=True):
    """The whole file. limits: a file beside the plan, or what such a file would hold."""

    system: System
    limits: Word | dict[str, Any]
    run: Annotated[tuple[Run, ...], Meta(min_length=1)]
    nodes: Nodes = (1,)
    nodes_total: Number | None = None
    ranks_per_node: PerNode = (1,)
    memory_per_node: Word | None = None
    trials: Annotated[int, Meta(ge=FEWEST_TRIALS, le=1000)] = FEWEST_TRIALS
    warmup_trials: Number = 1
    min_seconds: Annotated[float, Meta(ge=0, le=86400)] = 30.0  # Perlmutter's acceptance: sustained over 30 s
    cache: Literal["cold", "cold-epochs"] = "cold"
    launcher: Word | None = None
    timeout: Word | None = None
    dataset: Dataset = Dataset()
    storage: Ceiling | None = None
    checkpoint: tuple[Checkpoints, ...] = ()

    def scales(self, run: Run | Checkpoints) -> list[tuple[int, int]]:
        """(nodes, ranks a node) of each run of a table, fewest first, each once. UsageError for a bad share."""
        nodes = {node_count(words, self.nodes_total) for words in run.nodes or self.nodes}
        ranks = set(run.ranks_per_node or self.ranks_per_node)
        return [(count, each) for count in sorted(nodes) for each in sorted(ranks)]

    @property
    def memory(self) -> int | None:
        """Bytes of a node as the plan gives them. UsageError."""
        return None if self.memory_per_node is None else parse_bytes(self.memory_per_node)


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Begin the errors of what is done within by their place: a file, or a key of one."""
    try:
        yield
    except BenchError as error:
        raise type(error)(f"{place}: {error}") from None


def node_count(words: int | str, total: int | None) -> int:
    """4 -> 4; '15%' of 128 nodes -> 20, never fewer than one. UsageError."""
    if isinstance(words, int):
        return words
    match = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%\s*", words)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f'{words!r} is no number of nodes. Write a number, or a share of nodes_total such as "15%".')
    if total is None:
        raise UsageError(f"{words!r} is a share of nodes_total, which is not given. Write nodes_total = 128, say.")
    return max(1, math.ceil(float(match[1]) * total / 100 - 1e-9))


def load(path: Path) -> tuple[CampaignPlan, bytes]:
    """The plan in a file, and the file's bytes. UsageError that names file, key, value and fix; EnvironmentFailure."""
    document, content = user_files.load(path, FORM)
    return parse(document, str(path)), content


def parse(document: Mapping[str, Any], name: str) -> CampaignPlan:
    """A plan from a TOML document; `name`: the file's, for the message. UsageError."""
    plan = user_files.convert(document, CampaignPlan, name, FORM)
    _require(plan, name)
    return plan


def _require(plan: CampaignPlan, name: str) -> None:
    """UsageError for values that do not go together, or that are no sizes."""
    runs: list[tuple[str, int, Run | Checkpoints, str]]
    runs = [("run", number, run, run.workload) for number, run in enumerate(plan.run)]
    runs += [
        ("checkpoint", number, table, f"{table.model} {table.layout}") for number, table in enumerate(plan.checkpoint)
    ]
    first_of: dict[tuple[str, str, int, int], int] = {}
    for key, number, table, subject in runs:
        with errors_at(f"'{name}': {f'{key}[{number}].' if table.nodes else ''}nodes"):
            scales = plan.scales(table)
        for nodes, ranks in scales:
            first = first_of.setdefault((key, subject, nodes, ranks), number)
            if first != number:
                once = "workload once at each scale, with all its readers" if key == "run" else (
                    "model and layout once at each scale"
                )  # fmt: skip
                raise UsageError(
                    f"'{name}': {key}[{number}] measures {subject} on {nodes}x{ranks}, as {key}[{first}] does, and "
                    f"limits could not tell the two apart. Give each {once}."
                )
    sizes = {
        "memory_per_node": plan.memory_per_node,
        "storage.size": None if plan.storage is None else plan.storage.size,
    }
    for key, size in sizes.items():
        with errors_at(f"'{name}': {key}"):
            size_bytes = None if size is None else parse_bytes(size)
        if size_bytes == 0:
            raise UsageError(f"'{name}': {key}: '{size}' is nothing. Give a size such as 1GiB.")
    if plan.launcher is not None and plan.launcher not in LAUNCHERS:
        with errors_at(f"'{name}': launcher"):
            raise unknown("launcher", plan.launcher, list(LAUNCHERS))
    if plan.timeout is not None:
        with errors_at(f"'{name}': timeout"):
            parse_timeout(plan.timeout)


WRITTEN = {  # keys whose type is easily mistaken
    "nodes": 'nodes = [1, "15%"]', "ranks_per_node": "ranks_per_node = [4]", "readers": 'readers = ["prefetch"]',
    "ranks": "ranks = [1, 4]", "threads": "threads = 4 in [[run]], threads = [1, 4] in [storage]",
    "memory_per_node": 'memory_per_node = "32GiB"', "size": 'size = "4GB"', "staging": 'staging = "256MB"',
    "timeout": 'timeout = "10min"', "min_seconds": "min_seconds = 30, in seconds",
    "limits": 'limits = "limits.toml"',
}  # fmt: skip
CHOICES = {"cache": "cold or cold-epochs", "dataset.fill": "random or physical"}
TABLES: dict[str, type[Struct]] = {
    "system": System,
    "dataset": Dataset,
    "storage": Ceiling,
    "run": Run,
    "checkpoint": Checkpoints,
}
NEEDED = {
    "limits": 'Write limits = "limits.toml" for a file beside the plan, or a table [limits]',
    "system": 'Say whose system it is: [system] with name = "..."',
    "run": 'Say what is measured: [[run]] with workload = "cdb" and readers = ["prefetch"]',
    "workload": 'Name one, such as workload = "cdb"; `dlio-bench list` shows all',
    "readers": 'Name them, such as readers = ["naive", "prefetch"]; `dlio-bench list` shows all',
    "model": 'Name one, such as model = "llama3-8b"; `dlio-bench checkpoint --help` names all',
    "folder": 'Name the folder of the checkpoints, such as folder = "/scratch"',
    "name": 'Give one, such as name = "cluster"',
}
FORM = user_files.Form("`dlio-bench accept --example one-machine` shows a plan", TABLES, NEEDED, WRITTEN, CHOICES)
