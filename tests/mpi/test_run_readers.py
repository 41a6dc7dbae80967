"""`dlio-bench run` with every reader and every way to set one up: real ranks, files, mounts and copies."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.cluster.environment import physical_cores
from dlio_bench.harness.storage import tier
from tests.datasets import made
from tests.direct_folder import direct_folder
from tests.mpi.conftest import dlio, start
from tests.needs import needs
from tests.processes import PATIENCE, descendants, ending, gone, until

PFS = "bandwidth=40MB/s,per-node=25MB/s,open=1ms,request=0.3ms,cache=100MB,cache-bandwidth=80MB/s"


def results(cache: Path, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The results of a run that ends well, every check held."""
    found = json.loads(dlio(cache, folder, "run", *arguments, "--out", "out", "--json").stdout)
    for result in found:
        assert all(check["ok"] for check in result["checks"]), result["checks"]
    return list(found)


def test_upstream_and_tfdata_are_measured_and_verified(cache: Path, tmp_path: Path) -> None:
    """CDB by the protocol of its study: epochs are three steps of one pass over the files. Those of every workload are
    in tests/contract/test_pipelines.py, and eight ranks of one in test_published_effect.
    """
    passes = 3
    scale = ["--tiny", "--epochs", str(passes), "--steps-per-epoch", "3", "--warmup-trials", "0"]
    upstream, tfdata = results(cache, tmp_path, "cdb", "--reader", "upstream,tfdata", *scale)
    assert (upstream["plan"]["epochs"], upstream["plan"]["steps_per_epoch"]) == (3, 3)
    assert upstream["policy"]["delivery"] == "its own"
    assert upstream["policy"]["decode"]
    assert upstream["plan"]["notes"]  # its defects
    assert tfdata["policy"]["delivery"] == "tf.data"
    # the published pipeline validates as it did, and what is compared with it does alike
    assert upstream["plan"]["validation"]["passes"] == tfdata["plan"]["validation"]["passes"] == passes
    for result in (upstream, tfdata):
        checks = {check["name"]: check["found"] for check in result["checks"]}
        assert f"planned samples once in {passes} passes" in checks["validation"]
    assert {"content", "delivered bytes"} <= {check["name"] for check in upstream["checks"]}


def test_ranks_that_are_bound_to_cores_read_with_those(cache: Path, tmp_path: Path) -> None:
    asked = ("run", "cdb", "--tiny", "--nodes", "1", "--ranks-per-node", "2", "--warmup-trials", "0", "--out", "out")
    done = dlio(cache, tmp_path, *asked, "--launcher-args", "--bind-to core:overload-allowed")
    environment = json.loads((tmp_path / "out" / "prefetch-1x2" / "result.json").read_text())["environment"]
    of_a_core = len(os.sched_getaffinity(0)) // physical_cores()
    each = of_a_core if physical_cores() > 1 else of_a_core / 2  # both are on the one core that there is
    bound = of_a_core if of_a_core < (os.cpu_count() or 1) else None
    assert (environment["cores_per_rank"], environment["bound_processors"]) == (each, bound)
    [host] = environment["hosts"].values()
    assert host["cores"] == 2 * each
    assert ("ranks are bound to one core" in " ".join(done.stdout.split())) == (bound == 1)


def test_direct_reads_are_cold_by_what_the_device_delivers(tmp_path: Path) -> None:
    asked = ("cdb", "--tiny", "--nodes", "2", "--io", "direct", "--reader", "naive,prefetch", "--trials", "1")
    with direct_folder(tmp_path) as folder:
        for result in results(folder, folder, *asked, "--warmup-trials", "0"):
            assert result["plan"]["io"] == "direct"
            [cold] = [check for check in result["checks"] if check["name"] == "cold cache"]
            assert cold["found"].startswith("cold (O_DIRECT): the device delivered")
            trial = result["trials"][0]
            assert trial["bytes_rounded"] > 0
            assert trial["bytes_device"] >= trial["bytes_requested"]


def test_decoding_is_a_stage_with_its_own_time(cache: Path, tmp_path: Path) -> None:
    asked = ("--reader", "naive,prefetch", "--decode", "--check-crc", "--compute", "none", "--warmup-trials", "0")
    for result in results(cache, tmp_path, "cosmoflow", "--tiny", *asked):
        assert result["policy"]["decode"]
        assert result["policy"]["check_crc"]
        assert result["trials"][-1]["decode_seconds"] > 0


def test_real_ranks_validate_through_every_delivery_and_placement(cache: Path, tmp_path: Path) -> None:
    readers = ["naive", "prefetch", "staged", "staged-replicated", "staged-subset"]
    found = results(
        cache, tmp_path, "cdb", "--tiny", "--nodes", "2", "--epochs", "3", "--validation", "2", "--batch", "3",
        "--reader", ",".join(readers),
    )  # fmt: skip
    for reader, result in zip(readers, found, strict=True):
        plan, (_, trial) = result["plan"]["validation"], result["trials"]
        checks = {check["name"]: check["found"] for check in result["checks"]}
        assert "planned samples once in 2 passes" in checks["validation"]  # of the warm-up trial too
        assert (plan["passes"], plan["order"], plan["every_epochs"]) == (1, "sequential", 2)
        assert trial["validation_samples"] == plan["samples"] > 0
        passes = [epoch["validation"] for epoch in trial["epochs"]]
        assert [one is None for one in passes] == [True, False, True]
        staged = reader.startswith("staged")
        # `prefetch` may have brought some of it to its tiers before
        sources = ("requested", "ram", "remote") if reader == "prefetch" else ("local",) if staged else ("requested",)
        assert sum(passes[1][f"bytes_{name}"] for name in sources) == passes[1]["bytes_useful"]
        assert passes[1]["bytes_requested"] == 0 or not staged


