"""How a run accessed files, from its spans: its dataset, and what it keeps of it on the node. Pure functions."""

import numpy as np
import numpy.typing as npt

from dlio_bench.reports.traces.access_pattern import (
    CLOSE,
    OPEN,
    OTHER,
    READ,
    WRITE,
    Accesses,
    Pattern,
    pattern,
    with_notes,
)
from dlio_bench.reports.traces.timeline import TENSORFLOW, Timeline
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

# Components of the node's copies and tiers. All other reads are of the dataset's files.
NODE_READS, NODE_WRITES = ("copy read", "tier read"), ("stage write", "tier write")
CHECKPOINTS = ("Checkpoint Listener", "checkpoint write", "checkpoint sync")  # files of their own
UNPLACED = ("records",)  # have the bytes of reads, although nobody knows of which files, and how long these took
METADATA = {"open": OPEN, "close": CLOSE}

Mask = npt.NDArray[np.bool_]


def patterns_of(timeline: Timeline, trial: int) -> tuple[Pattern, Pattern | None]:
    """The patterns of a trial: of the dataset's files, and of copies and tiers on the nodes, None where there are none.

    trial: as in the result. Every call of the kernel that our readers make is an access; what a library reads has no
    offset, and its calls are not ours to see.
    """
    spans = timeline.part(timeline.trial == trial)
    is_node_read, is_node_write = spans.are_of(*NODE_READS), spans.are_of(*NODE_WRITES)
    is_read = _of_kind(spans, "read") & ~is_node_read & (spans.file >= 0)
    is_read |= spans.are_of(*UNPLACED)
    is_metadata = _of_kind(spans, "metadata") & (spans.file >= 0)
    of_copy = is_metadata & _of_copies(spans, spans.are_of("copy read"), spans.are_of("stage read"))
    dataset = _pattern(spans, is_read, np.zeros_like(is_read), is_metadata & ~of_copy)
    hidden = is_read & (spans.offset < 0)
    if hidden.any():
        dataset = with_notes(dataset, _hidden_reads_note(int(hidden.sum()), int(spans.bytes[hidden].sum())))
    if not is_read.any() and not is_node_read.any():
        dataset = with_notes(dataset, "No read of this trial left a span: what its reader reads is not ours to see.")
    if spans.are_of(*UNPLACED).any():
        dataset = with_notes(dataset, "How long TensorFlow's own reads took is not known: they are in no time here.")
    lost = sum(timeline.lost.values())
    if lost:
        dataset = with_notes(dataset, f"{plural(lost, 'span')} found no room, so that accesses may be missing here.")
    if not (is_node_read | is_node_write).any():
        return dataset, None
    return dataset, _pattern(spans, is_node_read, is_node_write, of_copy)


def _pattern(spans: Timeline, is_read: Mask, is_write: Mask, is_metadata: Mask) -> Pattern:
    kinds = np.full(len(spans), OTHER)
    for name, kind in METADATA.items():
        kinds[spans.are_of(name)] = kind
    kinds[is_read], kinds[is_write] = READ, WRITE
    chosen = is_read | is_write | is_metadata
    ends = _without_metadata(spans, is_read | is_write, is_metadata)
    untimed = spans.are_of(*UNPLACED)
    ends[untimed] = spans.start[untimed]
    return pattern(
        Accesses(
            rank=spans.rank[chosen],
            file=spans.file[chosen],
            kind=kinds[chosen],
            offset=np.where(spans.file >= 0, spans.offset, -1)[chosen],  # of tiers: memory of many samples
            size=spans.bytes[chosen],
            start=spans.start[chosen],
            end=ends[chosen],
        ),
        ranks=spans.ranks,
    )


def _without_metadata(spans: Timeline, is_data: Mask, is_metadata: Mask) -> npt.NDArray[np.float64]:
    """When reads and writes would have ended without the opens and the like inside them, as of a file that a library
    opens: these count for themselves.
    """
    ends = spans.end.copy()
    order = np.lexsort((is_metadata, spans.start, spans.track))
    order = order[(is_data | is_metadata)[order]]
    last = np.maximum.accumulate(np.where(is_data[order], np.arange(len(order)), -1))  # the last read or write begun
    inner, outer = order[(last >= 0) & is_metadata[order]], order[last[(last >= 0) & is_metadata[order]]]
    nested = (spans.track[inner] == spans.track[outer]) & (spans.end[inner] <= spans.end[outer])
    np.subtract.at(ends, outer[nested], (spans.end - spans.start)[inner[nested]])
    return ends


def _of_kind(spans: Timeline, kind: str) -> Mask:
    """Which spans are of components of this kind; TensorFlow's own are inside ours."""
    names = [each.name for each in spans.components if each.kind == kind and not each.name.startswith(TENSORFLOW)]
    return spans.are_of(*names)


def _of_copies(spans: Timeline, is_copy_read: Mask, is_stage_read: Mask) -> Mask:
    """Which spans, if they are opens and the like, are of a file's copy: its rank reads the copy, and this thread does
    not make it.
    """
    by_rank, by_thread = _keys(spans.rank, spans.file), _keys(spans.track, spans.file)
    return np.isin(by_rank, by_rank[is_copy_read]) & ~np.isin(by_thread, by_thread[is_stage_read])


def _keys(owner: npt.NDArray[np.int64], file: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return owner.astype(np.int64) << 32 | (file.astype(np.int64) + 1)


def _hidden_reads_note(reads: int, size: int) -> str:
    return (
        f"{plural(reads, 'read')} of {format_bytes(size)} are a library's. Its opens and its calls of the kernel, with "
        "their sizes and offsets, are not known."
    )


def counter_note(requested: int, device: int | None) -> str:
    """What a trial's counters say of its bytes, spans or not. device: None: nobody could count them."""
    came = "an unknown amount" if device is None else format_bytes(device)
    return (
        f"The counters of the result: {format_bytes(requested)} requested; {came} from devices (/proc/PID/io, or the "
        "emulated PFS)."
    )
