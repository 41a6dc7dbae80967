"""Whether the cache was cold or warm as requested, over all trials; by the same limits as a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.harness.commands.storage_bench.options import COLD
from dlio_bench.harness.storage.cache import LEAST_WARM, MOST_RESIDENT, Residency
from dlio_bench.units import format_percent

PAST = "reads pass the page cache (O_DIRECT)"


def attestation(
    mode: str, trials: Sequence[Mapping[str, Any]], *, direct: bool = False, stored: bool = False
) -> dict[str, Any]:
    """{"attested", "found"}: proven or not, and what was seen. `trials` as of `rank.measure`."""
    if stored:
        return _attest_store(trials)
    if mode == COLD and direct:
        return _direct(trials)
    shares = [trial["resident_share"] for trial in trials]
    if any(trial["memory_backed"] for trial in trials):
        # in memory whatever the kernel says of its pages
        return _attestation(mode != COLD, "the files lie in memory (tmpfs): they are always warm")
    if hidden := [trial for trial in trials if not trial["attestable"]]:
        done = "dropped" if mode == COLD else "read"
        return _attestation(False, f"{done} before each trial, but not attestable: {hidden[0]['note']}")
    if mode == COLD:
        worst = max(shares)
        left = format_percent(worst, 2)
        finding = f"page cache dropped before each trial, at most {left} of the files left in it (mincore)"
        return _attestation(worst <= MOST_RESIDENT, finding)
    least = min(shares)
    finding = f"files read before each trial, at least {format_percent(least, 2)} of them in the page cache (mincore)"
    return _attestation(least >= LEAST_WARM, finding)


def _direct(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Direct reads pass the page cache, so that the device delivers, and counts, what they bring."""
    if hidden := [trial for trial in trials if not trial["attestable"]]:
        return _attestation(False, f"{PAST}, but not attestable: {hidden[0]['note']}")
    known = [trial["device_bytes"] / trial["bytes"] for trial in trials if trial["device_bytes"] is not None]
    if not known:
        return _attestation(True, f"{PAST}; what the device delivered is not known")
    least = min(known)
    finding = f"{PAST}: the device delivered at least {format_percent(least, 1)} of the bytes of a trial"
    return _attestation(least >= 1 - MOST_RESIDENT, finding)


def _attest_store(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Objects are in no page cache of this machine, so that the store delivers, and counts, what is requested."""
    least, retries = min(trial["device_bytes"] / trial["bytes"] for trial in trials), sum(t["retries"] for t in trials)
    finding = (
        f"an object store has no page cache on this machine: it delivered at least {format_percent(least, 1)} of the "
        f"bytes of a trial; caches of its own cannot be seen; {retries} requests made again after a failure"
    )
    return _attestation(least >= 1 - MOST_RESIDENT, finding)


def caches(mode: str, by_rank: Sequence[tuple[str, Residency]]) -> dict[str, Any]:
    """What the caches held of the files before a trial, as in the documents of `storage` and `checkpoint`.

    resident_share: see `furthest_share`, and by_rank.
    """
    parts = [part for _, part in by_rank]
    return {
        "resident_share": furthest_share(mode, by_rank),
        "attestable": all(part.attestable for part in parts),
        "memory_backed": any(part.memory_backed for part in parts),
        "note": next((part.note for part in parts if part.note), None),
    }


def furthest_share(mode: str, by_rank: Sequence[tuple[str, Residency]]) -> float:
    """The share of the files that is in the page cache of the host where it is furthest from `mode`.

    by_rank: each rank's host, and its part of the files as that host caches them.
    """
    by_host: dict[str, list[Residency]] = {}
    for host, part in by_rank:
        by_host.setdefault(host, []).append(part)
    shares = [
        sum(part.resident_bytes for part in parts) / sum(part.bytes for part in parts) for parts in by_host.values()
    ]
    return max(shares) if mode == COLD else min(shares)


def _attestation(attested: bool, finding: str) -> dict[str, Any]:
    return {"attested": attested, "found": finding}
