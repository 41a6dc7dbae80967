"""The options of `dlio-bench couple`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground.arguments import Commands, values_of
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, parse_spec
from dlio_bench.refusals import unknown

SIMULATIONS = ("grayscott",)
WAYS = ("files", "bp", "sst")
EXAMPLES = """\
examples:
  dlio-bench couple grayscott --emulate-pfs bandwidth=100MB/s,open=1ms
  dlio-bench couple grayscott --through files,sst --consumers 3 --kernel numba
  dlio-bench couple grayscott --through files --tiny
  dlio-bench couple grayscott --steps 1000 --trials 3 --dry-run
"""


def add_couple(commands: Commands) -> None:
    """`couple`."""
    parser = commands.add_parser(
        "couple",
        help="couple a simulation with the training of its digital twins, through files and streams, and compare",
        description="Run a simulation whose outputs train one to three digital twins while it runs, coupled through "
        "files, BP files or an SST stream of ADIOS2, in turn. Compare each with both sides alone, and say what the "
        "shared file system carried.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "simulation", metavar="SIMULATION", help="grayscott: reaction and diffusion in three dimensions"
    )
    parser.add_argument(
        "--through",
        type=_ways,
        default=WAYS,
        metavar="WAY[,...]",
        help="files, bp or sst, or several to compare (default files,bp,sst; bp and sst need ADIOS2)",
    )
    sides = parser.add_argument_group("the two sides")
    sides.add_argument("--size", type=int, metavar="L", help="cells of an edge (default 64, as published)")
    sides.add_argument("--steps", type=int, metavar="N", help="time steps (default 200; published: 1000)")
    sides.add_argument("--plotgap", type=int, metavar="N", help="steps from one output to the next (default 10)")
    sides.add_argument("--producers", type=int, default=1, metavar="R", help="ranks of the solver (default 1)")
    sides.add_argument("--consumers", type=int, default=1, metavar="N", help="twins, 1 to 3 (default 1)")
    sides.add_argument(
        "--train-steps-per-output",
        type=int,
        default=1,
        metavar="N",
        help="training steps of a twin for each output (default 1)",
    )
    sides.add_argument(
        "--kernel", default="numpy", metavar="NAME", help="the solver's kernel: numpy or numba (default numpy)"
    )
    how = parser.add_argument_group("the coupling")
    how.add_argument(
        "--queue",
        type=int,
        default=4,
        metavar="N",
        help="outputs that the solver may be ahead of the slowest twin before it waits (default 4; 0: any number). BP "
        "files have no such limit",
    )
    how.add_argument(
        "--emulate-pfs",
        type=parse_spec,
        metavar="SPEC",
        help=f"put the files on an emulated parallel file system, such as '{EXAMPLE}'; needs FUSE. A node for the "
        "solver and one for each twin share it",
    )
    how.add_argument(
        "--exchange-dir",
        type=Path,
        metavar="DIR",
        help="make the files in a folder of this one (default: the temporary folder)",
    )
    trust = parser.add_argument_group("trials")
    trust.add_argument(
        "--trials",
        type=int,
        metavar="T",
        help=f"timed trials; in each all ways and both sides alone take turns (default {defaults.TRIALS})",
    )
    trust.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the noise and of the twins (default 0)"
    )
    trust.add_argument(
        "--tiny",
        action="store_true",
        help="16 cells of an edge, 4 outputs, one trial: a smoke test that measures nothing",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (default dlio-results/TIME-NAME)")
    output.add_argument("--dry-run", action="store_true", help="print what would be run, and end")
    output.add_argument("--json", action="store_true", help="print JSON")


def run_couple(options: argparse.Namespace) -> int:
    """`couple`."""
    from dlio_bench.harness.coupling.command import Options, couple

    return couple(Options(**values_of(options)))


def _ways(text: str) -> tuple[str, ...]:
    """'files,sst' -> its words. UsageError."""
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in WAYS:
            raise unknown("--through", word, WAYS)
    if len(set(words)) < len(words):
        raise UsageError(f"--through {text} names a way twice. Name each once.")
    return words
