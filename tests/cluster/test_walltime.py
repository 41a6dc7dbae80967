"""Jobs that Slurm ends before they are done: what is finished stays, no rank does, and the same script goes on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.processes import gone, pids_of, until

RUN = (
    "dlio-bench run cdb --tiny --nodes 1,4 --reader naive --warmup-trials 0 --trials 2 --compute emulate:60ms "
    "--out {name}"
)


class Job:
    """A batch job of one line, which takes the place of the shell, so that the shell's signals reach it."""

    def __init__(self, slurm: Cluster, name: str, line: str, *options: str) -> None:
        self.slurm, self.log, self.out = slurm, slurm.work / f"{name}.log", slurm.work / name
        script = slurm.work / f"{name}.sh"
        script.write_text(f"#!/bin/bash\nexec {line}\n")
        words = ("sbatch", "--parsable", "-N4", "--exclusive", "--open-mode=append", "-o", str(self.log))
        self.number = slurm.on("node1", *words, *options, str(script)).stdout.strip()

    def do(self, *words: str) -> None:
        """Give a command of Slurm about this job."""
        self.slurm.on("node1", *words, self.number)

    @property
    def state(self) -> str:
        time.sleep(0.2)  # so that who waits does not keep the machine busy
        shown = self.slurm.on("node1", "scontrol", "show", "job", self.number).stdout
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, done: Callable[[], object]) -> None:
        """Until something holds, as long as the job has not ended."""
        until(lambda: done() or self.state not in ("PENDING", "CONFIGURING", "RUNNING"))
        assert done(), self.text

    def ended(self) -> str:
        """What the job said, once it and its ranks are gone."""
        until(lambda: self.state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), missing=self.text)
        gone(self.ranks())
        return self.text

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def ranks(self) -> list[int]:
        return pids_of(f"measured.rank {self.out}/work")


def finished(out: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}


@pytest.fixture
def running(slurm: Cluster) -> Callable[..., Job]:
    """running(name, option...) -> a job whose first node count is finished, while it measures the second."""

    def begin(name: str, *options: str) -> Job:
        job = Job(slurm, name, RUN.format(name=name), *options)
        job.wait(lambda: "naive-1x1" in finished(job.out) and len(job.ranks()) >= 4)  # srun may be among them
        return job

    return begin


def test_a_cancelled_job_keeps_what_is_finished(running: Callable[..., Job]) -> None:
    job = running("cancelled")
    job.do("scancel")  # SIGTERM to all that runs, SIGKILL after KillWait
    said = job.ended()
    assert [*finished(job.out)] == ["naive-1x1"]
    assert (job.out / "unfinished.json").exists()
    assert "Traceback" not in said


def test_a_signal_before_the_end_leaves_time_for_a_report(running: Callable[..., Job]) -> None:
    job = running("warned")
    job.do("scancel", "--batch", "--signal=TERM")  # as `sbatch --signal=B:TERM@60` does
    said = job.ended()
    assert "Interrupted by SIGTERM: the ranks have ended. What is finished is kept in warned." in said
    assert "Go on with: dlio-bench run cdb" in said
    [known] = finished(job.out).values()
    assert "INTERRUPTED" in known["marks"]
    assert (job.out / "report.html").exists()


def test_a_requeued_job_goes_on(running: Callable[..., Job]) -> None:
    job = running("requeued")
    job.do("scontrol", "requeue")
    until(lambda: job.state == "PENDING")
    gone(job.ranks())
    first = finished(job.out)
    assert [*first] == ["naive-1x1"]
    job.slurm.on(
        "node1", "scontrol", "update", f"JobId={job.number}", "StartTime=now"
    )  # else Slurm waits for 2 minutes
    job.wait(lambda: not (job.out / "unfinished.json").exists())
    said = job.ended()
    assert "Slurm has begun this job again: restart 1." in said
    assert "--nodes 1 was finished before" in said
    after = finished(job.out)
    assert after["naive-1x1"]["trials"] == first["naive-1x1"]["trials"]
    assert after["naive-1x1"]["environment"]["restarts"] is None
    assert after["naive-4x1"]["environment"]["restarts"] == 1


def test_what_cannot_end_before_the_job_does_not_begin(slurm: Cluster) -> None:
    job = Job(slurm, "short", RUN.format(name="short"), "--time=1")
    assert "The time of this job does not suffice: cdb on 1 node takes about" in job.ended()
    assert not job.out.exists()


def test_a_dataset_goes_on_after_a_requeue(slurm: Cluster) -> None:
    line = "dlio-bench generate cdb --tiny --files 600 --nodes 4 --out made"
    job = Job(slurm, "made", line)
    job.wait(lambda: len(list(job.out.glob("*.h5"))) > 8)
    job.do("scontrol", "requeue")
    until(lambda: job.state == "PENDING")
    assert not (job.out / "manifest.json").exists()
    job.slurm.on("node1", "scontrol", "update", f"JobId={job.number}", "StartTime=now")
    said = job.ended()
    assert (job.out / "manifest.json").exists(), said
    slurm.on("node1", "dlio-bench", "verify", "made")
