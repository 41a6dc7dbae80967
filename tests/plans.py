"""Plans of acceptances, for tests that need any."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlio_bench.harness.commands.acceptance import datasets
from dlio_bench.harness.commands.acceptance.datasets import RunDataset, Site
from dlio_bench.harness.commands.acceptance.parts import CampaignPart, parts
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan, parse
from dlio_bench.harness.ground.user_files import to_toml

# Of real ranks, in seconds; a test adds what it is about.
TINY = """
min_seconds = 0
[system]
name = "a test"
[dataset]
folder = "data"
times_memory = 0
steps = 16
[[run]]
workload = "cdb"
readers = ["naive", "prefetch"]
tiny = true
batch = 1
compute = "emulate:5ms"
"""

GIB = 1 << 30
SMALL = Site(GIB, real_nodes=True, cache="")
BASIC: dict[str, Any] = {
    "system": {"name": "a test"},
    "limits": {"cdb": {"naive": {"1x1": {"stall_share": {"at_most": "90 %"}}}}},
    "run": [{"workload": "cdb", "readers": ["naive", "prefetch"], "tiny": True, "batch": 1}],
    "dataset": {"times_memory": 0, "steps": 16},
    "min_seconds": 0,
}


def plan_of(**keys: Any) -> CampaignPlan:
    return parse(BASIC | keys, "plan.toml")


def run_of(**keys: Any) -> list[dict[str, Any]]:
    return [BASIC["run"][0] | keys]


def written(folder: Path, **keys: Any) -> Path:
    """A plan file; its own TOML is made by the code that writes limits, which is tested by itself."""
    path = folder / "plan.toml"
    document = BASIC | keys
    tables = "".join(f"[[run]]\n{to_toml(run)}" for run in document["run"])
    path.write_text(to_toml({key: value for key, value in document.items() if key != "run"}) + tables)
    return path


def sources_of(plan: CampaignPlan, folder: Path, site: Site = SMALL) -> dict[int, RunDataset]:
    """With the plan, and the cache of datasets, in a folder."""
    return datasets.sources(plan, folder, replace(site, cache=str(folder)))


def planned(plan: CampaignPlan, folder: Path, site: Site = SMALL) -> list[CampaignPart]:
    return parts(plan, folder, sources_of(plan, folder, site))
