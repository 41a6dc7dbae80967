"""All workloads, by name: each is a folder of that name."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from dlio_bench.errors import unknown

if TYPE_CHECKING:  # help texts name the workloads, and must load none
    from dlio_bench.benchmarks.workload import Workload

NAMES = ("hepcnnb", "cdb", "cosmoflow", "imagenet", "wsi")


class _Workloads(Mapping[str, "Workload"]):
    """HEPCNNB of hepcnnb/workload.py, and so on. The files of one load when it is asked for."""

    def __getitem__(self, name: str) -> "Workload":
        if name not in NAMES:
            raise KeyError(name)
        workload: Workload = getattr(import_module(f"dlio_bench.benchmarks.{name}.workload"), name.upper())
        return workload

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


WORKLOADS = _Workloads()


def find(name: str) -> "Workload":
    """The workload of that name. UsageError, with the nearest name, when there is none."""
    if name not in NAMES:
        raise unknown("workload", name, list(NAMES))
    return WORKLOADS[name]
