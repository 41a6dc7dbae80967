"""Spans: what a process did, and when; and the file `spans.npz` of a run (`run --trace spans`), read and checked.

NumPy writes and reads the file, as it does the steps: every column is a member of its own, and the zip archive holds a
CRC32 of each. (Arrow would bring some 150 MB of dependency for one table.)
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dlio_bench import components, tensorflow_operations
from dlio_bench.components import BY_NAME, KINDS, Component
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.recorder import NO_EPOCH

SPANS_NAME = "spans.npz"
UNFINISHED_NAME = "spans-unfinished.npz"  # of a run that did not come to its end
SCHEMA = "dlio-bench/spans/1"
ABOUT = "about"
TYPES = dict.fromkeys(("trial", "track", "component", "epoch", "step", "file"), np.int32) | {
    "bytes": np.int64, "offset": np.int64, "start": np.float64, "end": np.float64,
}  # fmt: skip
COLUMNS = tuple(TYPES)
TRAINER = "trainer"  # the thread of a rank that the timed loop runs in
TENSORFLOW = "tf:"  # before the names of its operations
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
BEFORE = -1  # the epoch of what belongs to none
LONGEST = 1e9  # seconds: no run takes 31 years
MOST_RANKS_NAMED = 8  # in a sentence
FIX = "Run it again with --trace spans"
Column = npt.NDArray[Any]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Span(Struct, frozen=True):
    """One timed action. Times are in seconds of the clock of its host; `epoch` counts from 0, or is `BEFORE`.

    `seconds` is its length as it was recorded, which may be more exact than `end - start`.
    """

    epoch: int
    rank: int
    action: str  # the function that timed itself
    component: str  # what it did, such as 'Training Iteration'
    start: float
    end: float
    seconds: float
    process: int
    thread: str


class Track(Struct, frozen=True):
    """A thread. rank: that it worked for; process: its number on the host."""

    rank: Count
    host: str
    process: Count
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


class RuntimeTrace(Struct, frozen=True, kw_only=True):
    """What is to be known of a rank's trace of TensorFlow (`--trace tf`), whose operations are among the spans.

    It lasted for the first `steps` steps of a trial, from `began` to `ended`: seconds since this rank began its loop.
    within: error of its times on the clock of the rank, seconds; drift: by how much the clocks moved meanwhile.
    events: in the trace; rows: of operations, made of them; dropped: for which there was no room; outside: that lie
    outside of the trace's begin and end. reported_bytes: of `batches` batches, as TensorFlow says; delivered_bytes: of
    the steps, as the trainer got them. derived_from: where reads have their bytes from: 'spans', 'counters' or ''.
    """

    trial: int
    steps: int
    began: float
    ended: float
    within: float
    drift: float
    events: int
    rows: int
    dropped: int
    outside: int
    batches: int
    reported_bytes: int
    delivered_bytes: int
    derived_from: str


class About(Struct, frozen=True):
    """What the columns refer to. files: the dataset's names by number; lost: spans that found no room, by rank.

    unfinished: how far the run had come, a sentence each, where it did not come to its end.
    """

    schema: str
    ranks: Count
    tracks: Sequence[Track]
    components: Sequence[Kind]
    files: Mapping[Count, str]
    clocks: Mapping[str, Clock]
    lost: Mapping[Count, Count]
    tensorflow: Mapping[Count, RuntimeTrace] = {}
    unfinished: Sequence[str] = ()


class Timeline(Struct, frozen=True):
    """Spans in columns [spans]; start and end in seconds since rank 0 began its loop in that trial, on rank 0's clock.

    track, component: index into tracks and components; epoch: as in plans (`~e` is the validation pass after epoch e),
    or NO_EPOCH; trial: as in the result, warm-up included; file: see files; file, offset and step are -1 where there is
    none. problems: what is wrong with the file, a sentence each; damaged: whether that is more than missing
    room for spans and names of another version.
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
    tensorflow: Mapping[int, RuntimeTrace] = field(default_factory=dict)  # by rank
    problems: Sequence[str] = ()
    damaged: bool = False

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

    def are_of(self, *names: str) -> Column:
        """Which spans are of components of these names, bool [spans]."""
        codes = [code for code, component in enumerate(self.components) if component.name in names]
        return np.isin(self.component, codes)


def xplane_name(rank: int) -> str:
    """The file that TensorFlow itself has left of a rank's trace (`--trace xplane`), beside the spans."""
    return f"rank-{rank}.xplane.pb"


