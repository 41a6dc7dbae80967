"""Hosts that mpirun reaches by ssh: they count as real nodes, samples take one interface, a lag hides a narrow link,
a cut cable ends the job."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.harness.simulator import all_reduce
from dlio_bench.reports.traces import timeline
from tests.cluster.cluster import Cluster
from tests.processes import DLIO, PATIENCE, until

NODES = ["node1", "node2"]
BESIDE = "192.168.231"  # a network of the two hosts' second interfaces, eth1
HEPCNN = 594_178  # parameters
WAYS = {"lag0": [], "lag1": ["--gradient-lag", "1"], "by-node": ["--hierarchical", "--leaders", "2"]}
MPI = ("mpirun", "prted", "dlio_bench.harness.commands.run")


@pytest.fixture(scope="session")
def hostfile(hosts: Cluster) -> Path:
    """Both hosts."""
    file = hosts.work / "hosts"
    file.write_text("node1 slots=2\nnode2:2\n")
    return file


@pytest.fixture
def wired(hosts: Cluster, hostfile: Path) -> Iterator[Path]:
    """The host file, while the hosts have a second network, and 1 Gbit/s on the first."""
    ends = [f"/proc/{(hosts.folder / 'hosts.d' / node).read_text()}/ns/net" for node in NODES]
    add = "ip link add eth1 netns {} type veth peer name eth1 netns {}".format(*ends)
    subprocess.run(add.split(), check=True)
    for number, node in enumerate(NODES, 1):
        hosts.do("shape", node, "1gbit")
        script = (
            "echo 1 >/proc/sys/net/ipv6/conf/eth1/disable_ipv6; "  # which talks to its neighbours unasked
            f"ip addr add {BESIDE}.{number}/24 dev eth1; ip link set eth1 up"
        )
        hosts.on(node, "sh", "-c", script)
    yield hostfile
    hosts.on("node1", "ip", "link", "del", "eth1")


def run(hosts: Cluster, workload: str, *options: str) -> list[dict[str, Any]]:
    """The results of a run on two hosts with two ranks each; every check of theirs holds."""
    told = hosts.dlio(
        "node1", "run", workload, "--nodes", "2", "--ranks-per-node", "2", "--trials", "1", "--warmup-trials", "0",
        "--json", *options,
    )  # fmt: skip
    results: list[dict[str, Any]] = json.loads(told.stdout)
    for result in results:
        assert result["environment"]["rank_hosts"] == ["node1", "node1", "node2", "node2"]
        assert "VIRTUAL NODES" not in result["marks"]
        assert all(check["ok"] for check in result["checks"]), result["checks"]
        assert {"content", "delivered bytes"} <= {check["name"] for check in result["checks"]}
    return results


def sent(hosts: Cluster) -> dict[str, int]:
    """Bytes that both hosts have sent so far, by interface."""
    counted = {"eth0": 0, "eth1": 0}
    for node in NODES:
        for interface in counted:
            # the file system at /sys shows another network; this one belongs to who reads it
            for line in hosts.on(node, "cat", "/proc/self/net/dev").stdout.splitlines():
                name, _, columns = line.partition(":")
                if name.strip() == interface:
                    counted[interface] += int(columns.split()[8])
    return counted


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize("workload", ["cosmoflow", "imagenet"])  # the others run below
def test_a_workload_runs_on_two_hosts(hosts: Cluster, hostfile: Path, workload: str) -> None:
    readers = ["naive", "staged", "prefetch"]
    results = run(
        hosts, workload, "--tiny", "--reader", ",".join(readers), "--local-tier", "/tmp", "--hostfile", str(hostfile),
        "--trace", "spans", "--out", f"traced-{workload}",
    )  # fmt: skip
    assert [result["policy"]["alias"] for result in results] == readers
    assert set(results[0]["environment"]["interfaces"]) == {"node1", "node2"}
    for reader in readers:
        spans = timeline.load(hosts.work / f"traced-{workload}" / f"{reader}-2x2")
        assert not spans.problems
        assert {(track.host, track.rank) for track in spans.tracks} == {
            ("node1", 0), ("node1", 1), ("node2", 2), ("node2", 3),
        }  # fmt: skip
        assert spans.clocks["node1"].ahead == spans.clocks["node1"].within == 0
        clock = spans.clocks["node2"]  # of the same kernel
        assert abs(clock.ahead) <= clock.within + 1e-9
        assert clock.apart > 0
    told = hosts.on("node1", *DLIO, "trace", f"traced-{workload}/prefetch-2x2").stdout
    assert "clock of node2" in told


def test_prefetch_reads_the_dataset_once_and_sends_samples_by_one_interface(hosts: Cluster, wired: Path) -> None:
    """Half a gigabyte, three epochs, over 1 Gbit/s; each host has its own mount of the emulated file system."""
    before = sent(hosts)
    [result] = run(
        hosts, "cdb", "--max-data", "500MB", "--epochs", "3", "--reader", "prefetch", "--tiers", "ram=300MB",
        "--emulate-pfs", "bandwidth=400MB/s", "--interface", "eth0", "--hostfile", str(wired),
    )  # fmt: skip
    moved = since(before, sent(hosts))
    [trial] = result["trials"]
    assert trial["bytes_device"] * 3 == trial["bytes_planned"]
    assert "in equal parts for 2 hosts" in result["environment"]["emulated_pfs"]["says"]
    assert moved["eth1"] == 0
    # ranks of a host send nothing by its cable
    assert moved["eth0"] > trial["bytes_remote"] / 4
    assert all(place.startswith("eth0 ") for place in result["environment"]["interfaces"].values())


def test_another_interface_serves_samples_where_it_is_named(hosts: Cluster, wired: Path) -> None:
    before = sent(hosts)
    [result] = run(
        hosts, "hepcnnb", "--tiny", "--epochs", "3", "--reader", "prefetch", "--interface", "eth1",
        "--hostfile", str(wired),
    )  # fmt: skip
    moved = since(before, sent(hosts))
    [trial] = result["trials"]
    assert result["environment"]["interfaces"] == {"node1": f"eth1 {BESIDE}.1", "node2": f"eth1 {BESIDE}.2"}
    assert moved["eth1"] > trial["bytes_remote"] / 4
    assert moved["eth0"] < 200_000 < trial["bytes_remote"] / 4  # what ssh needs to start a daemon
    hosts.on("node1", "ip", "link", "set", "eth1", "name", "eth2")
    try:
        told = hosts.dlio("node1", "run", "cdb", "--tiny", "--nodes", "2", "--hostfile", str(wired), "--interface",
                          "eth2", status=4)  # fmt: skip
    finally:
        hosts.on("node1", "ip", "link", "set", "eth2", "name", "eth1")
    assert "host node2 has no network interface 'eth2'" in told.stderr
    assert "It has eth0 or eth1" in told.stderr


def test_a_lag_hides_the_all_reduce_and_a_node_sends_its_sum_once(hosts: Cluster, hostfile: Path) -> None:
    """HEP-CNN's 2.4 MB of gradients over 200 Mbit/s. What the last rank of a step waits for is the all-reduce alone."""
    least = all_reduce.ring(2, 4 * HEPCNN, 0.0, 200e6 / 8)  # seconds in which two nodes can add them up
    waits, bytes_sent = {}, {}
    for node in NODES:
        hosts.do("shape", node, "200mbit")
    try:
        for name, words in WAYS.items():
            before = sent(hosts)
            [result] = run(
                hosts, "hepcnnb", "--tiny", "--reader", "naive", "--compute", "train", "--exchange", "mpi",
                "--batch", "16", "--epochs", "1", "--steps", "8", "--validation", "none",
                "--hostfile", str(hostfile), "--out", name, *words,
            )  # fmt: skip
            bytes_sent[name] = since(before, sent(hosts))["eth0"]
            [file] = (hosts.work / name).rglob("steps.npz")
            waits[name] = float(np.median(np.load(file)["exchange"][0].min(axis=0)))
            [trial] = result["trials"]
            # a burst of the shaper goes at once
            assert trial["training"]["allreduce_seconds"] > 0.8 * 8 * least
    finally:
        for node in NODES:
            hosts.do("shape", node, "10gbit")
    assert waits["lag0"] > 0.8 * least > waits["lag1"]
    # by node each host sends as many bytes as it has gradients; the weights at the start are an eighth more
    assert 1 < bytes_sent["by-node"] / (8 * 2 * 4 * HEPCNN) < 1.4


