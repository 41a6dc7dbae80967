"""`dlio-bench trace` of files of spans without a result: what ranks did until their run was stopped."""

import argparse
import json

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.tracing import span_files


def run(options: argparse.Namespace) -> int:
    """Print how far the ranks came and what they did, and write a trace; DataError.status where spans are damaged."""
    from dlio_bench.reports import timeline, timeline_text

    if options.chrome is not None and len(options.paths) > 1:
        raise UsageError(f"--chrome is of one file of spans, but {len(options.paths)} are here. Name one.")
    loaded = [timeline.load(path) for path in options.paths]
    documents, texts = [], []
    for path, spans in zip(options.paths, loaded, strict=True):
        files = [] if options.chrome is None else [span_files.chrome_of_spans(options, spans)]
        documents.append(timeline_text.document(spans) | {"files": files})
        texts.append(timeline_text.render(spans, str(path)) + span_files.told(files))
    print(json.dumps(documents) if options.json else "\n".join(texts), end="")
    return DataError.status if any(spans.damaged for spans in loaded) else 0
