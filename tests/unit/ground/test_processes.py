"""What multiprocessing names does not outlive the processes that named it, however they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlio_bench import processes
from dlio_bench.free_space import SHARED_MEMORY

USER = """
if __name__ == "__main__":
    import multiprocessing.util, sys
    from dlio_bench import processes
    context = {how}
    held = context.Semaphore(0)
    worker = context.Process(target=print, args=("a worker has worked",))
    worker.start()
    worker.join()
    print(multiprocessing.util.get_temp_dir(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def working(how: str, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process that has had a worker and holds a semaphore, and the name of its folder."""
    script = tmp_path / "user.py"
    script.write_text(USER.format(how=how))
    user = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert user.stdout is not None
    try:
        assert user.stdout.readline() == "a worker has worked\n"
        yield user, Path(user.stdout.readline().strip()).name
    finally:
        user.kill()
        user.communicate()


def left_of(name: str) -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir() if name in path.name}


@pytest.mark.parametrize("how", ["processes.spawn()", "processes.fork_server('json')"])
def test_names_go_with_a_process_that_ends_and_are_swept_after_one_that_was_killed(how: str, tmp_path: Path) -> None:
    with working(how, tmp_path) as (user, name):
        processes.sweep()
        assert len(left_of(name)) > 1  # it is at work: a folder and semaphores
        os.killpg(user.pid, signal.SIGKILL)  # with its resource tracker
        user.wait()
        assert len(left_of(name)) > 1
        processes.sweep()
        assert left_of(name) == set()
    with working(how, tmp_path) as (user, name):
        _, err = user.communicate(timeout=60)
        assert (user.returncode, err) == (0, "")
        assert left_of(name) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["user.py"]  # the temporary folder
