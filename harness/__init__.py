"""How it is run and timed."""
