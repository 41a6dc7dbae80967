"""One application: its dataset layouts, the view its readers deliver, its batch and its published step times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dlio_bench.benchmarks.model import Model
from dlio_bench.benchmarks.pipeline import Decode, Upstream
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import Layout

PUBLISHED, DERIVED, ESTIMATE = "published", "derived from published figures", "estimate"
GIVEN = "given"  # by the user


@dataclass(frozen=True)
class StepTime:
    """Seconds of compute in one training step of `batch` samples (0: whatever the batch is) on one device.

    `kind` is GIVEN, PUBLISHED, DERIVED (a quotient of published figures) or ESTIMATE (ours, from operation counts;
    every output that shows the number says so). `source` names document and reasoning.
    """

    device: str  # lower case: "v100"
    seconds: float
    batch: int
    kind: str
    source: str


@dataclass(frozen=True)
class Validation:
    """How the application goes through its validation split while it trains.

    every: epochs of training from one pass to the next. forwards: times that each batch goes forward through the
    network. order: of its published pipeline by name; None: that in which it goes through the training split.
    """

    every: int
    forwards: int
    order: str | None
    source: str


FORWARD_SHARE = 1 / 3
"""A forward pass costs this part of a training step: the backward pass computes two gradients, of the weights and of
the layer's input, each at the cost of the forward pass (operation counts, as in `hepcnnb.operations`). An estimate."""


@dataclass(frozen=True)
class Workload:
    """`variants` maps a name to (tiny, fill) -> Layout; `view` names the fields that compared readers deliver.

    `fill` is PHYSICAL or RANDOM of datagen.layout. `decode`, `upstream` and `validation`: None where there is none.
    `upstreams`: what was published for a variant, where that is not `upstream`.
    `models`: the networks that train on it, on what `decode` delivers; of those that take a variant the first is the
    default.
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
    upstreams: Mapping[str, Upstream] = field(default_factory=dict)
    validation: Validation | None = None
    models: tuple[Model, ...] = ()

    def of(self, variant: str | None) -> "Workload":
        """The workload with the published pipeline of this variant (None: of the default one)."""
        return replace(self, upstream=self.upstreams.get(variant or self.default_variant, self.upstream))


def validation_share(workload: Workload) -> float:
    """What a sample costs in a validation pass, as a share of its part of a training step."""
    return FORWARD_SHARE * (1 if workload.validation is None else workload.validation.forwards)