@pytest.mark.parametrize(
    ("host", "why"), [("nowhere", "Could not resolve"), ("BESIDE.77", "")], ids=["unknown name", "no such machine"]
)
def test_a_host_that_ssh_does_not_reach_is_named(hosts: Cluster, host: str, why: str) -> None:
    address = hosts.on("node1", "hostname", "-I").stdout.split()[0].rpartition(".")[0]
    host = host.replace("BESIDE", address)
    file = hosts.work / "unreachable"
    file.write_text(f"node1\n{host}\n")
    told = hosts.dlio("node1", "run", "cdb", "--tiny", "--nodes", "2", "--hostfile", str(file), status=4)
    assert f"Host {host} of the host file {file} cannot be reached by ssh: " in told.stderr
    assert why in told.stderr
    assert not list(hosts.work.glob("dlio-results/*/work-*/job.json"))  # nothing was started


def test_a_folder_that_another_host_lacks_is_named(hosts: Cluster, hostfile: Path) -> None:
    hosts.on("node1", "mkdir", "-p", "/tmp/of-node1")
    command = f"cd /tmp/of-node1 && dlio-bench run cdb --tiny --nodes 2 --hostfile {hostfile}"
    told = hosts.on("node1", "sh", "-c", command, status=4)
    assert "Host node2 has no folder '/tmp/of-node1'" in told.stderr


