"""The description of a machine: rates, tiers and compute, from a TOML file.

`[declared]` is what people write; `[measured]` is what a calibration writes, key by key over the declared values.
Rates are MB/s (1e6 bytes), capacities sizes and times durations with a unit. The keys are explained in
systems/deck.toml.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dlio_bench import documents
from dlio_bench.errors import UsageError
from dlio_bench.units import format_bytes, parse_bytes, parse_seconds

Number = TypeVar("Number", int, float)

STAGING = "staging"
MB = 1e6
SHIPPED = (
    "deck", "deck-environment", "sc21", "piz-daint", "piz-daint-records", "lassen", "summit", "cori",
    "cori-burst-buffer", "cori-records", "cori-haswell", "perlmutter", "frontier",
)  # fmt: skip
# Tables of rates: a measured one replaces the declared one whole, since points of two machines do not mix.
_TABLES = ("pfs", "pfs_stream", "pfs_stream_all", "adios_stream", "read", "write")
_KEYS = (
    "name", "compute", "device", "stand_in", "ranks_per_node", "preprocess", "network", "pfs_link", "pfs_open",
    "pfs_stream", "pfs_stream_all", "adios_stream", "barrier", "pfs", "tiers", "estimated", "by",
    "latency", "interfaces", "within",
)  # fmt: skip


class Rates(Struct, frozen=True):
    """Aggregate MB/s at so many clients: linear between the tabulated points, clamped at both ends (T eq. 4.1)."""

    points: tuple[tuple[int, float], ...]

    def rate_for(self, clients: float) -> float:
        """MB/s of all `clients` together."""
        return float(np.interp(clients, [n for n, _ in self.points], [rate for _, rate in self.points]))


class Tier(Struct, frozen=True):
    """One storage class of a node: `capacity` bytes, `threads` that fill it (staging: that fetch for the trainer)."""

    name: str
    capacity: int
    threads: int
    read: Rates
    write: Rates


class Stream(Struct, frozen=True):
    """What one thread that reads alone gets: MB/s by bytes of its reads, as measured; ascending sizes."""

    points: tuple[tuple[int, float], ...]

    def seconds(self, size: float) -> float:
        """How long a read of `size` bytes takes: the measured times, linear between and beyond the sizes.

        Below the smallest size it takes as much less as its bytes cost at the rate of the largest: latency stays.
        """
        sizes = [float(bytes_) for bytes_, _ in self.points]
        times = [bytes_ / (rate * MB) for bytes_, rate in self.points]
        per_byte = 1 / (self.points[-1][1] * MB)
        if size <= sizes[0]:
            return max(times[0] - (sizes[0] - size) * per_byte, size * per_byte)
        if size >= sizes[-1]:
            return times[-1] + (size - sizes[-1]) * per_byte
        return float(np.interp(size, sizes, times))


class System(Struct, frozen=True):
    """A machine of equal nodes. tiers[0] is the staging buffer; `compute` MB/s a node, or None.

    network 0: not measured, and nothing is read from other nodes. preprocess inf: samples are delivered as
    they are stored. pfs_open, barrier: seconds that opening a file takes, and ranks that meet. pfs_stream: None where
    one thread's reads were not measured. estimated: the keys whose numbers no source gives. by: who measured on what.
    """

    name: str
    compute: float | None
    device: str | None
    ranks_per_node: int
    preprocess: float  # beta
    network: float  # b_c, between nodes
    pfs_link: float  # b_fs, one node to the PFS
    pfs: Rates  # t(gamma)
    tiers: tuple[Tier, ...]
    pfs_open: float = 0.0
    pfs_stream: Stream | None = None
    pfs_stream_all: Stream | None = None  # the same for a thread while one on each other node reads too
    adios_stream: Stream | None = None  # of one process to another, by bytes of a step
    barrier: float = 0.0
    latency: float = 0.0  # seconds of a message between nodes, whatever its size
    interfaces: int = 1  # that share `network`
    within: float = float("inf")  # MB/s between two ranks of a node
    estimated: tuple[str, ...] = ()
    by: Mapping[str, str] = field(default_factory=dict)
    stand_in: str | None = None  # the device whose step times are taken for workloads that have none on `device`

    def with_capacities(self, capacities: Mapping[str, int]) -> "System":
        """The same machine with other tier sizes, bytes by tier name. UsageError for an unknown tier."""
        names = [tier.name for tier in self.tiers]
        if unknown := [name for name in capacities if name not in names]:
            raise UsageError(f"--tiers names '{unknown[0]}'. The tiers of system '{self.name}' are {', '.join(names)}.")
        tiers = tuple(replace(tier, capacity=capacities.get(tier.name, tier.capacity)) for tier in self.tiers)
        return replace(self, tiers=tiers)


def load_system(name: str) -> System:
    """The system of a name in SHIPPED, or of a TOML file. UsageError."""
    return shipped_system(name) if name in SHIPPED else load(Path(name))


def shipped_system(name: str) -> System:
    """A system that comes with the package: systems/NAME.toml."""
    return parse(tomllib.loads((files("dlio_bench.harness.cluster") / "systems" / f"{name}.toml").read_text()), name)


def load(path: Path) -> System:
    """The system of a TOML file. UsageError where it is missing, is not TOML, or lacks a key."""
    try:
        content = documents.read_document(path, "Name a TOML file, as `dlio-bench calibrate` writes it.")
    except OSError as error:
        raise UsageError(
            f"--system {path}: {error.strerror}. Name a TOML file with a [declared] section (`dlio-bench calibrate` "
            f"writes one), or a system that comes with the package: {', '.join(SHIPPED)}."
        ) from None
    try:
        document = documents.load_toml(content)
    except ValueError as error:
        raise UsageError(f"--system {path} is not TOML: {error}. Repair it, or write one with `calibrate`.") from None
    return parse(document, str(path))


def parse(document: Mapping[str, Any], where: str) -> System:
    """The system of a parsed TOML document; `where` names it in errors. UsageError."""
    reader = _SystemReader(where)
    if unknown := set(document) - {"declared", "measured"}:
        raise reader.fault(f"section '{sorted(unknown)[0]}'", "the sections are [declared] and [measured]")
    declared = reader.table(document, "declared")
    values = _merge_tables(declared, {} if "measured" not in document else reader.table(document, "measured"))
    if unknown := set(values) - set(_KEYS):
        raise reader.fault(f"key '{sorted(unknown)[0]}'", f"the keys are {', '.join(_KEYS)}")
    tables = reader.table(values, "tiers")
    if next(iter(tables), None) != STAGING or len(tables) < 2:
        raise reader.fault(
            "tiers", f"the first tier is [declared.tiers.{STAGING}], and at least one tier stands behind it"
        )
    compute = reader.number(values, "compute") if "compute" in values else None
    return System(
        name=str(values.get("name", where)),
        compute=compute,
        device=str(values["device"]).lower() if "device" in values else None,
        stand_in=str(values["stand_in"]).lower() if "stand_in" in values else None,
        ranks_per_node=reader.whole(values, "ranks_per_node") if "ranks_per_node" in values else 1,
        preprocess=reader.number(values, "preprocess") if "preprocess" in values else float("inf"),
        # a calibration of one node cannot measure it
        network=reader.number(values, "network") if "network" in values or "measured" not in document else 0.0,
        pfs_link=reader.number(values, "pfs_link"),
        pfs=reader.rates(values, "pfs"),
        tiers=tuple(reader.tier(name, reader.table(tables, name)) for name in tables),
        pfs_open=reader.seconds(values, "pfs_open"),
        pfs_stream=reader.stream(values, "pfs_stream"),
        pfs_stream_all=reader.stream(values, "pfs_stream_all"),
        adios_stream=reader.stream(values, "adios_stream"),
        barrier=reader.seconds(values, "barrier"),
        latency=reader.seconds(values, "latency"),
        interfaces=reader.whole(values, "interfaces") if "interfaces" in values else 1,
        within=reader.number(values, "within") if "within" in values else float("inf"),
        estimated=reader.words(values, "estimated"),
        by={key: str(value) for key, value in reader.table(values, "by").items()} if "by" in values else {},
    )


def describe(system: System) -> str:
    """One line: the tiers and their sizes."""
    return ", ".join(f"{tier.name} {format_bytes(tier.capacity)}" for tier in system.tiers)


def _merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key not in _TABLES:
            merged[key] = _merge_tables(old, value)
        else:
            merged[key] = value
    return merged


class _SystemReader(Struct, frozen=True):
    where: str

    def fault(self, what: str, fix: str) -> UsageError:
        return UsageError(f"System {self.where}: {what} cannot be used: {fix}.")

    def table(self, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = values.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(f"[{key}]", "it is missing or no table")
        return value

    def number(self, values: Mapping[str, Any], key: str) -> float:
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.fault(f"{key} = {value!r}", "write a rate in MB/s above 0")
        return float(value)

    def whole(self, values: Mapping[str, Any], key: str) -> int:
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(f"{key} = {value!r}", "write a whole number of at least 1")
        return value

    def seconds(self, values: Mapping[str, Any], key: str) -> float:
        value = values.get(key, "0")
        if not isinstance(value, str):
            raise self.fault(f"{key} = {value!r}", 'write a time with its unit, such as "0.3ms"')
        return self.parse(parse_seconds, value, key)

    def parse(self, parse: Callable[[str], Number], text: str, key: str) -> Number:
        try:
            return parse(text)
        except UsageError as error:
            raise self.fault(f"{key} = {text!r}", str(error).rstrip(".")) from None

    def words(self, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.fault(f"{key} = {value!r}", 'write a list of keys, such as ["pfs"]')
        return tuple(value)

    def rates(self, values: Mapping[str, Any], key: str, what: str = "numbers of clients") -> Rates:
        points = []
        for clients in (table := self.table(values, key)):
            if not re.fullmatch("0*[1-9][0-9]{0,17}", clients):
                raise self.fault(f"{key}.{clients}", f"the keys of this rate table are {what}, from 1")
            points.append((int(clients), self.number(table, clients)))
        if not points:
            raise self.fault(key, "a rate table needs a point, such as 1 = 500")
        return Rates(tuple(sorted(points)))

    def stream(self, values: Mapping[str, Any], key: str) -> Stream | None:
        return Stream(self.rates(values, key, "sizes in bytes").points) if key in values else None

    def tier(self, name: str, values: Mapping[str, Any]) -> Tier:
        if unknown := set(values) - {"capacity", "threads", "read", "write"}:
            raise self.fault(f"tiers.{name}.{sorted(unknown)[0]}", "a tier has capacity, threads, read and write")
        capacity = values.get("capacity")
        if not isinstance(capacity, str):
            raise self.fault(f"tiers.{name}.capacity = {capacity!r}", 'write a size with its unit, such as "40GB"')
        if "read" not in values:
            raise self.fault(
                f"tiers.{name}.read", "it is missing: write rates in MB/s by threads, such as { 1 = 1000 }"
            )
        read = self.rates(values, "read")
        write = self.rates(values, "write") if "write" in values else read
        size = self.parse(parse_bytes, capacity, f"tiers.{name}.capacity")
        return Tier(name, size, self.whole(values, "threads"), read, write)
