"""What a launcher prints before it fails, for people: a known cause in a sentence with its fix, else its last words."""

import re

CHARACTERS = 600  # of last words
# What srun and mpirun print without a failure, or besides one
_NOISE = re.compile(
    r"srun: cluster configuration lacks support for cpu binding"
    r"|srun: [Ww]arning: |srun: launch/slurm: |srun: Job step aborted: Waiting|srun: Force Terminated"
    r"|\[\S+\] plm:\w+: Warning: "
)
_CAUSES = {
    r"More processors requested than permitted": (
        "Slurm has given this job fewer processors than it wants ranks on a node. Ask for whole nodes (salloc "
        "--exclusive), or for as many tasks as ranks (--ntasks-per-node R)."
    ),
    r"There are not enough slots available": (
        "mpirun was given fewer slots than ranks on a node. Ask for whole nodes, or for as many tasks as ranks; or "
        "give --launcher-args '--map-by :OVERSUBSCRIBE'."
    ),
    r"Missing requested host: (?P<host>\S+)": (
        "{host} of the host file is not in the allocation that this command runs in, and mpirun starts ranks nowhere "
        "else. Leave --hostfile (and its variable) out: the scheduler tells mpirun the hosts of the job."
    ),
}


def cause(output: str) -> str | None:
    """A known cause in what the launcher printed, in a sentence or two with the fix; None if there is none."""
    for words, sentence in _CAUSES.items():
        if match := re.search(words, output):
            return sentence.format(**match.groupdict())
    return None


def quoted(output: str) -> str:
    """The last lines on one line, those that tell nothing left out if others are there; (none) without a line."""
    lines = [line for raw in output.splitlines() if (line := raw.replace("\ufffd", "").strip()).strip(" -")]
    telling = [line for line in lines if not _NOISE.match(line)] or lines
    chosen: list[str] = []
    for line in reversed(telling):
        if chosen and sum(map(len, chosen)) + len(line) > CHARACTERS:
            break
        chosen.insert(0, line[-CHARACTERS:])
    return " / ".join(chosen) or "(none)"