def test_an_emulated_file_system_counts_what_it_delivers(cache: Path, tmp_path: Path) -> None:
    naive, staged = results(
        cache, tmp_path, "cdb", "--tiny", "--nodes", "2", "--ranks-per-node", "2", "--epochs", "2",
        "--reader", "naive,staged", "--compute", "none", "--emulate-pfs", PFS, "--cache", "first-epoch-cold",
    )  # fmt: skip
    assert "SERVED FROM CACHE" in naive["marks"]
    for result in (naive, staged):
        assert (result["plan"]["nodes"], result["plan"]["ranks"]) == (2, 4)
        assert "EMULATED PFS" in result["marks"]
        assert "40 MB/s shared by all nodes" in result["environment"]["emulated_pfs"]["says"]
    first, second = naive["trials"][-1]["epochs"]
    assert first["bytes_device"] == first["bytes_requested"] > 0
    # a rank may begin the second epoch a moment before the first rank of its node notes the counts of the first
    assert second["bytes_device"] == 0
    assert first["bytes_client_cache"] + second["bytes_client_cache"] == second["bytes_requested"]
    first, second = staged["trials"][-1]["epochs"]
    assert first["bytes_device"] == first["bytes_requested"] > first["bytes_useful"]  # whole files
    assert second["bytes_requested"] == second["bytes_device"] == 0
    assert second["bytes_local"] == second["bytes_useful"]
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()


def test_a_client_cache_too_small_to_be_warm_is_refused_with_the_size_that_is_enough(
    cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    asked = ("imagenet", "--tiny", "--reader", "shuffled", "--compute", "none", "--cache", "warm", "--emulate-pfs")
    said = refused("run", *asked, "bandwidth=400MB/s,cache=1MB", "--out", "out")
    assert not (tmp_path / "out").exists()
    [enough] = re.findall("--emulate-pfs (cache=[0-9]+MB) or more", said)
    [warm] = results(cache, tmp_path, *asked, f"bandwidth=400MB/s,{enough}")
    assert all(epoch["bytes_device"] == 0 for epoch in warm["trials"][-1]["epochs"])


@needs("fuse")
def test_an_interrupted_run_leaves_no_process_no_mount_and_no_copy(cache: Path, tmp_path: Path) -> None:
    slow = ("--emulate-pfs", "bandwidth=1MB/s,via=fuse", "--epochs", "2000")  # longer than anybody waits
    asked = ("run", "cdb", "--tiny", "--nodes", "2", "--reader", "staged", *slow, "--out", "out")
    copies = f"{tier.NODES}*/node*/{tier.PREFIX}*"
    with ending(start(cache, tmp_path, *asked)) as process:
        until(lambda: len(list(cache.glob(copies))) == 2, process, "the nodes do not copy")
        started = descendants(process.pid)
        assert str(cache) in Path("/proc/self/mountinfo").read_text()
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE)
        gone(started)
    assert process.returncode == 4, out + err
    assert "Interrupted by SIGTERM" in err
    assert "Traceback" not in err
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()
    assert not list(cache.glob("dlio-bench-*"))
    assert not (tmp_path / "out").exists()


def test_without_fuse_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    lean = tmp_path / "bin"
    lean.mkdir()
    monkeypatch.setenv("PATH", str(lean))  # no fusermount3 in it
    asked = ("run", "hepcnnb", "--tiny", "--out", "out", "--emulate-pfs")
    said = refused(*asked, PFS, "--reader", "naive,tfdata", status=4)
    assert "reader 'tfdata' reads by itself, which needs a mount" in said
    assert "apt-get install fuse3" in said
    assert "apt-get install fuse3" in refused(*asked, f"{PFS},via=fuse", status=4)


def test_readers_of_others_cannot_be_held_up_in_their_processes(refused: Callable[..., str]) -> None:
    said = refused("run", "hepcnnb", "--tiny", "--reader", "tfdata", "--emulate-pfs", f"{PFS},via=process")
    assert "via=process holds up reads of dlio-bench's own readers only, and reader 'tfdata' reads by itself" in said


def test_axes_set_by_hand_are_compared_and_credited(cache: Path, tmp_path: Path) -> None:
    found = results(
        cache, tmp_path, "cdb", "--tiny", "--nodes", "2", "--reader", "naive", "--order", "sequential,global-shuffle",
        "--delivery", "on-demand,ahead", "--shard", "node", "--last", "pad",
    )  # fmt: skip
    axes = [(result["policy"]["order"], result["policy"]["delivery"]) for result in found]
    assert sorted(axes) == sorted(
        (order, delivery) for order in ("sequential", "global-shuffle") for delivery in ("on demand", "ahead")
    )
    assert len({result["plan"]["steps"] for result in found}) == 1


def test_the_ceiling_of_the_path_stands_beside_the_bandwidth(cache: Path, tmp_path: Path) -> None:
    data = str(made(tmp_path / "data", "cosmoflow", 16).folder)  # GZIP: what is delivered is larger than what is read
    few = ("--ranks", "1", "--threads", "1", "--trials", "1")
    dlio(cache, tmp_path, "storage", "--data", data, *few, "--out", "ceiling.json")
    compared = ("--data", data, "--storage", "ceiling.json", "--verbose")
    done = dlio(cache, tmp_path, "run", "cosmoflow", "--tiny", *compared, "--decode", "--out", "out")
    assert "of the ceiling" in done.stdout
    assert "cold random reads" in done.stdout
    assert data in done.stdout.replace("\n", "").replace(" ", "")
