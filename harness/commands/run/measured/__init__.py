"""What the ranks of a run do and measure: the timed loop, trials, checks of bytes."""
