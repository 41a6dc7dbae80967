"""Why one reader is faster than another: what the numbers of both results show, and nothing else."""

from collections.abc import Iterator

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.metrics import METRICS, PHASES
from dlio_bench.reports.view.formatting import format_share, format_time
from dlio_bench.units import format_bytes

MOST = 0.5
"""A cause has to make up at least this part of the time that is saved."""
CLEARLY_LESS = 0.95
"""Bytes and CPU time above this part of the other reader's are taken for the same."""
WORTH_NAMING = 0.1
"""Of the bytes requested: what caches served more than this is worth a clause."""
HARDLY_WAITING = 0.05
"""Readers that wait less than this part of their time leave nothing that a better one could save."""
SERVED = ("bytes_ram", "bytes_local", "bytes_remote")


def why_faster(slow: Result, fast: Result) -> str:
    """Clauses on `fast` that explain its shorter elapsed time, with semicolons; '' where the numbers show no cause.

    Waiting explains it where the stall (stall share x elapsed) shrinks by at least half of the time saved. Then bytes
    that were not requested of the file system, and bytes that caches served, are named too. Else CPU time is named, if
    the slow reader was bound by it, or else the phase of the step that shrinks as much.
    """
    saved = slow.value("elapsed_seconds") - fast.value("elapsed_seconds")
    if saved <= 0:
        return ""
    if _stall(slow) - _stall(fast) >= MOST * saved:
        return "; ".join((*_bytes(slow, fast), *_cache_reason(slow, fast), _waiting(slow, fast)))
    return _cpu(slow, fast) or _phase(slow, fast, saved)


def why_equal(one: Result, other: Result) -> str:
    """Why two readers may take the same time: neither waits for data; '' where one does."""
    most = max(one.value("stall_share"), other.value("stall_share"))
    return f"both wait for data at most {format_share(most)} of the time" if most < HARDLY_WAITING else ""


def _stall(result: Result) -> float:
    return result.value("stall_share") * result.value("elapsed_seconds")


def _bytes(slow: Result, fast: Result) -> Iterator[str]:
    before, after = slow.value("bytes_requested"), fast.value("bytes_requested")
    if after > CLEARLY_LESS * before:
        return
    amount = f"{format_bytes(before - after)} of {format_bytes(before)} from the file system"
    placed = fast.policy.placement != slow.policy.placement and any(fast.metrics[name].value for name in SERVED)
    yield f"its placement saves {amount}" if placed else f"it reads less, by {amount}"


def _cache_reason(slow: Result, fast: Result) -> Iterator[str]:
    """Bytes that caches on the way served to both, where the fast reader had more of them; at least."""
    before, after = (_from_caches(result) for result in (slow, fast))
    if before is None or after is None or after - before < WORTH_NAMING * fast.value("bytes_requested"):
        return
    yield f"caches served {format_bytes(after)} of its bytes, and {format_bytes(before)} of the other's"


def _from_caches(result: Result) -> float | None:
    device, counted = result.metrics["bytes_device"].value, result.metrics["bytes_client_cache"].value
    if counted is not None or device is None:
        return counted
    return max(0.0, result.value("bytes_requested") - device)


def _waiting(slow: Result, fast: Result) -> str:
    ahead = fast.policy.delivery == "ahead" != slow.policy.delivery
    waits = f"waits {format_time(_stall(fast))} for data, not {format_time(_stall(slow))}"
    return f"it reads ahead and {waits}" if ahead else f"it {waits}"


def _cpu(slow: Result, fast: Result) -> str:
    before, after = _cpu_seconds(slow), _cpu_seconds(fast)
    if slow.bound.by != "CPU" or before is None or after is None or after > CLEARLY_LESS * before:
        return ""
    return f"it takes {format_time(after)} of CPU time, not {format_time(before)}"


def _cpu_seconds(result: Result) -> float | None:
    """Mean CPU time of a trial, all ranks together."""
    known = [trial.cpu_seconds for trial in result.measured_trials if trial.cpu_seconds is not None]
    return sum(known) / len(known) if len(known) == len(result.measured_trials) else None


def _phase(slow: Result, fast: Result, saved: float) -> str:
    shrunk = {name: _seconds(slow, name) - _seconds(fast, name) for name in PHASES if name != "stall"}
    name = max(shrunk, key=lambda phase: shrunk[phase])
    if shrunk[name] < MOST * saved:
        return ""
    title = METRICS[f"share_{name}"].title
    return f"its ranks take {format_time(_seconds(fast, name))} for {title}, not {format_time(_seconds(slow, name))}"


def _seconds(result: Result, phase: str) -> float:
    """Seconds of a rank in a phase of a trial's steps, mean of the ranks."""
    return (result.metrics[f"share_{phase}"].value or 0.0) * result.value("elapsed_seconds")
