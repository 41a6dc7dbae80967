"""What TimeLogger would have recorded of a run: the spans that the NERSC study has a name for."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dlio_bench.reports.spans import Span
from dlio_bench.reports.timeline import TRAINER, Timeline, spans

MAIN = "<_MainThread(MainThread)>"  # as Python writes the thread that a program begins with


def published(timeline: Timeline, trial: int) -> Timeline:
    """The spans of a trial whose components have a published name. trial: its number."""
    known = np.array([component.published for component in timeline.components], dtype=bool)
    return timeline.part((timeline.trial == trial) & known[timeline.component])


def as_recorded(timeline: Timeline, trial: int) -> Iterator[Span]:
    """The same as TimeLogger's spans, with threads as Python writes them. A quote would end the study's records."""
    for span in spans(timeline, trial):
        name = span.thread.replace("'", " ")
        yield replace(span, thread=MAIN if name == TRAINER else f"<Thread({name})>")
