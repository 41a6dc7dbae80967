"""All workloads, by name: each is a folder of that name."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import unknown


class _Workloads(Mapping[str, Workload]):
    """Workloads by name. The files of one load when it is asked for: HEPCNNB of hepcnnb/workload.py, and so on."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Workload:
        if name not in self._names:
            raise KeyError(name)
        workload: Workload = getattr(import_module(f"dlio_bench.benchmarks.{name}.workload"), name.upper())
        return workload

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


WORKLOADS = _Workloads("hepcnnb", "cdb", "cosmoflow", "imagenet", "wsi")


def find(name: str) -> Workload:
    """The workload of that name. UsageError, with the nearest name, when there is none."""
    if name not in WORKLOADS:
        raise unknown("workload", name, list(WORKLOADS))
    return WORKLOADS[name]
