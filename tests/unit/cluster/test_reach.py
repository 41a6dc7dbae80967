"""Hosts of a host file, as ssh tells them apart: here a program in its place, which stays on this machine."""

from pathlib import Path

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.start import require_reachable

SSH = """#!/bin/sh
export PATH="{folder}/$1:$PATH"
shift
eval "$*"
"""


def test_one_host_under_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "agent"
    ssh.write_text(SSH.format(folder=tmp_path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(ssh))
    (tmp_path / "other").mkdir()
    uname = tmp_path / "other" / "uname"  # all that differs between the hosts of this test
    uname.write_text("#!/bin/sh\necho other\n")
    uname.chmod(0o755)
    require_reachable(("first", "other"))
    for same in (("first", "other", "alias"), ("localhost", "alias")):
        with pytest.raises(UsageError, match=rf"names one host twice: {same[0]} and alias are the same"):
            require_reachable(same)
