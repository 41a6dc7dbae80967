"""Bytes in and out of files: extent reads, page-cache control, counters."""
