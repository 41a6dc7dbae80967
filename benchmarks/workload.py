"""One application: its dataset layouts, the view its readers deliver, its batch."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dlio_bench.benchmarks.model import Model
from dlio_bench.benchmarks.pipeline import Decode, Upstream
from dlio_bench.benchmarks.profile import Profile, shipped_profiles
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import Layout


class Validation(Struct, frozen=True):
    """How the application goes through its validation split while it trains.

    every: epochs of training from one pass to the next. forwards: times that each batch goes forward through the
    network. order: of its published pipeline by name; None: that in which it goes through the training split.
    """

    every: int
    forwards: int
    order: str | None
    source: str


class Expected(Struct, frozen=True):
    """What `bench-readers` reads of a workload, and expects.

    variant: None: the default one. of_raw: least rate of `prefetch` over that of preadv of the same bytes.
    cpu_us: most microseconds of CPU a sample beyond the read itself; None: no limit.
    """

    variant: str | None = None
    of_raw: float = 0.90
    cpu_us: float | None = None


FORWARD_SHARE = 1 / 3
"""A forward pass costs this part of a training step: the backward pass computes two gradients, of the weights and of
the layer's input, each at the cost of the forward pass (operation counts, as in `hepcnnb.operations`). An estimate."""


class Workload(Struct, frozen=True):
    """`variants` maps a name to (tiny, fill) -> Layout; `view` names the fields that compared readers deliver.

    `fill` is PHYSICAL or RANDOM of datagen.layout. `decode`, `upstream` and `validation`: None where there is none.
    `variations`: variant -> the fields of this struct that are others with its data, such as its published pipeline.
    `models`: the networks that train on it, on what `decode` delivers; of those that take a variant the first is the
    default.
    `labels`: the fields of the view that the loss alone needs; none where a record holds them together with the rest.
    `sample_bytes`: a random word of 64 bits -> the bytes of a sample at its published size; None: all are of mean size.
    """

    name: str
    title: str
    variants: Mapping[str, Callable[[bool, str], Layout]]
    default_variant: str
    view: tuple[str, ...]
    batch: int  # samples a rank and step
    batch_source: str
    decode: Callable[[Dataset], Decode] | None = None
    upstream: Upstream | None = None
    variations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    validation: Validation | None = None
    models: tuple[Model, ...] = ()
    expected: Expected = Expected()
    sample_bytes: Callable[[int], int] | None = None
    labels: tuple[str, ...] = ()

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The step times that come with the package, by device, the default one first."""
        return shipped_profiles(self.name)

    def of(self, variant: str | None) -> "Workload":
        """The workload as it is with data of this variant (None: of the default one)."""
        return replace(self, **self.variations.get(variant or self.default_variant, {}))


def validation_share(workload: Workload) -> float:
    """What a sample costs in a validation pass, as a share of its part of a training step."""
    return FORWARD_SHARE * (1 if workload.validation is None else workload.validation.forwards)
