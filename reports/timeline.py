"""The spans of a run (`run --trace spans`): `spans.npz` beside a result, read back and checked.

NumPy writes and reads the file, as it does the steps: every column is a member of its own, and the zip archive holds a
CRC32 of each. (Arrow would bring some 150 MB of dependency for one table.)
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench import components
from dlio_bench.components import BY_NAME, KINDS, Component
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.recorder import NO_EPOCH
from dlio_bench.reports.spans import BEFORE, Span

SPANS_NAME = "spans.npz"
UNFINISHED_NAME = "spans-unfinished.npz"  # of a run that did not come to its end
SCHEMA = "dlio-bench/spans/1"
ABOUT = "about"
# int32, except bytes and offset, int64, and start and end, float64
COLUMNS = ("trial", "track", "component", "epoch", "step", "file", "bytes", "offset", "start", "end")
TRAINER = "trainer"  # the thread of a rank that the timed loop runs in
TENSORFLOW = "tf:"  # before the names of its operations
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
FIX = "Run it again with --trace spans"
Column = npt.NDArray[Any]


class Track(Struct, frozen=True):
    """A thread. rank: that it worked for; process: its number on the host."""

    rank: int
    host: str
    process: int
    thread: str


class Clock(Struct, frozen=True):
    """A host's clock: `ahead` of that of rank 0's host by so many seconds, `within` so many. Taken off all times.

    drift: by how many seconds it was further ahead at the end of the trials than before them, `apart` seconds earlier.
    """

    ahead: float
    within: float
    drift: float = 0.0
    apart: float = 0.0


class Kind(Struct, frozen=True):
    """A component as it was recorded."""

    name: str
    kind: str


class About(Struct, frozen=True):
    """What the columns refer to. files: the dataset's names by number; lost: spans that found no room, by rank.

    unfinished: how far the run had come, a sentence each, where it did not come to its end.
    """

    schema: str
    ranks: int
    tracks: Sequence[Track]
    components: Sequence[Kind]
    files: Mapping[str, str]
    clocks: Mapping[str, Clock]
    lost: Mapping[str, int]
    unfinished: Sequence[str] = ()


@dataclass(frozen=True)
class Timeline:
    """Spans in columns [spans]; start and end in seconds since rank 0 began its loop in that trial, on rank 0's clock.

    track, component: index into tracks and components; epoch: as in plans (`~e` is the validation pass after epoch e),
    or NO_EPOCH; trial: as in the result, warm-up included; file: see files; file, offset and step are -1 where there is
    none. problems: what is wrong with the file, a sentence each.
    """

    trial: Column
    track: Column
    component: Column
    epoch: Column
    step: Column
    file: Column
    bytes: Column
    offset: Column
    start: Column
    end: Column
    ranks: int
    tracks: Sequence[Track]
    components: Sequence[Component]
    files: Mapping[int, str]
    clocks: Mapping[str, Clock]
    lost: Mapping[int, int]
    problems: Sequence[str] = ()

    def __len__(self) -> int:
        """Spans."""
        return len(self.start)

    @property
    def rank(self) -> Column:
        """The rank of each span, int [spans]."""
        return np.array([track.rank for track in self.tracks], dtype=np.int64)[self.track]

    def part(self, chosen: Column) -> "Timeline":
        """Some of its spans, by a mask or by numbers."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        return replace(self, **columns)

    def of(self, *names: str) -> Column:
        """Which spans are of components of these names, bool [spans]."""
        codes = [code for code, component in enumerate(self.components) if component.name in names]
        return np.isin(self.component, codes)


def load(path: Path) -> Timeline:
    """The spans beside a result, from its folder or the file itself.

    UsageError where there are none, EnvironmentFailure where they cannot be read, DataError where the file is cut short
    or is none. What can be read around is told in `problems`.
    """
    file = path / SPANS_NAME if path.is_dir() else path
    try:
        with np.load(file, allow_pickle=False) as archive:
            about = msgspec.json.decode(archive[ABOUT].tobytes(), type=About)
            columns = {name: archive[name] for name in COLUMNS}
    except FileNotFoundError as error:
        raise UsageError(f"'{file}' does not exist: the run recorded no spans. {FIX}.") from error
    except PermissionError as error:
        raise EnvironmentFailure(f"'{file}' could not be read: {error.strerror}. {remedy(error)}.") from error
    except (*UNREADABLE, msgspec.DecodeError) as error:
        raise DataError(f"'{file}' is no whole file of spans ({error}). {FIX}.") from error
    lengths = {len(values) for values in columns.values()}
    if about.schema != SCHEMA or len(lengths) != 1:
        raise DataError(f"'{file}' is of schema {about.schema!r}; this version reads '{SCHEMA}'. {FIX}.")
    return _checked(about, columns)


def recorded(folder: Path) -> int:
    """How many spans are beside the results in the folder of a run. What numpy.load raises."""
    counts = []
    for path in folder.glob(f"*/{SPANS_NAME}"):
        with np.load(path, allow_pickle=False) as archive:
            counts.append(len(archive["component"]))
    return sum(counts)


def _checked(about: About, columns: Mapping[str, Column]) -> Timeline:
    """The timeline without spans that refer to nothing, which are told of."""
    problems = list(about.unfinished)
    known = (
        (columns["track"] >= 0) & (columns["track"] < len(about.tracks))
        & (columns["component"] >= 0) & (columns["component"] < len(about.components))
    )  # fmt: skip
    if not known.all():
        problems.append(f"{int((~known).sum())} spans are of no thread or component that the file knows")
    strange = sorted(part.name for part in about.components if part.name not in BY_NAME and not _of_tensorflow(part))
    if strange:
        problems.append(f"components that this version does not know: {', '.join(strange)}")
    kept = {name: values[known] for name, values in columns.items()}
    backwards = kept["end"] < kept["start"]
    if backwards.any():
        problems.append(f"{int(backwards.sum())} spans end before they begin; they count as nothing")
    with_spans = {about.tracks[track].rank for track in np.unique(kept["track"]).tolist()}
    if missing := [rank for rank in range(about.ranks) if rank not in with_spans]:
        problems.append(f"ranks without a span: {', '.join(map(str, missing))}")
    problems += [f"rank {rank} had no room for {lost} spans" for rank, lost in about.lost.items()]
    return Timeline(
        **kept,
        ranks=about.ranks,
        tracks=about.tracks,
        components=[_component(part) for part in about.components],
        files={int(number): name for number, name in about.files.items()},
        clocks=about.clocks,
        lost={int(rank): lost for rank, lost in about.lost.items()},
        problems=problems,
    )


def _of_tensorflow(part: Kind) -> bool:
    return part.name.startswith(TENSORFLOW) and part.kind in KINDS


def _component(part: Kind) -> Component:
    if _of_tensorflow(part):
        return Component(part.name, cast(components.Kind, part.kind), "an operation of TensorFlow's")
    return BY_NAME.get(part.name, Component(part.name, "other", "not known to this version"))


def spans(timeline: Timeline, trial: int) -> Iterator[Span]:
    """The spans of a trial, for the study's accountings. Validation passes belong to the epoch before them."""
    of_trial = timeline.part(timeline.trial == trial)
    for track, component, epoch, start, end in zip(
        *(getattr(of_trial, name).tolist() for name in ("track", "component", "epoch", "start", "end")), strict=True
    ):
        place, name = timeline.tracks[track], timeline.components[component].name
        number = BEFORE if epoch == NO_EPOCH else epoch if epoch >= 0 else ~epoch
        yield Span(number, place.rank, "run", name, start, end, end - start, place.process, place.thread)
