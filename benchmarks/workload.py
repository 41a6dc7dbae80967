"""One application: its dataset layouts, the view its readers deliver, its batch and its published step times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlio_bench.benchmarks.model import Model
from dlio_bench.benchmarks.pipeline import Decode, Upstream
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import Layout

PUBLISHED, DERIVED, ESTIMATE = "published", "derived from published figures", "estimate"


@dataclass(frozen=True)
class StepTime:
    """Seconds of compute in one training step of `batch` samples on one device.

    `kind` is PUBLISHED, DERIVED (a quotient of published figures) or ESTIMATE (ours, from operation counts;
    every output that shows the number says so). `source` names document and reasoning.
    """

    device: str  # lower case: "v100"
    seconds: float
    batch: int
    kind: str
    source: str


@dataclass(frozen=True)
class Workload:
    """`variants` maps a name to (tiny, fill) -> Layout; `view` names the fields that compared readers deliver.

    `fill` is PHYSICAL or RANDOM of datagen.layout. `decode` and `upstream`: None where there is none. `models`: the
    networks that train on it, on what `decode` delivers; of those that take a variant the first is the default.
    """

    name: str
    title: str
    variants: Mapping[str, Callable[[bool, str], Layout]]
    default_variant: str
    view: tuple[str, ...]
    batch: int  # samples a rank and step
    batch_source: str
    step_times: tuple[StepTime, ...]
    decode: Callable[[Dataset], Decode] | None = None
    upstream: Upstream | None = None
    models: tuple[Model, ...] = ()
