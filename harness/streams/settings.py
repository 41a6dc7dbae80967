"""What a run has its streams set to."""

from msgspec import Struct

from dlio_bench.harness.streams import modes
from dlio_bench.harness.streams.adios import SST

QUEUE = 4  # steps that a stream holds for its readers, where nobody says
BLOCK, DISCARD = "block", "discard"
FULL = (BLOCK, DISCARD)


class Streaming(Struct, frozen=True):
    """Streams of a job. producers: ranks that publish, beyond those that train; 0: each trainer's process has its own.

    queue: most steps that a stream holds. full: what a producer does then. timeout: seconds that one side of a stream
    waits for the other.
    """

    mode: str = modes.PLANNED
    producers: int = 1
    engine: str = SST
    queue: int = QUEUE
    full: str = BLOCK
    timeout: float = 600.0

    @property
    def inline(self) -> bool:
        """Whether a thread of the trainer's process is the producer."""
        return self.producers == 0

    def steps_held(self, mode: modes.Mode, trainers: int) -> int:
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
    def how(self) -> modes.Mode:
        """The row of its mode."""
        return modes.find(self.mode)
