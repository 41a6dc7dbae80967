"""What a run tells: plans before it, results after it."""
