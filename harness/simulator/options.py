"""The options of `dlio-bench simulate`. Heavy imports wait until it runs."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Struct, structs

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt
from dlio_bench.units import parse_bytes, parse_seconds

NODES = "nodes"
MOST_AXES = 3  # across a heat map, down it, and one map for each value
# harness.cluster.system.SHIPPED, which imports NumPy
SYSTEMS = (
    "deck", "deck-environment", "sc21", "piz-daint", "piz-daint-records", "lassen", "summit", "cori",
    "cori-burst-buffer", "cori-records", "cori-haswell", "perlmutter", "frontier",
)  # fmt: skip
MOST_RANKS = 1_000_000  # of a tree that is counted


class Axis(Struct, frozen=True):
    """`values`: node counts, or sizes of a tier in bytes, in the user's order."""

    name: str
    values: tuple[int, ...]


def parse_axis(text: str) -> Axis:
    """'nodes=4,8' -> Axis('nodes', (4, 8)), 'ram=0GB,10GB' -> Axis('ram', (0, 10_000_000_000)). UsageError."""
    name, equals, listed = (part.strip() for part in text.partition("="))
    words = [word.strip() for word in listed.split(",") if word.strip()]
    if not equals or not name:
        raise UsageError(f"--vary '{text}' is not an axis with its values. Write nodes=4,8,16 or ram=0GB,10GB.")
    if not words:
        raise UsageError(f"--vary '{text}' has no values. Write at least one, as in {name}={_example(name)}.")
    values = tuple(_nodes(text, word) if name == NODES else _size(text, word) for word in words)
    for position, value in enumerate(values):
        if value in values[:position]:
            raise UsageError(f"--vary '{text}' says {words[position]} twice. Name each value once.")
    return Axis(name, values)


def require_axes(
    axes: Sequence[Axis], tiers: Collection[str], system: str, nodes: int | None, fixed: Mapping[str, int]
) -> None:
    """UsageError for an axis that the system does not have, that comes twice, or that another option sets, too."""
    known = (NODES, *tiers)
    if len(axes) > MOST_AXES:
        raise UsageError(f"--vary is given {len(axes)} times. A grid has at most {MOST_AXES} axes: leave some out.")
    seen: set[str] = set()
    for axis in axes:
        if axis.name not in known:
            raise UsageError(
                f"--vary {axis.name} is no axis. System '{system}' has {', '.join(known)}: nodes, and sizes of tiers."
            )
        if axis.name in seen:
            raise UsageError(f"--vary names {axis.name} twice. Put all of its values into one --vary {axis.name}=...")
        seen.add(axis.name)
        if axis.name in fixed:
            raise UsageError(f"--tiers and --vary both set {axis.name}. Leave it out of one of them.")
    if NODES in seen and nodes is not None:
        raise UsageError(f"--nodes {nodes} and --vary nodes both set the nodes. Give one of them.")


def _example(name: str) -> str:
    return "4,8" if name == NODES else "10GB,20GB"


def _nodes(text: str, word: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word) or int(word) < 1:
        raise UsageError(f"--vary '{text}': '{word}' is no number of nodes. Write a whole number from 1.")
    return int(word)


def _size(text: str, word: str) -> int:
    try:
        return parse_bytes(word)
    except UsageError as error:
        raise UsageError(f"--vary '{text}': {error}") from None


EXAMPLES = """\
examples:
  dlio-bench simulate --scenario S2
  dlio-bench simulate --scenario S2 --pfs-clients published
  dlio-bench simulate imagenet --nodes 64 --system mine.toml --policy clairvoyant,cooperative
  dlio-bench simulate imagenet --nodes 16 --system sc21 --tiers staging=4GB,ram=10GB,disk=40GB
  dlio-bench simulate --scenario S4 --vary ram=0GB,25GB,50GB --vary disk=0GB,100GB,200GB --out what-if
  dlio-bench simulate imagenet --nodes 16 --epochs 90 --system deck --policy lower-bound --accesses 0.8
  dlio-bench simulate --control-tree 27360
  dlio-bench simulate --control-tree 27360 --all-reduce 175MB --system summit --compute emulate:400ms
"""


def _radices(text: str) -> tuple[int, ...]:
    """'0,2' -> (0, 2). UsageError."""
    radices = tuple(opt.parse_count(word, least=0) for word in text.split(","))
    if 1 in radices:
        raise UsageError(f"'{text}': a rank of a tree has at least 2 children; 0 means a flat one.")
    return radices


