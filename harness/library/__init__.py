"""The readers for people's own programs: `dlio_bench.load`."""
