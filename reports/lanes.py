"""Which spans of a thread can be drawn in one row: those that lie inside each other, or beside each other."""

import numpy as np

from dlio_bench.reports.timeline import Column


def lanes(start: Column, end: Column, encloses: Column) -> Column:
    """The row of each span, from 0, int64 [spans]. No span ends before it begins.

    Two spans of a row do not overlap, unless one lies inside the other. A row further down is used where no row above
    has room. encloses: bool [spans], which is outside where two take the very same time.
    """
    rows = np.zeros(len(start), dtype=np.int64)
    open_until: list[list[float]] = []  # of each row, the ends of the spans that are under way, outermost first
    order = np.lexsort((~encloses, -end, start))
    for at, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        while True:
            if rows[at] == len(open_until):
                open_until.append([])
            under_way = open_until[rows[at]]
            while under_way and under_way[-1] <= begins:
                under_way.pop()
            if not under_way or ends <= under_way[-1]:
                break
            rows[at] += 1
        under_way.append(ends)
    return rows
