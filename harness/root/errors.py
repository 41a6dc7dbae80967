"""What a user can cause: the errors, what each says, and refusals of values with what was meant and what is allowed."""

import difflib
import errno
from collections.abc import Collection, Mapping, Sequence


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
    """The loss of a training is no longer a number: the training cannot continue, and its measurements are void."""


class Stalled(EnvironmentFailure):
    """A rank waited too long for others, of which one has died or stands still. The stacks of the threads tell more."""


class StreamLost(EnvironmentFailure):
    """The other side of a stream has ended before the stream did."""


class StreamTimeout(EnvironmentFailure):
    """The other side of a stream did not come, or did not send, in time."""


class OutOfTime(EnvironmentFailure):
    """The job that the command runs in ends too soon for what is left to do."""


class JobEnded(EnvironmentFailure):
    """The job that the command runs in was ended. Whoever knows the command that goes on adds it to the message."""


_REMEDIES = {
    errno.EACCES: "Give this user the permission, on every node",
    errno.EPERM: "Give this user the permission, on every node",
    errno.EMFILE: "Allow a process more open files (ulimit -n), or use fewer --threads",
    errno.ENFILE: "The machine has too many files open (sysctl fs.file-max): end what else runs there",
    errno.EIO: "The storage failed: look at the logs of the kernel (dmesg) and of the file system, then run again",
    errno.ESTALE: "The file system's server no longer knows it: mount the file system again, then run again",
    errno.ENOTCONN: "The daemon of this FUSE mount is dead: unmount it (fusermount3 -u) and mount it, then run again",
    errno.ENOSPC: "Free space there, or choose another folder",
    errno.EDQUOT: "Free space within your quota, or choose another folder",
    errno.EROFS: "Choose a folder on a file system that can be written",
    errno.ENOMEM: "Ask for less memory: fewer ranks, a smaller --batch or --staging",
}


def remedy(error: OSError) -> str:
    """What a user can do about a failed system call: a sentence without its full stop."""
    return _REMEDIES.get(error.errno or 0, "Look at the file system and its logs, then run again")


def out_of_memory(error: MemoryError, where: str, smaller: str) -> EnvironmentFailure:
    """The error when memory runs out. smaller: the options that need less memory."""
    return EnvironmentFailure(
        f"Memory ran out {where}: {str(error).rstrip('.') or 'Python does not say for what'}. Less is needed with "
        f"{smaller}."
    )


ERRORS: dict[int, type[BenchError]] = {kind.status: kind for kind in (UsageError, EnvironmentFailure, DataError)}


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    """The error for a name that is not `known`. what: an option ('--fill') or a noun ('workload')."""
    opening = f"{what} '{name}' is not known" if what.startswith("-") else f"There is no {what} '{name}'"
    return UsageError(f"{opening}.{did_you_mean(name, known)} Use {one_of([*known])}.")


def refuse(options: Mapping[str, object], why: str) -> None:
    """UsageError, '--option' and `why`, for the first of these options that is given."""
    if given := next((option for option, value in options.items() if value), None):
        raise UsageError(f"{given}{why}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question that starts with a blank, or nothing if no known name is similar. Ignores case."""
    nearest = difflib.get_close_matches(name.lower(), {word.lower(): word for word in known}, n=1)
    return next((f" Did you mean '{word}'?" for word in known if word.lower() in nearest), "")


def one_of(words: Sequence[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def require_at_least(lowest: int, **values: float | None) -> None:
    """UsageError for an option below `lowest`; by keyword: ranks_per_node is --ranks-per-node. None: not given."""
    for name, value in values.items():
        if value is not None and value < lowest:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {value} is too small: it must be at least {lowest}.")
