"""`python -m dlio_bench`, and the console script `dlio-bench`."""

import sys

from dlio_bench import interruption


def main() -> int:
    """The command line, and an answer to those who interrupt it while it loads."""
    try:
        interruption.listen()
        from dlio_bench.harness import cli

        interruption.check()
    except KeyboardInterrupt:
        print("dlio-bench: Interrupted before it began.", file=sys.stderr)
        return 4  # as for every interruption
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