def load(path: Path) -> Timeline:
    """The spans beside a result, from its folder or the file itself.

    UsageError where there are none, EnvironmentFailure where they cannot be read, DataError where the file is cut short
    or is none. What can be read around is told in `problems`.
    """
    file = path / SPANS_NAME if path.is_dir() else path
    try:
        with file.open("rb") as content, np.load(content, allow_pickle=False) as archive:
            about = msgspec.json.decode(archive[ABOUT].tobytes(), type=About)
            columns = {name: archive[name] for name in COLUMNS}
    except FileNotFoundError as error:
        raise UsageError(f"'{file}' does not exist: the run recorded no spans. {FIX}.") from error
    except PermissionError as error:
        raise EnvironmentFailure(f"'{file}' could not be read: {error.strerror}. {remedy(error)}.") from error
    except (*UNREADABLE, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is cut short, damaged, or something else"
        raise DataError(f"'{file}' is no whole file of spans: {reason}. {FIX}.") from error
    if about.schema != SCHEMA:
        raise DataError(f"'{file}' is of schema {about.schema!r}; this version reads '{SCHEMA}'. {FIX}.")
    wrong = [name for name, values in columns.items() if values.dtype != TYPES[name] or values.ndim != 1]
    if wrong or len({len(values) for values in columns.values()}) != 1:
        raise DataError(f"'{file}' is no whole file of spans (columns of other types or lengths). {FIX}.")
    return _check_columns(about, columns)


def spans_in(folder: Path) -> int:
    """How many spans are beside the results in the folder of a run. What numpy.load raises."""
    counts = []
    for path in folder.glob(f"*/{SPANS_NAME}"):
        with np.load(path, allow_pickle=False) as archive:
            counts.append(len(archive["component"]))
    return sum(counts)


def _check_columns(about: About, columns: Mapping[str, Column]) -> Timeline:
    """The timeline without spans that refer to nothing, which are told of."""
    damage, problems = [], list(about.unfinished)
    of_rank = np.array([0 <= track.rank < about.ranks for track in about.tracks], dtype=bool)
    known = (
        (columns["track"] >= 0) & (columns["track"] < len(about.tracks))
        & (columns["component"] >= 0) & (columns["component"] < len(about.components))
    )  # fmt: skip
    known[known] = of_rank[columns["track"][known]]
    if not known.all():
        damage.append(f"{int((~known).sum())} spans are of no rank, thread or component that the file knows")
    placed = np.abs(columns["start"]) < LONGEST
    placed &= np.abs(columns["end"]) < LONGEST
    if not placed.all():
        damage.append(f"{int((~placed).sum())} spans have times that no run has")
    kept = {name: values[known & placed] for name, values in columns.items()}
    backwards = kept["end"] < kept["start"]
    if backwards.any():
        damage.append(f"{int(backwards.sum())} spans end before they begin; they count as nothing")
    nameless = (kept["file"] >= 0) & ~np.isin(kept["file"], list(about.files))
    if nameless.any():
        damage.append(f"{int(nameless.sum())} spans are of files whose names are not known")
    with_spans = {about.tracks[track].rank for track in np.unique(kept["track"]).tolist()}
    if missing := about.ranks - len(with_spans):
        first = islice((rank for rank in range(about.ranks) if rank not in with_spans), MOST_RANKS_NAMED)
        more = ", ..." if missing > MOST_RANKS_NAMED else ""
        damage.append(f"ranks without a span: {', '.join(map(str, first))}{more}")
    ours = [part for part in about.components if part.name in BY_NAME]
    strange = {part.name for part in about.components if part not in ours and not _is_of_tensorflow(part)}
    if strange:
        problems.append(f"components that this version does not know: {', '.join(sorted(strange))}")
    changed = {part.name for part in ours if BY_NAME[part.name].kind != part.kind}
    if changed:
        problems.append(f"components that were of another kind when they were recorded: {', '.join(sorted(changed))}")
    problems += [f"rank {rank} had no room for {lost} spans" for rank, lost in about.lost.items()]
    return Timeline(
        **kept,
        ranks=about.ranks,
        tracks=about.tracks,
        components=[_component(part) for part in about.components],
        files=about.files,
        clocks=about.clocks,
        lost=about.lost,
        tensorflow={rank: trace for rank, trace in about.tensorflow.items() if rank < about.ranks},
        problems=[*damage, *problems],
        damaged=bool(damage),
    )


def _is_of_tensorflow(part: Kind) -> bool:
    return part.name.startswith(TENSORFLOW) and part.kind in KINDS


def _component(part: Kind) -> Component:
    if _is_of_tensorflow(part):
        operation = tensorflow_operations.BY_NAME.get(part.name)
        meaning = "an operation of TensorFlow's" if operation is None else operation.meaning
        return Component(part.name, cast(components.Kind, part.kind), meaning)
    kind: components.Kind = part.kind if part.kind in KINDS else "other"
    return BY_NAME.get(part.name, Component(part.name, kind, "not known to this version"))


def spans(timeline: Timeline, trial: int) -> Iterator[Span]:
    """The spans of a trial, for the study's accountings. Validation passes belong to the epoch before them."""
    of_trial = timeline.part(timeline.trial == trial)
    columns = (getattr(of_trial, name).tolist() for name in ("track", "component", "epoch", "start", "end"))
    for track, component, epoch, start, end in zip(*columns, strict=True):
        place, name = timeline.tracks[track], timeline.components[component].name
        number = BEFORE if epoch == NO_EPOCH else epoch if epoch >= 0 else ~epoch
        yield Span(number, place.rank, "run", name, start, end, end - start, place.process, place.thread)
