"""What `dlio-bench trace` shows: spans of runs, logs of TimeLogger and Darshan, the I/O of a command."""
