"""One run: sized, launched, timed, checked, and written down."""
