"""The options of `dlio-bench run` as data. The command line fills them in; nothing else reads argparse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import fields, replace

from dlio_bench.harness.ground.outcome import Outcome
from dlio_bench.harness.run.asked import tracing
from dlio_bench.harness.storage.pfs.spec import PfsSpec


class RankOptions(Struct, frozen=True, kw_only=True):
    """Options that every rank gets unchanged: fields of `Options` and of `Job`."""

    ranks_per_node: int = 1
    shard: str = "rank"
    check_crc: bool = False  # of every delivered field, in the reader's threads
    cache: str = "cold"
    io: str = "buffered"  # or direct: reads of the dataset's files pass the page cache (O_DIRECT)
    tiny: bool = False  # small samples: a smoke test, whose speed says nothing
    verify: bool = True
    trace: tuple[str, ...] = ()  # what is recorded beside the step times; see harness/run/asked/tracing.py
    trace_steps: int = tracing.STEPS  # that TensorFlow is traced
    checkpoint_load: str = ""  # model of published size whose checkpoints are written beside the training
    checkpoint_load_every: int = 0  # steps
    checkpoint_load_fraction: float = 1.0
    checkpoint_load_dir: str = ""  # its folder; "": that of the results

    def for_ranks(self) -> dict[str, Any]:
        """These options alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(RankOptions)}


class Options(RankOptions, frozen=True):
    """What the user gave. None: nothing, so that the default comes from workload, data or machine."""

    workload: str
    nodes: tuple[int, ...] = (1,)
    scale_from: str = ""  # for people: whence nodes and ranks come that the user did not name
    readers: tuple[str, ...] = ("prefetch",)
    orders: tuple[str, ...] = ()  # each replaces the order of each reader; so for the next two
    placements: tuple[str, ...] = ()
    deliveries: tuple[str, ...] = ()
    last: str | None = None
    decode: bool = False
    variant: str | None = None
    data: Path | None = None
    max_data: int | None = None  # bytes
    cache_dir: Path | None = None
    batch: int | None = None
    epochs: int | None = None
    trials: int | None = None
    warmup_trials: int | None = None
    validation: str | None = None  # see asked/validation.py
    steps: int | None = None  # most of a trial
    steps_per_epoch: int | None = None  # makes an epoch a part of a pass over the samples
    min_seconds: float | None = None  # shortest trial that may be compared
    compute: str = "emulate"
    exchange: str | None = None  # of gradients, as the next five
    fp16_gradients: bool = False
    gradient_lag: int = 0
    hierarchical: bool = False
    leaders: int | None = None  # of a node
    exchange_timeout: float | None = None  # seconds
    checkpoint: int | None = None  # steps
    resume: Path | None = None  # folder of checkpoints
    sync: str | None = None
    threads: int | None = None
    staging: int | None = None  # bytes a rank
    local_tier: Path | None = None
    tiers: Mapping[str, int] | None = None  # bytes of a node's tiers that keep samples, by name
    emulate_pfs: PfsSpec | None = None
    memory_per_node: int | None = None  # bytes
    models: str | None = None  # how many are trained, or which; see asked/models.py
    stream: str | None = None  # how steps of streams are dealt, as the next five; see asked/streaming.py
    producers: int | None = None
    inline: bool = False
    stream_engine: str | None = None
    stream_queue: int | None = None  # steps
    stream_full: str | None = None
    step_scale: tuple[float, ...] = ()  # of the emulated step of each rank, in turn
    storage: Path | None = None  # a document of `dlio-bench storage`
    limits: Path | None = None  # of `dlio-bench judge`
    junit: Path | None = None  # see ground/outcome.py, as the next two
    markdown: Path | None = None
    require: str | None = None
    system: str | None = None  # description of the machine: a file, or a name that comes with the package
    predict: bool = False
    seed: int | None = None
    launcher: str | None = None
    out: Path | None = None
    dry_run: bool = False
    json: bool = False
    verbose: bool = False
    by_nodes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # options that a node count has of its own

    @property
    def outcome(self) -> Outcome:
        """What a CI job takes from the run."""
        return Outcome(self.junit, self.markdown, self.require)

    @property
    def unmeasured(self) -> "Options":
        """Without the options that change nothing in what is measured."""
        return replace(self, out=None, limits=None, junit=None, markdown=None, require=None, json=False, verbose=False)

    @property
    def mode(self) -> str:
        """--compute without its detail: none, emulate, train or infer."""
        return self.compute.partition(":")[0]

    def at(self, nodes: int) -> "Options":
        """The options of one node count."""
        return replace(self, **self.by_nodes.get(nodes, {}))
