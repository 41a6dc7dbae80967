"""The options of `dlio-bench sbatch`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.options import Commands
from dlio_bench.units import parse_seconds

EXAMPLES = """\
examples:
  dlio-bench sbatch run cdb --nodes 1,4,8 --reader naive,prefetch
  dlio-bench sbatch --account m1234 --constraint gpu --time 2h --submit accept plan.toml --out delivered
  dlio-bench sbatch --setup 'module load openmpi' --out job.sh run hepcnnb --nodes 4 --ranks-per-node 4

exit status:
  0  printed or submitted   2  usage, or a command that cannot be   4  sbatch is not here, or refused the job
"""
PASSED_ON = {  # options of sbatch that sites ask for
    "account": "the account that pays",
    "partition": "the partition",
    "qos": "the quality of service",
    "constraint": "features that the nodes must have, such as gpu",
    "gpus-per-node": "GPUs on each node",
    "mem": "memory on each node, such as 0 for all of it",
    "license": "licences, such as the file systems that a site wants named",
}


def add_sbatch(commands: Commands) -> None:
    """`sbatch`."""
    parser = commands.add_parser(
        "sbatch",
        help="print or submit a Slurm job script for another command",
        description="Print a job script that runs COMMAND on whole nodes: as many as its --nodes, or its plan, asks "
        "for at most. The command is checked first, so that a mistake is told now and not after the job has waited. "
        "Write the options of the script before COMMAND.",
        epilog=EXAMPLES,
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="run, accept, generate, ...")
    asked = parser.add_argument_group("what Slurm is asked for")
    asked.add_argument(
        "--time",
        type=parse_seconds,
        metavar="TIME",
        help="time limit of the job, such as 2h (default: half as much again as the command is expected to take)",
    )
    asked.add_argument("--job-name", metavar="NAME", help="name of the job and of its log (default: of the command)")
    for name, text in PASSED_ON.items():
        asked.add_argument(f"--{name}", metavar="VALUE", help=text)
    inside = parser.add_argument_group("what the script does")
    inside.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a shell line before the command, such as 'module load openmpi'; give it again for more",
    )
    inside.add_argument("--container", metavar="IMAGE", help="run every rank in this Apptainer image")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the script to a file (default: print it)")
    parser.add_argument("--submit", action="store_true", help="hand the script to sbatch, and print the job's number")
    parser.add_argument("--dry-run", action="store_true", help="with --submit: print what would be submitted")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_sbatch(options: argparse.Namespace) -> int:
    """Print, write or submit the script."""
    if not options.words:
        raise UsageError("Name the command that the job runs: dlio-bench sbatch run cdb --nodes 8.")
    from dlio_bench.harness.commands.job_script.command import Options, sbatch

    passed_on = {name: value for name in PASSED_ON if (value := getattr(options, name.replace("-", "_")))}
    return sbatch(
        Options(
            words=tuple(options.words),
            seconds=options.time,
            name=options.job_name,
            slurm=passed_on,
            setup=tuple(options.setup),
            container=options.container,
            out=options.out,
            submit=options.submit and not options.dry_run,
            json=options.json,
        )
    )
