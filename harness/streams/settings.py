"""What a run has its streams set to, and the table of ways in which their steps are dealt to trainers."""

from msgspec import Struct

from dlio_bench.errors import unknown
from dlio_bench.harness.streams.adios import SST, WAN

# How steps of a stream are distributed over trainers: the table of modes.
#
# "Distribution modes: all, round robin, on demand; future: random shuffle" (A. Gainaru, WANT workshop at NeurIPS 2023).

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


QUEUE = 4  # steps that a stream holds for its readers, where nobody says
BLOCK, DISCARD = "block", "discard"
FULL = (BLOCK, DISCARD)


class Streaming(Struct, frozen=True):
    """Streams of a job. producers: ranks that publish, beyond those that train; 0: each trainer's process has its own.

    queue: most steps that a stream holds. full: what a producer does then. timeout: seconds that one side of a stream
    waits for the other. transport: of the data, with SST.
    """

    mode: str = PLANNED
    producers: int = 1
    engine: str = SST
    queue: int = QUEUE
    full: str = BLOCK
    timeout: float = 600.0
    transport: str = WAN

    @property
    def inline(self) -> bool:
        """Whether a thread of the trainer's process is the producer."""
        return self.producers == 0

    def steps_held(self, mode: Mode, trainers: int) -> int:
        """Most steps that a stream holds. One with several readers has room for a step of each, or it would block."""
        return max(self.queue, trainers + 1) if mode.shared else self.queue

    def queue_in_force(self, trainers: int) -> int | None:
        """Most steps that a stream holds: one with several readers has room for each. None: files hold all steps."""
        if self.inline:
            return self.queue
        if self.engine != SST:
            return None
        return self.steps_held(self.how, trainers)

    def streams(self, trainers: int) -> int:
        """How many streams a producer has at a time."""
        return 1 if self.inline or self.how.shared else trainers

    @property
    def how(self) -> Mode:
        """The row of its mode."""
        return find(self.mode)
