"""What this machine has: memory, mounted file systems, control groups."""
