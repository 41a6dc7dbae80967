"""How many emulated accelerators a storage feeds: `dlio-bench capacity`."""
