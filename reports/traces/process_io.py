"""What a command and its descendants read and wrote, by counters of the kernel. Pure functions."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.traces.access_pattern import limits, traffic
from dlio_bench.reports.traces.tables import as_text
from dlio_bench.reports.view.formatting import NOTHING, format_time
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

UNKNOWN = "Sizes of single accesses, offsets, opens and the time of I/O are not known."
COUNTED = (
    "Counted are the command and every descendant that its parent waited for: calls of read and write and the like, on "
    "pipes, sockets and terminals too, and what starts the programs. Pages of mapped files count at the device alone."
)


class ProcessIo(Struct, frozen=True):
    """Lines of /proc/PID/io (proc_pid_io(5)). rchar, wchar: bytes through calls, syscr, syscw of them; read_bytes,
    write_bytes: bytes from and to devices, of which cancelled_write_bytes were never written.
    """

    rchar: int
    wchar: int
    syscr: int
    syscw: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int


class Counted(Struct, frozen=True):
    """A command that has ended. status: its exit status, or minus the number of the signal that ended it; seconds: from
    its start to its end; left: whether descendants outlived it, which are not counted.
    """

    command: Sequence[str]
    status: int
    seconds: float
    io: ProcessIo
    left: bool


def parse(text: str) -> ProcessIo:
    """The text of a /proc/PID/io. ValueError."""
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return ProcessIo(**{line.name: int(lines[line.name]) for line in fields(ProcessIo)})
    except KeyError as error:
        raise ValueError(f"no line {error}") from None


def io_between(before: str, after: str) -> ProcessIo:
    """What others than the reader of two texts of its own /proc/self/io did between them, its reaped children that is.

    The reader has read the first text by one call between them.
    """
    first, last = parse(before), parse(after)
    spent = {line.name: getattr(last, line.name) - getattr(first, line.name) for line in fields(ProcessIo)}
    return ProcessIo(**spent | {"rchar": spent["rchar"] - len(before), "syscr": spent["syscr"] - 1})


def document(of: Counted) -> dict[str, Any]:
    """As JSON."""
    io = of.io
    return {
        **to_json(of),
        "command": list(of.command),
        "traffic": traffic(io.rchar, io.wchar),
        "mean_read_bytes": io.rchar / io.syscr if io.syscr else None,
        "mean_write_bytes": io.wchar / io.syscw if io.syscw else None,
        "not_known": ["sizes", "offsets", "opens", "seconds of I/O"],
    }


def render(of: Counted) -> str:
    """At most 80 columns, long commands excepted."""
    return as_text(_lines(of))


def _lines(of: Counted) -> Iterator[str]:
    io = of.io
    yield f"I/O pattern: {traffic(io.rchar, io.wchar)}"
    ended = f"exit status {of.status}" if of.status >= 0 else f"ended by signal {-of.status}"
    yield f"  {printable(shlex.join(of.command))}"
    yield f"  {ended}, after {format_time(of.seconds)}"
    yield ""
    rows = (
        ("calls", f"{io.syscr:,}", f"{io.syscw:,}"),
        ("bytes", format_bytes(io.rchar), format_bytes(io.wchar)),
        ("mean size", _mean(io.rchar, io.syscr), _mean(io.wchar, io.syscw)),
        ("at the device", format_bytes(io.read_bytes), format_bytes(io.write_bytes)),
    )
    yield from table_lines(["", "reads", "writes"], rows)
    yield ""
    yield from wrap(UNKNOWN, "  ")
    yield from wrap(COUNTED, "  ")
    if of.left:
        yield from wrap("Some descendants still run. They are not counted.", "  ")
    if io.cancelled_write_bytes:
        yield from wrap(
            f"{format_bytes(io.cancelled_write_bytes)} of what was to be written at the device were not, as the files "
            "were removed or cut.",
            "  ",
        )
    yield from limits(metadata=False)


def _mean(count: int, calls: int) -> str:
    return format_bytes(count / calls) if calls else NOTHING
