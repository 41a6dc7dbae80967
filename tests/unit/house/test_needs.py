"""What a machine lacks skips the tests that need it, and the end of the run counts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_last_lines_count_skipped_tests_by_what_would_run_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/datagen/test_hdf5_tools.py"]
    env = os.environ | {"PATH": str(tmp_path)}  # which holds no h5dump
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2] == "2 tests skipped: no h5dump (apt-get install hdf5-tools)"
