"""Streams: producers read the dataset once and publish its samples; trainers subscribe."""
