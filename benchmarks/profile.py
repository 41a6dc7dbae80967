"""Compute profiles: how long a training step takes on a device, by batch size."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dlio_bench.errors import UsageError

MEASURED, PUBLISHED, DERIVED, ESTIMATE = "measured", "published", "derived from published figures", "estimate"
GIVEN = "given"  # by the user, as a time: never in a file
DEFAULT_DEVICE = "v100"


class Row(Struct, frozen=True):
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
    rows: tuple[Row, ...]
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
        return self._at(batch, {row.batch: row.seconds for row in self.rows})

    def forward_seconds(self, batch: int) -> float | None:
        """Seconds of a batch that is validated, by the same rule; None where a row does not have them. UsageError."""
        known = {row.batch: row.forward_seconds for row in self.rows if row.forward_seconds is not None}
        return self._at(batch, known) if len(known) == len(self.rows) else None

    def has(self, batch: int) -> bool:
        """Whether there is a row of this very batch."""
        return any(row.batch == batch for row in self.rows)

    def told(self, batch: int) -> str:
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

    def _at(self, batch: int, known: Mapping[int, float]) -> float:
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
                f"{_listed(batches)}, and is not carried on beyond. Run with one of these as --batch, or measure again "
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


def given(seconds: float, source: str) -> Profile:
    """A step that takes this long whatever is in it."""
    return Profile("", (), None, "", GIVEN, source, (Row(0, seconds),))


def _listed(batches: list[int]) -> str:
    *most, last = map(str, batches)
    return f"{', '.join(most)} and {last}" if most else last
