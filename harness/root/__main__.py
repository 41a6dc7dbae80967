"""`python -m dlio_bench` is the console script `dlio-bench`."""

import sys

try:
    from dlio_bench.harness.cli import main
except KeyboardInterrupt:
    print("dlio-bench: Interrupted before it began.", file=sys.stderr)
    sys.exit(4)  # as for every interruption

raise SystemExit(main())
