"""What a run tells: the plan before it, the draft of a result after it."""
