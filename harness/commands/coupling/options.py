"""The options of `dlio-bench couple`. Heavy imports wait until the command runs."""

from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.harness.ground import defaults, starting
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, PfsSpec, parse_spec

SIMULATIONS = ("grayscott",)
KERNELS = ("numpy", "numba")
WAYS = ("files", "bp", "sst")
EXAMPLES = """\
examples:
  dlio-bench couple grayscott --emulate-pfs bandwidth=100MB/s,open=1ms
  dlio-bench couple grayscott --through files,sst --consumers 3 --kernel numba
  dlio-bench couple grayscott --through files --tiny
  dlio-bench couple grayscott --steps 1000 --trials 3 --dry-run
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: chosen by the command."""

    simulation: Annotated[
        str,
        opt.argument(
            "SIMULATION",
            "grayscott: reaction and diffusion in three dimensions",
            type=partial(opt.parse_choice, known=SIMULATIONS),
        ),
    ]
    through: Annotated[
        tuple[str, ...],
        opt.names(
            "files, bp or sst, or several to compare (default files,bp,sst; bp and sst need ADIOS2)",
            known=WAYS,
            metavar="WAY[,...]",
        ),
    ] = WAYS
    size: Annotated[
        int | None, opt.count("L", "cells of an edge (default 64, as published)"), opt.Group("the two sides")
    ] = None
    steps: Annotated[int | None, opt.count("N", "time steps (default 200; published: 1000)")] = None
    plotgap: Annotated[int | None, opt.count("N", "steps from one output to the next (default 10)")] = None
    producers: Annotated[int, opt.count("R", "ranks of the solver (default 1)")] = 1
    consumers: Annotated[int, opt.count("N", "twins, 1 to 3 (default 1)")] = 1
    train_steps_per_output: Annotated[int, opt.count("N", "training steps of a twin for each output (default 1)")] = 1
    kernel: Annotated[str, opt.choice("NAME", "the solver's kernel: numpy or numba (default numpy)", KERNELS)] = "numpy"
    queue: Annotated[
        int,
        opt.count(
            "N",
            "outputs that the solver may be ahead of the slowest twin before it waits (default 4; 0: any number). BP "
            "files have no such limit",
            least=0,
        ),
        opt.Group("the coupling"),
    ] = 4
    emulate_pfs: Annotated[
        PfsSpec | None,
        opt.option(
            f"put the files on an emulated parallel file system, such as '{EXAMPLE}'; needs FUSE. A node for the "
            "solver and one for each twin share it",
            metavar="SPEC",
            type=parse_spec,
        ),
    ] = None
    exchange_dir: Annotated[
        Path | None, opt.folder("make the files in a folder of this one (default: the temporary folder)")
    ] = None
    trials: Annotated[
        int | None,
        opt.count("T", f"timed trials; in each all ways and both sides alone take turns (default {defaults.TRIALS})"),
        opt.Group("trials"),
    ] = None
    seed: Annotated[int, opt.count("N", "seed of the noise and of the twins (default 0)", least=0, most=2**31 - 1)] = 0
    tiny: Annotated[bool, opt.flag("16 cells of an edge, 4 outputs, one trial: a smoke test that measures nothing")] = (
        False
    )
    out: Annotated[
        Path | None, opt.folder("folder of the result (default dlio-results/TIME-NAME)"), opt.Group("output")
    ] = None
    dry_run: Annotated[bool, opt.flag("print what would be run, and end")] = False
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.coupling.command import couple

    return couple(Options(**given))


COUPLE = opt.Command(
    "couple",
    "couple a simulation with the training of its digital twins, through files and streams, and compare",
    "Run a simulation whose outputs train one to three digital twins while it runs, coupled through files, BP files "
    "or an SST stream of ADIOS2, in turn. Compare each with both sides alone, and say what the shared file system "
    "carried.",
    Options,
    _run,
    EXAMPLES,
    process=starting.RANKS,
)
