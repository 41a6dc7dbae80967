"""What a run says of itself while it is at work, in a file of its folder; `watch` shows it."""
