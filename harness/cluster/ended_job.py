"""A Slurm job that was ended from outside while this command worked in it: asked of Slurm, as srun gives no reason."""

from collections.abc import Mapping

from dlio_bench.harness.cluster.mpi_library import ask

ASK_SECONDS = 5.0
# Job states, squeue(1). COMPLETING: the job ends although this command has not ended yet.
_ENDED = {
    "CANCELLED": "was cancelled",
    "COMPLETING": "was cancelled",
    "DEADLINE": "was ended by its deadline",
    "PREEMPTED": "had to make room for another",
    "TIMEOUT": "was ended by its time limit",
}


def told(env: Mapping[str, str]) -> str | None:
    """A sentence about the end of the job that this process is in; None outside of one, or while the job goes on."""
    job = env.get("SLURM_JOB_ID")
    if job is None:
        return None
    answer = ask(("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"), env, ASK_SECONDS)
    how = _ENDED.get(answer.out.strip()) if answer.status == 0 else None
    return f"Slurm job {job} {how}, and its ranks with it." if how else None
