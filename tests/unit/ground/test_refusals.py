"""A name that is not known is answered with the nearest one; what commands refuse is told in one golden text."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio_bench.errors import UsageError, require_at_least, unknown
from tests.goldens import GOLDEN

REFUSED = (GOLDEN / "refusals.txt").read_text("utf-8").split("\n\n")


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.partition("\n")[0])
def test_a_command_that_cannot_be_is_refused_in_the_golden_paragraph(
    row: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """`# 4` behind a command is its status, where that is not 2; `...` is what machines and lists of names decide;
    `<golden>` is the folder of the golden results.

    To accept a change of wording, write the new text into tests/golden/refusals.txt and read its difference.
    """
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    command, says = row.strip().split("\n")
    command, _, status = command.removeprefix("$ ").partition(" # ")
    words = shlex.split(command.replace("<golden>", str(GOLDEN)))
    told = refused(*words, status=int(status or 2)).removeprefix("dlio-bench: ")
    expected = ".*".join(map(re.escape, says.replace("<here>", str(tmp_path)).split("...")))
    assert re.fullmatch(expected, told), f"{told!r} is not {says!r}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]  # nothing was made
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize(
    ("what", "name", "known", "message"),
    [
        ("workload", "CBD", ["cdb", "x"], "There is no workload 'CBD'. Did you mean 'cdb'? Use cdb or x."),
        ("scenario", "s2x", ["S1", "S2"], "There is no scenario 's2x'. Did you mean 'S2'? Use S1 or S2."),
        ("--fill", "zzz", ["random"], "--fill 'zzz' is not known. Use random."),
        ("--sync", "zzz", ["step", "epoch", "none"], "--sync 'zzz' is not known. Use step, epoch or none."),
    ],
)
def test_an_unknown_name(what: str, name: str, known: list[str], message: str) -> None:
    assert str(unknown(what, name, known)) == message


def test_an_option_that_is_too_small_is_named() -> None:
    require_at_least(1, nodes=1, ranks_per_node=None)
    with pytest.raises(UsageError, match="--ranks-per-node 0 is too small: it must be at least 1"):
        require_at_least(1, nodes=1, ranks_per_node=0)
