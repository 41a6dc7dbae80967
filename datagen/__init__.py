"""What the bytes are: layouts, containers, generation, the manifest and what reads it."""
