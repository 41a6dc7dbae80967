"""Whether the trainer alone or threads beside it read faster, where it is not known beforehand: both have a turn."""

TURN = 8  # steps that a turn counts
SETTLE = 3  # of the threads' turn, before it counts: they begin with all slots empty
# Steps after the trainer's turn until both have one again: others on the machine come and go. A turn that threads lose
# costs about fifteen steps, with the slots that they have filled.
AGAIN = 4096


class Race:
    """Told of every step, it says who reads the next: at first the trainer alone, then threads, then the faster."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: both have a turn again."""
        self._alone, self._threads = _Pace(), _Pace()
        self._steps = 0  # since the trainer's turn was over

    def alone(self, size: int, seconds: float, *, own: bool) -> bool:
        """Whether the trainer reads alone from now on, after a step of `size` bytes that took `seconds`.

        own: the trainer has read all of that step. (After a change of turns, some is there that threads have read.)
        """
        if self._alone.steps < TURN:
            if own:
                self._alone.add(size, seconds)
            return self._alone.steps < TURN
        self._steps += 1
        if self._threads.steps < TURN:
            if self._steps > SETTLE:
                self._threads.add(size, seconds)
        elif self._steps > AGAIN:
            self.restart()
            return True
        return self._threads.steps == TURN and self._alone.rate >= self._threads.rate


class _Pace:
    """Bytes and seconds of a turn."""

    def __init__(self) -> None:
        self.steps, self._bytes, self._seconds = 0, 0, 0.0

    def add(self, size: int, seconds: float) -> None:
        """One step more."""
        self.steps, self._bytes, self._seconds = self.steps + 1, self._bytes + size, self._seconds + seconds

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self._bytes / max(self._seconds, 1e-9)
