"""What the cells of docs/notebooks call: engines, training, search, live views, studies of readers."""
