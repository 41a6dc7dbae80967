"""The suite of readers on tf.data and on every published pipeline."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import policy
from dlio_bench.harness.plan.policies import Policy
from tests.contract import test_readers
from tests.contract.test_readers import ReaderContract
from tests.datasets import made_by_first
from tests.ranks import WORLD

pytestmark = pytest.mark.slow

# a fixture belongs to the module that has its name
world, nothing_is_left = test_readers.world, test_readers.nothing_is_left


class PipelineContract(ReaderContract):
    """Subclasses name the workload too. TensorFlow and HDF5 read files by themselves, past os.preadv."""

    policy = "upstream"
    workloads = harmed = None
    workload: str
    variant: str | None = None  # of its data; None: the default one
    files = 4  # one a rank at least
    harms = ("missing", "empty", "truncated")
    checks_crc = False
    tells_seconds = False
    sessions = (1, 1)
    test_nothing_is_read_in_a_pause_and_what_is_kept_stays = None  # it begins anew with each epoch
    compared = 5  # tests/unit/readers/test_upstream.py compares every batch
    started: ClassVar[Pipeline | None] = None

    @property
    def row(self) -> Policy:
        return policy(self.policy, find_workload(self.workload).of(self.variant))

    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, tmp_path_factory: pytest.TempPathFactory, world: Comm) -> Dataset:
        return made_by_first(world, tmp_path_factory.mktemp(cls.workload), cls.workload, cls.files, cls.variant)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _started(cls) -> Iterator[None]:
        upstream = find_workload(cls.workload).of(cls.variant).upstream
        assert upstream is not None
        cls.started = upstream.start()
        yield
        cls.started.close()

    # No order plans a batch of nothing; TensorFlow and HDF5 have no buffer of ours, and do not read through os.preadv.
    test_a_batch_of_nothing_is_delivered_between_others = None
    test_bytes_stay_right_when_the_smallest_buffer_goes_round_many_times = None
    test_the_kernel_may_give_less_than_was_asked_for = None
    test_the_bytes_recorded_are_the_bytes_asked = None  # nor do they in other plans than that with validation passes

    @pytest.mark.parametrize("ranks", [max(2, WORLD)])  # what one rank reads is the plan with validation passes
    def test_it_delivers_the_plan_with_the_generated_bytes(self, dataset: Dataset, world: Comm, ranks: int) -> None:
        super().test_it_delivers_the_plan_with_the_generated_bytes(dataset, world, ranks)

    def pipeline(self, dataset: Dataset) -> Pipeline | None:
        return self.started


class TestHepcnnb(PipelineContract):
    workload = "hepcnnb"
    tells_seconds = True


class TestCdb(PipelineContract):
    workload, files = "cdb", 30


class TestCosmoFlow(PipelineContract):
    workload, files = "cosmoflow", 30


class TestCosmoFlowQueues(PipelineContract):
    workload, variant, files = "cosmoflow", "sc18", 2


class TestImageNet(PipelineContract):
    workload = "imagenet"
    compared = 48


class TfDataContract(PipelineContract):
    policy = "tfdata"
    harms = ("missing", "empty", "truncated", "flipped")
    checks_crc = True
    test_bytes_stay_right_when_the_smallest_buffer_goes_round_many_times = (
        ReaderContract.test_bytes_stay_right_when_the_smallest_buffer_goes_round_many_times
    )


class TestTfDataCdb(TfDataContract):
    workload, files = "cdb", 30


class TestTfDataImageNet(TfDataContract):
    workload = "imagenet"
