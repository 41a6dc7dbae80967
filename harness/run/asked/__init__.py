"""What a run is asked for."""
