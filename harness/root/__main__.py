"""`python -m dlio_bench`, and the console script `dlio-bench`."""

import sys

from dlio_bench import signals


def main() -> int:
    """Run the command line. An interruption while it loads or ends also gets an answer."""
    try:
        signals.listen()
        try:
            from dlio_bench.harness import cli
        finally:
            signals.check()  # extension modules turn an interruption into an ImportError
        status = cli.main()
        signals.end()
    except KeyboardInterrupt:  # while it works, the command line itself catches them
        print(f"dlio-bench: {signals.interrupt_reason()}.", file=sys.stderr)
        return 4  # as for every interruption
    return status


if __name__ == "__main__":
    raise SystemExit(main())
