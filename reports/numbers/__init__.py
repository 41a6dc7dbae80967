"""What the numbers of a result mean: metrics, their statistics and intervals, and what bound a run."""
