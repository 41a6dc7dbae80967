"""The description of a machine: parsed from the kernel's own texts, complete, and without secrets."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.cluster import environment
from dlio_bench.harness.machine import memory, mounts

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:26 / /mnt/a\\040b rw,nosuid - tmpfs tmpfs rw,size=1k
31 22 0:40 / /scratch rw,flock master:2 shared:7 - lustre 10.0.0.1@o2ib:/s rw,lazystatfs
32 31 0:41 / /scratch/home ro - cifs //user:pw@srv/home rw,username=me,password=pw,vers=3.0
33 22 0:42 / /bare rw - proc proc
34 22 0:43 / /scratch rw - nfs4 srv:/over rw
broken line
"""


def test_mounts_are_parsed_with_their_secrets_left_out() -> None:
    found = {mount.source: mount for mount in mounts.parse_mountinfo(MOUNTINFO)}
    assert len(found) == 6
    assert found["/dev/vda"] == mounts.Mount("/", "ext4", "/dev/vda", ("rw", "relatime", "discard"))
    assert found["tmpfs"].point == "/mnt/a b"
    assert found["//srv/home"].options == ("ro", "rw", "username=me", "vers=3.0")
    assert found["proc"].options == ("rw",)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/scratch", "nfs4"),  # mounted over the other: the later one is seen
        ("/scratch/x", "nfs4"),
        ("/scratchy", "ext4"),  # not below /scratch
        ("/scratch/home/me", "cifs"),
        ("/mnt/a b/c", "tmpfs"),
    ],
)
def test_the_longest_mount_point_holds_a_path(path: str, kind: str) -> None:
    mount = mounts.covering(mounts.parse_mountinfo(MOUNTINFO), path)
    assert mount is not None
    assert mount.type == kind


