"""Who reads which sample when: pure functions that return arrays."""
