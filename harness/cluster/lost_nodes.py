"""Nodes that a job lost, and ranks with them: what the launcher says of them, and what it does not say."""

import re
from collections.abc import Mapping

# "srun: error: node2: tasks 2-3,5: Killed"
_ENDED = re.compile(r"^srun: error: \S+: tasks? ([\d,\[\]-]+): ", re.MULTILINE)
_FAILED = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
# Open MPI's: "Remote daemon: [prterun-node1-572@0,1] on node node2"
_UNREACHABLE = re.compile(r"has lost communication with a remote.*?Remote daemon *: \S+ on node (\S+)", re.DOTALL)
_GIVEN_UP = "srun: error: Timed out waiting for job step to complete"


def told(output: str, hosts: Mapping[int, str], lost: str, *, waited: bool = False) -> str | None:
    """What the output of srun or mpirun says of nodes that failed, as sentences; None if nothing.

    hosts: the host of each rank, as far as known. lost: what is lost with the job. waited: the job's time limit is
    over. srun names a node that the controller has given up; before that, it waits in vain for the ends of ranks. Its
    words are those of Slurm 22.05.
    """
    hint = "`sinfo -R` may say why; leave the node out of the next job with --exclude."
    if failed := _FAILED.search(output):
        return f"Slurm gave up {failed[1]}, which failed or was cut off, and ended the job: {lost}. {hint}"
    if broken := _UNREACHABLE.search(output):
        there = ", ".join(f"rank {rank}" for rank, host in sorted(hosts.items()) if _short(host) == _short(broken[1]))
        return (
            f"{broken[1]} was lost{there and f', with {there}'} (it failed or was cut off: mpirun's connection "
            f"broke): {lost}."
        )
    ended = {rank for ranks in _ENDED.findall(output) for rank in _numbers(ranks)}
    heard = {hosts[rank] for rank in ended if rank in hosts}
    silent = {rank: host for rank, host in sorted(hosts.items()) if host not in heard}
    if not silent or not (_GIVEN_UP in output or (waited and ended)):
        return None
    names, ranks = ", ".join(dict.fromkeys(silent.values())), ", ".join(f"rank {rank}" for rank in silent)
    return (
        f"{names} did not tell how {ranks} ended (it failed, was cut off, or cannot end processes that wait for "
        f"storage): {lost}. {hint}"
    )


def _short(host: str) -> str:
    return host.partition(".")[0]


def _numbers(ranks: str) -> list[int]:
    """Slurm's "0-1,4" -> [0, 1, 4]."""
    spans = [span.partition("-") for span in ranks.strip("[]").split(",")]
    return [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]
