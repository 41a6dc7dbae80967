"""The client cache's bookkeeping against a model that holds a set of pages for each block."""

from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.storage.pfs.cache import BLOCK, PAGE, ClientCache, Taken


class Naive:
    """Blocks in order of use, each a set of page numbers; every byte is looked at."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: list[tuple[tuple[str, int], set[int]]] = []

    def take(self, file: str, offset: int, length: int) -> Taken:
        hit = 0
        for key in sorted({(file, at // BLOCK) for at in (*range(offset, offset + length, PAGE), offset + length - 1)}):
            held = next((pages for other, pages in self.blocks if other == key), set())
            start, end = max(offset, key[1] * BLOCK), min(offset + length, (key[1] + 1) * BLOCK)
            touched = set(range(start // PAGE, (end - 1) // PAGE + 1))
            hit += sum(min(end, (page + 1) * PAGE) - max(start, page * PAGE) for page in touched & held)
            self.blocks = [entry for entry in self.blocks if entry[0] != key] + [(key, held | touched)]
            while self.used() > self.capacity:
                self.blocks.pop(0)
        return Taken(hit, length - hit)

    def used(self) -> int:
        return sum(len(pages) for _, pages in self.blocks) * PAGE


READS = st.tuples(st.sampled_from("ab"), st.integers(0, 4 * BLOCK), st.integers(1, 2 * BLOCK + 5000))
SMALL = st.tuples(st.sampled_from("ab"), st.integers(0, 5 * PAGE), st.integers(1, 3 * PAGE))


@given(
    st.lists(READS | SMALL, max_size=25), st.sampled_from([PAGE, BLOCK - PAGE, 2 * BLOCK, 3 * BLOCK + 1, 100 * BLOCK])
)
def test_it_counts_as_the_model_does(reads: list[tuple[str, int, int]], capacity: int) -> None:
    cache, model = ClientCache(capacity), Naive(capacity)
    for file, offset, length in reads:
        assert cache.take(file, offset, length) == model.take(file, offset, length)
        assert cache.used_bytes == model.used() <= capacity


def test_the_least_recently_used_block_goes_first() -> None:
    cache = ClientCache(2 * BLOCK)
    cache.take("f", 0, 2 * BLOCK)
    cache.take("f", 0, 1)  # block 1 is the oldest now
    cache.take("g", 0, BLOCK)
    assert cache.take("f", 0, BLOCK) == (BLOCK, 0)
    assert cache.take("f", BLOCK, BLOCK) == (0, BLOCK)


def test_no_capacity_holds_nothing_and_clear_forgets() -> None:
    none = ClientCache(0)
    assert [none.take("f", 0, 5), none.take("f", 0, 5)] == [(0, 5), (0, 5)]
    cache = ClientCache(BLOCK)
    cache.take("f", 0, PAGE)
    cache.clear()
    assert cache.used_bytes == 0
    assert cache.take("f", 0, PAGE) == (0, PAGE)
