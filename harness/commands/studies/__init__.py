"""`reproduce`: studies of published figures, their commands in a folder, their verdicts."""
