"""The files of a node's tiers: shared by processes, bounded by what is free, and never with a name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.links import Inbox, Where, send
from dlio_bench.harness.storage import tier_files
from tests.processes import open_files

OTHER = """
import sys
from pathlib import Path
from dlio_bench.harness.cluster.links import Inbox
from dlio_bench.harness.storage import tier_files
places, sizes = [None, Path(sys.argv[1]), None], [100, 100, 0]
with Inbox() as inbox:
    print(inbox.where.name.hex(), inbox.where.token.hex(), flush=True)
    sys.stdin.read(1)
    tiers = tier_files.tier_files_of(tier_files.take(inbox, sizes), places, sizes)
tiers.write(0, 90, memoryview(b"in memory"))
tiers.write(1, 90, memoryview(b"on a disk"))
tiers.flags[6] = 7
"""


def test_processes_share_files_without_names(tmp_path: Path) -> None:
    before, sizes, places = len(open_files()), [100, 100, 0], [None, tmp_path, None]
    handles = tier_files.make(places, sizes, 7)
    assert list(tmp_path.iterdir()) == []
    command = (sys.executable, "-c", OTHER, str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        tier_files.share(handles, [Where(*map(bytes.fromhex, other.stdout.readline().split()))])
        other.communicate("\n", timeout=60)
    assert other.returncode == 0
    tiers = tier_files.tier_files_of(handles, places, sizes)
    for tier, text in enumerate((b"in memory", b"on a disk")):
        content = bytearray(9)
        tiers.read(tier, 90, memoryview(content))
        assert content == text
    assert tiers.flags[6] == 7
    tiers.close()
    assert len(open_files()) == before


def test_a_tier_larger_than_free_memory_is_refused_before_the_kernel_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(open_files())
    monkeypatch.setattr(tier_files, "available_bytes", lambda: 1000)
    told = r"A tier of 4.1 kB cannot be made in memory on .*: Cannot allocate memory \(1 kB are free.*smaller --tiers"
    with pytest.raises(EnvironmentFailure, match=told):
        tier_files.make([tmp_path, None], [100, 4096], 1)
    tier_files.close(tier_files.make([None], [4096], 1, reserve=False))
    assert len(open_files()) == before


def test_files_that_a_stranger_sends_are_not_taken() -> None:
    before = len(open_files())
    with Inbox() as inbox:
        handles, strangers = tier_files.make([None], [100], 1), tier_files.make([None], [100], 1)
        tier_files.share(strangers, [replace(inbox.where, token=bytes(16))])
        tier_files.share(handles, [inbox.where])
        taken = tier_files.take(inbox, [100])
        assert [open_files()[str(handle)] for handle in taken] == [open_files()[str(handle)] for handle in handles]
        assert not any(map(os.get_inheritable, taken))
        with pytest.raises(EnvironmentFailure, match=r"cannot share a tier on .*in one container"):
            tier_files.take(inbox, [100])
        for each in (handles, strangers, taken):
            tier_files.close(each)
    assert len(open_files()) == before
    with pytest.raises(ConnectionRefusedError):
        send([], inbox.where)
