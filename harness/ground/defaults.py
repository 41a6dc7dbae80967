"""What commands take if nobody says otherwise: kept once, for the code and for the help texts."""

STEPS = 16  # a rank and trial at least, and what an epoch should have before its batch shrinks
TIMED_STEPS, TIMED_SECONDS = 64, 5.0  # of a trial: shorter ones lie within the first staging buffer, and tell nothing
MOST_BYTES = 5_000_000_000  # of a dataset made without being asked for

TRIALS, FEW_TRIALS, TINY_TRIALS, WARMUP_TRIALS = 5, 3, 1, 1
MOST_SECONDS = 60.0  # of a reader's trials, with which five of them are the default

MOST_THREADS = 32  # of a rank: they sleep while storage keeps them waiting, and then cost nothing
STAGING_BYTES = 256_000_000  # a rank, where batches fit into it
OF_MEMORY = 0.4  # of a node's memory at most, for a RAM tier
OF_FREE = 0.5  # of what is free where a tier lies, at most
