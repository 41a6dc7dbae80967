"""How ranks agree on gradients and add them up, by models: the document of `simulate --control-tree`, and its text."""

import json
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import Amount, Count, Share, Some, convert, load_json, require_schema, to_json
from dlio_bench.reports.view.formatting import NOTHING, format_share, format_time, join_words
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

NAME = "control-tree.json"
SCHEMA = "dlio-bench/control-tree/1"
FIX = "Count again with dlio-bench simulate --control-tree"
SOURCE = "Kurth et al., SC'18, and the Horovod of its authors (HOROVOD_CONTROL_RADIX)"


class Tree(Struct, frozen=True, kw_only=True):
    """Messages of one tensor. root_in, root_out: of rank 0; most_in, most_out: of the rank that has most; messages: of
    all ranks; depth: messages in a row from the farthest rank to rank 0. radix 0: all ranks talk to rank 0.
    """

    radix: Count
    root_in: Count
    root_out: Count
    most_in: Count
    most_out: Count
    messages: Count
    depth: Count


class Sum(Struct, frozen=True, kw_only=True):
    """One way to add gradients up, in seconds. leaders: of a node; 0 where all ranks are alike. kept, kept_lagged:
    compute over the whole step, without and with a lag of one step; None where compute was not told.
    """

    way: Literal["ring", "tree", "by node"]
    leaders: Count
    seconds: Amount
    kept: Share | None = None
    kept_lagged: Share | None = None


class Sums(Struct, frozen=True, kw_only=True):
    """All-reduces of `nbytes` on the alpha-beta model. estimated: keys of the system whose numbers no source gives."""

    system: str
    nbytes: Some
    step_seconds: Amount | None
    estimated: list[str]
    ways: list[Sum]


class ControlTree(Struct, frozen=True, kw_only=True):
    """Trees over so many ranks. sums: None where --all-reduce was not given."""

    schema: Literal["dlio-bench/control-tree/1"] = "dlio-bench/control-tree/1"
    ranks: Some
    trees: Annotated[list[Tree], Meta(min_length=1)]
    source: str = SOURCE
    sums: Sums | None = None


def save(document: ControlTree, path: Path) -> None:
    """Write the document as JSON, whole or not at all. EnvironmentFailure."""
    write_whole(path, (json.dumps(to_json(document), indent=1) + "\n").encode())


def load(path: Path) -> ControlTree:
    """The document in a file. UsageError where there is none, EnvironmentFailure, DataError for a damaged one."""
    document = load_json(path, FIX)
    require_schema(document, [SCHEMA], str(path), FIX)
    try:
        return convert(document, ControlTree)
    except ValueError as error:
        raise DataError(f"'{path}' does not follow {SCHEMA}: {error}. {FIX}.") from error


def render(document: ControlTree) -> str:
    """The document as text, at most 80 columns."""
    lines = wrap(
        f"Control messages until {document.ranks} ranks agree on one tensor, counted on the tree ({document.source}). "
        "No time is modelled.",
        hang=2,
    )
    heads = ["radix", "rank 0 in", "rank 0 out", "most in", "most out", "depth"]
    rows = [
        [tree.radix or "flat", tree.root_in, tree.root_out, tree.most_in, tree.most_out, tree.depth]
        for tree in document.trees
    ]
    lines += ["", *table_lines(heads, rows)]
    if (sums := document.sums) is not None:
        told = f"All-reduces of {format_bytes(sums.nbytes)} on {sums.system}, by the alpha-beta model"
        if sums.step_seconds is not None:
            told += f"; kept: {format_time(sums.step_seconds)} of compute over the step"
        guessed = f" Estimated: {join_words(sums.estimated)}." if sums.estimated else ""
        lines += ["", *wrap(f"{told}.{guessed}", hang=2), ""]
        kept = [
            [way.way, way.leaders or "all", format_time(way.seconds)]
            + [NOTHING if share is None else format_share(share) for share in (way.kept, way.kept_lagged)]
            for way in sums.ways
        ]
        lines += table_lines(["way", "leaders", "all-reduce", "kept, lag 0", "kept, lag 1"], kept)
    return "\n".join(lines)
