"""An emulated parallel file system one slow, counted mount for each virtual node or real host."""
