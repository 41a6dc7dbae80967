"""The defaults of options, for the code and for the help texts."""

STEPS = 16  # of a rank in a trial at least; batches shrink until an epoch has as many
TIMED_STEPS, TIMED_SECONDS = 64, 5.0  # of a trial: shorter ones fit into the first staging buffer, and show nothing
MOST_BYTES = 5_000_000_000  # of a dataset that a run makes

TRIALS, FEW_TRIALS, TINY_TRIALS, WARMUP_TRIALS = 5, 3, 1, 1
MOST_SECONDS = 60.0  # of all trials of a reader: with longer ones it has only FEW_TRIALS

MOST_THREADS = 32  # of a rank: while threads wait for storage they cost nothing
STAGING_BYTES = 256_000_000  # of a rank, if two batches fit into it
OF_MEMORY = 0.4  # of a node's memory at most, for a RAM tier
OF_FREE = 0.5  # of what is free where a tier lies, at most
