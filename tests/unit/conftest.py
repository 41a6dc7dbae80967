"""Fixtures that several unit tests share."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL, TRAIN
from dlio_bench.free_space import SHARED_MEMORY
from tests.datasets import made, stored_fields
from tests.results import Complete, Made, complete

POLICIES = {
    "naive": ("naive", "sequential", "on demand", 0.30),
    "shuffled": ("shuffled", "global-shuffle", "on demand", 0.20),
    "prefetch": ("double-buffer", "global-shuffle", "ahead", 0.10),
}
EPOCH_BYTES = 1_132_462_080


def draft_of_reader(reader: str, nodes: int, trials: int) -> dict[str, Any]:
    """A draft without trials, as JSON."""
    name, order, delivery, _ = POLICIES[reader]
    host = {
        "cpu": "AMD EPYC",
        "cores": 2,
        "memory_bytes": 25_000_000_000,
        "mount": {"point": "/", "type": "ext4", "source": "/dev/vda", "options": ["rw"]},
    }
    return {
        "schema": "dlio-bench/result/5", "kind": "run", "created": "2026-11-21T01:40:00+00:00",
        "command": ["dlio-bench", "run", "cdb", "--nodes", str(nodes), "--reader", reader], "version": "0.1.0",
        "workload": {"name": "cdb", "title": "Climate Data Benchmark"},
        "dataset": {"digest": "sha256:5d0c", "folder": "/data/cdb", "variant": "cori", "fill": "random", "seed": 1,
                    "files": 64, "samples": 64, "stored_bytes": 3_850_994_304, "view": ["data[0]", "labels"],
                    "view_bytes": 17_694_720.0, "owner": "made"},
        "policy": {"alias": reader, "name": name, "order": order, "placement": "none", "delivery": delivery,
                   "source": "a paper", "options": {"threads": 2}},
        "plan": {"nodes": nodes, "ranks_per_node": 1, "ranks": nodes, "batch": 1, "published_batch": 1, "epochs": 2,
                 "steps_per_epoch": 8, "steps": 16, "samples_per_epoch": 64, "dropped_samples": 0, "seed": 1234567,
                 "sync": "step", "trials": trials, "warmup_trials": 1, "cache": "cold-epochs",
                 "view_bytes_per_epoch": EPOCH_BYTES, "node_memory_bytes": 3_000_000_000, "comparable": True,
                 "notes": ["8 steps an epoch: a trial is 2 epochs, so that it has at least 16 steps"]},
        "compute": {"mode": "emulate", "device": "v100", "asked_step_seconds": 0.2,
                    "kind": "derived from published figures", "source": "a table"},
        "marks": ["VIRTUAL NODES"],
        "checks": [
            {"name": "exactly once", "ok": True, "expected": "64 samples an epoch", "found": "64 samples an epoch"},
            {"name": "content", "ok": True, "expected": "CRC32C of 320 fields as generated", "found": "all equal"},
        ],
        "environment": {"hosts": {"node01": host}, "launcher": {"name": "mpirun", "argv": ["mpirun", "-n", str(nodes)]},
                        "mpi": "Open MPI v5.0.11", "startup_seconds": 1.4, "code_digest": "sha256:77",
                        "rank_hosts": ["node01"] * nodes},
    }  # fmt: skip


def trial_of(position: int, elapsed: float, ranks: int) -> dict[str, Any]:
    """A trial, as JSON."""
    device = 1_140_000_000  # with what the kernel reads ahead
    epochs = [
        {"epoch": epoch, "seconds": share * elapsed, "bytes_useful": EPOCH_BYTES, "bytes_requested": EPOCH_BYTES,
         "bytes_device": device} for epoch, share in ((0, 0.52), (1, 0.48))
    ]  # fmt: skip
    return {
        "trial": position, "warmup": position == 0, "seed": 99 + position, "elapsed_seconds": elapsed, "steps": 16,
        "samples": 128,
        "cache": {"asked": "cold-epochs", "hosts": {"node01": {"resident_share": 0.0, "attestable": True}}},
        "epochs": epochs, "bytes_useful": 2 * EPOCH_BYTES, "bytes_requested": 2 * EPOCH_BYTES,
        "bytes_device": 2 * device, "read_seconds": 4.0 * ranks, "decode_seconds": 0.0, "cpu_seconds": 3.2,
        "host_cpu_busy_share": 0.44, "host_iowait_share": 0.1, "cores": 2, "reader_threads": 2 * ranks,
        "compute_asked_seconds": 3.2 * ranks, "compute_actual_seconds": 3.25 * ranks,
    }  # fmt: skip


@pytest.fixture(scope="session")
def draft_and_steps() -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """(reader, nodes, trials) -> a harness's draft of `trials` measured trials and a warm-up one, and its steps.

    No randomness: rank r waits r hundredths longer a step, trial t as many thousandths, the first step half a second.
    """

    def make(reader: str = "prefetch", nodes: int = 4, trials: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
        draft, shape = draft_of_reader(reader, nodes, trials), (trials + 1, nodes, 16)
        trial, rank, step = np.indices(shape)
        stall = POLICIES[reader][3] + 0.01 * rank + 0.001 * trial + 0.5 * (step == 0)
        check, compute = np.full(shape, 0.004), np.full(shape, 3.25 / 16)
        cost = stall + check + compute
        exchange = cost.max(axis=1, keepdims=True) - cost + 0.002
        whole = cost + exchange + 0.001
        start = np.cumsum(whole, axis=2) - whole
        loop = whole.sum(axis=2) + 0.01
        draft["trials"] = [trial_of(t, float(loop[t].max()) + 0.003, nodes) for t in range(trials + 1)]
        steps = {"stall": stall, "check": check, "compute": compute, "exchange": exchange, "start": start, "loop": loop}
        return copy.deepcopy(draft), steps | {"epoch": np.repeat(np.arange(2, dtype=np.int64), 8)}

    return make


Decoded = tuple[Dataset, npt.NDArray[np.uint8]]


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, Mapping[str, int]], Decoded]:
    """(workload, variant, files of each split) -> a tiny dataset and its samples as they are delivered, [n, bytes]."""

    def make(workload: str, variant: str, files: Mapping[str, int]) -> Decoded:
        dataset = made(tmp_path_factory.mktemp(workload), workload, files, variant, PHYSICAL)
        if (find := WORKLOADS[workload].decode) is None:
            raise LookupError(f"{workload} is not decoded")
        decode = find(dataset)
        out = np.empty((dataset.samples, decode.sample_bytes), dtype=np.uint8)
        for sample in range(dataset.samples):
            decode.apply(sample, stored_fields(dataset, decode.fields, sample), memoryview(out[sample]))
        return dataset, out

    return make


@pytest.fixture(scope="session")
def tiny(decoded: Callable[[str, str, Mapping[str, int]], Decoded]) -> Callable[[str, str], Decoded]:
    """(workload, variant) -> a few decoded samples, made once."""
    made: dict[tuple[str, str], Decoded] = {}

    def find(workload: str, variant: str) -> Decoded:
        if (workload, variant) not in made:
            few = (
                {"cdb": 3, "cosmoflow": 3, "imagenet": 3}.get(workload, 1)
                if variant not in ("sc18", "original-64")
                else 1
            )
            made[workload, variant] = decoded(workload, variant, {TRAIN: 1 if variant == "tfrecord" else few})
        return made[workload, variant]

    return find


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory: a disk takes longer for a file that is written anew than any parser does."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def in_memory(memory: Path) -> Path:
    """An empty folder in memory."""
    return Path(tempfile.mkdtemp(dir=memory))


@pytest.fixture(name="made")
def completed(draft_and_steps: Callable[..., tuple[dict[str, Any], dict[str, Any]]]) -> Complete:
    """(reader, nodes, trials, change) -> a result and its steps; `change` may alter the draft first."""

    def make(reader: str = "prefetch", nodes: int = 4, trials: int = 3, change: Any = None) -> Made:
        draft, steps = draft_and_steps(reader, nodes, trials)
        if change:
            change(draft)
        return complete(draft, steps), steps

    return make
