"""An emulated parallel file system on one machine: one slow, counted mount for each virtual node."""
