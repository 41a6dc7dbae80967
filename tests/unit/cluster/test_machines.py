"""What is told of the machines of a result."""

from pathlib import Path
from typing import Any

from dlio_bench.harness.cluster import environment
from dlio_bench.harness.machine import mounts
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.run import facts, html
from dlio_bench.reports.run.machines import describe_machines
from tests.results import Complete

Drafted = tuple[dict[str, Any], dict[str, Any]]


def test_hosts_that_differ_are_shown_apart(made: Complete) -> None:
    def second_host(draft: dict[str, Any]) -> None:
        draft["environment"]["hosts"]["node02"] = draft["environment"]["hosts"]["node01"] | {"cores": 4}

    found = facts.environment([made(change=second_host)[0]])
    assert found.differing == {"cores": {"node01": "2", "node02": "4"}}
    assert found.common["mount type"] == "ext4"
    assert facts.hosts_differ(found)


def test_network_drives_and_client_are_told_as_the_kernel_has_them(tmp_path: Path) -> None:
    files = {
        "class/net/eth0/device/x": "", "class/net/eth0/speed": "25000", "class/net/eth0/operstate": "up",
        "class/net/eth1/device/x": "", "class/net/eth1/speed": "-1", "class/net/eth1/operstate": "down",
        "class/net/ib0/device/infiniband/x": "", "class/net/docker0/operstate": "up",
        "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
        **{f"block/nvme{number}n1/device/model": "EXAMPLE 9000  " for number in (0, 1)},
        **{f"block/nvme{number}n1/size": "7501476528" for number in (0, 1)},
        "block/vda/device/x": "", "block/vda/size": "2048", "block/loop0/size": "8",
        "fs/lustre/version": "lustre: 2.15.3\nbuild: 7", "module/mmfs26/version": "5.1.9",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(content)
    assert environment.network_links(tmp_path / "sys") == ["mlx5_0 200 Gb/sec (4X HDR)", "eth0 25 Gbit/s"]
    assert environment.describe_drives(tmp_path / "sys") == ["2 x EXAMPLE 9000, 3.84 TB", "vda, 1.05 MB"]
    versions = [mounts.client_version(name, tmp_path) for name in ("lustre", "gpfs", "ext4")]
    assert versions == ["2.15.3", "5.1.9", None]


def test_facts_of_machines_that_differ_name_them() -> None:
    hosts = {name: Host(host=name, cores=cores, kernel="6.1") for name, cores in (("a", 2), ("b", 2), ("c", 4))}
    assert describe_machines(hosts) == {"processors": "a, b: -, 2 cores; c: -, 4 cores", "kernel": "6.1"}


def test_hosts_do_not_differ_by_their_names_and_the_folders_made_on_them(made: Complete) -> None:
    def second_host(draft: dict[str, Any]) -> None:
        hosts = draft["environment"]["hosts"]
        room = {"memory_bytes": 100, "local_tier": "/tmp/a"}
        hosts["node02"] = hosts["node01"] | {"host": "node02", "room": room | {"local_tier": "/tmp/b"}}
        hosts["node01"] |= {"host": "node01", "room": room, "clock_offset_seconds": 0.001}

    pair = made(change=second_host)
    assert not facts.hosts_differ(facts.environment([pair[0]]))
    assert "(hosts differ)" not in html.page([pair])


def test_a_machine_is_one_host_however_often_it_was_used(made: Complete) -> None:
    def own_memory(draft: dict[str, Any]) -> None:
        draft["environment"]["rank_memory_bytes"] = 1_000_000 * draft["plan"]["nodes"]

    pairs = [made(reader, nodes, change=own_memory) for reader in ("naive", "prefetch") for nodes in (1, 2, 4)]
    assert " on 1 host · " in html.page(pairs)
    results = [found for found, _ in pairs]
    assert facts.environment(results).owners == ("node01",)
    assert len(set(facts.plans(results)["Job"].differing["rank memory bytes"].values())) == 3