def test_a_path_that_is_not_there_yet_is_on_its_nearest_folder(tmp_path: Path) -> None:
    assert mounts.existing(tmp_path / "a/b/c") == tmp_path
    assert mounts.existing(tmp_path) == tmp_path
    assert mounts.mount_of(tmp_path) == mounts.mount_of(tmp_path / "a/b")


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    proc = _tree(tmp_path / "proc", {"self/cgroup": "0::/job/step\n"})
    files = {"job/memory.max": "4096000\n", "job/step/memory.max": "max\n", "job/memory.current": "3000000\n"}
    files |= {"job/memory.stat": "anon 1500000\nshmem 900000\nactive_file 100000\ninactive_file 500000\n"}
    quotas = {"job/cpu.max": "max 100000\n", "job/step/cpu.max": "150000 100000\n"}
    sys = _tree(tmp_path / "sys/fs/cgroup", files | quotas).parents[1]
    assert memory.memory_limit(proc, sys) == 4_096_000  # an ancestor's limit holds too
    assert memory.memory_left(proc, sys) == 4_096_000 - 3_000_000 + 600_000  # page cache is free
    assert memory.cpu_quota(proc, sys) == 1.5


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    lines = "5:memory:/job\n4:cpu,cpuacct:/not/mounted/here\n0::/\n"
    proc = _tree(tmp_path / "proc", {"self/cgroup": lines})
    files = {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n", "memory/job/memory.limit_in_bytes": "1048576\n"}
    files |= {"memory/job/memory.usage_in_bytes": "1000000\n"}
    files |= {"memory/job/memory.stat": "active_file 1\ntotal_active_file 300000\ntotal_inactive_file 100000\n"}
    quotas = {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    sys = _tree(tmp_path / "sys/fs/cgroup", files | quotas).parents[1]
    assert memory.memory_limit(proc, sys) == 1_048_576
    assert memory.memory_left(proc, sys) == 1_048_576 - 1_000_000 + 400_000
    assert memory.cpu_quota(proc, sys) == 0.5


def test_no_limit_is_none(tmp_path: Path) -> None:
    proc = _tree(tmp_path / "proc", {"self/cgroup": "5:memory:/\n4:cpu,cpuacct:/\n0::/\n"})
    files = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "cpu/cpu.cfs_quota_us": "-1\n"}
    sys = _tree(tmp_path / "sys/fs/cgroup", files | {"cpu/cpu.cfs_period_us": "100000\n"}).parents[1]
    assert memory.memory_limit(proc, sys) is memory.memory_left(proc, sys) is None
    assert memory.cpu_quota(proc, sys) is None
    assert memory.memory_limit(tmp_path / "no", tmp_path / "no") is None


def test_memory_is_the_least_of_machine_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.parse_meminfo("MemTotal:  100 kB\nHugePages_Total:  7\n") == {"MemTotal": 102_400}
    whole = memory.memory()
    assert 0 < whole.available <= whole.total
    monkeypatch.setattr(memory, "memory_limit", lambda: 1 << 20)
    assert memory.memory_bytes() == memory.memory().limit == 1 << 20
    monkeypatch.setattr(memory, "memory_left", lambda: 4096)
    assert memory.available_bytes() == 4096
    monkeypatch.setattr(memory, "memory_limit", lambda: whole.total * 2)
    assert memory.memory().limit is None
    assert memory.memory_bytes() == whole.total


def test_a_quota_below_the_affinity_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    for quota, expected in ((None, cores), (0.5, 1), (cores + 3.0, cores), (cores - 0.5, cores)):
        monkeypatch.setattr(environment, "cpu_quota", lambda quota=quota: quota)
        assert environment.usable_cores() == expected
        assert environment.usable_cores(range(5)) == (5 if quota is None else min(5, max(1, -(-quota // 1))))
    assert 1 <= environment.physical_cores() <= cores


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Xeon X\n", "Xeon X"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t: 1\n", "POWER9, altivec supported"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
    ],
)
def test_processors_are_named(text: str, model: str | None) -> None:
    assert environment.parse_cpu_model(text) == model


@pytest.mark.parametrize(
    "text",
    [
        "stripe_count:  4 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n",
        "lmm_stripe_count:  4\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\nlmm_stripe_offset: -1\n",
    ],
)
def test_stripes_are_parsed(text: str) -> None:
    expected = {"stripe_count": "4", "stripe_size": "1048576", "pattern": "raid0", "stripe_offset": "-1"}
    assert environment.parse_stripe(text) == expected


def test_stripes_are_asked_of_lfs_on_lustre_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lfs = tmp_path / "lfs"
    lfs.write_text("#!/bin/sh\necho stripe_count:  $# stripe_size: 65536\n")
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.stripe_layout(tmp_path, "lustre") == {"stripe_count": "3", "stripe_size": "65536"}
    assert environment.stripe_layout(tmp_path, "ext4") is None
    lfs.write_text("#!/bin/sh\nexit 1\n")
    assert environment.stripe_layout(tmp_path, "lustre") is None


def test_the_description_is_plain_json_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("I_MPI_MADE_UP_TOKEN", "hush")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    found = msgspec.to_builtins(environment.describe_host(tmp_path / "not/there"))
    assert json.loads(json.dumps(found)) == found
    assert "hush" not in json.dumps(found)
    assert found["variables"]["OMPI_MCA_pml"] == "ob1"
    assert found["packages"].keys() >= {"dlio-bench", "numpy", "h5py", "mpi4py", "crc32c", "isal"}
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 1 << 28
    mount = mounts.mount_of(tmp_path)  # None below chroot(2), whose root is no mount
    assert (found["mount"] or {}).get("point") == (mount and str(mount.point))
    assert found["host"] == environment.host_name()
    assert environment.resident_bytes() > 1 << 20


OURS = {"OMPI_MCA_orte_tmpdir_base": "/tmp/dlio-bench-session-x1y2"}  # the folder of one job


@given(st.dictionaries(st.text("ABC_/", min_size=1, max_size=9), st.text(max_size=9), max_size=9))
def test_only_allowed_variables_are_kept(env: dict[str, str]) -> None:
    kept = environment.recorded_variables({**env, "UCX_TLS": "tcp", "UCX_KEY": "x", "HOME": "/h", **OURS})
    assert kept["UCX_TLS"] == "tcp"
    assert {"UCX_KEY", "HOME", *OURS}.isdisjoint(kept)
    assert list(kept) == sorted(kept)
