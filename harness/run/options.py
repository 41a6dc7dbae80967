"""What the user asked of `dlio-bench run`, as data; the command line fills it, nothing else reads argparse."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """None means: not asked for, so the default is chosen from workload, data or machine (see `run.command`)."""

    workload: str
    nodes: tuple[int, ...] = (1,)
    ranks_per_node: int = 1
    readers: tuple[str, ...] = ("prefetch",)
    variant: str | None = None
    data: Path | None = None
    max_data: int | None = None  # bytes
    cache_dir: Path | None = None
    batch: int | None = None
    epochs: int | None = None
    trials: int | None = None
    warmup_trials: int | None = None
    compute: str = "emulate"
    cache: str = "cold"
    sync: str = "step"
    threads: int | None = None
    staging: int | None = None  # bytes a rank
    memory_per_node: int | None = None  # bytes
    seed: int | None = None
    tiny: bool = False
    verify: bool = True
    launcher: str | None = None
    out: Path | None = None
    dry_run: bool = False
    json: bool = False
