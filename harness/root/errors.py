"""The failures a user can act on. Each message is one paragraph: the thing, its value, the fix.

The command line prints the message (never a traceback) and exits with the status:
2 usage, 4 launch or environment failure, 5 data verification failed. (1, limit missed,
and 3, INVALID, are verdicts on a finished run and not errors.)
"""


class BenchError(Exception):
    """Base of every failure that is reported by message and exit status alone."""

    status = 4


class UsageError(BenchError):
    """The command line, or a file the user wrote, asks for something that cannot be."""

    status = 2


class EnvironmentFailure(BenchError):
    """The machine, the launcher, the file system or a rank failed."""

    status = 4


class DataError(BenchError):
    """A dataset's bytes are not what its manifest says."""

    status = 5


class Diverged(EnvironmentFailure):
    """A training whose loss is no longer a number: it cannot go on, and what it measured is not to be used.

    Its status is that of any run that did not come to its end.
    """


class Stalled(EnvironmentFailure):
    """A rank waited too long for others, one of which has died or stands still: where the threads stand tells more."""


ERRORS: dict[int, type[BenchError]] = {kind.status: kind for kind in (UsageError, EnvironmentFailure, DataError)}


def no_memory(who: str, error: MemoryError) -> str:
    """The paragraph for a process that found no memory."""
    return (
        f"{who} found no memory ({error or 'nobody said for what'}). Fewer ranks on a machine, a smaller --batch or a "
        "smaller --staging need less."
    )
