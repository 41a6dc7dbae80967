"""Files of spans that tests make by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dlio_bench.components import COMPONENTS
from dlio_bench.harness.commands.run.measured.documents import add_array, archive_of
from dlio_bench.recorder import NO_EPOCH
from dlio_bench.reports.traces import timeline
from dlio_bench.reports.traces.timeline import ABOUT, SCHEMA, SPANS_NAME, TYPES, About, Clock, Kind, Timeline, Track

KINDS = [Kind(component.name, component.kind) for component in COMPONENTS]
NUMBER = {component.name: number for number, component in enumerate(COMPONENTS)}
NONE = {"trial": 0, "epoch": NO_EPOCH, "step": -1, "file": -1, "bytes": 0, "offset": -1}
Row = Mapping[str, Any]


def row(track: int, component: str, start: float, end: float, **more: Any) -> Row:
    """A span. more: epoch, step, file, bytes, offset, trial."""
    return NONE | {"track": track, "component": NUMBER[component], "start": start, "end": end} | more


def about(tracks: Sequence[Track], **changes: Any) -> About:
    """What is said of the columns, with other values."""
    clocks = {track.host: Clock(0.0, 0.0) for track in tracks}
    ranks = max(track.rank for track in tracks) + 1
    whole = About(SCHEMA, ranks, tracks, KINDS, {0: "a.h5"}, clocks, {})
    return msgspec.structs.replace(whole, **changes)


def save(folder: Path, told: About | bytes, rows: Sequence[Row], **columns: Any) -> Path:
    """Write a file of spans, some of its columns replaced; returns its path."""
    arrays = {name: np.array([entry[name] for entry in rows], dtype=kind) for name, kind in TYPES.items()}
    text = np.frombuffer(told if isinstance(told, bytes) else msgspec.json.encode(told), dtype=np.uint8)
    with archive_of(folder / SPANS_NAME) as archive:
        for name, values in ({ABOUT: text} | arrays | columns).items():
            add_array(archive, name, values.dtype, values.shape, [values])
    return folder / SPANS_NAME


def loaded(folder: Path, tracks: Sequence[Track], rows: Sequence[Row], **changes: Any) -> Timeline:
    """The same, written and read."""
    return timeline.load(save(folder, about(tracks, **changes), rows))
