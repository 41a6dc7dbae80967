"""`python -m dlio_bench` is the console script `dlio-bench`."""

import sys

from dlio_bench import interruption

try:
    interruption.listen()
    from dlio_bench.harness.cli import main

    interruption.check()
except KeyboardInterrupt:
    print("dlio-bench: Interrupted before it began.", file=sys.stderr)
    sys.exit(4)  # as for every interruption

raise SystemExit(main())