class Options(Struct, frozen=True, kw_only=True):
    """None: chosen by the command."""

    workload: Annotated[
        str | None, opt.argument("WORKLOAD", "a workload at its published size (or --scenario)", nargs="?")
    ] = None
    variant: Annotated[
        str | None, opt.option("which layout of the workload's data (default: the first of `list`)", metavar="NAME")
    ] = None
    scenario: Annotated[
        str | None, opt.option("S1, S2, S3 or S4 of the published simulations, or imagenet22k", metavar="NAME")
    ] = None
    nodes: Annotated[int | None, opt.count("N", "nodes (default: the scenario's)"), opt.Group("the job")] = None
    epochs: Annotated[int | None, opt.count("E", "epochs (default: the scenario's; 3 for a workload)")] = None
    seed: Annotated[int, opt.count("S", "seed of orders and sizes (default 1)", least=0, most=2**63 - 1)] = 1
    system: Annotated[
        str | None,
        opt.option(f"TOML description, or one of {', '.join(SYSTEMS)} (default: the scenario's)", metavar="FILE"),
        opt.Group("the machine"),
    ] = None
    tiers: Annotated[
        Mapping[str, int],
        opt.option(
            "replace tier sizes, for example ram=10GB,disk=40GB", metavar="NAME=SIZE[,...]", type=opt.parse_tiers
        ),
    ] = {}
    pfs_clients: Annotated[
        str,
        opt.option(
            "how readers share the parallel file system. conserved (default): all nodes read, and the threads of a "
            "node share its part of the bandwidth. worst: every thread gets that part, as in the worst case of the "
            "papers. published: as the published simulator counted",
            choices=("conserved", "worst", "published"),
        ),
    ] = "conserved"
    compute: Annotated[
        str | None,
        opt.option(
            "step time of a workload, as in `run`: emulate:DEVICE, emulate:50ms or emulate:@FILE (default: what the "
            "system says)",
            metavar="HOW",
        ),
    ] = None
    policy: Annotated[
        str,
        opt.option(
            "what to predict, by the names of `run --reader`; with --pfs-clients published, naive is shuffled and "
            "staging-pool is double-buffer (default all)",
            metavar="NAME[,NAME...]",
        ),
        opt.Group(""),
    ] = "all"
    vary: Annotated[
        tuple[Axis, ...],
        opt.option(
            "predict a what-if grid: other numbers of nodes or tier sizes, for example nodes=4,8,16 or ram=0GB,10GB. "
            "Given once: a table of the policies. Twice: a heat map for each policy, the first across, the second "
            "down. Three times: a map for each value of the third",
            metavar="NAME=V,V",
            type=parse_axis,
            action="append",
        ),
    ] = ()
    accesses: Annotated[
        float | None,
        opt.option(
            "also count how often one node reads each sample, beside the binomial distribution, and how many samples "
            "it reads more than 1 + D times the mean, for example 0.8",
            metavar="D",
            type=float,
        ),
    ] = None
    out: Annotated[
        Path | None,
        opt.option(
            "write simulation.json and report.html to this folder, or control-tree.json", metavar="FOLDER", type=Path
        ),
    ] = None
    control_tree: Annotated[
        int | None,
        opt.count(
            "RANKS",
            "count the messages by which so many ranks agree on a tensor, on SC'18's tree and without one",
            least=2,
            most=MOST_RANKS,
        ),
        opt.Group("how ranks agree on gradients and add them up (nothing else is simulated then)"),
    ] = None
    all_reduce: Annotated[
        int | None,
        opt.size(
            "with --control-tree: how long these ranks of --system add up so many bytes of gradients, by the "
            "alpha-beta model, and with --compute emulate:TIME what a step keeps with a lag of 0 and 1",
            least=1,
        ),
    ] = None
    radix: Annotated[
        tuple[int, ...],
        opt.option(
            "children of a rank of the tree; 0: all ranks are (default 0,2,4,8)",
            metavar="R[,R...]",
            type=_radices,
        ),
    ] = (0, 2, 4, 8)
    json: Annotated[opt.Json, opt.Group("")] = False


def _run(given: opt.Given) -> int:
    options = Options(**given)
    if not given.keys() & {"control_tree", "radix", "all_reduce"}:
        from dlio_bench.harness.simulator.command import simulate

        return simulate(options)
    if options.control_tree is None:
        raise UsageError("--radix and --all-reduce need a number of ranks. Add --control-tree RANKS.")
    if options.all_reduce is not None and options.system is None:
        raise UsageError("--all-reduce needs the rates of a machine. Add --system, as in --system summit.")
    others = ["workload", "variant", "scenario", "nodes", "epochs", "vary", "accesses"]
    others += [] if "all_reduce" in given else ["system", "compute"]
    if other := next((name for name in others if name in given), None):
        flag = "WORKLOAD" if other == "workload" else f"--{other}"
        raise UsageError(f"--control-tree counts messages and simulates no reader. Use it without {flag}.")
    return _count_control_tree(options, options.control_tree)


def _count_control_tree(options: Options, ranks: int) -> int:
    from dlio_bench.harness.ground.folders import output_folder
    from dlio_bench.harness.simulator import control_tree
    from dlio_bench.reports.document.typed import to_json
    from dlio_bench.reports.simulation.control_tree import NAME, render, save

    document = control_tree.count_messages(ranks, options.radix)
    if options.all_reduce is not None and options.system is not None:
        from dlio_bench.harness.cluster.system import load_system
        from dlio_bench.harness.simulator.all_reduce import all_reduce_sums

        step = None if options.compute is None else parse_seconds(options.compute.removeprefix("emulate:"))
        sums = all_reduce_sums(ranks, options.all_reduce, load_system(options.system), step)
        document = structs.replace(document, sums=sums)
    if options.out is not None:
        with output_folder(options.out, "simulate") as folder:
            save(document, folder / NAME)
    print(json.dumps(to_json(document), indent=1) if options.json else render(document))
    if options.out is not None and not options.json:
        print(f"\n  results  {options.out / NAME}")
    return 0


SIMULATE = opt.Command(
    "simulate",
    "predict readers on the performance model, without running them",
    "Predict how long the input of a job takes with each policy, on a machine that a file describes.",
    Options,
    _run,
    EXAMPLES,
)
