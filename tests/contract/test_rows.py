"""Every row of the policy table delivers its plan; the whole suite of readers runs on one row of each mechanism."""

from pathlib import Path

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, POLICIES
from tests.contract import test_readers
from tests.contract.test_placed import DrawnContract, PlacedContract
from tests.contract.test_readers import ReaderContract
from tests.contract.test_staged import StagedContract

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left

# The rows of TensorFlow are in test_pipelines.py.
READ_HERE = [row for row in POLICIES.values() if row.delivery in (ON_DEMAND, AHEAD)]


@pytest.mark.parametrize("dataset", ["cdb"], indirect=True)  # of many files, which orders may deal
@pytest.mark.parametrize("name", [row.name for row in READ_HERE])
def test_a_row_delivers_its_plan_and_counts_its_bytes(name: str, dataset: Dataset, world: Comm, tmp_path: Path) -> None:
    reader = contract(name, tmp_path)
    reader.test_it_delivers_the_plan_with_the_generated_bytes(dataset, world, world.size)
    reader.test_the_bytes_recorded_are_the_bytes_asked(dataset, world)


def contract(name: str, tier: Path) -> ReaderContract:
    """The suite that fits a row."""
    row = POLICIES[name]
    made: ReaderContract
    if row.rule.files is not None:
        made = StagedContract()
        made.placement, made.place = row.placement, tier
    elif row.rule.keeps_samples:
        made = DrawnContract() if row.rule.draws_order else PlacedContract()
        made.place = tier
    else:
        made = ReaderContract()
    made.policy = name
    return made
