"""What a process did, and when: the spans of a log."""

from msgspec import Struct

BEFORE = -1  # the epoch of what belongs to none


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
