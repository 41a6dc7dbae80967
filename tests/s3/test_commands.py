"""`generate`, `index`, `verify` and `run` on a dataset in an object store, as their users see them."""

import json
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen import objects
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME
from tests import processes
from tests.s3.datasets import url
from tests.s3.store import SECRET_ID, SECRET_KEY, Fault, Proxy

Dlio = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def dlio(store: Proxy, tmp_path: Path) -> Dlio:
    """The command, whose output and files hold no secret."""

    def run(*words: str, status: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        env = {"DLIO_BENCH_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)} | env
        done = processes.dlio(tmp_path, *words, status=status, **env)
        written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
        for secret in (SECRET_ID, SECRET_KEY):
            assert secret not in done.stdout + done.stderr + written
        return done

    return run


@pytest.fixture
def place() -> str:
    """A prefix that no other test has."""
    return url(f"cdb-{secrets.token_hex(4)}")


def result(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    found = json.loads(done.stdout)
    for each in found:
        assert all(check["ok"] for check in each["checks"]), each["checks"]
    return list(found)


def test_a_dataset_is_made_read_by_two_nodes_and_verified(dlio: Dlio, place: str, store: Proxy, tmp_path: Path) -> None:
    made = json.loads(dlio("generate", "cdb", "--tiny", "--files", "24", "--out", place, "--json").stdout)
    assert made["folder"] == place
    assert not any((tmp_path / "cache/object-store").glob("making-*"))
    assert "complete already" in dlio("generate", "cdb", "--tiny", "--files", "24", "--out", place).stdout
    other = dlio("generate", "cdb", "--tiny", "--files", "12", "--out", place, status=2).stderr
    assert "holds another dataset" in other

    words = ("run", "cdb", "--tiny", "--data", place, "--nodes", "2", "--warmup-trials", "0", "--trials", "1")
    plan = dlio(*words, "--reader", "prefetch", "--dry-run").stdout
    assert f"{place}, an object store" in " ".join(plan.split())
    assert json.loads(dlio(*words, "--dry-run", "--json").stdout)[0]["store"] == place
    store.forget()
    store.faults += [Fault(kind, 1, "/data-") for kind in ("503", "lost", "short", "500")]
    readers = ("--reader", "prefetch,staged", "--tiers", "ram=2MB", "--local-tier", str(tmp_path))
    results = result(dlio(*words, *readers, "--out", "out", "--json"))
    assert store.lists == 1  # of the launching command: the manifest names the objects
    assert [each["dataset"]["folder"] for each in results] == [place, place]
    measured = [each["trials"][0] for each in results]
    assert store.failed == sum(trial["retries"] for trial in measured) == 4
    for trial in measured:
        assert trial["requests"] > 0
        assert trial["bytes_device"] >= trial["bytes_requested"] > 0
    assert any(trial["bytes_ram"] for trial in measured)  # prefetch keeps samples in memory
    assert any(trial["bytes_local"] for trial in measured)  # staged copies whole objects
    [cold] = {check["found"] for check in results[0]["checks"] if check["name"] == "cold cache"}
    assert cold.startswith("cold (object store)")
    shown = dlio("show", "--verbose", "out").stdout
    told = " ".join(shown.split())
    assert f"ranges of objects in {place}" in told
    assert "from the object store" in told

    assert "every byte is as it was written" in dlio("verify", place).stdout
    again = dlio("run", "--from", "out", "--dry-run").stdout
    assert f"{place}, an object store" in " ".join(again.split())


def test_an_upload_that_did_not_end_is_never_taken_for_whole(dlio: Dlio, place: str, store: Proxy) -> None:
    words = ("generate", "cdb", "--tiny", "--files", "6", "--out", place)
    store.refused = NAME
    assert "cannot be written" in dlio(*words, status=4).stderr
    store.refused = ""
    names = objects.open_store(place).sizes()
    assert {EXTENTS, CHECKSUMS} < set(names)
    assert NAME not in names
    for command in (("verify", place), ("run", "cdb", "--tiny", "--data", place, "--dry-run")):
        assert "its upload did not end" in dlio(*command, status=5).stderr
    dlio(*words)  # goes on
    dlio("verify", place)
    objects.open_store(place).delete([EXTENTS])
    assert "complete already" not in dlio(*words).stdout
    dlio("verify", place)


def test_who_may_not_write_learns_it_before_anything_is_made(
    dlio: Dlio, place: str, store: Proxy, tmp_path: Path
) -> None:
    store.refused = objects.PROBE
    words = ("generate", "cdb", "--tiny", "--out", place)
    assert "403 Forbidden" in dlio(*words, "--files", "6", status=4).stderr
    assert not (tmp_path / "cache").exists()
    store.refused = NAME
    dlio(*words, "--files", "6", status=4)
    store.refused = ""
    dlio(*words, "--files", "12")  # another dataset than that of the upload before
    assert objects.PROBE not in objects.open_store(place).sizes()


def test_objects_of_others_become_a_dataset(dlio: Dlio, place: str, store: Proxy, tmp_path: Path) -> None:
    dlio("generate", "cdb", "--tiny", "--files", "6", "--out", "local")
    there = objects.open_store(place)
    for file in sorted((tmp_path / "local").glob("*.h5")):
        there.put(file.name, file)
    assert "is no dataset" in dlio("verify", place, status=2).stderr
    found = json.loads(dlio("index", place, "--workload", "cdb", "--tiny", "--json").stdout)
    assert found["folder"] == place
    dlio("verify", place)
    [victim, *_] = [name for name in there.sizes() if name.endswith(".h5")]
    there.delete([victim])
    gone = dlio("verify", place, status=5).stdout
    assert f"{place}/{victim}" in gone
    assert "404" in gone
    missing = dlio("run", "cdb", "--tiny", "--data", place, "--dry-run", status=5).stderr
    assert f"{place}/{victim} is not in the store" in missing
    content = bytearray((tmp_path / "local" / victim).read_bytes())
    content[-1] ^= 1
    (tmp_path / "spoiled").write_bytes(content)
    there.put(victim, tmp_path / "spoiled")
    assert f"{place}/{victim}" in dlio("verify", place, status=5).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reader", "tfdata"), "reader 'tfdata' reads files"),
        (("--cache", "warm"), "no page cache to warm"),
        (("--io", "direct"), "Leave it out"),
        (("--predict",), "not modelled"),
        (("--emulate-pfs", "bandwidth=1GB/s,cache=1MB"), "Leave cache= out"),
    ],
)
def test_what_an_object_store_does_not_allow_is_refused(
    dlio: Dlio, small: str, words: tuple[str, ...], said: str
) -> None:
    refused = dlio("run", "cdb", "--tiny", "--data", small, *words, status=2).stderr
    assert said in refused
    assert small in refused


def test_the_yardstick_of_a_store_stands_beside_a_run(dlio: Dlio, small: str, store: Proxy, tmp_path: Path) -> None:
    place = url(f"yard-{secrets.token_hex(4)}")
    few = ("--trials", "1", "--ranks", "1", "--threads", "1,2")
    words = ("storage", place, *few, "--sample-size", "300kB", "--size", "1500kB", "--json")
    made = json.loads(dlio(*words).stdout)
    assert objects.open_store(place).sizes() == {}
    rows = {(row["pattern"], row["request_bytes"], row["threads"]) for row in made["reads"]}
    kinds = [("sequential", None), ("random", None), ("range", 64 << 10), ("range", 1 << 20)]
    assert rows == {(*kind, threads) for kind in kinds for threads in (1, 2)}
    assert all(trial["device_bytes"] == trial["bytes"] for row in made["reads"] for trial in row["trials"])
    assert [row["operation"] for row in made["metadata"]["rates"]] == ["head"]

    store.faults.append(Fault("503", 3, "/data-"))
    shown = dlio("storage", "--data", small, *few, "--out", "yard.json").stdout
    assert store.failed == 3
    assert "3 requests made again" in " ".join(shown.split())
    assert "64 KiB" in shown
    run = ("run", "cdb", "--tiny", "--data", small, "--trials", "1", "--warmup-trials", "0", "--reader", "naive")
    beside = dlio(*run, "--storage", "yard.json", "--out", "beside", "--verbose").stdout
    assert f"cold random reads in {small}" in " ".join(beside.split())
    assert "Leave it out" in dlio("storage", place, "--cache", "warm", status=2).stderr


def test_a_slow_store_is_played(dlio: Dlio, small: str) -> None:
    """The links let no more through than they are asked to: a lower limit of seconds, which no machine can miss."""
    words = ("run", "cdb", "--tiny", "--data", small, "--nodes", "2", "--warmup-trials", "0", "--trials", "1")
    slow = ("--emulate-pfs", "bandwidth=400kB/s,per-node=300kB/s,open=2ms,request=1ms", "--reader", "naive")
    [found] = result(dlio(*words, *slow, "--compute", "none", "--out", "slow", "--json"))
    [trial] = found["trials"]
    assert "EMULATED PFS" in found["marks"]
    assert trial["bytes_device"] == trial["bytes_requested"]
    assert trial["elapsed_seconds"] >= 0.9 * trial["bytes_requested"] / 400e3


@pytest.fixture(scope="module")
def small(server: Proxy, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset that no test changes."""
    place, folder = url(f"small-{secrets.token_hex(4)}"), tmp_path_factory.mktemp("small")
    env = {"DLIO_BENCH_CACHE": str(folder)}
    processes.dlio(folder, "generate", "cdb", "--tiny", "--files", "6", "--out", place, status=0, **env)
    return place


def test_a_store_that_cannot_be_used_is_named_with_the_fix(dlio: Dlio, small: str) -> None:
    words = ("verify", small)
    nobody = dlio(*words, status=4, AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_MAX_ATTEMPTS="1").stderr
    assert "http://127.0.0.1:1: connection refused" in nobody
    user = dlio(*words, status=4, AWS_ENDPOINT_URL="http://u:hidden@127.0.0.1:1", AWS_MAX_ATTEMPTS="1").stderr
    assert "hidden" not in user
    assert "AWS_ALLOW_HTTP=true" in dlio(*words, status=4, AWS_ALLOW_HTTP="false").stderr
    assert "AWS_MAX_ATTEMPTS=many" in dlio(*words, status=4, AWS_MAX_ATTEMPTS="many").stderr
    assert "no such bucket" in dlio("index", "s3://nobodys-bucket/x", "--workload", "cdb", status=2).stderr
    assert "names no bucket" in dlio("verify", "s3://x", status=2).stderr
