"""`python -m dlio_bench` is the console script `dlio-bench`."""

from dlio_bench.harness.cli import main

raise SystemExit(main())
