"""The one table of counters of reads, from the loop to the page.

A new counter is a line of `Cost` here, and the code that counts. The sums over threads, ranks, epochs and passes, the
result file and its schema, the metric of a trial, text and page follow from the line.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

BYTES, SECONDS, SAMPLES = "B", "s", "samples"


class Quantity(Struct, frozen=True):
    """A counter or a metric. title: one or two words; meaning: a phrase that explains it; source: who counts it."""

    name: str
    unit: str
    title: str
    meaning: str
    source: str
    optional: bool = False  # a run may not know it, or it may have no meaning in a run


def _counter(unit: str, title: str, meaning: str, source: str) -> Meta:
    return Meta(title=title, description=meaning, extra={"unit": unit, "source": source})


Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
READERS, PLAN, STORAGE = "the reader's threads", "the plan", "/proc/PID/io, or the emulated file system"

Requested = Annotated[
    Count, _counter(BYTES, "requested", "bytes that the reader requested of the dataset's file system", READERS)
]


class Cost(Struct):
    """What reads have cost so far; seconds are summed over threads.

    A plan's bytes, each sample once, are bytes_requested - bytes_kept + bytes_spared.
    """

    bytes_requested: Requested = 0
    bytes_rounded: Annotated[
        Count,
        _counter(BYTES, "rounded", "bytes read beside those requested, as direct reads bring whole blocks", READERS),
    ] = 0
    requests: Annotated[
        Count, _counter("requests", "requests", "requests for ranges of objects that an object store got", READERS)
    ] = 0
    retries: Annotated[
        Count, _counter("requests", "retries", "of these, requests made again after one that failed", READERS)
    ] = 0
    bytes_ram: Annotated[Count, _counter(BYTES, "RAM tier", "bytes read from the node's tier in memory", READERS)] = 0
    bytes_local: Annotated[
        Count, _counter(BYTES, "local tier", "bytes read from the node's tier on node-local storage", READERS)
    ] = 0
    bytes_remote: Annotated[Count, _counter(BYTES, "remote", "bytes received from other ranks", READERS)] = 0
    bytes_kept: Annotated[
        Count, _counter(BYTES, "kept", "bytes requested that went into a tier before a trainer needed them", READERS)
    ] = 0
    bytes_spared: Annotated[
        Count,
        _counter(BYTES, "spared", "bytes not requested, because a tier or another rank delivered the samples", READERS),
    ] = 0
    remote_misses: Annotated[
        Count, _counter(SAMPLES, "misses", "samples that another rank was to send, and did not", READERS)
    ] = 0
    read_seconds: Annotated[Seconds, _counter(SECONDS, "reading", "reading, summed over a rank's threads", READERS)] = (
        0.0
    )
    decode_seconds: Annotated[
        Seconds, _counter(SECONDS, "decoding", "decoding, summed over a rank's threads", READERS)
    ] = 0.0

    def add(self, other: "Cost") -> None:
        """Add another's cost."""
        for name in Cost.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class PassCost(Cost, kw_only=True):
    """What an epoch or a validation pass has cost, and the bytes that its plan has."""

    bytes_requested: Requested
    bytes_useful: Annotated[Count, _counter(BYTES, "useful", "bytes delivered to the trainer", PLAN)]
    bytes_planned: Annotated[Count, _counter(BYTES, "planned", "bytes that the plan's reads ask for", PLAN)] = 0


class EpochCost(PassCost, kw_only=True):
    """What an epoch has cost, with the validation pass after it. None: not counted."""

    bytes_device: Annotated[
        Count | None,
        _counter(BYTES, "device", "bytes that the device, or the emulated file system, delivered", STORAGE),
    ]
    bytes_client_cache: Annotated[
        Count | None,
        _counter(BYTES, "client cache", "bytes that the emulated file system's client cache delivered", STORAGE),
    ] = None


C = TypeVar("C", bound=Cost)


def total(kind: type[C], costs: Sequence[Cost]) -> C:
    """The counters of `kind`, summed over `costs`; None if one of these does not know it."""
    columns = {name: [getattr(cost, name) for cost in costs] for name in kind.__struct_fields__}
    sums: dict[str, Any] = {name: None if None in column else sum(column) for name, column in columns.items()}
    return kind(**sums)


def _quantity_of(field: FieldInfo) -> Quantity:
    kind, *_, meta = get_args(field.type)
    extra = meta.extra
    optional = not field.required or kind == Count | None
    return Quantity(field.name, extra["unit"], meta.title, meta.description, extra["source"], optional=optional)


COUNTERS: dict[str, Quantity] = {field.name: _quantity_of(field) for field in fields(EpochCost)}
