"""The types of a result: loading checks a file against them, and `schema` makes the JSON schema from them.

Sizes are in bytes and times in seconds. Loading drops fields that a type does not list; a type with
`forbid_unknown_fields` refuses them. A field has a default if results of earlier versions may lack it.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from dlio_bench.reports.document.environment import Environment
from dlio_bench.reports.document.trials import Trial
from dlio_bench.reports.document.typed import Amount, Count, Some
from dlio_bench.reports.numbers.metrics import METRICS

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

SCHEMA = "dlio-bench/result/5"
Sync = Literal["step", "epoch", "none"]
CacheMode = Literal["cold-epochs", "first-epoch-cold", "warm", "as-is"]
IoMode = Literal["buffered", "direct"]
Mode = Literal["none", "emulate", "train", "infer"]
Class = Literal["ACCEPTANCE", "EXPLORE", "INVALID"]
BoundBy = Literal["storage", "CPU", "compute", "checkpoints", "not determined"]


class Named(Struct, frozen=True):
    """The workload."""

    name: str
    title: str


class Split(Struct, frozen=True):
    """The validation split of a dataset."""

    files: Count
    samples: Count
    stored_bytes: Count


class Data(Struct, frozen=True, kw_only=True):
    """The dataset as far as the run reads it. view_bytes: mean bytes delivered per sample."""

    digest: str
    folder: str
    variant: str | None
    fill: str | None
    seed: int | None
    files: Count
    samples: Count
    stored_bytes: Count
    view: list[str]
    view_bytes: Amount
    validation: Split | None = None
    owner: str | None


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader's row as it was executed. alias: what the user called it; options: its settings in force."""

    alias: str | None
    name: str
    order: str
    placement: str
    delivery: str
    source: str
    exactly_once: bool = True
    order_known: bool = True
    decode: str | None = None
    check_crc: bool = False
    options: dict[str, int]


class Passes(Struct, frozen=True):
    """The samples of a validation pass, and the order that they come in."""

    order: str
    samples: Some
    dropped_samples: Count = 0


class PlannedPasses(Passes, frozen=True, kw_only=True):
    """The validation passes of a trial. compute_share: compute per sample over that of training; source: who did so."""

    every_epochs: Some
    passes: Some
    compute_share: Amount = 0.0
    source: str | None = None


class ModelPlan(Struct, frozen=True, kw_only=True):
    """One of several models that a run trained. learning_rate: of all its steps; None: as published."""

    network: str | None = None
    parameters: Count = 0
    learning_rate: Amount | None = None


class Streams(Struct, frozen=True, kw_only=True):
    """How batches were streamed, see `harness.streams`. producers: ranks beyond those that trained; inline: a thread of
    each trainer's process was its producer, without an engine. transport: that moved the data of SST: each producer saw
    ADIOS2 choose it. queue: most batches that a stream held, None where files held all; full: what a producer did then.
    """

    mode: str
    producers: Count
    inline: bool = False
    engine: str | None = None
    transport: str | None = None
    queue: Some | None = None
    full: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """Who reads how much, and how often. A result is comparable when its trials had min_seconds and min_steps.

    models: those that were trained side by side, empty where it was one. A node has its ranks_per_node ranks in the
    order of the models, equally many of each. samples_per_epoch and dropped_samples are those of one model. streams: of
    readers that stream.
    """

    nodes: Some
    ranks_per_node: Some
    ranks: Some
    batch: Some
    published_batch: int | None
    published_batch_source: str | None = None
    epochs: Some
    steps_per_epoch: Some
    steps: Some
    samples_per_epoch: Some
    dropped_samples: Count
    shard: str = "rank"
    copies: Some = 1
    models: list[ModelPlan] = []
    streams: Streams | None = None
    last: str = "drop"
    seed: Count
    sync: Sync
    trials: Some
    warmup_trials: Count
    cache: CacheMode
    io: IoMode = "buffered"
    validation: PlannedPasses | None = None
    view_bytes_per_epoch: Amount
    node_memory_bytes: Amount | None
    comparable: bool
    min_seconds: Amount = 0.0
    min_steps: Some = 16
    notes: list[str]

    def __post_init__(self) -> None:
        """ValueError where models do not share the ranks of a node equally."""
        if self.models and self.ranks_per_node % len(self.models):
            raise ValueError(f"plan.models are {len(self.models)}, of {self.ranks_per_node} ranks of a node")


class Profile(Struct, frozen=True):
    """The compute profile that an emulated step time comes from. by: who measured it, on what."""

    name: str = ""
    digest: str = ""
    model: str | None = None
    tiny: bool = False
    batches: list[int] = []
    by: dict[str, str] = {}


