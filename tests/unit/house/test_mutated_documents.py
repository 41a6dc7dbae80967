"""Results, limits, plans and descriptions that anybody may have edited end in an answer or in one of our errors."""

import contextlib
import io
import json
import random
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.benchmarks import profile
from dlio_bench.documents import DEEPEST, load_json, load_toml, read_document
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import system
from dlio_bench.harness.commands.acceptance import campaign, contract, outlook, plan
from dlio_bench.harness.commands.acceptance.datasets import Site, sources
from dlio_bench.harness.commands.acceptance.parts import parts
from dlio_bench.reports import kinds, storage
from dlio_bench.reports.document import result
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.export import junit
from dlio_bench.reports.judging import judge, limits
from dlio_bench.reports.judging import text as judgement_text
from dlio_bench.reports.run import html
from tests.mutations import as_toml, changed, cut, edited, ends_well, mutations
from tests.results import complete
from tests.unit.storage.test_storage_report import draft as storage_draft

pytestmark = pytest.mark.slow

Make = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
SYSTEM = tomllib.loads((resources.files("dlio_bench.harness.cluster") / "systems" / "perlmutter.toml").read_text())
PLAN = tomllib.loads((resources.files("dlio_bench.harness.commands.acceptance") / "plans" / "slurm.toml").read_text())
PROFILE = profile.to_tables(next(iter(profile.shipped_profiles("cdb").values())))
STORAGE = to_json(storage.complete(storage_draft()))


@pytest.fixture
def saved(draft_and_steps: Make, in_memory: Path) -> tuple[Path, bytes]:
    """A result's file, and what it held at first."""
    draft, steps = draft_and_steps()
    result.save(complete(draft, steps), steps, in_memory)
    path = in_memory / result.RESULT_NAME
    return path, path.read_bytes()


@mutations()
def test_results(saved: tuple[Path, bytes], chance: random.Random) -> None:
    path, whole = saved
    if chance.random() < 0.6:  # the digest finds every edit: whoever makes it anew gets beyond it
        document = edited(json.loads(whole), chance)
        if isinstance(document, dict):
            with contextlib.suppress(ValueError):
                document["digest"] = result.digest(document)
        path.write_text(json.dumps(document))
    else:
        path.write_bytes(cut(whole, chance))
    mark_altered = chance.random() < 0.5

    def use() -> None:
        pair = result.load(path, mark_altered=mark_altered)
        if chance.random() < 0.2:
            judgement_text.render(judge.judge([kinds.run(*pair)], ANY))
        if chance.random() < 0.1:
            html.page([pair])

    ends_well(use)


@mutations(300)
def test_steps_of_altered_results(saved: tuple[Path, bytes], chance: random.Random) -> None:
    steps_path = saved[0].with_name(result.STEPS_NAME)
    content = steps_path.read_bytes()
    if chance.random() < 0.5:  # sizes and types of other arrays, in a file that is whole
        arrays = dict(np.load(io.BytesIO(content)))
        arrays[chance.choice([*arrays, "more"])] = np.array(chance.choice((["a"], 1j, [], [True], 10**30, b"")))
        np.savez(steps_path, **arrays)
    else:
        steps_path.write_bytes(cut(content, chance))
    try:
        ends_well(lambda: result.load(saved[0], mark_altered=True))
    finally:
        steps_path.write_bytes(content)


@mutations()
def test_storage_documents(in_memory: Path, chance: random.Random) -> None:
    path = in_memory / "storage.json"
    path.write_bytes(changed(STORAGE, chance, json.dumps))

    def use() -> None:
        document = storage.load(path)
        storage.view(document).text()
        storage.ceiling_for(document, 1e6)

    ends_well(use)


@mutations()
def test_system_descriptions(in_memory: Path, chance: random.Random) -> None:
    path = in_memory / "system.toml"
    path.write_bytes(changed(SYSTEM, chance, as_toml))
    ends_well(lambda: system.describe(system.load(path)))


ANY = limits.parse(b'dataset_to_memory = 5\n[cdb."*"."*"]\nspread = { at_most = "5 %" }', Path("limits.toml"))
LIMITS = {
    "version": "2026-1", "trials": 5, "min_seconds": 30, "min_steps": 64, "cache": "cold", "dataset_to_memory": 5,
    "node_bandwidth": "25 GB/s", "allow_marks": ["VIRTUAL NODES"],
    "cdb": {
        "prefetch": {"4x1": {"delivered_bandwidth": {"at_least": "10.8 GB/s", "statistic": "ci_low"}}},
        "*": {"*": {"spread": {"at_most": "5 %"}, "samples_per_second": {"at_least": 208}}},
    },
}  # fmt: skip


@mutations()
def test_limits(in_memory: Path, chance: random.Random) -> None:
    path = in_memory / "limits.toml"
    path.write_bytes(changed(LIMITS, chance, as_toml))

    def use() -> None:
        asked = limits.load(path, ["cdb"], ["prefetch"] if chance.random() < 0.5 else [])
        judgement = judge.judge([], asked)
        judgement_text.render(judgement)
        junit.of_judgement(judgement)

    ends_well(use)


@mutations()
def test_plans_of_acceptances(in_memory: Path, chance: random.Random) -> None:
    path = in_memory / "plan.toml"
    path.write_bytes(changed(PLAN, chance, as_toml))

    def use() -> None:
        asked, _ = plan.load(path)
        contract.limits_of(asked, path)
        site = Site(1 << 30, real_nodes=True, cache=str(in_memory))
        outlook.request_of(asked, parts(asked, in_memory, sources(asked, in_memory, site))[-1])
        campaign.digest(asked)

    ends_well(use)


@mutations()
def test_compute_profiles(in_memory: Path, chance: random.Random) -> None:
    path = in_memory / "profile.toml"
    path.write_bytes(changed(PROFILE, chance, as_toml))
    ends_well(lambda: profile.load(path))


@pytest.mark.parametrize("load", [load_json, load_toml])
def test_what_has_no_bounds_is_refused_in_words(load: Callable[[bytes], Any]) -> None:
    start, end = ("", "") if load is load_json else ("x = ", "\n")
    for depth, says in ((DEEPEST + 1, "deep in each other"), (100_000, "deep in each other")):
        with pytest.raises(ValueError, match=says):
            load(f"{start}{'[' * depth}{']' * depth}{end}".encode())
    load(f"{start}[[{(1 << 63) - 1}]]{end}".encode())
    for number in (1 << 64, -(10**30), 10**4000):
        with pytest.raises(ValueError, match="more than 64 bits"):
            load(f"{start}[{number}]{end}".encode())


def test_only_so_much_of_a_file_is_read(in_memory: Path) -> None:
    (in_memory / "file").write_bytes(b"12345")
    assert read_document(in_memory / "file", most=5) == b"12345"
    with pytest.raises(UsageError, match=r"at most 4 are read\. Name another\."):
        read_document(in_memory / "file", "Name another.", most=4)
