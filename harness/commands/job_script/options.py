"""The options of `dlio-bench sbatch`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt

EXAMPLES = """\
examples:
  dlio-bench sbatch run cdb --nodes 1,4,8 --reader naive,prefetch
  dlio-bench sbatch --account m1234 --constraint gpu --time 2h --submit accept plan.toml --out delivered
  dlio-bench sbatch --setup 'module load openmpi' --out job.sh run hepcnnb --nodes 4 --ranks-per-node 4

exit status:
  0  printed or submitted   2  usage, or a command that cannot be   4  sbatch is not here, or refused the job
"""
PASSED_ON = ("account", "partition", "qos", "constraint", "gpus_per_node", "mem", "license")  # to sbatch, as they are


class Options(Struct, frozen=True, kw_only=True):
    """None: not given."""

    words: Annotated[
        tuple[str, ...], opt.argument("COMMAND ...", "run, accept, generate, ...", nargs=argparse.REMAINDER)
    ]
    time: Annotated[
        float | None,
        opt.seconds(
            "time limit of the job, such as 2h (default: half as much again as the command is expected to take)"
        ),
        opt.Group("what Slurm is asked for"),
    ] = None
    job_name: Annotated[
        str | None, opt.option("name of the job and of its log (default: of the command)", metavar="NAME")
    ] = None
    account: Annotated[str | None, opt.option("the account that pays", metavar="VALUE")] = None
    partition: Annotated[str | None, opt.option("the partition", metavar="VALUE")] = None
    qos: Annotated[str | None, opt.option("the quality of service", metavar="VALUE")] = None
    constraint: Annotated[str | None, opt.option("features that the nodes must have, such as gpu", metavar="VALUE")] = (
        None
    )
    gpus_per_node: Annotated[str | None, opt.option("GPUs on each node", metavar="VALUE")] = None
    mem: Annotated[str | None, opt.option("memory on each node, such as 0 for all of it", metavar="VALUE")] = None
    license: Annotated[
        str | None, opt.option("licences, such as the file systems that a site wants named", metavar="VALUE")
    ] = None
    setup: Annotated[
        tuple[str, ...],
        opt.option(
            "a shell line before the command, such as 'module load openmpi'; give it again for more",
            metavar="LINE",
            action="append",
        ),
        opt.Group("what the script does"),
    ] = ()
    container: Annotated[str | None, opt.option("run every rank in this Apptainer image", metavar="IMAGE")] = None
    out: Annotated[Path | None, opt.file("write the script to a file (default: print it)"), opt.Group("")] = None
    submit: Annotated[bool, opt.flag("hand the script to sbatch, and print the job's number")] = False
    dry_run: Annotated[bool, opt.flag("with --submit: print what would be submitted")] = False
    json: opt.Json = False

    @property
    def slurm(self) -> dict[str, str]:
        """The options of sbatch that were given, by their names there."""
        return {name.replace("_", "-"): value for name in PASSED_ON if (value := getattr(self, name))}


def _run(given: opt.Given) -> int:
    if "words" not in given:
        raise UsageError("Name the command that the job runs: dlio-bench sbatch run cdb --nodes 8.")
    from dlio_bench.harness.commands.job_script.command import sbatch

    return sbatch(Options(**given))


SBATCH = opt.Command(
    "sbatch",
    "print or submit a Slurm job script for another command",
    "Print a job script that runs COMMAND on whole nodes: as many as its --nodes, or its plan, asks for at most. The "
    "command is checked first, so that a mistake is told now and not after the job has waited. Write the options of "
    "the script before COMMAND.",
    Options,
    _run,
    EXAMPLES,
)
