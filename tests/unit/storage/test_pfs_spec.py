"""The description of an emulated file system: read from the command line, told in words."""

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, PfsSpec, describe, parse_spec

WHOLE = PfsSpec(400e6, 250e6, 1e-3, 0.3e-3, 2_000_000_000, 800e6, opens=2000.0)


def test_all_keys() -> None:
    assert parse_spec(EXAMPLE) == WHOLE
    assert parse_spec(EXAMPLE.replace(",", " , ").replace("=", " = ")) == WHOLE


def test_only_bandwidth_is_needed() -> None:
    assert parse_spec("bandwidth=1GiB/s") == PfsSpec(2.0**30)
    assert parse_spec("bandwidth=unlimited,open=0") == PfsSpec(None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bandwith=4MB/s", "Did you mean 'bandwidth'"),
        ("bandwidth=4MB/s,speed=3", "'speed' is not one of its keys"),
        ("bandwidth=0MB/s", "bandwidth=0MB/s: A rate of 0"),
        ("bandwidth=4MB/s,per-node=0", "per-node=0: A rate of 0"),
        ("bandwidth=4MB/s,opens=0/s", "opens=0/s: Write opens a second as a positive number, such as 2000/s"),
        ("bandwidth=4MB/s,opens=many", "opens=many: Write opens a second"),
        ("bandwidth=4MB/s,via=proces", "via=proces: It is none of auto, process, fuse. Did you mean 'process'"),
        ("bandwidth=4MB/s,bandwidth=4MB/s", "'bandwidth' is given twice"),
        ("bandwidth=400", "bandwidth=400: '400' has no unit. Write a number and a unit, such as 400MB/s"),
        ("bandwidth=4MB/s,cache=3", "cache=3: '3' has no unit"),
        ("bandwidth=4MB/s,open=-3ms", "open=-3ms: '-3ms' is not a time"),
        ("bandwidth=4MB/s,cache", "'cache' has no value"),
        ("bandwidth=4MB/s,", "'' is not one of its keys"),
        ("open=1ms", "'bandwidth' is missing"),
        ("", "'' is not one of its keys"),
        ("bandwidth=4MB/s,cache-bandwidth=1GB/s", "means nothing without a cache"),
    ],
)
def test_what_is_refused_is_named_with_a_fix(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_spec(text)
    assert says in str(refused.value)
    assert EXAMPLE in str(refused.value)


def test_words() -> None:
    assert describe(WHOLE) == (
        "400 MB/s shared by all nodes, 250 MB/s a node, 1 ms an open, 2000 opens/s shared by all nodes, "
        "300 µs a request of 1 MiB, a client cache of 2 GB a node at 800 MB/s"
    )
    assert describe(PfsSpec(None)) == "unlimited bandwidth, no client cache"
