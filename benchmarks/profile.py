"""Compute profiles: how long a training step takes on a device, by batch size, and their files: TOML of one form.

Those with published figures come with the package, in the `profiles` folder of each workload, one file a device;
`dlio-bench calibrate --compute` measures others.

    [profile]
    schema = "dlio-bench/compute-profile/1"
    workload = "cdb"
    variants = ["cori"]          # of the workload's data
    model = "tiramisu"
    device = "v100"              # of a file in the package: its name
    kind = "derived"             # measured, published, derived (from published figures) or estimated
    source = "who says so"
    tiny = false                 # of shrunken samples: never a measurement (default false)
    shape = [768, 1152, 4]       # of a sample, channels last (optional, as the next)
    dtype = "float32"

    [rows.1]                     # a step of 1 sample
    seconds = 0.2                # of compute; measured: the median
    spread = [0.19, 0.21]        # half of the steps took as long (optional, as the next)
    steps = 20                   # that were timed
    forward_seconds = 0.07       # of a batch that only goes forward

    [by]                         # what else the one who measured has to say: date, versions, threads
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from dlio_bench import documents
from dlio_bench.errors import UsageError

MEASURED, PUBLISHED, DERIVED, ESTIMATE = "measured", "published", "derived from published figures", "estimate"
GIVEN = "given"  # by the user, as a time: never in a file
DEFAULT_DEVICE = "v100"


class ProfileRow(Struct, frozen=True):
    """A training step of `batch` samples (0: of any number): seconds of compute, the median where it was measured.

    spread: seconds between which half of the `steps` timed steps lie. forward_seconds: of the batch in a
    validation pass, forward and counted. None where it is not known.
    """

    batch: int
    seconds: float
    spread: tuple[float, float] | None = None
    steps: int | None = None
    forward_seconds: float | None = None


class Profile(Struct, frozen=True):
    """Step times of one network on one device, ascending batches.

    `kind` is MEASURED, PUBLISHED, DERIVED (a quotient of published figures), ESTIMATE (ours, from operation counts;
    every output that shows the number says so) or GIVEN (one time, whatever the batch). `source` names document and
    reasoning. name: how it was asked for; digest: of its file; by: who measured on what.
    """

    workload: str
    variants: tuple[str, ...]
    model: str | None
    device: str  # lower case of those that come with the package: "v100"
    kind: str
    source: str
    rows: tuple[ProfileRow, ...]
    tiny: bool = False
    shape: tuple[int, ...] = ()
    dtype: str | None = None
    by: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    digest: str | None = None

    def seconds(self, batch: int) -> float:
        """Seconds of compute in a training step of `batch` samples.

        Between two rows it is linear. Beyond them a published time is taken in proportion to the samples, since there
        is nothing else to go by; what was measured is not carried on: UsageError.
        """
        return self._seconds_at(batch, {row.batch: row.seconds for row in self.rows})

    def forward_seconds(self, batch: int) -> float | None:
        """Seconds of a batch that is validated, by the same rule; None where a row does not have them. UsageError."""
        known = {row.batch: row.forward_seconds for row in self.rows if row.forward_seconds is not None}
        return self._seconds_at(batch, known) if len(known) == len(self.rows) else None

    def has(self, batch: int) -> bool:
        """Whether there is a row of this very batch."""
        return any(row.batch == batch for row in self.rows)

    def describe_source(self, batch: int) -> str:
        """Where `seconds(batch)` comes from: '0.2 s for a batch of 1', or the rows that it lies between or beyond."""
        if self.kind == GIVEN:
            return f"{self.rows[0].seconds:g} s for a batch of {batch}"
        below = [row for row in self.rows if row.batch <= batch][-1:]
        above = [row for row in self.rows if row.batch >= batch][:1]
        near = list(dict.fromkeys(below + above))
        words = " and ".join(f"{row.seconds:g} s for a batch of {row.batch}" for row in near)
        if near[0].batch == batch:
            return words
        return f"linear between {words}" if len(near) == 2 else f"in proportion to {words}"

    def _seconds_at(self, batch: int, known: Mapping[int, float]) -> float:
        batches = list(known)
        if self.kind == GIVEN:
            return known[batches[0]]
        if batch in known:
            return known[batch]
        place = bisect_left(batches, batch)
        if 0 < place < len(batches):
            low, high = batches[place - 1], batches[place]
            return known[low] + (known[high] - known[low]) * (batch - low) / (high - low)
        if self.kind == MEASURED:
            network = self.workload if self.model is None else f"{self.workload}:{self.model}"
            network += f" --variant {self.variants[0]}{' --tiny' if self.tiny else ''}"
            wanted = ",".join(str(size) for size in sorted({*batches, batch}))
            raise UsageError(
                f"The compute profile {self.name} has no step time for a batch of {batch}: it was measured for "
                f"{_join(batches)}, and is not carried on beyond. Run with one of these as --batch, or measure again "
                f"with `dlio-bench calibrate --compute {network} --batch {wanted} --out FILE`."
            )
        near = batches[0] if place == 0 else batches[-1]
        return known[near] * batch / near

    def facts(self) -> dict[str, Any] | None:
        """What a result keeps of it, as JSON; None for a time that was given."""
        if self.digest is None:
            return None
        return {
            "name": self.name,
            "digest": self.digest,
            "model": self.model,
            "tiny": self.tiny,
            "batches": [row.batch for row in self.rows],
            "by": dict(self.by),
        }


def profile_of_time(seconds: float, source: str) -> Profile:
    """A step that takes this long whatever is in it."""
    return Profile("", (), None, "", GIVEN, source, (ProfileRow(0, seconds),))


def _join(batches: list[int]) -> str:
    *most, last = map(str, batches)
    return f"{', '.join(most)} and {last}" if most else last


SCHEMA = "dlio-bench/compute-profile/1"
_KINDS = {"measured": MEASURED, "published": PUBLISHED, "derived": DERIVED, "estimated": ESTIMATE}
_KEYS = ("schema", "workload", "variants", "model", "device", "kind", "source", "tiny", "shape", "dtype")
_ROW_KEYS = ("seconds", "spread", "steps", "forward_seconds")


@cache
def shipped_profiles(workload: str) -> Mapping[str, Profile]:
    """The profiles that come with the package for a workload, by device; the default device first. It may have none."""
    folder = files(f"dlio_bench.benchmarks.{workload}") / "profiles"
    paths = folder.iterdir() if folder.is_dir() else ()
    profiles = [_parse_profile(path.read_bytes(), path.name.removesuffix(".toml")) for path in paths]
    profiles.sort(key=lambda profile: (profile.device != DEFAULT_DEVICE, profile.device))
    return {profile.device: profile for profile in profiles}


def load(path: Path) -> Profile:
    """The profile of a file. UsageError where it is missing, is no TOML, or cannot be used."""
    try:
        content = documents.read_document(path, "Name a file that `dlio-bench calibrate --compute` wrote.")
    except OSError as error:
        raise UsageError(
            f"The compute profile {path} cannot be read: {error.strerror}. Name a file that `dlio-bench calibrate "
            "--compute` wrote."
        ) from None
    return _parse_profile(content, str(path))


def _parse_profile(content: bytes, name: str) -> Profile:
    try:
        document = documents.load_toml(content)
    except ValueError as error:
        raise UsageError(
            f"The compute profile {name} is not TOML: {error}. Name a file that `dlio-bench calibrate --compute` wrote."
        ) from None
    return parse(document, name, f"sha256:{hashlib.sha256(content).hexdigest()}")


def parse(document: Mapping[str, Any], name: str, digest: str | None = None) -> Profile:
    """The profile of a parsed document; `name` stands for it in errors and results. UsageError."""
    reader = _ProfileReader(name)
    if unknown := set(document) - {"profile", "rows", "by"}:
        raise reader.fault(f"section '{sorted(unknown)[0]}'", "the sections are [profile], [rows.BATCH] and [by]")
    head = reader.table(document, "profile")
    if head.get("schema") != SCHEMA:
        raise reader.fault(f"schema = {head.get('schema')!r}", f'this version reads "{SCHEMA}"')
    if unknown := set(head) - set(_KEYS):
        raise reader.fault(f"key '{sorted(unknown)[0]}'", f"the keys of [profile] are {', '.join(_KEYS)}")
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise reader.fault(f"kind = {kind!r}", f"it is one of {', '.join(_KINDS)}")
    if not isinstance(tiny := head.get("tiny", False), bool):
        raise reader.fault(f"tiny = {tiny!r}", "write true or false")
    rows = reader.table(document, "rows")
    return Profile(
        workload=reader.word(head, "workload"),
        variants=reader.words(head, "variants"),
        model=reader.word(head, "model") if "model" in head else None,
        device=reader.word(head, "device"),
        kind=_KINDS[kind],
        source=reader.word(head, "source"),
        rows=tuple(sorted((reader.row(batch, rows) for batch in rows), key=lambda row: row.batch)),
        tiny=tiny,
        shape=reader.shape(head),
        dtype=reader.word(head, "dtype") if "dtype" in head else None,
        by={key: str(value) for key, value in reader.table(document, "by").items()} if "by" in document else {},
        name=name,
        digest=digest,
    )


def to_tables(profile: Profile) -> dict[str, Any]:
    """The tables of a profile's file, of which `parse` makes an equal one but for name and digest."""
    head = {
        "schema": SCHEMA,
        "workload": profile.workload,
        "variants": list(profile.variants),
        "model": profile.model,
        "device": profile.device,
        "kind": next(mark for mark, kind in _KINDS.items() if kind == profile.kind),
        "source": profile.source,
        "tiny": profile.tiny,
        "shape": list(profile.shape) or None,
        "dtype": profile.dtype,
    }
    rows = {
        str(row.batch): _without_none(asdict(row) | {"batch": None, "spread": row.spread and list(row.spread)})
        for row in profile.rows
    }
    return {"profile": _without_none(head), "rows": rows} | ({"by": dict(profile.by)} if profile.by else {})


