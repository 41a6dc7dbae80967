"""`python -m dlio_bench`, and the console script `dlio-bench`."""

import sys

from dlio_bench import signals


def main() -> int:
    """The command line, and an answer to those who interrupt it while it loads or ends."""
    try:
        signals.listen()
        try:
            from dlio_bench.harness import cli
        finally:
            signals.check()  # extension modules turn it into an ImportError of theirs
        return cli.main()
    except KeyboardInterrupt:  # the command line catches those that come while it works
        print("dlio-bench: Interrupted.", file=sys.stderr)
        return 4  # as for every interruption


if __name__ == "__main__":
    raise SystemExit(main())
