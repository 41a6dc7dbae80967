"""HEPCNNB's finding, measured: shuffling files over all nodes turns cache hits into reads of the parallel file system.

NERSC's study (facts of Project_Progress_20180727 s4-s9): over 5 epochs global shuffling reads for 2.44 to 2.97 times as
long as local shuffling, and as long (1.04) where each rank has one file. The passes over the validation files, one
behind each epoch, are in these figures: from the read times of single files, cold and cached, one expects 2.6. Here 8
virtual nodes read shrunken files through an emulated file system whose rates have the published ratio, 187 MB/s cold to
805 MB/s cached, fifty times slower, so that this machine keeps up, and whose client caches hold 1.2 times a
node's share.
"""

import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.datasets import made
from tests.needs import needs
from tests.processes import DLIO

NODES = 8
COLD, CACHED = 3_740_000, 16_100_000  # B/s of a node
CACHE_SHARE = 1.2
ORDERS = ("file-shuffle", "global-file-shuffle")


Epochs = dict[str, list[dict[str, Any]]]


def measured(folder: Path, files: int, nodes: int = NODES) -> Epochs:
    """Order -> the epochs of `upstream` over `files` files for training, and as many for validation."""
    made(folder / "data", "hepcnnb", {"train": files, "validation": files})
    stored = sum(file.stat().st_size for file in (folder / "data").glob("**/*.h5"))
    cache = int(CACHE_SHARE * stored / nodes)
    pfs = f"bandwidth={nodes * COLD}B/s,per-node={COLD}B/s,cache={cache}B,cache-bandwidth={CACHED}B/s"
    scale = ["--nodes", str(nodes), "--epochs", "5", "--batch", "32", "--seed", "3", "--warmup-trials", "0"]
    reader = ["--reader", "upstream", "--order", ",".join(ORDERS), "--compute", "none"]
    where = ["--data", str(folder / "data"), "--emulate-pfs", pfs, "--out", str(folder / "out"), "--json"]
    asked = [*DLIO, "run", "hepcnnb", "--tiny", *scale, *reader, *where]
    run = subprocess.run(asked, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert all("EMULATED PFS" in result["marks"] for result in results)
    executed = [result["policy"]["order"] for result in results]
    assert executed == (list(ORDERS) if files > nodes else ["file-shuffle"] * 2)  # a rank's only file stays with it
    assert all(result["plan"]["validation"]["passes"] == 5 for result in results)
    found = {order: result["trials"][0]["epochs"] for order, result in zip(ORDERS, results, strict=True)}
    for epochs in found.values():
        # F files a rank of each split: F in each epoch, F in each pass and one more; a single one is read once
        passes = [epoch["validation"]["bytes_requested"] for epoch in epochs]
        pass_bytes = epochs[0]["validation"]["bytes_useful"]
        each = files // nodes
        assert passes == (
            [pass_bytes * (each + 1) // each, *[pass_bytes] * 4] if each > 1 else [pass_bytes, 0, 0, 0, 0]
        )
        training = [epoch["bytes_requested"] - own for epoch, own in zip(epochs, passes, strict=True)]
        assert training == [training[0]] * 5 if each > 1 else training[1:] == [0] * 4
    return found


def seconds(epochs: list[dict[str, Any]], nodes: int = NODES) -> float:
    """Seconds of reading a rank, validation passes included."""
    return float(sum(epoch["read_seconds"] for epoch in epochs) / nodes)


def floors(epochs: list[dict[str, Any]], nodes: int = NODES) -> list[float]:
    """Seconds that a rank's bytes take at the emulated rates, whatever else this machine has to do, by epoch."""
    return [(e["bytes_device"] / COLD + e["bytes_client_cache"] / CACHED) / nodes for e in epochs]


@needs("fuse")
def test_global_shuffling_of_files_asks_more_of_the_file_system_than_local(tmp_path: Path) -> None:
    found = measured(tmp_path, 4 * NODES)
    local, over_all = map(floors, found.values())
    assert 2.3 < sum(over_all) / sum(local) < 3.0
    assert local[0] > 2 * median(local[1:])  # the first epoch is cold, the later ones come from the cache
    assert median(over_all[1:]) > 0.6 * over_all[0]  # every epoch is cold
    for epochs in found.values():
        assert seconds(epochs) > 0.95 * sum(floors(epochs))  # what a busy machine adds comes on top


@needs("fuse")
def test_it_makes_no_difference_where_each_rank_has_one_file(tmp_path: Path) -> None:
    nodes = 2  # as many show it
    found = measured(tmp_path, nodes, nodes)
    local, over_all = (floors(epochs, nodes) for epochs in found.values())
    assert sum(over_all) / sum(local) == pytest.approx(1.0, abs=0.2)
    assert sum(local[1:]) < 0.2 * local[0]  # it is read once
    for epochs in found.values():
        assert seconds(epochs, nodes) > 0.95 * sum(floors(epochs, nodes))
