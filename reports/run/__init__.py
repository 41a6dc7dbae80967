"""A run's results as text, page, figures and Markdown."""