class Network(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The network that was trained or that predicted, and how its gradients were exchanged."""

    device: str | None
    source: str | None
    model: str = ""
    title: str = ""
    parameters: Count = 0
    published_parameters: int | None = None
    metric: str = ""
    better: str = ""
    chance: float | None = 0.0  # None: no label says
    threads: Count = 0
    tensorflow: str = ""
    exchange: str | None = None
    exchange_why: str | None = None
    notes: list[str] | None = None
    precision: str | None = None  # in which it computed; None: of results before it could be chosen, float32
    fp16: bool | None = None
    lag: int | None = None
    hierarchical: bool | None = None
    leaders: int | None = None  # of a node
    timeout: float | None = None
    checkpoint: int | None = None
    resume: str | UnsetType | None = UNSET  # None: a network at work went on from nothing
    step: int | None = None
    seed: int | UnsetType | None = UNSET  # of the training that it goes on from


class Compute(Network, frozen=True, kw_only=True, omit_defaults=True):
    """What played the trainer."""

    mode: Mode
    asked_step_seconds: Amount | None
    kind: str | None
    profile: Profile | None = None

    @property
    def is_network(self) -> bool:
        """Whether a real network was at work."""
        return self.mode in ("train", "infer")


class Check(Struct, frozen=True, forbid_unknown_fields=True):
    """What was looked at before the result is believed."""

    name: str
    ok: bool
    expected: str
    found: str


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """Median (of `share_*` the mean) over the measured trials; ci: its interval (`intervals`), None with fewer than 5
    trials."""

    value: float | None
    unit: str
    ci: tuple[float, float] | None


class Bound(Struct, frozen=True, forbid_unknown_fields=True):
    """What bound the run, with the sentences that say why."""

    by: BoundBy
    evidence: Annotated[list[str], Meta(min_length=1)]


class Prediction(Struct, frozen=True, kw_only=True):
    """What was predicted before the run. reason: why its figures are None."""

    system: str
    epoch_seconds: list[Amount] | None
    first_epoch_seconds: Amount | None
    later_epochs_seconds: Amount | None
    elapsed_seconds: Amount | None
    stall_share: float | None = None
    bytes: dict[str, int] | None = None
    simulated_share: float | None = None
    reason: str | None
    notes: list[str]


class StepsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of step times beside the result."""

    name: Annotated[str, Meta(pattern=r"^[^/\\]+$")]
    sha256: Sha256


class Repeats(Struct, frozen=True, forbid_unknown_fields=True):
    """The result that a run repeated: its digest, and what differed when it was repeated."""

    digest: str
    differs: list[str]


class Draft(Struct, frozen=True, kw_only=True):
    """What a run measured of one reader of one workload at one scale, before anybody draws conclusions.

    created: ISO 8601; results of one run are created in the order of its readers. options: every option of the run, as
    it was given or decided, which `run --from` takes.
    """

    schema: Literal["dlio-bench/result/5"] = "dlio-bench/result/5"
    kind: Literal["run"] = "run"
    created: str
    command: list[str]
    options: dict[str, Any] | None = None
    repeats: Repeats | None = None
    version: str
    workload: Named
    dataset: Data
    policy: Policy
    plan: Plan
    compute: Compute
    marks: list[str]
    checks: Annotated[list[Check], Meta(min_length=1)]
    trials: Annotated[list[Trial], Meta(min_length=1)]
    environment: Environment
    prediction: Prediction | None = None

    @property
    def measured_trials(self) -> list[Trial]:
        """The trials that count: all but the warm-up ones."""
        return [trial for trial in self.trials if not trial.warmup]


class ModelFigures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one of several models came to, see `reports.numbers.models`. ranks: those that trained it."""

    name: str
    ranks: Annotated[list[Count], Meta(min_length=1)]
    metrics: dict[str, Metric]


class Result(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft with its conclusions. models: of each, where there are several. digest: of everything else, see
    `result.digest`."""

    schema: Literal["dlio-bench/result/5"]
    kind: Literal["run"]
    class_: Class = field(name="class")
    verdict: Literal["pass", "fail", "none"]
    metrics: dict[str, Metric]
    models: list[ModelFigures] = []
    bound: Bound
    steps_file: StepsFile
    digest: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]

    def __post_init__(self) -> None:
        """ValueError if parts contradict each other: other metrics than the table's, a training without its figures."""
        if not self.measured_trials:
            raise ValueError("trials has none that is not a warm-up")
        for name, mode in (("training", "train"), ("inference", "infer")):
            if any((getattr(trial, name) is not None) != (self.compute.mode == mode) for trial in self.trials):
                raise ValueError(f"the trials contradict compute.mode {self.compute.mode}: {name}")
        if len(set(self.marks)) < len(self.marks):
            raise ValueError("a mark is listed twice")
        if unknown := sorted(set(self.metrics) - set(METRICS)):
            raise ValueError(f"metrics.{unknown[0]} is no metric")
        for name, quantity in METRICS.items():
            if quantity.optional:  # versions before it have none
                self.metrics.setdefault(name, Metric(None, quantity.unit, None))
            if name not in self.metrics:
                raise ValueError(f"metrics.{name} is missing")
            metric = self.metrics[name]
            if metric.unit != quantity.unit or (metric.value is None and not quantity.optional):
                raise ValueError(f"metrics.{name} is {metric.value} {metric.unit}, wanted a number of {quantity.unit}")

    def value(self, name: str) -> float:
        """The value of a metric that every result has."""
        value = self.metrics[name].value
        assert value is not None
        return value
