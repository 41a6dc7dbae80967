"""Results beside each other: readers of one run, before and after, and a history."""