class _ProfileReader(Struct, frozen=True):
    name: str

    def fault(self, setting: str, fix: str) -> UsageError:
        return UsageError(f"Compute profile {self.name}: {setting} cannot be used: {fix}.")

    def table(self, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        table = values.get(key)
        if not isinstance(table, Mapping) or not table:
            raise self.fault(f"[{key}]", "it is missing, empty or no table")
        return table

    def word(self, values: Mapping[str, Any], key: str) -> str:
        text = values.get(key)
        if not isinstance(text, str) or not text.strip():
            raise self.fault(f"{key} = {text!r}", "write a text in quotes")
        return text

    def words(self, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
        texts = values.get(key)
        if not isinstance(texts, list) or not texts or not all(isinstance(word, str) for word in texts):
            raise self.fault(f"{key} = {texts!r}", 'write a list of texts, such as ["cori"]')
        return tuple(texts)

    def shape(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        shape = values.get("shape", [])
        if not isinstance(shape, list) or not all(_is_whole(length) for length in shape):
            raise self.fault(f"shape = {shape!r}", "write a list of whole numbers from 1, such as [224, 224, 3]")
        return tuple(shape)

    def row(self, batch: str, rows: Mapping[str, Any]) -> ProfileRow:
        if not batch.isdecimal() or int(batch) < 1 or str(int(batch)) != batch:
            raise self.fault(f"rows.{batch}", "the rows are named by their batch, a whole number from 1")
        values = self.table(rows, batch)
        if unknown := set(values) - set(_ROW_KEYS):
            raise self.fault(f"rows.{batch}.{sorted(unknown)[0]}", f"a row has {', '.join(_ROW_KEYS)}")
        seconds = self.time(values, batch, "seconds")
        steps, spread = values.get("steps"), values.get("spread")
        if steps is not None and not _is_whole(steps):
            raise self.fault(f"rows.{batch}.steps = {steps!r}", "write a whole number of at least 1")
        if spread is not None and not _is_around(seconds, spread):
            raise self.fault(
                f"rows.{batch}.spread = {spread!r}", "write the two times between which half of the steps lie"
            )
        return ProfileRow(
            int(batch),
            seconds,
            None if spread is None else (float(spread[0]), float(spread[1])),
            steps,
            self.time(values, batch, "forward_seconds") if "forward_seconds" in values else None,
        )

    def time(self, values: Mapping[str, Any], batch: str, key: str) -> float:
        seconds = values.get(key)
        if not _is_time(seconds):
            raise self.fault(f"rows.{batch}.{key} = {seconds!r}", "write seconds, a number above 0")
        return float(seconds)  # type: ignore[arg-type]  # _is_time has looked


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_around(seconds: float, spread: object) -> bool:
    return (
        isinstance(spread, list) and len(spread) == 2 and all(map(_is_time, spread))
        and spread[0] <= seconds <= spread[1]
    )  # fmt: skip


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
