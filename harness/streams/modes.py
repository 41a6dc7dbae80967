"""How steps of a stream are distributed over trainers: the table of modes.

"Distribution modes: all, round robin, on demand; future: random shuffle" (A. Gainaru, WANT workshop at NeurIPS 2023).
"""

from msgspec import Struct

from dlio_bench.errors import unknown

ALL, ROUND_ROBIN, ON_DEMAND, PLANNED = "all", "round-robin", "on-demand", "planned"


class Mode(Struct, frozen=True):
    """One row. shared: a producer has one stream, which all trainers read; else it has one for each trainer.

    distribution: StepDistributionMode of ADIOS2's SST. known: whether the plan says which trainer gets which batch.
    """

    name: str
    meaning: str
    distribution: str = "AllToAll"
    shared: bool = False
    known: bool = True


_MODES = (
    Mode(ALL, "every trainer gets every batch, and uses those that its plan has", shared=True),
    Mode(ROUND_ROBIN, "ADIOS2 deals the batches of a step to the trainers in turn", "RoundRobin", shared=True),
    Mode(ON_DEMAND, "a trainer gets the next batch when it asks for one, so that fast ones get more", known=False),
    Mode(PLANNED, "random shuffle: a trainer gets the batches that the plan has for it, from all producers in turn"),
)

MODES: dict[str, Mode] = {mode.name: mode for mode in _MODES}


def find(name: str) -> Mode:
    """The row of a name. UsageError."""
    if name not in MODES:
        raise unknown("--stream", name, list(MODES))
    return MODES[name]
