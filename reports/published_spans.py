"""A run as TimeLogger's records: the spans that the NERSC study has a name for, and the reads of our readers."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from dlio_bench.components import BY_NAME, COMPONENTS
from dlio_bench.reports.accounting import ITERATION
from dlio_bench.reports.io_accounts import READING
from dlio_bench.reports.spans import Span
from dlio_bench.reports.timeline import TRAINER, Timeline, spans
from dlio_bench.reports.trainer_spans import VALIDATION

MAIN = "<_MainThread(MainThread)>"  # as Python writes the thread that a program begins with


def published(timeline: Timeline, trial: int) -> Timeline:
    """The spans of a trial whose components have a published name. trial: its number.

    Where none of these is the study's for reading, the reads of our readers are in, by our names.
    """
    of_trial = with_passes(timeline.part(timeline.trial == trial))
    chosen = {component.name for component in COMPONENTS if component.published}
    if not of_trial.of(*READING.values()).any():
        chosen |= {component.name for component in COMPONENTS if component.kind == "read"}
    return of_trial.part(of_trial.of(*chosen))


def with_passes(timeline: Timeline) -> Timeline:
    """The spans with each validation pass as a part of the step before it, whose end moves to that of the pass.

    So it is in the study: the 'Training Iteration' of a step that ends an epoch encloses the pass behind it. On 64
    nodes HEPCNNB's Read, Load and Training (2534.06 s) are its whole loop (2534.2 s), and CDB's Training is the sum of
    its whole epochs. A pass whose epoch has no recorded step on its thread is a 'Training Iteration' of its own.
    """
    is_step, is_pass = timeline.of(ITERATION), timeline.of(VALIDATION)
    epoch = np.where(timeline.epoch < 0, ~timeline.epoch, timeline.epoch)
    chosen = np.flatnonzero(is_step | is_pass)
    keys = (is_pass, timeline.start, epoch, timeline.track, timeline.trial)
    order = chosen[np.lexsort([key[chosen] for key in keys])]
    last = np.maximum.accumulate(np.where(is_step[order], np.arange(len(order)), -1))  # the last step begun
    passes = np.flatnonzero(is_pass[order] & (last >= 0))
    step, behind = order[last[passes]], order[passes]
    alike = epoch[step] == epoch[behind]
    for of in (timeline.track, timeline.trial):
        alike &= of[step] == of[behind]
    end, component = timeline.end.copy(), timeline.component.copy()
    np.maximum.at(end, step[alike], timeline.end[behind[alike]])
    component[is_pass] = len(timeline.components)
    enclosed = np.zeros(len(timeline), dtype=bool)
    enclosed[behind[alike]] = True
    components = [*timeline.components, BY_NAME[ITERATION]]
    return replace(timeline, end=end, component=component, components=components).part(~enclosed)


def as_recorded(timeline: Timeline, trial: int) -> Iterator[Span]:
    """The same as TimeLogger's spans, with threads as Python writes them. A quote would end the study's records."""
    for span in spans(timeline, trial):
        name = span.thread.replace("'", " ")
        yield replace(span, thread=MAIN if name == TRAINER else f"<Thread({name})>")