def test_a_host_whose_cable_is_cut_ends_the_job_and_leaves_nothing(hosts: Cluster, hostfile: Path) -> None:
    process = hosts.start(
        "node1", "dlio-bench", "run", "cdb", "--tiny", "--nodes", "2", "--ranks-per-node", "2", "--epochs", "999",
        "--compute", "emulate:100ms", "--reader", "prefetch", "--timeout", "10s", "--local-tier", "/tmp",
        "--tiers", "ram=1MB,disk=10MB", "--hostfile", str(hostfile), "--out", "cut",
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while "trial 1" not in (line := process.stderr.readline()):
            assert line, "the run has ended"
        hosts.do("cut", "node2")
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 4, out + err
        assert "on node2" in err
        assert "gave no sign of life for 10 s: stopped, or cut off" in err
        until(lambda: not leftovers(hosts), missing="a host that was cut off has not ended its part of the job")
    finally:
        process.kill()
        hosts.do("mend", "node2")
    reach = hosts.argv("node1", str(hosts.folder / "ssh"), "node2", "true")
    until(lambda: subprocess.run(reach, check=False, cwd=hosts.work, capture_output=True).returncode == 0)


def leftovers(hosts: Cluster) -> list[str]:
    """Of a job, on either host: its processes, and files in their memory and their temporary folders."""
    left = []
    for node in NODES:
        processes = hosts.on(node, "ps", "-eo", "args").stdout.splitlines()
        left += [f"{node}: {line}" for line in processes if any(name in line for name in MPI) and "ps -eo" not in line]
        files = hosts.on(node, "sh", "-c", "ls -d /dev/shm/* /tmp/dlio-bench-* /tmp/prted* || true").stdout.split()
        left += [f"{node}: {file}" for file in files]
    return left
