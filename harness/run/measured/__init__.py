"""What the ranks of a run do and measure."""
