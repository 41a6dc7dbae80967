"""The plan of an acceptance: how it is read, sized, told and carried out, without a launched rank."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, OutOfTime, UsageError
from dlio_bench.harness import cli
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.cluster.environment import host_name, mount_at
from dlio_bench.harness.commands.acceptance import campaign, contract, datasets, handover, outlook
from dlio_bench.harness.commands.acceptance.datasets import Site
from dlio_bench.harness.commands.acceptance.options import SHIPPED
from dlio_bench.harness.commands.acceptance.plan import load, node_count
from dlio_bench.harness.ground import parts as ground
from dlio_bench.harness.ground.parts import PartRunner, work_in
from dlio_bench.harness.plan import policies
from dlio_bench.reports import acceptance
from dlio_bench.reports.document import result
from dlio_bench.reports.document.environment import Host, Mount
from dlio_bench.reports.document.typed import convert, to_json
from tests.datasets import made
from tests.plans import BASIC, GIB, SMALL, plan_of, planned, run_of, sources_of, written
from tests.results import complete


def accept(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(["accept", *words])
    return status, *capsys.readouterr()


# ---- the plan


@pytest.mark.parametrize(
    ("words", "total", "count"), [(4, None, 4), ("15%", 40, 6), ("10 %", 3, 1), ("100%", 40, 40), ("12.5%", 16, 2)]
)
def test_node_counts_are_numbers_or_shares(words: int | str, total: int | None, count: int) -> None:
    assert node_count(words, total) == count


@pytest.mark.parametrize(
    ("keys", "parts_of_message"),
    [
        ({"trials": 4}, ("trials is '4'", ">= 5")),
        ({"trails": 5}, ("'trails' is not known", "'trials'")),
        ({"run": run_of(batch="3")}, ("run[0].batch is '3'",)),
        ({"run": run_of(bach=3)}, ("'run[0].bach' is not known", "'batch'")),
        ({"run": [{"workload": "cdb"}]}, ("run[0].readers is missing", "dlio-bench list")),
        ({"run": BASIC["run"] * 2}, ("run[1] measures cdb on 1x1, as run[0] does",)),
        ({"nodes": ["15%"]}, ("nodes: '15%'", "nodes_total = ")),
        ({"nodes": ["half"], "nodes_total": 4}, ("nodes: 'half'", '"15%"')),
        ({"run": run_of(nodes=["0%"]), "nodes_total": 4}, ("run[0].nodes: '0%'",)),
        ({"memory_per_node": "4G"}, ("memory_per_node: '4G'", "4GiB")),
        ({"storage": {"size": "0"}}, ("storage.size: '0'",)),
        ({"dataset": {"fill": "zeros"}}, ("dataset.fill is 'zeros'",)),
        ({"cache": "warm"}, ("cache is 'warm'",)),
        ({"system": {}}, ("system.name is missing",)),
        ({"launcher": "slrm"}, ("launcher: There is no launcher 'slrm'", "srun")),
        ({"timeout": "5"}, ("timeout: ", "'5' has no unit")),
        ({"nodes": 2}, ("nodes is '2'", 'Write nodes = [1, "15%"]')),
    ],
)
def test_a_wrong_plan_is_refused_by_file_key_value_and_fix(
    keys: dict[str, Any], parts_of_message: Sequence[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(**keys)
    for text in ("'plan.toml'", *parts_of_message):
        assert text in str(caught.value)


def test_parts_come_in_order_with_all_that_the_plan_says(tmp_path: Path) -> None:
    runs = [
        *run_of(compute="emulate:10ms", local_tier="tier", io="direct"),
        {"workload": "imagenet", "readers": ["naive"], "tiny": True},
    ]
    scale = {"nodes": ["50%", 1], "nodes_total": 4, "memory_per_node": "1GiB"}
    plan = plan_of(run=runs, storage={"io": "direct"}, trials=6, **scale)
    names = [(part.kind, part.name) for part in planned(plan, tmp_path)]
    sets = ["cdb-cori-tiny", "imagenet-tfrecord-tiny"]
    runs_of = [("run", f"{workload}-{nodes}x1") for workload in ("cdb", "imagenet") for nodes in (1, 2)]
    assert names == [*(("data", name) for name in sets), *(("storage", name) for name in sets), *runs_of]
    options = outlook.request_of(plan, planned(plan, tmp_path)[5]).options
    assert (options.readers, options.nodes, options.trials, options.cache) == (("naive", "prefetch"), (2,), 6, "cold")
    assert (options.compute, options.memory_per_node, options.batch) == ("emulate:10ms", GIB, 1)
    assert (options.local_tier, options.io) == (tmp_path / "tier", "direct")
    assert planned(plan, tmp_path)[2].words[-2:] == ("--io", "direct")
    assert options.storage == Path("storage/cdb-cori-tiny.json")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"readers": ["naiv"]}, "run[0].readers: There is no reader 'naiv'. Did you mean 'naive'?"),
        ({"compute": "emulate:5", "seed": 3}, "run[0].compute: '5' has no unit."),
        ({"staging": "10"}, "run[0].staging: --staging: '10' has no unit."),
        ({"workload": "cbd"}, "run[0].workload: There is no workload 'cbd'. Did you mean 'cdb'?"),
        ({"variant": "corri"}, "run[0].variant: There is no cdb variant 'corri'. Did you mean 'cori'?"),
        ({"data": "none"}, "run[0].data: There is no dataset folder"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_its_file_and_key(
    run: dict[str, Any], told: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = written(tmp_path, run=run_of(**run))
    assert f"'{path}': {told}" in refused("accept", str(path), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# ---- how much data


@pytest.mark.parametrize(
    ("declared", "real_nodes", "hosts"),
    [
        ({"memory_per_node": "1GiB"}, False, 4),
        ({}, True, 4),
        ({}, False, 1),  # virtual nodes share a machine
    ],
)
def test_data_exceed_the_memory_of_all_hosts(
    declared: dict[str, str], real_nodes: bool, hosts: int, tmp_path: Path
) -> None:
    plan = plan_of(run=run_of(tiny=False), nodes=[1, 4], dataset={"times_memory": 5}, **declared)
    source = sources_of(plan, tmp_path, Site(GIB, real_nodes, cache=""))[0]
    assert source.needed == 5 * hosts * GIB
    assert 0 <= source.bytes - source.needed < 2 * source.layout.file_bytes
    assert source.whole_bytes > source.bytes  # validation and test data come with it


def test_data_have_enough_samples_for_the_steps_of_the_largest_scale(tmp_path: Path) -> None:
    plan = plan_of(run=run_of(batch=3), nodes=[1, 2], ranks_per_node=[4], dataset={"times_memory": 0, "steps": 20})
    source = sources_of(plan, tmp_path)[0]
    assert 20 * 3 * 8 <= source.samples <= 20 * 3 * 8 + 2


def test_tables_of_one_workload_share_the_data_of_the_larger(tmp_path: Path) -> None:
    runs = [*run_of(), *run_of(nodes=[4])]
    by_table = sources_of(plan_of(run=runs), tmp_path)
    assert by_table[0] is by_table[1]
    assert by_table[0].samples >= 16 * 4


def test_data_larger_than_published_are_made_unless_the_plan_says_otherwise(tmp_path: Path) -> None:
    site = Site(1000 * GIB, real_nodes=True, cache="")
    dataset = {"times_memory": 5}
    source = sources_of(plan_of(run=run_of(tiny=False), dataset=dataset), tmp_path, site)[0]
    assert source.bytes >= source.needed == 5000 * GIB
    plan = plan_of(run=run_of(tiny=False), dataset=dataset | {"at_most_published": True})
    source = sources_of(plan, tmp_path, site)[0]
    assert source.bytes < source.needed
    assert source.samples == 50190
    plan = plan_of(run=run_of(tiny=False), dataset={"times_memory": 1000}, nodes=[10_000])
    with pytest.raises(UsageError, match=r"\[dataset\]: .* files are too many"):
        sources_of(plan, tmp_path, site)


def test_given_data_that_are_too_few_or_others_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "set", "cdb", 5)
    few = run_of(data="set")
    source = sources_of(plan_of(run=few, dataset={"times_memory": 0, "steps": 5}), tmp_path)[0]
    assert source.is_given
    assert (source.samples, source.missing_bytes()) == (5, 0)
    with pytest.raises(UsageError, match="Name a larger dataset"):
        sources_of(plan_of(run=few), tmp_path)
    other = [{"workload": "cosmoflow", "readers": ["naive"], "tiny": True, "data": "set"}]
    with pytest.raises(UsageError, match="holds cdb cori, but the plan's run is of cosmoflow"):
        sources_of(plan_of(run=other), tmp_path)


def test_missing_space_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = planned(plan_of(), tmp_path)[0].source
    monkeypatch.setattr(datasets, "free_bytes", lambda _: source.whole_bytes)
    datasets.require_space([source])
    monkeypatch.setattr(datasets, "free_bytes", lambda _: source.whole_bytes - 7)
    with pytest.raises(EnvironmentFailure, match=r": 7 bytes \(7 B\) are missing"):
        datasets.require_space([source])


def test_a_trial_that_is_cut_short_must_still_exceed_the_memory(tmp_path: Path) -> None:
    site = Site(10**9, real_nodes=True, cache="")
    for steps, refused in ((80, True), (90, False)):  # of 60.2 MB each; 5 GB are asked for
        plan = plan_of(run=run_of(tiny=False, steps=steps, compute="none"), dataset={"times_memory": 5})
        part = planned(plan, tmp_path, site)[-1]
        try:
            outlook.require_enough(plan, part, outlook.request_of(plan, part), site)
        except UsageError as error:
            assert refused
            assert "Write at least steps = 84" in str(error)  # noqa: PT017
        else:
            assert not refused


# ---- the folder


def test_another_plan_is_refused_and_other_limits_are_not(tmp_path: Path) -> None:
    assert campaign.load(tmp_path) is None
    campaign.save(plan_of(), Site(GIB, real_nodes=False, cache="/cache"), [], "a", None, tmp_path)
    assert campaign.load(tmp_path) is None  # a plan that has measured nothing yet may be put right
    (tmp_path / "results").mkdir()
    before = campaign.load(tmp_path)
    assert before is not None
    assert before.site.memory_per_node == GIB
    campaign.require_same(before, plan_of(limits="limits.toml", system={"name": "other", "contact": "me"}), tmp_path)
    with pytest.raises(UsageError, match=r"run\[0\].seed was not given and is 3; trials was 5 and is 6") as caught:
        campaign.require_same(before, plan_of(trials=6, run=run_of(seed=3)), tmp_path)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "campaign.json").write_text("{}")
    with pytest.raises(UsageError, match="is not the folder of a campaign"):
        campaign.load(tmp_path)


def test_only_whole_results_of_the_very_command_are_finished(
    draft_and_steps: Callable[..., tuple[dict[str, Any], Any]], tmp_path: Path
) -> None:
    plan = plan_of(run=run_of(readers=["prefetch"]))
    part = planned(plan, tmp_path)[-1]
    folder = tmp_path / "results" / "cdb-1x1" / "prefetch-1x1"
    assert campaign.why_unfinished(part, plan, tmp_path) == "not measured yet"
    draft, steps = draft_and_steps()
    result.save(complete(draft, steps), steps, folder)
    with pytest.raises(UsageError, match="was measured by another command"):
        campaign.why_unfinished(part, plan, tmp_path)

    result.save(
        complete(draft | {"command": ["dlio-bench", *part.words, "--out", "work/cdb-1x1"]}, steps), steps, folder
    )
    assert campaign.why_unfinished(part, plan, tmp_path) is None
    two = plan_of(run=run_of(readers=["prefetch", "naive"]))
    both = replace(part, run=two.run[0])
    assert campaign.why_unfinished(both, two, tmp_path) == "no result of naive"
    (folder / "result.json").write_text((folder / "result.json").read_text().replace("1234567", "1234568"))
    assert "was altered" in str(campaign.why_unfinished(part, plan, tmp_path))


def test_an_emulated_file_system_decides_how_long_a_run_takes(tmp_path: Path) -> None:
    plan = plan_of(run=run_of(emulate_pfs="bandwidth=10kB/s", steps=16), warmup_trials=1)
    part = planned(plan, tmp_path)[-1]
    foreseen = outlook.foresee(plan, part, SMALL, tmp_path / "out")
    assert part.source is not None
    passes = len(plan.run[0].readers) * (plan.trials + plan.warmup_trials + 1)  # trials, and a verification
    fields = 5 * 48 * 72 * 4  # bytes of a tiny sample that are read
    assert foreseen.seconds == pytest.approx(passes * part.source.samples * fields / 10e3, rel=0.2)


@pytest.mark.parametrize(
    ("status", "error"), [(2, UsageError), (4, EnvironmentFailure), (5, DataError), (-9, EnvironmentFailure)]
)
def test_a_part_that_fails_ends_the_campaign_and_names_the_command_that_goes_on(
    status: int, error: type[BenchError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ground, "run_command", lambda *_, **__: status)
    plan, told = plan_of(), list[str]()
    work = PartRunner(tmp_path, 2, "dlio-bench accept", told.append)
    with pytest.raises(error, match=r"Go on|go on with: dlio-bench accept") as caught:
        campaign.carry_out(plan, planned(plan, tmp_path), work, [0.0, 0.0])
    assert type(caught.value) is error
    assert ("SIGKILL" if status < 0 else f"status {status}") in str(caught.value)
    assert "not made yet" not in told[0]
    events = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [(event["is"], event.get("status")) for event in events] == [("begun", None), ("ended", status)]


def test_no_part_begins_that_cannot_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(ground, "run_command", lambda words, *_, **__: (begun.append(words[0]), 0)[1])
    monkeypatch.setenv(walltime.ENDS, f"{time.time() + 1000:.0f}")
    plan, told = plan_of(), list[str]()
    parts = planned(plan, tmp_path)
    assert [part.kind for part in parts][:2] == ["data", "run"]
    work = PartRunner(tmp_path, len(parts), "dlio-bench accept plan.toml", told.append)
    with pytest.raises(OutOfTime, match=r"stays finished\. Go on with: dlio-bench accept plan\.toml") as caught:
        campaign.carry_out(plan, parts, work, [3000.0] * len(parts))
    assert begun == ["generate"]  # which goes on file by file
    assert parts[1].title in str(caught.value)


def test_two_processes_never_work_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "WAIT_SECONDS", 0)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(EnvironmentFailure, match="Another process works"), work_in(tmp_path, 0, ""):
        pass
    os.close(other)
    with work_in(tmp_path, 0, ""):
        pass


def test_limits_that_change_after_the_first_measurement_are_told(tmp_path: Path) -> None:
    def saved(limits: str) -> campaign.CampaignRecord:
        site = Site(GIB, real_nodes=False, cache="/cache")
        return campaign.save(plan_of(), site, [], limits, campaign.load(tmp_path), tmp_path)

    assert saved("aa").changes == saved("bb").changes == []  # nothing is measured yet
    (tmp_path / "results").mkdir()
    assert saved("bb").changes == []
    for limits in ("cc", "cc"):
        [change] = saved(limits).changes
        assert "after the first measurement: sha256:bb became sha256:cc." in change
    events = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [(event["is"], event["before"], event["after"]) for event in events] == [("changed", "bb", "cc")]
    assert acceptance.of_folder(tmp_path) == convert(to_json(saved("cc")), acceptance.Campaign)


def test_a_host_that_measured_on_another_file_system_is_named() -> None:
    plan = plan_of(system={"name": "a test", "file_system": "nfs"})
    hosts = {"node1": Host(mount=Mount("/s", "nfs4", "server:/s", [])), "node2": Host(mount=None)}
    handover.require_measured_there(plan_of(), [("cdb", hosts)])
    with pytest.raises(EnvironmentFailure, match="node2 measured cdb on an unknown file system"):
        handover.require_measured_there(plan, [("cdb", hosts)])


def test_digests_are_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "SHA256SUMS").write_text("old")
    lines = [f"{hashlib.sha256(name[-1:].encode()).hexdigest()}  {name}\n" for name in ("b", "inner/a")]
    assert handover.sums(tmp_path) == "".join(lines)


# ---- the command


def test_a_dry_run_tells_everything_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    words = (str(written(tmp_path, storage={"threads": [1]})), "--out", str(tmp_path / "out"), "--dry-run")
    status, out, _ = accept(capsys, *words)
    assert status == 0
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    for text in (
        f"in      {tmp_path / 'cache' / 'acceptance'}",
        f"hosts   {host_name()}",
        "dataset of cdb cori, 20 files",
        "what the storage gives",
        "cdb on 1 node x 1 rank",
        "3 parts of 3",
        "in",
    ):
        assert text in out
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]
    status, out, _ = accept(capsys, *words, "--json")
    document = json.loads(out)
    assert [part["kind"] for part in document["parts"]] == ["data", "storage", "run"]
    mount = mount_at(tmp_path)
    assert mount is not None
    [place] = document["places"]
    assert (place["folder"], place["mount"]["type"]) == (str(tmp_path / "cache" / "acceptance"), mount.type)
    assert document["missing_bytes"] == document["parts"][0]["missing_bytes"] > 0
    assert document["seconds"] == sum(part["seconds"] for part in document["parts"]) > 0


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"run": run_of(staging="2GB"), "memory_per_node": "1GiB"}, "need 2 GB, but a node has 1.07 GB"),
        ({"run": run_of(staging="2GB"), "memory_per_node": "1GiB", "launcher": "srun"}, "need 2 GB, but a node has"),
        (
            {"run": run_of(tiny=False), "storage": {"size": "100MB"}, "dataset": {"times_memory": 0, "steps": 8}},
            "[storage]: 16 readers need at least a sample each, and the 1 files of ",
        ),
        ({"nodes": [3000]}, "this machine is too small for so many virtual nodes"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(
    keys: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    limits = {"cdb": {"naive": {"*": {"stall_share": {"at_most": "90 %"}}}}}
    plan = written(tmp_path, limits=limits, **keys)
    assert told in refused("accept", str(plan), "--out", str(tmp_path / "out"), "--dry-run")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"dataset": {"folder": "none"}}, "[dataset] folder: '{base}/none' is no folder. Make it on the file system"),
        ({"dataset": {"folder": "/proc"}}, "[dataset] folder: nothing can be written into '/proc': "),
        ({"system": {"name": "x", "file_system": "lustr"}}, "[system] file_system is 'lustr', but {base}/data is on "),
        ({"system": {"name": "x", "fle": "lustre"}}, "'system.fle' is not known"),
    ],
)
def test_a_dry_run_refuses_folders_that_are_not_what_the_plan_says(
    keys: dict[str, Any], told: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "data").mkdir()
    plan = written(tmp_path, **{"dataset": {"times_memory": 0, "folder": "data"}} | keys)
    message = refused("accept", str(plan), "--out", str(tmp_path / "out"), "--dry-run")
    assert told.format(base=tmp_path) in message
    assert not (tmp_path / "none").exists()


def test_a_plan_or_a_folder_that_is_missing_is_asked_for(tmp_path: Path, refused: Callable[..., str]) -> None:
    plan = written(tmp_path, limits="none.toml")
    assert f"'{plan}': limits: '{tmp_path / 'none.toml'}' is no file" in refused("accept", str(plan), "--out", "out")


@pytest.mark.parametrize("name", SHIPPED)
def test_example_plans_are_whole_and_can_answer_their_limits(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    assert cli.main(["accept", str(path), "--example", name]) == 0
    capsys.readouterr()
    assert cli.main(["accept", "--example", name]) == 0
    assert capsys.readouterr().out == path.read_text()
    plan, _ = load(path)
    asked, _ = contract.limits_of(plan, path)
    site = Site(plan.memory or 1, real_nodes=True, cache="")
    foreseen = [outlook.foresee(plan, part, site, tmp_path / "out") for part in planned(plan, tmp_path, site)]
    contract.require_answerable(plan, path, asked, [entry for entry in foreseen if entry.request])
    assert len(foreseen) == {"one-machine": 3, "slurm": 9, "mlperf-storage": 6}[name]


def test_the_plan_like_mlperf_storage_names_readers_that_keep_no_sample(tmp_path: Path) -> None:
    assert cli.main(["accept", str(tmp_path / "plan.toml"), "--example", "mlperf-storage"]) == 0
    plan, _ = load(tmp_path / "plan.toml")
    rows = [policies.find(name) for run in plan.run for name in run.readers]
    assert {(row.placement, row.delivery) for row in rows} == {("none", "ahead")}
