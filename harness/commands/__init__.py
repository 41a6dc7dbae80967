"""The commands of the command line, a room each."""
