"""The options of `dlio-bench simulate`. Heavy imports wait until it runs."""

import argparse
import json
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.options import Commands, parse_tiers
from dlio_bench.harness.simulator import axes

# harness.cluster.system.SHIPPED, which imports NumPy
SYSTEMS = (
    "deck", "sc21", "piz-daint", "lassen", "summit", "cori", "cori-burst-buffer", "cori-haswell", "perlmutter",
    "frontier",
)  # fmt: skip

EXAMPLES = """\
examples:
  dlio-bench simulate --scenario S2
  dlio-bench simulate --scenario S2 --pfs-clients published
  dlio-bench simulate imagenet --nodes 64 --system mine.toml --policy clairvoyant,cooperative
  dlio-bench simulate imagenet --nodes 16 --system sc21 --tiers staging=4GB,ram=10GB,disk=40GB
  dlio-bench simulate --scenario S4 --vary ram=0GB,25GB,50GB --vary disk=0GB,100GB,200GB --out what-if
  dlio-bench simulate imagenet --nodes 16 --epochs 90 --system deck --policy lower-bound --accesses 0.8
  dlio-bench simulate --control-tree 27360
"""


def add_simulate(commands: Commands) -> None:
    """`simulate`."""
    parser = commands.add_parser(
        "simulate",
        help="predict readers on the performance model, without running them",
        description="Predict how long the input of a job takes with each policy, on a machine that a file describes.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "workload", nargs="?", metavar="WORKLOAD", help="a workload at its published size (or --scenario)"
    )
    parser.add_argument(
        "--scenario", metavar="NAME", help="S1, S2, S3 or S4 of the published simulations, or imagenet22k"
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--nodes", type=int, metavar="N", help="nodes (default: the scenario's)")
    job.add_argument("--epochs", type=int, metavar="E", help="epochs (default: the scenario's; 3 for a workload)")
    job.add_argument("--seed", type=int, default=1, metavar="S", help="seed of orders and sizes (default 1)")
    machine = parser.add_argument_group("the machine")
    machine.add_argument(
        "--system", metavar="FILE", help=f"TOML description, or one of {', '.join(SYSTEMS)} (default: the scenario's)"
    )
    machine.add_argument(
        "--tiers",
        type=parse_tiers,
        default={},
        metavar="NAME=SIZE[,...]",
        help="replace tier sizes, for example ram=10GB,disk=40GB",
    )
    machine.add_argument(
        "--pfs-clients",
        choices=("conserved", "worst", "published"),
        default="conserved",
        help="how readers share the parallel file system. conserved (default): all nodes read, and the threads "
        "of a node share its part of the bandwidth. worst: every thread gets that part, as in the worst "
        "case of the papers. published: as the published simulator counted",
    )
    machine.add_argument(
        "--compute",
        metavar="HOW",
        help="step time of a workload, as in `run`: emulate:DEVICE, emulate:50ms or emulate:@FILE (default: what"
        " the system says)",
    )
    parser.add_argument(
        "--policy",
        default="all",
        metavar="NAME[,NAME...]",
        help="what to predict, by the names of `run --reader`; with --pfs-clients published, naive is shuffled and "
        "staging-pool is double-buffer (default all)",
    )
    parser.add_argument(
        "--vary",
        type=axes.parse,
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="predict a what-if grid: other numbers of nodes or tier sizes, for example nodes=4,8,16 or "
        "ram=0GB,10GB. Given once: a table of the policies. Twice: a heat map for each policy, the first "
        "across, the second down. Three times: a map for each value of the third",
    )
    parser.add_argument(
        "--accesses",
        type=float,
        metavar="D",
        help="also count how often one node reads each sample, beside the binomial distribution, and how many samples "
        "it reads more than 1 + D times the mean, for example 0.8",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write simulation.json and report.html to this folder, or control-tree.json",
    )
    tree = parser.add_argument_group("the control plane of a training (nothing else is simulated then)")
    tree.add_argument(
        "--control-tree",
        type=int,
        metavar="RANKS",
        help="count the messages by which so many ranks agree on a tensor, on SC'18's tree and without one",
    )
    tree.add_argument(
        "--radix", metavar="R[,R...]", help="children of a rank of the tree; 0: all ranks are (default 0,2,4,8)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_simulate(args: argparse.Namespace) -> int:
    """`simulate`."""
    if args.control_tree is not None or args.radix is not None:
        return _count_control_tree(args)
    from dlio_bench.harness.simulator.command import Options, simulate

    system = None if args.system is None else Path(args.system)
    return simulate(
        Options(
            args.workload, args.scenario, args.nodes, args.epochs, args.seed, system, args.tiers,
            args.pfs_clients, args.policy, args.json, tuple(args.vary), args.out, args.compute, args.accesses,
        )
    )  # fmt: skip


def _count_control_tree(args: argparse.Namespace) -> int:
    """`simulate --control-tree`."""
    from dlio_bench.harness.ground.folders import output_folder
    from dlio_bench.harness.simulator import control_tree
    from dlio_bench.reports.document.typed import to_json
    from dlio_bench.reports.simulation.control_tree import NAME, render, save

    if args.control_tree is None:
        raise UsageError(f"--radix {args.radix} is of a tree of ranks. Say of how many, with --control-tree RANKS.")
    others = ("workload", "scenario", "nodes", "epochs", "system", "compute", "vary", "accesses")
    if given := next((name for name in others if getattr(args, name)), None):
        flag = "WORKLOAD" if given == "workload" else f"--{given}"
        raise UsageError(f"--control-tree counts messages and simulates no reader. Use it without {flag}.")
    radices = control_tree.RADICES if args.radix is None else _whole_numbers(args.radix)
    document = control_tree.counted(args.control_tree, radices)
    if args.out is not None:
        with output_folder(args.out, "simulate") as folder:
            save(document, folder / NAME)
    print(json.dumps(to_json(document), indent=1) if args.json else render(document))
    if args.out is not None and not args.json:
        print(f"\n  results  {args.out / NAME}")
    return 0


def _whole_numbers(text: str) -> tuple[int, ...]:
    """'0,2' -> (0, 2). UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(f"--radix {text}: give whole numbers, such as 0,2,4,8.")
    return tuple(map(int, words))
