"""Where the bytes of each epoch came from, so that no one takes a cache for the storage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dlio_bench.reports import tables, words

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Transfer:
    """Bytes of one epoch, medians over the trials; None where nobody could count.

    `requested` of the dataset's file system; `storage`: what its device, or the emulated PFS, delivered (read-ahead
    included); `cached`: what a cache served, at least; `ram`, `local`: read from the node's tiers in memory and on
    node-local storage; `remote`: received from other ranks. `misses`: samples that other ranks were to send, and did
    not.
    """

    epoch: int
    requested: float
    storage: float | None
    cached: float | None
    ram: float
    local: float
    remote: float
    misses: float = 0.0


def by_epoch(result: Result) -> list[Transfer]:
    """The transfers of every epoch of a result."""
    trials = words.trials(result)
    return [
        _transfer(number, [trial["epochs"][number] for trial in trials]) for number in range(len(trials[0]["epochs"]))
    ]


def _transfer(number: int, epochs: Sequence[Mapping[str, Any]]) -> Transfer:
    requested = float(median(epoch["bytes_requested"] for epoch in epochs))
    storage = _median(epochs, "bytes_device")
    cached = _median(epochs, "bytes_client_cache")  # counted by the emulation; else what the device did not deliver
    if cached is None and storage is not None:
        cached = max(0.0, requested - storage)
    return Transfer(
        number,
        requested,
        storage,
        cached,
        *(_median(epochs, name) or 0.0 for name in ("bytes_ram", "bytes_local", "bytes_remote", "remote_misses")),
    )


def _median(epochs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [epoch.get(name) for epoch in epochs]
    known = [float(value) for value in values if value is not None]
    return median(known) if len(known) == len(values) else None


def rows(results: Sequence[Result]) -> list[tuple[str, str, Transfer]]:
    """(label of the result, epochs, transfer), epochs of equal figures folded into one row: '2-5'."""
    found: list[tuple[str, str, Transfer]] = []
    for label, result in zip(tables.labels(results), results, strict=True):
        folded: list[list[Transfer]] = []
        for transfer in by_epoch(result):
            if folded and _alike(folded[-1][-1], transfer):
                folded[-1].append(transfer)
            else:
                folded.append([transfer])
        for group in folded:
            first, last = group[0].epoch + 1, group[-1].epoch + 1
            found.append((label, str(first) if first == last else f"{first}-{last}", group[0]))
    return found


def _alike(one: Transfer, other: Transfer) -> bool:
    """Whether two epochs read the same to three digits."""
    return _shown(one) == _shown(other)


def _shown(transfer: Transfer) -> tuple[str, ...]:
    values = (transfer.requested, transfer.storage, transfer.cached, transfer.ram, transfer.local, transfer.remote)
    return (*(words.size(value) for value in values), f"{transfer.misses:.0f}")
