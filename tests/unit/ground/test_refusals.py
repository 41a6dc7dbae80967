"""A name that is not known is answered with the nearest one and with all that there are."""

import pytest

from dlio_bench.errors import UsageError, require_at_least, unknown


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
