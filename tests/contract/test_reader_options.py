"""Every option changes what it names of each reader, and nothing else.

An option that a reader ignores fails here, and so does a field of `ReaderOptions` or `Resources` that no table has.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.commands.run.asked.job import policy
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.measured.site import resources
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, OWN, POLICIES, STREAM, TF_DATA, TORCH, WEBDATASET, Policy
from dlio_bench.harness.readers import ahead
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Tally, largest
from dlio_bench.harness.storage.direct import require
from dlio_bench.harness.streams.settings import Streaming
from tests.contract import test_readers
from tests.contract.test_rows import contract
from tests.datasets import made
from tests.direct_folder import direct_folder
from tests.jobs import JOB

# a fixture belongs to the module that has its name
world, nothing_is_left = test_readers.world, test_readers.nothing_is_left

# Not here: the loaders of tests/peers. A published pipeline takes no option.
ROWS = [name for name, row in POLICIES.items() if row.delivery not in (TORCH, WEBDATASET)]
AHEAD_TOO = (AHEAD, STREAM)  # a stream's producer reads ahead
DERIVED = {"batch_bytes", "staged", "fetcher"}  # of the plan and the placement
AS_GIVEN = {*ReaderOptions.__struct_fields__} - {"threads", "staging", "io"}  # those come to fields of `Resources`


def _of_threads(row: Policy) -> set[str]:
    told = set[str]() if row.delivery in (ON_DEMAND, OWN) else {"threads"}
    copying = {"staging_threads"} if row.rule.files is not None else set()
    return told | copying | ({"filling_threads"} if row.rule.keeps_samples and not copying else set())


def _of_staging(row: Policy) -> set[str]:
    none = set[str]()
    return {TF_DATA: {"staging_bytes"}, ON_DEMAND: none, OWN: none}.get(row.delivery, {"slots", "staging_bytes"})


NAMED: dict[str, Callable[[Policy], set[str]]] = {  # option -> what it changes of a reader's behaviour
    "threads": _of_threads,
    "most_threads": lambda row: {"threads"} if row.delivery in AHEAD_TOO else set(),
    "staging_bytes": _of_staging,
    "step_seconds": lambda row: {"step"} if row.delivery in AHEAD_TOO else set(),
    "check_crc": lambda row: {"failed"} if row.delivery != OWN else set(),
    "tiers": lambda row: {"ram_tier_bytes"} if row.rule.keeps_samples else set(),
    "inline_queue": lambda row: {"queue"} if row.delivery == STREAM else set(),
    "alignment": lambda row: {"direct"} if row.delivery in (*AHEAD_TOO, ON_DEMAND) else set(),
}


class _Published(test_readers.ReaderContract):
    """The pipeline that was published for the data of this module."""

    policy, workload = "upstream", find("imagenet").of("raw")

    @property
    def row(self) -> Policy:
        return policy(self.policy, self.workload)

    def pipeline(self, dataset: Dataset) -> Pipeline:
        assert self.workload.upstream is not None
        return self.workload.upstream.start()


GIVEN: dict[str, Any] = {"check_crc": True}  # an option that reaches readers as it is -> a value, not its default


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """A picture a file, each with a flipped byte, where direct reads are possible."""
    with direct_folder(tmp_path_factory.mktemp("data")) as folder:
        data = made(folder, "imagenet", 30, "raw")
        for number in range(len(data.manifest.files)):
            content = bytearray(data.path(number).read_bytes())
            content[len(content) // 2] ^= 1
            data.path(number).write_bytes(content)
        yield data


def test_every_field_is_in_the_table() -> None:
    assert {*NAMED, *DERIVED} == {*Resources.__struct_fields__} - {"options"} | AS_GIVEN


def test_what_a_run_asks_for_reaches_its_readers(dataset: Dataset) -> None:
    asked = {
        "threads": {"threads": 5},
        "most_threads": {"most_threads": 7},
        "staging_bytes": {"staging_bytes": 20},
        "step_seconds": {"step_seconds": 0.2},
        "tiers": {"tiers": Tiers(ram=10)},
        "inline_queue": {"streaming": Streaming(producers=0, queue=3)},
        "alignment": {"options": Options("cdb", io="direct")},
        **{name: {"options": Options("cdb", **{name: value})} for name, value in GIVEN.items()},
    }
    assert {*asked} == {*NAMED}

    def reached(change: Mapping[str, Any]) -> dict[str, Any]:
        given = resources(replace(JOB, **change), dataset, Solo())
        return {**asdict(given), **{name: getattr(given.options, name) for name in AS_GIVEN}, "options": None}

    base = reached({})
    for option, change in asked.items():
        found = reached(change)
        assert {name for name in base if found[name] != base[name]} == {option}


@pytest.mark.parametrize("name", ROWS)
def test_an_option_changes_what_it_names_and_nothing_else(
    name: str, dataset: Dataset, world: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = _Published() if POLICIES[name].delivery == OWN else contract(name, tmp_path)
    plan = suite.epochs(dataset, 1, 0)
    tiers, most = suite.tiers(dataset), largest(plan)
    usual = Resources(3, 64_000_000, most, tiers=tiers, inline_queue=2)

    def seen(given: Resources) -> dict[str, Any]:
        """What can be observed of a reader."""
        direct, steps, failed = set[bool](), set[float](), False
        with monkeypatch.context() as patched:
            real_open, real_rule = os.open, ahead.readers

            def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
                if str(path).startswith(f"{dataset.folder}/"):
                    direct.add(bool(flags & os.O_DIRECT))
                return real_open(path, flags, *rest, **named)

            def rule(spent: Any, a_step: float, step_seconds: float, **named: Any) -> Any:
                steps.add(step_seconds)
                return real_rule(spent, a_step, step_seconds, **named)

            patched.setattr(os, "open", opened)
            patched.setattr(ahead, "readers", rule)
            reader = open_reader(suite.row, suite.form(dataset), given, suite.seat(world), suite.pipeline(dataset))
            try:
                with reader.session(plan, Tally()) as batches:
                    for _ in batches:
                        pass
            except DataError:
                failed = True
        return {**reader.options, "direct": True in direct, "step": steps, "failed": failed}

    others = {
        "threads": 5,
        "most_threads": 7,
        "staging_bytes": 3 * most,
        "step_seconds": math.inf,
        "tiers": replace(tiers, ram=tiers.ram + 1_000_000),
        "inline_queue": 3,
        "alignment": require(dataset.folder / NAME),
        **{name: ReaderOptions(**{name: value}) for name, value in GIVEN.items()},
    }
    base = seen(usual)
    changes = {}
    for option, value in others.items():
        found = seen(replace(usual, **{"options" if option in GIVEN else option: value}))
        # a read that fails ends the session, perhaps before anything else is seen
        compared = ("failed",) if option == "check_crc" else base
        changes[option] = {key for key in compared if found[key] != base[key]}
    assert changes == {option: of(suite.row) for option, of in NAMED.items()}
