"""Step times of a real network on this machine, measured by batch size: a compute profile."""
