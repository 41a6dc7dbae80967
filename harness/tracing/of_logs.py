"""`dlio-bench trace` of logs of TimeLogger."""

import argparse
import csv
import io
import json

from msgspec.structs import astuple

from dlio_bench.errors import DataError
from dlio_bench.wrapping import cell


def run(options: argparse.Namespace) -> int:
    """Print the study's accountings, and write the records as its table; DataError.status where records are damaged."""
    from dlio_bench.reports import timelogger, trace_text
    from dlio_bench.reports.files import write_whole

    log = timelogger.load(options.paths)
    if options.csv is not None:
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(timelogger.HEADER)
        writer.writerows(
            [cell(value) if isinstance(value, str) else value for value in astuple(span)] for span in log.spans
        )
        write_whole(options.csv, table.getvalue().encode())
    shown = trace_text.account(log, options.nodes)
    print(json.dumps(trace_text.document(shown)) if options.json else trace_text.render(shown), end="")
    return DataError.status if log.problems else 0
