"""When the job ends, from what schedulers say, and what still fits into the time that is left."""

from collections.abc import Mapping, Sequence

import pytest

from dlio_bench.errors import OutOfTime, UsageError
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.cluster.mpi_library import ProbeOutcome
from dlio_bench.harness.commands.run.told.foresight import revised_seconds

NOW = 1_000_000.0


def ends(env: Mapping[str, str], answers: Mapping[str, str] | None = None) -> float | None:
    """answers: command line -> what the scheduler's program prints."""

    def ask(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> ProbeOutcome:
        return ProbeOutcome(0, (answers or {})[" ".join(argv)], "")

    return walltime.ends(env, NOW, ask)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("3:04\n", 184), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_the_time_that_slurm_says_is_left(text: str, seconds: int | None) -> None:
    end = ends({"SLURM_JOB_ID": "7"}, {"squeue -h -o %L -j 7": text})
    assert end == (None if seconds is None else NOW + seconds)


def test_what_is_given_comes_before_what_a_scheduler_says() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1000500"}
    assert ends(slurm) == 1_000_500
    assert ends(slurm | {walltime.ENDS: "1000400"}) == 1_000_400
    assert ends(slurm | {walltime.ENDS: "0"}) is None
    with pytest.raises(UsageError, match="DLIO_BENCH_ENDS=soon"):
        ends({walltime.ENDS: "soon"})
    assert ends({}) is None


def test_other_schedulers_are_asked_by_their_own_programs() -> None:
    flux = {"FLUX_URI": "local:///x", "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1000500"}
    assert ends(flux, {"flux job timeleft": "120\n"}) == NOW + 120
    assert ends(flux, {"flux job timeleft": "infinity\n"}) is None
    bjobs = "bjobs -noheader -o time_left 8"
    assert ends({"LSB_JOBID": "8"}, {bjobs: "1:30 L\n"}) == NOW + 5400
    assert ends({"LSB_JOBID": "8"}, {bjobs: "-\n"}) is None
    torque = "Job Id: 9\n    Resource_List.walltime = 01:00:00\n    Walltime.Remaining = 77\n"
    assert ends({"PBS_JOBID": "9"}, {"qstat -f 9": torque}) == NOW + 77
    pro = "Job Id: 9\n    stime = Tue Jan 13 00:00:00 1970\n    Resource_List.walltime = 01:00:00\n"
    later = pro.replace("00:00:00 1970", "00:10:00 1970")
    began = ends({"PBS_JOBID": "9"}, {"qstat -f 9": pro})
    assert began is not None
    assert ends({"PBS_JOBID": "9"}, {"qstat -f 9": later}) == began + 600
    assert ends({"PBS_JOBID": "9"}, {"qstat -f 9": "qstat: Unknown Job Id 9"}) is None


def test_a_part_begins_only_if_it_can_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walltime.time, "time", lambda: NOW)
    monkeypatch.setenv(walltime.ENDS, f"{NOW + 1000:.0f}")
    walltime.require("a run", 900.0)
    with pytest.raises(OutOfTime, match="a run takes about 16m00s"):
        walltime.require("a run", 960.0)  # a minute is kept back
    monkeypatch.setenv(walltime.ENDS, f"{NOW + 10000:.0f}")
    with pytest.raises(OutOfTime, match="of 2h46m that are left 8m00s are kept back"):
        walltime.require("a run", 9600.0)  # and of long parts a share
    monkeypatch.delenv(walltime.ENDS)
    walltime.require("a run", 1e9)


def test_a_time_that_is_too_short_for_anything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(walltime.ENDS, "0")
    for given in ("30s", "60s"):
        with pytest.raises(UsageError, match=r"do not suffice: 1m00s are kept back.* Give more than 1m00s"):
            walltime.settle(given)
    assert walltime.settle("0") is None
    assert walltime.settle("61s") is not None
    assert walltime.settle("45s", walltime.LAST_SECONDS) is not None


def test_what_was_measured_corrects_what_was_foreseen() -> None:
    assert revised_seconds(10.0, []) == 10.0
    assert revised_seconds(10.0, [(5.0, 4.0)]) == 10.0  # quicker than foreseen: not sooner
    assert revised_seconds(10.0, [(5.0, 10.0), (8.0, 40.0)]) == 50.0


def test_how_often_the_job_was_begun_again() -> None:
    assert walltime.restarts({"SLURM_RESTART_COUNT": "2"}) == 2
    assert walltime.restarts({}) == 0
