"""What a run is asked for: options, request, data, sizing, and the jobs for the ranks."""
