"""How many bytes a second spans move, over time."""

import numpy as np

from dlio_bench.reports.timeline import Column, Timeline

BRIEFEST = 1e-6  # seconds that a span takes at least: one that took none has no rate


def rates(spans: Timeline, edges: Column) -> Column:
    """Bytes a second between edges [points + 1], float [points]. A span's bytes are spread evenly over its time."""
    lasted = np.maximum(spans.end - spans.start, BRIEFEST)
    slopes = spans.bytes / lasted
    moments = np.concatenate([spans.start, spans.start + lasted])
    order = np.argsort(moments, kind="stable")
    moments, slope = moments[order], np.cumsum(np.concatenate([slopes, -slopes])[order])
    moved = np.concatenate([[0.0], np.cumsum(np.diff(moments) * slope[:-1])])
    by_edge: Column = np.interp(edges, moments, moved)
    per_second: Column = np.diff(by_edge) / np.diff(edges)
    return per_second
