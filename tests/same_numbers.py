"""Whether two installations give the same numbers: `python tests/same_numbers.py OLD_PYTHON NEW_PYTHON`.

For fixed seeds it compares the plans of every order, what every reader delivers and checks in real runs of two ranks
on tiny data of each workload, and every number of `simulate` for the published scenarios. Names that changed between
the two are listed in ALIASES. Prints what differs; exit status 1 where something does.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALIASES = {"staging-pool": "double-buffer", "naive": "shuffled"}  # policies of `simulate`
READERS = "naive,shuffled,double-buffer,staged,staged-replicated,clairvoyant,cooperative,lbann-preload,deepio-ordered"
WORKLOADS = ("hepcnnb", "cdb", "cosmoflow", "imagenet")
SCENARIOS = ("S1", "S2", "S3", "S4")
PFS_CLIENTS = ("conserved", "worst", "published")
PLANS = """
import hashlib, json
import numpy as np
from dlio_bench.harness.plan.orders import ORDERS, Shape, find_order
bounds = np.cumsum([0, 7, 9, 5, 11, 8, 10, 6, 12, 9, 7])
digests = {}
for name in [*ORDERS, "buffered-shuffle(3)", "subset-shuffle(2)"]:
    for ranks, per_node, last, seed in [(2, 1, "drop", 1), (4, 2, "drop", 7), (4, 2, "pad", 2**40), (2, 2, "drop", 3)]:
        shape = Shape(int(bounds[-1]), ranks, 3, bounds=bounds, ranks_per_node=per_node, last=last)
        digest = hashlib.sha256()
        order = find_order(name)
        for epoch in range(3):
            for rank in range(ranks):
                digest.update(np.ascontiguousarray(order(shape, rank, epoch, seed), np.int64).tobytes())
        digests[f"{name} {ranks} {per_node} {last} {seed}"] = digest.hexdigest()
print(json.dumps(digests))
"""


def output(python: str, cache: Path, *arguments: str) -> Any:
    """What a command prints, as JSON."""
    environment = os.environ | {"DLIO_BENCH_CACHE": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([python, *arguments], capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join([python, *arguments])}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def delivered(result: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on how fast a run was."""
    return {
        "order": result["policy"]["order"],
        "plan": {
            name: value
            for name, value in result["plan"].items()
            if isinstance(value, int | float | str | bool) and name not in ("node_memory_bytes", "comparable")
        },
        "digest of the data": result["dataset"]["digest"],
        "samples": [trial["samples"] for trial in result["trials"]],
        "bytes": [[trial["bytes_useful"], *trial["rank_bytes"]] for trial in result["trials"]],
        "epochs": [
            [(epoch["bytes_useful"], epoch["bytes_planned"]) for epoch in trial["epochs"]] for trial in result["trials"]
        ],
        "checks": {check["name"]: check["ok"] for check in result["checks"]},
    }


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document with its place; the names of policies as they are now."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            name = inner.get("policy", position) if isinstance(inner, dict) else position
            yield from numbers(inner, f"{path}/{ALIASES.get(str(name), name)}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def measured(python: str, cache: Path) -> dict[str, Any]:
    """Everything that is compared, by what it is."""
    found: dict[str, Any] = {f"plan {name}": digest for name, digest in output(python, cache, "-c", PLANS).items()}
    for workload in WORKLOADS:
        results = output(
            python, cache, "-m", "dlio_bench", "run", workload, "--tiny", "--nodes", "2", "--seed", "1",
            "--reader", READERS, "--compute", "none", "--cache", "as-is", "--epochs", "2", "--trials", "2",
            "--warmup-trials", "0", "--json",
        )  # fmt: skip
        found |= {f"run {workload} {result['policy']['alias']}": delivered(result) for result in results}
    for scenario in SCENARIOS:
        for clients in PFS_CLIENTS:
            asked = ("simulate", "--scenario", scenario, "--pfs-clients", clients, "--json")
            document = output(python, cache, "-m", "dlio_bench", *asked)
            found |= {f"simulate {scenario} {clients} {path}": value for path, value in numbers(document)}
    return found


def main() -> int:
    """Compare two installations."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = (measured(python, Path(folder)) for python in sys.argv[1:3])
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}\n  before {before.get(name)}\n  after  {after.get(name)}")
    print(f"{len(before)} compared, {len(differing)} differ")
    return bool(differing)


if __name__ == "__main__":
    raise SystemExit(main())
